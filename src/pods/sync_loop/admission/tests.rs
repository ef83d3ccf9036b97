use super::*;
use crate::model::NodeFacts;
use crate::state::node_pressure::NodePressure;
use crate::volumes::kinds::plan;
use serde_json::{Value, json};

fn pod(metadata: Value, spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// What attributes refer to: nothing, and a kernel of version 6.1.
struct EmptyNode {
    sysctls: Allowlist,
    others: AdmittedPods,
    allocated_devices: BTreeMap<String, i64>,
    initial: Node,
}

impl EmptyNode {
    fn new() -> Self {
        Self {
            sysctls: Allowlist::new("6.1", &[]).unwrap(),
            others: AdmittedPods::default(),
            allocated_devices: BTreeMap::new(),
            initial: Node::default(),
        }
    }

    /// A node without pods, of which nothing is known.
    fn attributes(&self) -> PodAdmitAttributes<'_> {
        PodAdmitAttributes {
            sysctls: &self.sysctls,
            app_armor: false,
            supplemental_groups_policy: false,
            pressure: NodePressure::default(),
            shutting_down: false,
            may_be_running: false,
            node: None,
            initial_node: &self.initial,
            standalone: false,
            others: &self.others,
            device_error: None,
            allocated_devices: &self.allocated_devices,
        }
    }
}

fn admitted(pod: &Pod, app_armor: bool, strict_groups: bool) -> Result<(), (String, String)> {
    let (empty, node) = (EmptyNode::new(), Node::default());
    let attributes = PodAdmitAttributes {
        app_armor,
        supplemental_groups_policy: strict_groups,
        node: Some(&node),
        ..empty.attributes()
    };
    let running = PodAdmitAttributes { may_be_running: true, shutting_down: true, ..attributes };
    assert_eq!(admit(pod, &running), Ok(()), "what runs keeps its place");
    let broken = broken_by_running(pod, &attributes);
    let rejected = admit(pod, &attributes);
    assert_eq!(broken.map(AdmissionError::from), rejected.clone().err());
    rejected.map_err(|error| match error {
        AdmissionError::Rejected(rejection) => (rejection.reason.into(), rejection.message),
        AdmissionError::Deferred { message, .. } => ("Deferred".into(), message),
        AdmissionError::Preempts { resource, .. } => ("Preempts".into(), resource),
    })
}

/// What becomes of a pod of the API server: it has failed with a reason of upstream, waits with an event, or starts.
fn outcome(pod: &Pod, attributes: &PodAdmitAttributes<'_>) -> String {
    match admit(pod, attributes) {
        Err(AdmissionError::Rejected(rejection)) => return format!("Failed {}", rejection.reason),
        Err(AdmissionError::Deferred { .. }) => return "Pending AdmissionPending".into(),
        Err(AdmissionError::Preempts { .. }) => return "Pending Preempting".into(),
        Ok(()) => {}
    }
    let volumes = plan::plan(pod, &NodeFacts::default(), false).unwrap();
    if volumes.iter().any(|volume| !volume.is_supported()) {
        return "Pending FailedMount".into();
    }
    "starts".into()
}

