use super::resolve::*;
use super::*;
use crate::base::error_chain;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use serde_json::{Map, Value, json};

fn claim(group: Option<u32>) -> ClaimVolume {
    ClaimVolume {
        key: PersistentVolumeClaimKey {
            namespace: "shop".into(),
            name: "data".into(),
            generated_for: None,
        },
        is_mounted: true,
        is_mapped: false,
        read_only: false,
        owner: (VolumeGroup(group), ChangePolicy::Always),
    }
}

fn found(spec: Value, group: Option<u32>, node: Option<&Node>) -> Result<NodePath, String> {
    let volume = json!({"metadata": {"name": "pv1"}, "spec": spec});
    let volume = serde_json::from_value(volume).unwrap();
    node_path("v", &claim(group), &volume, node).map_err(|error| error_chain(&error))
}

#[test]
fn a_device_is_mapped_and_a_file_system_is_mounted() {
    let set_up = r#"MountVolume.SetUp failed for volume "pv1" : "#;
    let block = |source: Value| json!({"volumeMode": "Block", "local": source});
    let disk = || json!({"path": "/dev/sdb"});
    for (spec, is_mounted, is_mapped, expected) in [
        (block(disk()), false, true, Ok(HostPathCheck::BlockDevice)),
        (
            json!({"volumeMode": "Block", "csi": {"driver": "d", "volumeHandle": "h"}}),
            false,
            true,
            Ok(HostPathCheck::None),
        ),
        (
            block(disk()),
            true,
            true,
            Err("volume v has volumeMode Block, but is specified in volumeMounts"),
        ),
        (
            json!({"local": disk()}),
            false,
            true,
            Err("volume v has volumeMode Filesystem, but is specified in volumeDevices"),
        ),
        (
            json!({"volumeMode": "Block", "hostPath": disk()}),
            false,
            true,
            Err(
                r#"spec.volumeMode "Block" beside spec.hostPath of PersistentVolume "pv1" is not supported by this kubelet"#,
            ),
        ),
    ] {
        let text = format!("{spec} {is_mounted} {is_mapped}");
        let volume = json!({"metadata": {"name": "pv1"}, "spec": spec});
        let claim = ClaimVolume { is_mounted, is_mapped, ..claim(Some(7)) };
        let found = node_path("v", &claim, &serde_json::from_value(volume).unwrap(), None);
        match (found, expected) {
            (Ok(path), Ok(check)) => {
                assert_eq!((path.check, path.is_device), (check, true), "{text}");
                assert!(!path.owned && !path.managed && !path.measured, "{text}");
            }
            (found, expected) => {
                let found = found.map(|_| ()).map_err(|error| error_chain(&error));
                let expected = expected.map(|_| ()).map_err(|why| format!("{set_up}{why}"));
                assert_eq!(found, expected, "{text}");
            }
        }
    }
}

#[test]
fn a_group_of_the_volume_is_a_number() {
    for (annotation, expected) in [("1234", Some(1234)), ("wheel", None)] {
        let metadata = json!({"name": "pv1", "annotations": {GROUP: annotation}});
        let volume = json!({"metadata": metadata, "spec": {"hostPath": {"path": "/d"}}});
        let volume = serde_json::from_value(volume).unwrap();
        let found = node_path("v", &claim(None), &volume, None).unwrap();
        assert_eq!(found.group, expected, "{annotation}");
    }
}

#[test]
fn what_is_not_known_yet_is_as_it_was_noted() {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pv1"},
        "spec": {"local": {"path": "/d"}, "nodeAffinity": on("a")},
    }))
    .unwrap();
    let claim = claim(None);
    let recorded = |claim: &str, volume: &str| ResolvedClaim {
        claim: claim.into(),
        volume: volume.into(),
        at: NodePath {
            path: "/recorded".into(),
            check: HostPathCheck::Directory,
            managed: true,
            owned: false,
            measured: true,
            is_device: false,
            group: None,
            of_kind: Map::new(),
        },
    };
    let away = || ClaimError::Unsynced("away".into());
    let gone = || ClaimError::NotBound;
    for (found, recorded, expected) in [
        (Err(away()), Some(recorded("data", "pv1")), Ok("/recorded")),
        (Err(away()), Some(recorded("other", "pv1")), Err("away")),
        (Err(away()), None, Err("away")),
        (Err(gone()), Some(recorded("data", "pv1")), Err("not bound")),
        (Ok(&volume), Some(recorded("data", "pv1")), Ok("/recorded")),
        (Ok(&volume), Some(recorded("data", "pv2")), Err("not known")),
        (Ok(&volume), None, Err("not known")),
    ] {
        let text = format!("{found:?} {recorded:?}");
        match (resolve("v", &claim, found, None, recorded), expected) {
            (Ok(resolved), Ok(path)) => assert_eq!(resolved.at.path, path, "{text}"),
            (Err(error), Err(why)) => {
                assert!(error_chain(&error).contains(why), "{error} {text}")
            }
            (resolved, _) => panic!("{resolved:?} {text}"),
        }
    }
}

fn on(zone: &str) -> Value {
    let expression = json!({"key": "zone", "operator": "In", "values": [zone]});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
}

