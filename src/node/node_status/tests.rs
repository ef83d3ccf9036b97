use super::resources::{ResourceList, ThresholdValue, threshold};
use super::*;
use crate::resources::devices::is_extended_resource as is_extended;
use crate::state::device_capacity::Capacity;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

const GIB: i64 = 1 << 30;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn machine() -> NodeMachineInfo {
    NodeMachineInfo {
        cpus: 2,
        memory: 24_684_084 * 1024,
        ephemeral_storage: Some(264_212_084 * 1024),
        huge_pages: vec![(2 << 20, 0), (GIB, 0)],
        swap: 0,
        info: NodeSystemInfo {
            boot_id: "boot".into(),
            kubelet_version: "v1.36.0".into(),
            operating_system: "linux".into(),
            ..NodeSystemInfo::default()
        },
    }
}

fn settings() -> StatusSettings {
    StatusSettings {
        node_name: "node1".into(),
        given_ips: Vec::new(),
        external_cloud_provider: false,
        port: 10250,
        max_images: Some(2),
        pods: PodLimits { max_pods: 110, pods_per_core: 0 },
        reservation: ReservedResources {
            memory_threshold: threshold("100Mi"),
            storage_threshold: threshold("10%"),
            ..ReservedResources::default()
        },
    }
}

/// The status of a machine that is well.
struct Example {
    machine: NodeMachineInfo,
    settings: StatusSettings,
    runtime: RuntimeFacts,
    default_route_ip: Option<IpAddr>,
    volumes_in_use: Option<BTreeSet<String>>,
    volumes_mounted: bool,
    devices: Capacities,
    not_ready_reasons: Vec<String>,
    pressure: NodePressure,
}

impl Example {
    fn new() -> Self {
        Self {
            machine: machine(),
            settings: settings(),
            runtime: RuntimeFacts {
                version: "containerd://2.1.0".into(),
                ..RuntimeFacts::default()
            },
            default_route_ip: Some("10.0.0.7".parse().unwrap()),
            volumes_in_use: None,
            volumes_mounted: false,
            devices: Capacities::new(),
            not_ready_reasons: Vec::new(),
            pressure: NodePressure::default(),
        }
    }

    fn at(&self, known: &Node, second: i64) -> GeneratedStatus {
        generate(known, &self.facts(at(second)))
    }

    fn facts(&self, now: Timestamp) -> NodeStatusInputs<'_> {
        NodeStatusInputs {
            pressure: self.pressure,
            machine: &self.machine,
            settings: &self.settings,
            runtime: &self.runtime,
            default_route_ip: self.default_route_ip,
            volumes_in_use: self.volumes_in_use.as_ref(),
            volumes_mounted: self.volumes_mounted,
            devices: &self.devices,
            not_ready_reasons: &self.not_ready_reasons,
            now,
        }
    }
}

fn with(status: NodeStatus) -> Node {
    let info = machine().info;
    let labels =
        [("kubernetes.io/os", info.operating_system), ("kubernetes.io/arch", info.architecture)];
    let mut node = Node { status: Some(status), ..Node::default() };
    let labels = labels.map(|(name, value)| (name.to_owned(), value));
    node.metadata.labels = Some(labels.into());
    node
}

fn amounts(list: &[(&str, &str)]) -> ResourceList {
    let amounts = list.iter();
    amounts.map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
}

#[test]
fn the_numbers_are_those_of_the_go_kubelet_on_the_same_machine() {
    let status = Example::new().at(&Node::default(), 1).status;
    let expected = |memory, storage| {
        amounts(&[
            ("cpu", "2"),
            ("ephemeral-storage", storage),
            ("hugepages-1Gi", "0"),
            ("hugepages-2Mi", "0"),
            ("memory", memory),
            ("pods", "110"),
        ])
    };
    assert_eq!(status.capacity, Some(expected("24684084Ki", "264212084Ki")));
    assert_eq!(status.allocatable, Some(expected("24581684Ki", "243497856212")));
}