/// The outcomes are the Go kubelet's, which mounts the volumes if it can. The table is in `docs/deviations.md`.
#[test]
fn a_pod_fails_only_where_upstreams_does_and_waits_for_what_is_not_supported() {
    type Change = for<'a> fn(&mut PodAdmitAttributes<'a>);
    let well: Change = |_| {};
    let mounting = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        json!({"volumes": [volume], "containers": [{"name": "c", "volumeMounts": mounts}]})
    };
    let with = |field: &str, value: Value| json!({"containers": [{"name": "c"}], field: value});
    let of_container =
        |field: &str, value: Value| json!({"containers": [{"name": "c", field: value}]});
    let certificate = json!({"podCertificate": {"signerName": "x/y", "keyType": "ED25519"}});
    let sysctl = json!({"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]});
    let device = json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [
        {"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/d"}]}]});
    let starts = "starts";
    for (spec, change, expected) in [
        (with("hostNetwork", json!(true)), well, starts),
        (mounting(json!({"emptyDir": {}})), well, starts),
        (mounting(json!({"persistentVolumeClaim": {"claimName": "c"}})), well, starts),
        (
            with("volumes", json!([{"name": "v", "rbd": {"monitors": ["m"], "image": "i"}}])),
            well,
            starts,
        ),
        (mounting(json!({"nfs": {"path": "/p", "server": "s"}})), well, starts),
        (mounting(json!({"rbd": {"monitors": ["m"], "image": "i"}})), well, "Pending FailedMount"),
        (mounting(json!({"csi": {"driver": "d"}})), well, starts),
        (mounting(json!({"ephemeral": {}})), well, starts),
        (mounting(json!({"projected": {"sources": [certificate]}})), well, "Pending FailedMount"),
        (device, well, "Pending FailedMount"),
        (with("nodeName", json!("n")), |node| node.node = None, "Pending AdmissionPending"),
        (of_container("resources", json!({"requests": {"cpu": "9"}})), well, "Failed OutOfcpu"),
        (with("nodeSelector", json!({"disk": "ssd"})), well, "Failed NodeAffinity"),
        (with("securityContext", sysctl), well, "Failed SysctlForbidden"),
        (with("os", json!({"name": "windows"})), well, "Failed PodOSNotSupported"),
        (
            with("securityContext", json!({"supplementalGroupsPolicy": "Strict"})),
            well,
            "Failed SupplementalGroupsPolicyNotSupported",
        ),
        (
            with("securityContext", json!({"appArmorProfile": {"type": "RuntimeDefault"}})),
            well,
            "Failed AppArmor",
        ),
        (
            json!({"containers": [{"name": "c"}], "hostNetwork": true, "hostUsers": false}),
            well,
            "Failed PodFeatureUnsupported",
        ),
        (with("nodeName", json!("n")), |node| node.pressure.memory = true, "Failed Evicted"),
        (with("nodeName", json!("n")), |node| node.shutting_down = true, "Failed NodeShutdown"),
    ] {
        let node = json!({"status": {"allocatable": {"cpu": "2", "pods": "9"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        let annotations = json!({"kubernetes.io/config.source": "api"});
        let pod = pod(json!({"uid": "u1", "annotations": annotations}), spec);
        let empty = EmptyNode::new();
        let mut attributes = PodAdmitAttributes { node: Some(&node), ..empty.attributes() };
        change(&mut attributes);
        assert_eq!(outcome(&pod, &attributes), expected, "{:?}", pod.spec);
    }
}

#[test]
fn features_that_the_node_lacks_do_not_end_a_pod_that_runs() {
    let spec = json!({"containers": [{"name": "c"}], "hostNetwork": true, "hostUsers": false});
    let (node, empty) = (Node::default(), EmptyNode::new());
    let attributes =
        PodAdmitAttributes { may_be_running: true, node: Some(&node), ..empty.attributes() };
    assert_eq!(admit(&pod(json!({}), spec), &attributes), Ok(()));
}

#[test]
fn a_static_pod_is_placed_by_the_labels_that_are_known() {
    let with_label = |label: &str| {
        let node = json!({"metadata": {"labels": {"disk": label}}});
        serde_json::from_value::<Node>(node).unwrap()
    };
    let (ssd, hdd) = (with_label("ssd"), with_label("hdd"));
    let spec = json!({"containers": [{"name": "c"}], "nodeSelector": {"disk": "ssd"}});
    for (source, initial, object, expected) in [
        ("file", &ssd, None, "admitted"),
        ("file", &hdd, None, "not yet"),
        ("api", &ssd, None, "not yet"),
        ("file", &hdd, Some(&ssd), "admitted"),
        ("file", &ssd, Some(&hdd), "NodeAffinity"),
    ] {
        let annotations = json!({"kubernetes.io/config.source": source});
        let pod = pod(json!({"annotations": annotations}), spec.clone());
        let empty = EmptyNode::new();
        let attributes =
            PodAdmitAttributes { initial_node: initial, node: object, ..empty.attributes() };
        let shown = match admit(&pod, &attributes) {
            Ok(()) => "admitted".to_owned(),
            Err(AdmissionError::Rejected(rejection)) => rejection.reason.into_owned(),
            Err(_) => "not yet".to_owned(),
        };
        assert_eq!(shown, expected, "{source} {initial:?} {object:?}");
    }
}

#[test]
fn admission_is_deferred_while_its_outcome_may_change_soon() {
    let with_port = |source: &str, port: i32| {
        let annotations = json!({"kubernetes.io/config.source": source});
        let ports = json!([{"containerPort": 80, "hostPort": port}]);
        let spec = json!({"containers": [{"name": "c", "ports": ports}]});
        pod(json!({"annotations": annotations}), spec)
    };
    let (other, node) = (Arc::new(with_port("api", 8080)), Node::default());
    let none = AdmittedPods::default;
    let staying = || AdmittedPods { staying: vec![other.clone()], ..none() };
    let terminating = || AdmittedPods { terminating: vec![other.clone()], ..none() };
    let both = || AdmittedPods {
        staying: vec![other.clone()],
        terminating: vec![other.clone()],
        ..none()
    };
    let unclaimed = || AdmittedPods { unclaimed: vec![other.clone()], ..none() };
    let waiting =
        |source: &str| AdmittedPods { waiting: vec![Arc::new(with_port(source, 8080))], ..none() };
    let api = || with_port("api", 8080);
    for (pod, may_be_running, object, others, expected) in [
        (api(), false, Some(&node), none(), "admitted"),
        (api(), false, Some(&node), staying(), "NodePorts"),
        (api(), false, Some(&node), both(), "NodePorts"),
        (api(), false, Some(&node), terminating(), "not yet, then NodePorts"),
        (api(), true, Some(&node), staying(), "admitted"),
        (api(), false, Some(&node), unclaimed(), "not yet, then admitted"),
        (api(), false, Some(&node), waiting("api"), "not yet, then NodePorts"),
        (with_port("file", 8080), false, Some(&node), waiting("file"), "not yet, then NodePorts"),
        // It would be preempted.
        (with_port("file", 8080), false, Some(&node), waiting("api"), "admitted"),
        (with_port("api", 8081), false, Some(&node), both(), "admitted"),
        (api(), false, None, none(), "not yet, then admitted"),
        (api(), true, None, none(), "admitted"),
        (with_port("file", 8080), false, None, none(), "admitted"),
        (with_port("file", 8080), false, Some(&node), terminating(), "not yet, then NodePorts"),
    ] {
        let empty = EmptyNode::new();
        let attributes = PodAdmitAttributes {
            may_be_running,
            node: object,
            others: &others,
            ..empty.attributes()
        };
        let shown = match admit(&pod, &attributes) {
            Ok(()) => "admitted".to_owned(),
            Err(AdmissionError::Rejected(rejection)) => rejection.reason.into_owned(),
            Err(AdmissionError::Deferred { on_timeout, .. }) => {
                let then = on_timeout.map_or("admitted".into(), |rejection| rejection.reason);
                format!("not yet, then {then}")
            }
            Err(AdmissionError::Preempts { resource, .. }) => format!("preempts for {resource}"),
        };
        assert_eq!(shown, expected, "{others:?}");
        // What never changes comes first.
        let mut confined = pod;
        let profile = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        confined.spec.as_mut().unwrap().security_context = serde_json::from_value(profile).unwrap();
        if may_be_running {
            assert_eq!(admit(&confined, &attributes), Ok(()));
            continue;
        }
        let error = admit(&confined, &attributes).unwrap_err();
        assert!(matches!(error, AdmissionError::Rejected(_)), "{error:?}");
    }
}

#[test]
fn others_make_room_for_a_critical_pod() {
    let sized = |source: &str, priority: i32, cpu: &str| {
        let annotations = json!({"kubernetes.io/config.source": source});
        let resources = json!({"requests": {"cpu": cpu}});
        let spec =
            json!({"priority": priority, "containers": [{"name": "c", "resources": resources}]});
        pod(json!({"annotations": annotations}), spec)
    };
    let node: Node =
        serde_json::from_value(json!({"status": {"allocatable": {"cpu": "2", "pods": "9"}}}))
            .unwrap();
    let critical = 2_000_000_000;
    let others = |priority: i32, is_terminating: bool| {
        let pods = vec![Arc::new(sized("api", priority, "1500m"))];
        let none = Vec::new();
        let (staying, terminating) = if is_terminating { (none, pods) } else { (pods, none) };
        AdmittedPods { staying, terminating, ..AdmittedPods::default() }
    };
    for (case, pod, others, expected) in [
        ("room", sized("api", critical, "500m"), others(0, false), "admitted"),
        ("not critical", sized("api", 0, "1"), others(0, false), "OutOfcpu"),
        ("critical", sized("api", critical, "1"), others(0, false), "1 for cpu"),
        ("static", sized("file", 0, "1"), others(0, false), "1 for cpu"),
        ("it goes already", sized("api", critical, "1"), others(0, true), "not yet, then admitted"),
        (
            "others are critical",
            sized("api", critical, "1"),
            others(critical, false),
            "UnexpectedAdmissionError",
        ),
        ("a control plane", sized("file", 0, "1"), others(critical, false), "admitted"),
        ("more than there is", sized("file", 0, "9"), others(0, false), "admitted"),
    ] {
        let empty = EmptyNode::new();
        let attributes =
            PodAdmitAttributes { node: Some(&node), others: &others, ..empty.attributes() };
        let shown = |attributes: &PodAdmitAttributes<'_>| match admit(&pod, attributes) {
            Ok(()) => "admitted".to_owned(),
            Err(AdmissionError::Rejected(rejection)) => rejection.reason.into_owned(),
            Err(AdmissionError::Deferred { on_timeout, .. }) => {
                let then = on_timeout.map_or("admitted".into(), |rejection| rejection.reason);
                format!("not yet, then {then}")
            }
            Err(AdmissionError::Preempts { victims, resource }) => {
                format!("{} for {resource}", victims.len())
            }
        };
        assert_eq!(shown(&attributes), expected, "{case}");
        let alone = PodAdmitAttributes { standalone: true, ..attributes };
        let is_lenient = ["a control plane", "more than there is"].contains(&case);
        let expected = if is_lenient { "UnexpectedAdmissionError" } else { expected };
        assert_eq!(shown(&alone), expected, "{case}, without an API server");
    }
}

fn rejected(reason: &'static str, message: &str) -> Result<(), (String, String)> {
    Err((reason.into(), message.to_string()))
}

#[test]
fn the_reasons_and_texts_are_upstreams() {
    let sysctl =
        |name: &str| json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
    for (spec, expected) in [
        (json!({}), Ok(())),
        (sysctl("net.ipv4.tcp_syncookies"), Ok(())),
        (
            sysctl("net.core.somaxconn"),
            rejected(
                "SysctlForbidden",
                r#"forbidden sysctl: "net.core.somaxconn" not allowlisted"#,
            ),
        ),
        (json!({"os": {"name": "linux"}}), Ok(())),
        (
            json!({"os": {"name": "windows"}}),
            rejected(
                "PodOSNotSupported",
                "Failed to admit pod as the OS field doesn't match node OS",
            ),
        ),
        (json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}}), Ok(())),
        (
            json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
            rejected(
                "SupplementalGroupsPolicyNotSupported",
                "SupplementalGroupsPolicy=Strict is not supported in this node",
            ),
        ),
    ] {
        assert_eq!(admitted(&pod(json!({}), spec.clone()), false, false), expected, "{spec}");
    }
    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    assert_eq!(admitted(&pod(json!({}), strict), false, true), Ok(()));
    let label = |os: &str| pod(json!({"labels": {"kubernetes.io/os": os}}), json!({}));
    assert_eq!(admitted(&label("linux"), false, false), Ok(()));
    assert_eq!(
        admitted(&label("windows"), false, false).unwrap_err().0,
        "PodOSSelectorNodeLabelDoesNotMatch"
    );
}

