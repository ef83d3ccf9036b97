//! The rules.

use super::*;
use crate::base::clock;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;

const ZONE: &str = "topology.example.com/zone";
const OWNER: NodeOwner<'static> = NodeOwner { name: "n", uid: "uid-1" };

fn facts(node_id: &str, limit: i64, topology: &[(&str, &str)]) -> DriverFacts {
    DriverFacts::checked("d", info(node_id, limit, topology)).unwrap()
}

fn wanted(drivers: &[(&str, DriverFacts)]) -> WantedDrivers {
    let drivers = drivers.iter();
    drivers.map(|(name, facts)| ((*name).to_owned(), facts.clone())).collect()
}

fn step(existing: Option<&CSINode>, wanted: &WantedDrivers, removed: Option<&str>) -> CsiNodeStep {
    csi_node_step(existing.cloned(), OWNER, wanted, removed)
}

fn created(wanted: &WantedDrivers) -> CSINode {
    match step(None, wanted, None) {
        CsiNodeStep::Create(created) => *created,
        other => panic!("{other:?}"),
    }
}

fn updated(existing: &CSINode, wanted: &WantedDrivers, removed: Option<&str>) -> CSINode {
    match step(Some(existing), wanted, removed) {
        CsiNodeStep::Update(updated) => *updated,
        other => panic!("{other:?}"),
    }
}

fn drivers(csi_node: &CSINode) -> Value {
    json!(csi_node.spec.drivers)
}

#[test]
fn what_a_driver_reports_is_checked_and_the_error_names_driver_and_field() {
    let long = "x".repeat(257);
    let many: Vec<String> = (0..21).map(|number| format!("k{number}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "v")).collect();
    let huge = "x".repeat(1 << 20);
    for (info, field) in [
        (info("", 0, &[]), "node_id"),
        (info(&long, 0, &[]), "node_id"),
        (info("i", 0, &many), "accessible_topology"),
        (info("i", 0, &[("a b", "v")]), "accessible_topology"),
        (info("i", 0, &[("", "v")]), "accessible_topology"),
        (info("i", 0, &[("k", "v/w")]), "accessible_topology"),
        (info("i", 0, &[("k", &huge)]), "accessible_topology"),
        (info("i", 0, &[(&huge, "v")]), "accessible_topology"),
    ] {
        let error = DriverFacts::checked("d.example.com", info).unwrap_err();
        let start =
            format!("NodeGetInfo of CSI driver d.example.com returned an invalid {field}: ");
        assert!(error.starts_with(&start), "{error}");
        assert!(error.len() < 1000, "{error}");
    }
    assert!(DriverFacts::checked("d", info(&long[1..], 0, &many[1..])).is_ok());
}

#[test]
fn a_limit_is_positive_and_at_most_what_the_object_can_hold() {
    for (reported, limit) in [
        (i64::MIN, None),
        (-1, None),
        (0, None),
        (1, Some(1)),
        (2_147_483_647, Some(i32::MAX)),
        (2_147_483_648, Some(i32::MAX)),
        (i64::MAX, Some(i32::MAX)),
    ] {
        assert_eq!(facts("i", reported, &[]).max_volumes, limit);
    }
}

#[test]
fn a_new_object_belongs_to_the_node_and_has_the_drivers_and_the_migrated_plugins() {
    let one = wanted(&[("d", facts("i", 7, &[(ZONE, "a"), ("k", "v")]))]);
    let object = created(&one);
    let expected = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {
            "name": "n",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "uid-1"}],
            "annotations": {"storage.alpha.kubernetes.io/migrated-plugins":
                "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,\
                 kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,\
                 kubernetes.io/vsphere-volume"},
        },
        "spec": {"drivers": [{"name": "d", "nodeID": "i", "topologyKeys": ["k", ZONE],
            "allocatable": {"count": 7}}]},
    });
    assert_eq!(json!(object), expected);
    assert_eq!(step(Some(&object), &one, None), CsiNodeStep::Done);
}