#[test]
fn what_is_reserved_and_in_huge_pages_is_not_allocatable_and_nothing_is_less_than_nothing() {
    let mut example = Example::new();
    example.machine.memory = 4 * GIB;
    example.machine.huge_pages = vec![(2 << 20, GIB)];
    example.settings.pods.pods_per_core = 10;
    example.settings.reservation = ReservedResources {
        milli_cpu: 500,
        memory: GIB,
        ephemeral_storage: i64::MAX,
        memory_threshold: Some(ThresholdValue::Percentage(0.25)),
        storage_threshold: None,
    };
    let status = example.at(&Node::default(), 1).status;
    let allocatable = status.allocatable.unwrap();
    let of = |name: &str| allocatable[name].0.as_str();
    assert_eq!((of("cpu"), of("memory")), ("1500m", "1Gi"));
    assert_eq!((of("ephemeral-storage"), of("pods")), ("0", "20"));
    assert_eq!(of("hugepages-2Mi"), "1Gi");
    example.settings.reservation.memory = 8 * GIB;
    example.machine.ephemeral_storage = None;
    let status = example.at(&Node::default(), 1).status;
    let allocatable = status.allocatable.unwrap();
    assert_eq!(allocatable["memory"].0, "0");
    assert!(!allocatable.contains_key("ephemeral-storage"));
}

#[test]
fn resources_of_others_stay_and_former_huge_pages_go() {
    let known = amounts(&[("example.com/gpu", "3"), ("hugepages-64Ki", "128Ki"), ("cpu", "99")]);
    let known = with(NodeStatus { capacity: Some(known), ..NodeStatus::default() });
    let status = Example::new().at(&known, 1).status;
    for list in [status.capacity.unwrap(), status.allocatable.unwrap()] {
        assert_eq!(list["example.com/gpu"].0, "3");
        assert_eq!(list["cpu"].0, "2");
        assert!(!list.contains_key("hugepages-64Ki"));
    }
}

#[test]
fn thresholds_are_amounts_or_shares_and_the_ends_of_the_scale_are_off() {
    for (text, expected) in [
        ("100Mi", Some(ThresholdValue::Absolute(100 << 20))),
        ("10%", Some(ThresholdValue::Percentage(0.1))),
        ("0", None),
        ("0%", None),
        ("100%", None),
        ("much", None),
        ("x%", None),
    ] {
        assert_eq!(threshold(text), expected, "{text}");
    }
}

#[test]
fn extended_resources_have_a_domain_that_is_not_of_kubernetes() {
    for (name, expected) in [
        ("cpu", false),
        ("hugepages-2Mi", false),
        ("kubernetes.io/batch-cpu", false),
        ("requests.example.com/gpu", false),
        ("example.com/gpu", true),
    ] {
        assert_eq!(is_extended(name), expected, "{name}");
    }
}

fn condition<'a>(status: &'a NodeStatus, kind: &str) -> &'a NodeCondition {
    let mut all = status.conditions.iter().flatten();
    all.find(|condition| condition.type_ == kind).unwrap()
}

#[test]
fn a_condition_moves_its_transition_time_with_its_status_and_its_heartbeat_always() {
    let mut example = Example::new();
    let first = example.at(&Node::default(), 10).status;
    let kinds: Vec<_> = first.conditions.iter().flatten().collect();
    let kinds: Vec<_> = kinds.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    let ready = condition(&first, READY);
    assert_eq!(ready.status, "True");
    assert_eq!(ready.reason.as_deref(), Some("KubeletReady"));
    assert_eq!(ready.message.as_deref(), Some("kubelet is posting ready status"));
    let times = |status: &NodeStatus| {
        let ready = condition(status, READY);
        let second = |time: &Option<Time>| time.as_ref().unwrap().0.as_second();
        (second(&ready.last_transition_time), second(&ready.last_heartbeat_time))
    };
    assert_eq!(times(&first), (10, 10));
    let second = example.at(&with(first), 20).status;
    assert_eq!(times(&second), (10, 20));
    example.not_ready_reasons = vec!["container runtime is down".into(), "no network".into()];
    let third = example.at(&with(second), 30).status;
    assert_eq!(times(&third), (30, 30));
    let ready = condition(&third, READY);
    assert_eq!(ready.reason.as_deref(), Some("KubeletNotReady"));
    assert_eq!(ready.message.as_deref(), Some("[container runtime is down, no network]"));
    example.not_ready_reasons.truncate(1);
    let fourth = example.at(&with(third), 40).status;
    assert_eq!(times(&fourth), (30, 40));
    let message = condition(&fourth, READY).message.as_deref();
    assert_eq!(message, Some("container runtime is down"));
}