#[test]
fn a_path_of_the_node_is_one_and_all_else_is_refused_by_its_field() {
    let set_up = r#"MountVolume.SetUp failed for volume "pv1" "#;
    for (spec, group, expected) in [
        (
            json!({"hostPath": {"path": "/d"}}),
            Some(7),
            Ok(("/d", HostPathCheck::None, false, false)),
        ),
        (
            json!({"hostPath": {"path": "/d", "type": "Directory"}, "volumeMode": "Filesystem", "accessModes": ["ReadWriteOnce"]}),
            None,
            Ok(("/d", HostPathCheck::Directory, false, false)),
        ),
        (json!({"local": {"path": "/d"}}), None, Ok(("/d", HostPathCheck::Directory, true, false))),
        (
            json!({"local": {"path": "/d"}}),
            Some(7),
            Ok(("/d", HostPathCheck::Directory, true, true)),
        ),
        (
            json!({"rbd": {"monitors": ["m"], "image": "i"}, "capacity": {"storage": "1Gi"}}),
            None,
            Err(r#"spec.rbd of PersistentVolume "pv1" is not supported by this kubelet"#),
        ),
        (
            json!({"local": {"path": "/d", "fsType": "a/b"}}),
            None,
            Err(
                r#"spec.local.fsType "a/b" of PersistentVolume "pv1" is not supported by this kubelet"#,
            ),
        ),
        (
            json!({"local": {"path": "/dev/sdb"}, "volumeMode": "Block"}),
            None,
            Err("volume v has volumeMode Block, but is specified in volumeMounts"),
        ),
        (
            json!({"hostPath": {"path": "/d", "type": "Odd"}}),
            None,
            Err("Odd is an invalid volume type"),
        ),
    ] {
        let local = ("local".to_owned(), json!({"fsType": "ext4", "options": []}));
        let expected = expected
            .map(|(path, check, managed, owned)| NodePath {
                measured: managed,
                path: path.to_owned(),
                check,
                managed,
                owned,
                is_device: false,
                group: None,
                of_kind: managed.then(|| local.clone()).into_iter().collect(),
            })
            .map_err(|why| format!("{set_up}: {why}"));
        assert_eq!(found(spec, group, None), expected);
    }
}

#[test]
fn mount_options_and_file_systems_are_for_local_volumes_that_are_mounted() {
    let options = json!(["noatime"]);
    let spec = json!({"hostPath": {"path": "/d"}, "mountOptions": options});
    assert_eq!(
        found(spec, None, None).unwrap_err(),
        r#"MountVolume.MountOptionSupport check failed for volume "pv1" : mount options are not supported for this volume type"#
    );
    let spec = json!({"local": {"path": "/d", "fsType": "xfs"}, "mountOptions": options});
    let expected = json!({"local": {"fsType": "xfs", "options": ["noatime"]}});
    let found = found(spec.clone(), None, None).unwrap().of_kind;
    assert_eq!(Value::from(found), expected);
    let claim = ClaimVolume { is_mounted: false, is_mapped: true, ..claim(None) };
    let volume = json!({"metadata": {"name": "pv1"}, "spec": {
        "local": {"path": "/dev/sdb"}, "volumeMode": "Block", "mountOptions": options,
    }});
    let device = node_path("v", &claim, &serde_json::from_value(volume).unwrap(), None);
    assert_eq!(device.unwrap().of_kind, Map::new());
}

#[test]
fn records_of_earlier_versions_are_read_and_written_unchanged() {
    let on_path = r#""managed":true,"owned":false,"measured":true,"isDevice":false,"group":7"#;
    for (check, of_kind, key) in [
        ("Directory", "", ""),
        ("Directory", r#","local":{"fsType":"ext4","options":["noatime"]}"#, "local"),
        ("None", r#","csi":{"driver":"d.example","handle":"h"}"#, "csi"),
    ] {
        let text = format!(
            r#"{{"claim":"data","volume":"pv1","at":{{"path":"/d","check":"{check}",{on_path}{of_kind}}}}}"#
        );
        let record: ResolvedClaim = serde_json::from_str(&text).unwrap();
        assert_eq!(KindRow::of(&record.at).key, key);
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
    }
}

#[test]
fn a_volume_is_only_for_the_nodes_that_it_names() {
    let labels = |zone: &str| {
        let node = json!({"metadata": {"name": "node1", "labels": {"zone": zone}}});
        serde_json::from_value::<Node>(node).unwrap()
    };
    let spec = json!({"local": {"path": "/d"}, "nodeAffinity": on("a")});
    assert!(found(spec.clone(), None, Some(&labels("a"))).is_ok());
    let failed = r#"MountVolume.NodeAffinity check failed for volume "pv1" : "#;
    for (node, why) in [
        (Some(&labels("b")), "no matching NodeSelectorTerms"),
        (None, "the Node object is not known yet"),
    ] {
        let error = found(spec.clone(), None, node).unwrap_err();
        assert_eq!(error, format!("{failed}{why}"));
    }
}

#[test]
fn options_are_those_of_the_annotation_or_of_the_spec_each_once_and_in_order() {
    for (annotation, options, expected) in [
        (None, json!(null), &[][..]),
        (None, json!(["noatime", "", "discard", "noatime"]), &["discard", "noatime"]),
        (Some("sync,ro"), json!(["noatime"]), &["ro", "sync"]),
        (Some(""), json!(["noatime"]), &[]),
    ] {
        let annotations = annotation.map(|text: &str| json!({OPTIONS_ANNOTATION: text}));
        let volume = json!({
            "metadata": {"annotations": annotations},
            "spec": {"mountOptions": options},
        });
        let volume = serde_json::from_value(volume).unwrap();
        assert_eq!(mount_options(&volume), expected, "{annotation:?}");
    }
}