#[test]
fn an_object_of_another_node_object_is_deleted_and_one_without_an_owner_gets_it() {
    let none = WantedDrivers::new();
    let mut object = created(&none);
    object.metadata.uid = Some("u".into());
    object.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-0".into();
    let deleted = CsiNodeStep::Delete(Some("u".into()));
    assert_eq!(step(Some(&object), &none, None), deleted);
    object.metadata.owner_references = None;
    object.metadata.annotations = None;
    let object = updated(&object, &none, None);
    assert_eq!(object.metadata.owner_references, created(&none).metadata.owner_references);
    assert_eq!(object.metadata.annotations, created(&none).metadata.annotations);
}

#[test]
fn a_changed_driver_moves_to_the_end_and_the_others_stay_where_they_are() {
    let (a, b, c) = (facts("a", 1, &[]), facts("b", 0, &[]), facts("c", 0, &[]));
    let object = created(&wanted(&[("a", a.clone()), ("b", b.clone())]));
    let names = |object: &CSINode| -> Vec<String> {
        object.spec.drivers.iter().map(|driver| driver.name.clone()).collect()
    };
    let limited = wanted(&[("a", facts("a", 2, &[])), ("b", b.clone())]);
    let object = updated(&object, &limited, None);
    assert_eq!(names(&object), ["b", "a"]);
    // Those of an earlier kubelet that have not registered yet stay too.
    let object = updated(&object, &wanted(&[("c", c)]), None);
    assert_eq!(names(&object), ["b", "a", "c"]);
    let object = updated(&object, &WantedDrivers::new(), Some("b"));
    assert_eq!(names(&object), ["a", "c"]);
    assert_eq!(step(Some(&object), &WantedDrivers::new(), Some("b")), CsiNodeStep::Done);
}

#[test]
fn an_entry_with_another_node_id_or_topology_is_removed_before_it_is_added_again() {
    let before = facts("i", 1, &[(ZONE, "a")]);
    for after in
        [facts("j", 1, &[(ZONE, "a")]), facts("i", 1, &[("other", "a")]), facts("i", 2, &[])]
    {
        let object = created(&wanted(&[("d", before.clone())]));
        let wanted = wanted(&[("d", after)]);
        let object = updated(&object, &wanted, None);
        assert_eq!(drivers(&object), json!([]));
        let object = updated(&object, &wanted, None);
        assert_eq!(drivers(&object), drivers(&created(&wanted)));
    }
    // The value of a key is not in the object.
    let object = created(&wanted(&[("d", before)]));
    let other = wanted(&[("d", facts("i", 1, &[(ZONE, "b")]))]);
    assert_eq!(step(Some(&object), &other, None), CsiNodeStep::Done);
}

#[test]
fn absent_and_empty_fields_of_an_entry_mean_the_same() {
    let wanted = wanted(&[("d", facts("i", 0, &[]))]);
    let mut object = created(&wanted);
    object.spec.drivers[0].topology_keys = Some(Vec::new());
    object.spec.drivers[0].allocatable = Some(Default::default());
    assert_eq!(step(Some(&object), &wanted, None), CsiNodeStep::Done);
}

fn node(annotation: Option<&str>, labels: Value) -> Node {
    let mut object = json!({"metadata": {"name": "n", "uid": "uid-1", "labels": labels}});
    if let Some(annotation) = annotation {
        object["metadata"]["annotations"] = json!({"csi.volume.kubernetes.io/nodeid": annotation});
    }
    serde_json::from_value(object).unwrap()
}