#[test]
fn a_profile_needs_a_kernel_that_enforces_it() {
    let none = json!({"containers": [{"name": "c"}]});
    let at_pod = |kind: &str| json!({"securityContext": {"appArmorProfile": {"type": kind}}});
    let at = |list: &str, kind: &str| {
        let profile = json!({"appArmorProfile": {"type": kind}});
        json!({list: [{"name": "c", "securityContext": profile}]})
    };
    let annotated = |profile: &str| {
        let key = format!("{}c", keys::APP_ARMOR_PREFIX);
        pod(json!({"annotations": {key: profile}}), none.clone())
    };
    use crate::model::keys;
    let plain = |spec: Value| pod(json!({}), spec);
    for (pod, needs) in [
        (plain(none.clone()), false),
        (plain(at_pod("Unconfined")), false),
        (plain(at_pod("RuntimeDefault")), true),
        (plain(at("containers", "Unconfined")), false),
        (plain(at("containers", "Localhost")), true),
        (plain(at("initContainers", "RuntimeDefault")), true),
        (annotated("unconfined"), false),
        (annotated("runtime/default"), true),
        (annotated("localhost/x"), true),
    ] {
        let expected = if needs {
            rejected("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
        } else {
            Ok(())
        };
        assert_eq!(admitted(&pod, false, false), expected, "{pod:?}");
        assert_eq!(admitted(&pod, true, false), Ok(()), "{pod:?}");
    }
}

#[test]
fn a_node_that_is_short_of_something_takes_only_some_pods() {
    let pod = |spec: &str, is_static: bool| {
        let mut pod = Pod { spec: serde_json::from_str(spec).unwrap(), ..Pod::default() };
        let source = if is_static { "file" } else { "api" };
        let source = (crate::model::keys::CONFIG_SOURCE.into(), source.into());
        pod.metadata.annotations = Some([source].into());
        pod
    };
    let best_effort = r#"{"containers":[{"name":"c"}]}"#;
    let burstable = r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"1Mi"}}}]}"#;
    let tolerant = r#"{"containers":[{"name":"c"}],"tolerations":[{"key":"node.kubernetes.io/memory-pressure","operator":"Exists","effect":"NoSchedule"}]}"#;
    let critical = r#"{"priority":2000001000,"containers":[{"name":"c"}]}"#;
    let memory = NodePressure { memory: true, ..NodePressure::default() };
    let both = NodePressure { disk: true, ..memory };
    for (spec, is_static, pressure, conditions) in [
        (best_effort, false, NodePressure::default(), None),
        (best_effort, false, memory, Some("MemoryPressure")),
        (burstable, false, memory, None),
        (tolerant, false, memory, None),
        (critical, false, both, None),
        (best_effort, true, both, None),
        (burstable, false, both, Some("MemoryPressure DiskPressure")),
        (tolerant, false, both, Some("MemoryPressure DiskPressure")),
    ] {
        let pod = pod(spec, is_static);
        let found = pressure::admit(&pod, pressure);
        let message = found.err().map(|rejection| (rejection.reason, rejection.message));
        let expected = conditions
            .map(|list| ("Evicted".into(), format!("The node had condition: [{list}]. ")));
        assert_eq!(message, expected, "{spec} {is_static}");
        let empty = EmptyNode::new();
        let attributes = PodAdmitAttributes { app_armor: true, pressure, ..empty.attributes() };
        assert_eq!(admit_before_devices(&pod, &attributes).is_err(), conditions.is_some());
        assert_eq!(may_resize(&pod, pressure, false).is_err(), conditions.is_some());
        let message = may_resize(&pod, NodePressure::default(), true).unwrap_err().message;
        assert_eq!(message, "Pod was rejected as the node is shutting down.");
        let running = PodAdmitAttributes { may_be_running: true, ..attributes };
        assert_eq!(admit(&pod, &running), Ok(()), "it runs");
    }
}

#[test]
fn a_node_that_goes_down_takes_no_pod() {
    let rejection =
        Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down.");
    for priority in [0, 2_000_001_000] {
        let empty = EmptyNode::new();
        let attributes = |shutting_down| PodAdmitAttributes {
            app_armor: true,
            shutting_down,
            ..empty.attributes()
        };
        let metadata = json!({"annotations": {"kubernetes.io/config.source": "file"}});
        let spec = json!({"containers": [{"name": "c"}], "priority": priority});
        let pod = pod(metadata, spec);
        assert_eq!(admit(&pod, &attributes(false)), Ok(()));
        assert_eq!(admit(&pod, &attributes(true)), Err(rejection.clone().into()));
    }
}