#[test]
fn times_are_whole_seconds_as_the_api_server_keeps_them() {
    let example = Example::new();
    let now = "2026-01-02T03:04:05.999999999Z".parse().unwrap();
    let generated = generate(&Node::default(), &example.facts(now));
    let ready = condition(&generated.status, READY);
    let expected = Some(Time("2026-01-02T03:04:05Z".parse().unwrap()));
    assert_eq!(ready.last_heartbeat_time, expected);
    assert_eq!(ready.last_transition_time, expected);
}

#[test]
fn events_tell_of_conditions_that_changed() {
    let mut example = Example::new();
    let reasons = |before: &[NodeCondition], after: &NodeStatus| {
        let after = after.conditions.clone().unwrap();
        transition_reasons(before, &after)
    };
    let ready = example.at(&Node::default(), 1).status;
    let pressures = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
    let all = [&pressures[..], &["NodeReady"]].concat();
    assert_eq!(reasons(&[], &ready), all);
    let known = ready.conditions.clone().unwrap();
    assert_eq!(reasons(&known, &ready), [""; 0]);
    example.not_ready_reasons = vec!["down".into()];
    let down = example.at(&with(ready.clone()), 2).status;
    assert_eq!(reasons(&known, &down), ["NodeNotReady"]);
    assert_eq!(reasons(&down.conditions.clone().unwrap(), &ready), ["NodeReady"]);
    assert_eq!(reasons(&[], &down), pressures);
    example.not_ready_reasons.clear();
    example.pressure = NodePressure { memory: true, disk: true, pid: true };
    let short = example.at(&with(ready.clone()), 3).status;
    let expected = ["NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID"];
    assert_eq!(reasons(&known, &short), expected);
    // The node controller has given the node up.
    let mut unknown = known;
    unknown.iter_mut().for_each(|c| c.status = "Unknown".to_owned());
    assert_eq!(reasons(&unknown, &ready), all);
}

fn shown(status: &NodeStatus) -> Vec<(&str, &str)> {
    let all = status.addresses.iter().flatten();
    all.map(|a| (a.type_.as_str(), a.address.as_str())).collect()
}