#[test]
fn the_node_gets_the_drivers_id_and_its_topology() {
    let zone = facts("i", 0, &[(ZONE, "a")]);
    let patch = |ids: Option<&str>, labels: Value| -> Value {
        let patch = node_patch(&node(ids, labels), "d", &zone).unwrap();
        patch.map_or(Value::Null, |patch| patch["metadata"].clone())
    };
    let annotation = |ids: &str| json!({"csi.volume.kubernetes.io/nodeid": ids});
    for (ids, labels, expected) in [
        (
            None,
            json!({}),
            json!({"annotations": annotation(r#"{"d":"i"}"#), "labels": {ZONE: "a"}, "uid": "uid-1"}),
        ),
        (
            Some(r#"{"c":"x"}"#),
            json!({ZONE: "a"}),
            json!({"annotations": annotation(r#"{"c":"x","d":"i"}"#), "uid": "uid-1"}),
        ),
        (Some(r#"{"d": "i"}"#), json!({ZONE: "a"}), Value::Null),
        (
            Some("[garbage"),
            json!({ZONE: "a"}),
            json!({"annotations": annotation(r#"{"d":"i"}"#), "uid": "uid-1"}),
        ),
    ] {
        assert_eq!(patch(ids, labels), expected, "{ids:?}");
    }
}

#[test]
fn a_label_with_another_value_is_a_collision() {
    let labels = json!({ZONE: "w", "k": "v"});
    let error = node_patch(&node(None, labels), "d", &facts("i", 0, &[(ZONE, "v"), ("k", "v")]));
    let expected = "detected topology value collision: driver reported \
        \"topology.example.com/zone\":\"v\" but existing label is \"topology.example.com/zone\":\"w\"";
    assert_eq!(error.unwrap_err(), expected);
}

#[test]
fn the_node_loses_the_drivers_id_and_keeps_its_topology() {
    let removed = |ids: Option<&str>| {
        let patch = node_patch_without(&node(ids, json!({ZONE: "a"})), "d");
        patch.map_or(Value::Null, |patch| patch["metadata"].clone())
    };
    let annotation = |ids: Value| json!({"csi.volume.kubernetes.io/nodeid": ids});
    for (ids, expected) in [
        (None, Value::Null),
        (Some(r#"{"c":"x"}"#), Value::Null),
        (Some(r#"{"d":"i"}"#), json!({"annotations": annotation(Value::Null), "uid": "uid-1"})),
        (
            Some(r#"{"c":"x","d":"i"}"#),
            json!({"annotations": annotation(json!(r#"{"c":"x"}"#)), "uid": "uid-1"}),
        ),
    ] {
        assert_eq!(removed(ids), expected, "{ids:?}");
    }
}

#[tokio::test]
async fn a_driver_is_removed_a_grace_after_its_last_registration_ended() {
    let (grace, now) = (Duration::from_secs(60), clock::instant());
    let mut all = Registrations::default();
    let first = all.begin("d");
    all.set_written("d", facts("i", 0, &[]));
    let second = all.begin("d");
    assert!(all.is_superseded("d", first) && !all.is_superseded("d", second));
    assert!(!all.end("d", first, grace, now));
    assert_eq!(all.next_removal(), None);
    assert!(all.end("d", second, grace, now));
    assert!(!all.end("d", second, grace, now + grace), "it has ended before");
    assert_eq!(all.next_removal(), Some(now + grace));
    assert_eq!(all.due_removals(now + grace / 2), [""; 0]);
    assert_eq!(all.wanted().len(), 1, "it stays in the object");
    let third = all.begin("d");
    assert_eq!(all.due_removals(now + grace), [""; 0]);
    assert!(!all.begin_removal("d"));
    assert!(all.end("d", third, grace, now));
    assert_eq!(all.due_removals(now + grace), ["d"]);
    assert!(all.begin_removal("d"));
    assert_eq!((all.written("d"), all.wanted()), (None, BTreeMap::new()));
    all.end_removal("d", Some(now + grace * 2));
    assert_eq!(all.due_removals(now + grace), [""; 0]);
    // A removal that ends after a registration has begun.
    let fourth = all.begin("d");
    all.end_removal("d", None);
    assert!(all.is_registered("d"));
    assert!(all.end("d", fourth, grace, now));
    assert!(all.begin_removal("d"));
    all.end_removal("d", None);
    assert_eq!(all.next_removal(), None);
}
