use super::*;
use crate::node::node_status::resources::ResourceList;
use k8s_openapi::api::core::v1::NodeStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

fn settings() -> RegistrationSettings {
    with(config())
}

fn with(config: RegistrationConfig) -> RegistrationSettings {
    RegistrationSettings { node_name: "node1".into(), architecture: "amd64".into(), config }
}

fn config() -> RegistrationConfig {
    RegistrationConfig {
        register: true,
        labels: BTreeMap::new(),
        taints: Vec::new(),
        provider_id: None,
        external_cloud_provider: false,
        controller_attach: true,
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_new_node_has_the_labels_taints_and_annotations_of_upstream() {
    let plain = initial(&settings());
    assert_eq!(
        plain.metadata.labels,
        Some(map(&[
            ("beta.kubernetes.io/arch", "amd64"),
            ("beta.kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("kubernetes.io/hostname", "node1"),
            ("kubernetes.io/os", "linux"),
        ]))
    );
    assert_eq!(plain.metadata.annotations, Some(map(&[(CONTROLLER_ATTACH, "true")])));
    assert_eq!(plain.spec, Some(NodeSpec::default()));
    let taint =
        |key: &str| Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() };
    let node = initial(&with(RegistrationConfig {
        labels: map(&[("a", "b"), ("kubernetes.io/hostname", "other")]),
        taints: vec![taint("k")],
        provider_id: Some("x://1".into()),
        external_cloud_provider: true,
        controller_attach: false,
        ..config()
    }));
    let labels = node.metadata.labels.unwrap();
    assert_eq!((&labels["a"], &labels["kubernetes.io/hostname"]), (&"b".into(), &"other".into()));
    assert_eq!(node.metadata.annotations, None);
    let spec = node.spec.unwrap();
    assert_eq!(spec.provider_id.as_deref(), Some("x://1"));
    let uninitialized = Taint { value: Some("true".into()), ..taint(UNINITIALIZED) };
    assert_eq!(spec.taints, Some(vec![taint("k"), uninitialized]));
}

#[test]
fn a_new_node_is_created_with_its_status_and_the_annotations_that_have_a_value() {
    let status = NodeStatus { phase: Some("x".into()), ..NodeStatus::default() };
    let annotations = [("set", Some("v".to_owned())), ("removed", None)];
    let node = new_node(
        &settings(),
        GeneratedStatus { status: status.clone(), annotations: annotations.into() },
    );
    assert_eq!(node.status, Some(status));
    let expected = map(&[(CONTROLLER_ATTACH, "true"), ("set", "v")]);
    assert_eq!(node.metadata.annotations, Some(expected));
}

#[test]
fn a_node_that_is_as_it_would_be_created_is_left_alone() {
    for reset in [false, true] {
        assert_eq!(reconcile(&settings(), &initial(&settings()), reset), None);
    }
}

#[test]
fn default_labels_are_brought_in_line_and_all_others_are_the_administrators() {
    let mut existing = initial(&settings());
    let labels = existing.metadata.labels.as_mut().unwrap();
    labels.insert("kubernetes.io/os".into(), "windows".into());
    labels.insert("topology.kubernetes.io/zone".into(), "old".into());
    labels.insert("topology.kubernetes.io/region".into(), "kept".into());
    labels.insert("a".into(), "of the administrator".into());
    labels.remove("kubernetes.io/arch");
    let wanted = with(RegistrationConfig {
        labels: map(&[("a", "of the flag"), ("new", "x"), ("topology.kubernetes.io/zone", "z")]),
        taints: vec![Taint::default()],
        ..config()
    });
    assert_eq!(
        reconcile(&wanted, &existing, false),
        Some(json!({ "metadata": { "labels": {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": "z",
        } } }))
    );
}

#[test]
fn the_annotation_of_attaching_controllers_follows_the_configuration() {
    let off = with(RegistrationConfig { controller_attach: false, ..config() });
    let patch =
        |value: Value| json!({ "metadata": { "annotations": { CONTROLLER_ATTACH: value } } });
    let (with, without) = (initial(&settings()), initial(&off));
    for (settings, existing, expected) in [
        (&settings(), &without, Some(patch(json!("true")))),
        (&off, &with, Some(patch(Value::Null))),
        (&off, &without, None),
    ] {
        assert_eq!(reconcile(settings, existing, false), expected);
    }
}

#[test]
fn devices_are_zero_until_they_are_advertised_again() {
    let amount = |text: &str| Quantity(text.to_owned());
    let capacity: ResourceList = [
        ("cpu".to_owned(), amount("2")),
        ("example.com/gpu".to_owned(), amount("3")),
        ("example.com/gone".to_owned(), amount("0")),
    ]
    .into();
    let mut existing = initial(&settings());
    existing.status = Some(NodeStatus { capacity: Some(capacity), ..NodeStatus::default() });
    assert_eq!(reconcile(&settings(), &existing, false), None);
    let zero = json!({ "example.com/gpu": "0" });
    assert_eq!(
        reconcile(&settings(), &existing, true),
        Some(json!({ "status": { "capacity": zero, "allocatable": zero } }))
    );
}