#[test]
fn addresses_are_given_or_found_and_a_cloud_providers_stay() {
    let mut example = Example::new();
    let found = example.at(&Node::default(), 1);
    assert_eq!(shown(&found.status), [("InternalIP", "10.0.0.7"), ("Hostname", "node1")]);
    assert_eq!(found.annotations, BTreeMap::new());
    example.default_route_ip = None;
    let kept = example.at(&with(found.status.clone()), 1);
    assert_eq!(shown(&kept.status), shown(&found.status));
    example.settings.given_ips = vec!["10.1.1.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let both = example.at(&with(found.status.clone()), 1).status;
    assert_eq!(
        shown(&both),
        [("InternalIP", "10.1.1.1"), ("InternalIP", "fd00::1"), ("Hostname", "node1")]
    );
    example.settings.external_cloud_provider = true;
    let provided = example.at(&Node::default(), 1);
    assert_eq!(shown(&provided.status), shown(&both));
    let expected = BTreeMap::from([(PROVIDED_NODE_IP, Some("10.1.1.1,fd00::1".to_owned()))]);
    assert_eq!(provided.annotations, expected);
    let kept = example.at(&with(found.status.clone()), 1).status;
    assert_eq!(shown(&kept), shown(&found.status));
    example.settings.given_ips.clear();
    let waiting = example.at(&Node::default(), 1);
    assert_eq!(shown(&waiting.status), []);
    assert_eq!(waiting.annotations, BTreeMap::from([(PROVIDED_NODE_IP, None)]));
    example.settings.external_cloud_provider = false;
    example.settings.node_name = "10.9.9.9".into();
    let named = example.at(&Node::default(), 1).status;
    assert_eq!(shown(&named)[0], ("InternalIP", "10.9.9.9"));
}

#[test]
fn the_largest_images_are_shown_with_five_names_at_most() {
    let mut example = Example::new();
    let image = |name: &str, size, names: usize| ContainerImage {
        names: Some((0..names).map(|i| format!("{name}:{i}")).collect()),
        size_bytes: Some(size),
    };
    let unlisted = example.at(&Node::default(), 1).status;
    assert_eq!(unlisted.images, None);
    example.runtime.images =
        Some(vec![image("small", 1, 1), image("big", 9, 7), image("b", 5, 1), image("a", 5, 1)]);
    let status = example.at(&Node::default(), 1).status;
    let images = status.images.clone().unwrap();
    assert_eq!(images, [image("big", 9, 5), image("a", 5, 1)]);
    example.runtime.images = None;
    assert_eq!(example.at(&with(status), 1).status.images, Some(images));
    example.runtime.images = Some(vec![image("x", 1, 1)]);
    example.settings.max_images = None;
    assert_eq!(example.at(&Node::default(), 1).status.images.unwrap().len(), 1);
}

#[test]
fn what_the_runtime_and_the_machine_say_is_in_the_status() {
    let mut example = Example::new();
    let status = example.at(&Node::default(), 1).status;
    let info = status.node_info.unwrap();
    assert_eq!(info.container_runtime_version, "containerd://2.1.0");
    assert_eq!((info.swap, info.kube_proxy_version), (None, String::new()));
    assert_eq!((status.features, status.runtime_handlers), (None, None));
    assert_eq!(
        status.declared_features.unwrap(),
        [
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "RestartAllContainersOnContainerExits",
        ]
    );
    let endpoint = status.daemon_endpoints.unwrap().kubelet_endpoint.unwrap();
    assert_eq!(endpoint.port, 10250);
    example.machine.swap = GIB;
    example.runtime.supplemental_groups_policy = Some(true);
    let status = example.at(&Node::default(), 1).status;
    let swap = status.node_info.unwrap().swap.unwrap();
    assert_eq!(swap.capacity, Some(GIB));
    let features = status.features.unwrap();
    assert_eq!(features.supplemental_groups_policy, Some(true));
}

#[test]
fn a_machine_that_has_booted_since_is_noticed() {
    let example = Example::new();
    let known = with(example.at(&Node::default(), 1).status);
    assert!(!has_rebooted(&known, &example.machine));
    assert!(!has_rebooted(&Node::default(), &example.machine));
    let mut other = machine();
    other.info.boot_id = "other".into();
    assert!(has_rebooted(&known, &other));
}

#[test]
fn nothing_is_sent_for_a_heartbeat_and_a_report_has_all_heartbeats_and_nothing_else() {
    let example = Example::new();
    let known = with(example.at(&Node::default(), 10).status);
    let later = example.at(&known, 20);
    assert_eq!(difference(&known, &later, false), None);
    let report = difference(&known, &later, true).unwrap();
    let conditions = report["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 4);
    let beat = |c: &Value| c["lastHeartbeatTime"] == "1970-01-01T00:00:20Z";
    assert!(conditions.iter().all(beat), "{report}");
    assert_eq!(report["status"].as_object().unwrap().len(), 1, "{report}");
}

#[test]
fn labels_of_the_system_that_others_changed_are_set_again() {
    let example = Example::new();
    let mut known = with(example.at(&Node::default(), 1).status);
    let wanted = example.at(&known, 1);
    let labels = known.metadata.labels.as_mut().unwrap();
    labels.insert("kubernetes.io/os".to_owned(), "dummy".to_owned());
    labels.insert("example.com/own".to_owned(), "stays".to_owned());
    let architecture = labels.remove("kubernetes.io/arch").unwrap();
    let expected = json!({
        "metadata": { "labels": { "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture } },
    });
    assert_eq!(difference(&known, &wanted, false), Some(expected));
}

#[test]
fn conditions_of_others_are_neither_changed_nor_named() {
    let example = Example::new();
    let mut status = example.at(&Node::default(), 1).status;
    let foreign = NodeCondition {
        type_: "KernelDeadlock".into(),
        status: "False".into(),
        ..NodeCondition::default()
    };
    status.conditions.as_mut().unwrap().insert(0, foreign.clone());
    let known = with(status);
    let mut wanted = example.at(&known, 2);
    assert_eq!(wanted.status.conditions.as_ref().unwrap()[0], foreign);
    assert_eq!(difference(&known, &wanted, false), None);
    let ready = wanted.status.conditions.as_mut().unwrap().last_mut();
    ready.unwrap().status = "False".into();
    let patch = difference(&known, &wanted, false).unwrap();
    let sent = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!((sent.len(), &sent[0]["type"]), (1, &json!("Ready")));
}

#[test]
fn a_patch_says_what_is_gone_and_replaces_addresses_as_a_whole() {
    let mut example = Example::new();
    example.machine.swap = GIB;
    example.machine.huge_pages.push((64 << 10, 0));
    example.runtime.handlers = vec![NodeRuntimeHandler::default()];
    example.settings.external_cloud_provider = true;
    example.settings.given_ips = vec!["10.1.1.1".parse().unwrap()];
    let before = example.at(&Node::default(), 1);
    let mut known = with(before.status);
    let ip = before.annotations[PROVIDED_NODE_IP].clone().unwrap();
    known.metadata.annotations = Some([(PROVIDED_NODE_IP.to_owned(), ip)].into());
    assert_eq!(difference(&known, &example.at(&known, 2), false), None, "nothing changed");
    example.machine.swap = 0;
    example.machine.huge_pages.pop();
    example.runtime.handlers.clear();
    example.settings.external_cloud_provider = false;
    example.settings.given_ips = vec!["fd00::1".parse().unwrap()];
    let mut wanted = example.at(&known, 1);
    wanted.annotations = BTreeMap::from([(PROVIDED_NODE_IP, None)]);
    assert_eq!(
        difference(&known, &wanted, false),
        Some(json!({
            "metadata": { "annotations": { PROVIDED_NODE_IP: null } },
            "status": {
                "addresses": [
                    { "type": "InternalIP", "address": "fd00::1" },
                    { "type": "Hostname", "address": "node1" },
                    { "$patch": "replace" },
                ],
                "capacity": { "hugepages-64Ki": null },
                "allocatable": { "hugepages-64Ki": null },
                "nodeInfo": { "swap": null },
                "runtimeHandlers": null,
            },
        }))
    );
}

#[test]
fn devices_of_an_earlier_kubelets_plugins_are_zero_and_resources_of_administrators_stay() {
    let amount = |text: &str| Quantity(text.into());
    let amounts = || {
        ResourceList::from([
            ("vendor.example/gpu".to_owned(), amount("4")),
            ("example.com/licence".to_owned(), amount("8")),
        ])
    };
    let known = with(NodeStatus {
        capacity: Some(amounts()),
        allocatable: Some(amounts()),
        ..NodeStatus::default()
    });
    let mut example = Example::new();
    example.devices = ["vendor.example/gpu", "vendor.example/not-shown-yet"]
        .map(|name| (name.to_owned(), Capacity::default()))
        .into();
    let generated = example.at(&known, 1);
    let status = generated.status.clone();
    for list in [status.capacity.unwrap(), status.allocatable.unwrap()] {
        assert_eq!(list["vendor.example/gpu"], amount("0"));
        assert_eq!(list["example.com/licence"], amount("8"));
        assert_eq!(list["vendor.example/not-shown-yet"], amount("0"));
    }
    let patch = difference(&known, &generated, false).unwrap();
    for list in ["capacity", "allocatable"] {
        assert_eq!(patch["status"][list]["vendor.example/gpu"], "0");
        assert_eq!(patch["status"][list].get("example.com/licence"), None);
    }
}

#[test]
fn devices_of_plugins_are_capacity_and_the_healthy_ones_allocatable() {
    let mut example = Example::new();
    let some = Capacity { capacity: 4, allocatable: 3, is_forgotten: false };
    example.devices = [("vendor.example/gpu".to_owned(), some)].into();
    let status = example.at(&Node::default(), 1).status;
    assert_eq!(status.capacity.unwrap()["vendor.example/gpu"].0, "4");
    assert_eq!(status.allocatable.unwrap()["vendor.example/gpu"].0, "3");
}

#[test]
fn a_forgotten_resource_is_zero_in_the_node_before_it_is_removed() {
    let mut example = Example::new();
    let name = || "vendor.example/gone".to_owned();
    let forgotten = Capacity { is_forgotten: true, ..Capacity::default() };
    example.devices = [(name(), forgotten)].into();
    let known = |amount: Option<&str>| {
        let list = amount.map(|amount| [(name(), Quantity(amount.into()))].into());
        with(NodeStatus { capacity: list.clone(), allocatable: list, ..NodeStatus::default() })
    };
    for (before, after) in [(Some("2"), Some("0")), (Some("0"), None), (None, None)] {
        let status = example.at(&known(before), 1).status;
        for list in [status.capacity.unwrap(), status.allocatable.unwrap()] {
            let amount = list.get(&name()).map(|amount| amount.0.as_str());
            assert_eq!(amount, after, "{before:?}");
        }
    }
    let zero = known(Some("0"));
    let patch = difference(&zero, &example.at(&zero, 1), false).unwrap();
    assert_eq!(patch["status"]["capacity"].get(name()), Some(&Value::Null));
}

#[test]
fn volumes_in_use_are_cleared_once_none_can_be_mounted() {
    let known = with(NodeStatus {
        volumes_in_use: Some(vec!["kubernetes.io/csi/d^v".into()]),
        ..NodeStatus::default()
    });
    let mut example = Example::new();
    let generated = example.at(&known, 1);
    let patch = difference(&known, &generated, false).unwrap();
    assert_eq!(patch["status"].get("volumesInUse"), Some(&Value::Null));
    let cleared = with(generated.status);
    assert_eq!(difference(&cleared, &example.at(&cleared, 2), false), None);
    example.volumes_mounted = true;
    let generated = example.at(&known, 1);
    let patch = difference(&known, &generated, false).unwrap();
    assert_eq!(patch["status"].get("volumesInUse"), None);
}

#[test]
fn known_volumes_in_use_replace_those_of_csi_and_others_stay_while_anything_is_mounted() {
    let csi = |name: &str| format!("kubernetes.io/csi/d^{name}");
    let iscsi = || "kubernetes.io/iscsi/x".to_owned();
    let (a, b) = (csi("a"), csi("b"));
    let list = |names: &[&String]| names.iter().map(|name| (*name).clone()).collect::<Vec<_>>();
    for (before, wanted, mounted, after) in [
        (list(&[&b, &a]), list(&[]), true, Some(Value::Null)),
        (list(&[]), list(&[&b, &a]), false, Some(json!([a, b]))),
        (list(&[&a, &b]), list(&[&b, &a]), true, None),
        (list(&[&a]), list(&[&b]), true, Some(json!([b]))),
        (list(&[&iscsi()]), list(&[&a]), true, Some(json!([a, iscsi()]))),
        (list(&[&iscsi()]), list(&[&a]), false, Some(json!([a]))),
    ] {
        let known = with(NodeStatus {
            volumes_in_use: Some(before.clone()).filter(|list| !list.is_empty()),
            ..NodeStatus::default()
        });
        let mut example = Example::new();
        example.volumes_in_use = Some(wanted.iter().cloned().collect());
        example.volumes_mounted = mounted;
        let patch = difference(&known, &example.at(&known, 1), false).unwrap();
        let sent = patch["status"].get("volumesInUse");
        assert_eq!(sent, after.as_ref(), "{before:?} {wanted:?} {mounted}");
    }
}
