use super::*;
use crate::model::{Amount, NodeFacts, Pod, Quantity, fixture};
use serde_json::{Value, json};

fn pod(spec: Value) -> Pod {
    fixture::pod("/p/", spec)
}

fn one(requests: Value, limits: Value) -> Value {
    json!({"containers": [
        {"name": "c", "resources": {"requests": requests, "limits": limits}}
    ]})
}

fn adj(pod: &Pod, container: usize) -> i64 {
    let container = &pod.spec.as_ref().unwrap().containers[container];
    oom_score_adj(pod, container, 4 << 30).unwrap()
}

fn node() -> NodeFacts {
    NodeFacts {
        memory_capacity_bytes: 4 << 30,
        hugepage_sizes: vec![64 << 10, 2 << 20, 1 << 30],
        ..NodeFacts::default()
    }
}

#[test]
fn shares_and_quotas_follow_the_table() {
    for (milli, shares) in
        [(0, 2), (1, 2), (2, 2), (100, 102), (1000, 1024), (256_000, 262_144), (i64::MAX, 262_144)]
    {
        assert_eq!(milli_cpu_to_shares(milli), shares, "{milli}");
    }
    for (milli, quota) in
        [(0, 0), (1, 1000), (5, 1000), (20, 2000), (1000, 100_000), (1500, 150_000)]
    {
        assert_eq!(milli_cpu_to_quota(milli, 100_000), quota, "{milli}");
    }
    assert_eq!(milli_cpu_to_quota(500, 10_000), 5000);
}

#[test]
fn the_class_follows_from_requests_and_limits() {
    let full = json!({"cpu": "1", "memory": "1Gi"});
    for (requests, limits, class) in [
        (json!({}), json!({}), QosClass::BestEffort),
        (json!({"cpu": "0"}), json!({}), QosClass::BestEffort),
        (json!({"example.com/gpu": "1"}), json!({}), QosClass::BestEffort),
        (full.clone(), full.clone(), QosClass::Guaranteed),
        (json!({"cpu": "1000m", "memory": "1024Mi"}), full.clone(), QosClass::Guaranteed),
        (json!({"cpu": "1"}), json!({"cpu": "1"}), QosClass::Burstable),
        (json!({"cpu": "500m", "memory": "1Gi"}), full.clone(), QosClass::Burstable),
        (full.clone(), json!({}), QosClass::Burstable),
    ] {
        let pod = pod(one(requests.clone(), limits.clone()));
        assert_eq!(pod_qos(&pod).unwrap(), class, "{requests} {limits}");
    }
}

#[test]
fn one_container_without_limits_makes_the_pod_burstable_init_containers_included() {
    let full = json!({"cpu": "1", "memory": "1Gi"});
    let resources = json!({"requests": full, "limits": full});
    let mixed = pod(json!({
        "containers": [{"name": "a", "resources": resources}],
        "initContainers": [{"name": "i"}],
    }));
    assert_eq!(pod_qos(&mixed).unwrap(), QosClass::Burstable);
}

#[test]
fn resources_at_pod_level_decide_the_class_alone() {
    let full = json!({"cpu": "1", "memory": "1Gi"});
    let pod = pod(json!({
        "resources": {"requests": full, "limits": full},
        "containers": [{"name": "a"}],
    }));
    assert_eq!(pod_qos(&pod).unwrap(), QosClass::Guaranteed);
}

#[test]
fn oom_scores_follow_class_and_request() {
    let full = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(adj(&pod(one(full.clone(), full.clone())), 0), -997);
    assert_eq!(adj(&pod(one(json!({}), json!({}))), 0), 1000);
    // A quarter of the machine.
    assert_eq!(adj(&pod(one(json!({"memory": "1Gi"}), json!({}))), 0), 750);
    // Everything, or more than everything.
    assert_eq!(adj(&pod(one(json!({"memory": "4Gi"}), json!({}))), 0), 3);
    assert_eq!(adj(&pod(one(json!({"memory": "8Ei"}), json!({}))), 0), 3);
    // Next to nothing.
    assert_eq!(adj(&pod(one(json!({"memory": "1"}), json!({}))), 0), 999);
    assert_eq!(adj(&pod(one(json!({"cpu": "1"}), json!({}))), 0), 999);
}

#[test]
fn a_static_node_critical_pod_is_killed_last() {
    let mut critical = pod(one(json!({}), json!({})));
    let spec = critical.spec.as_mut().unwrap();
    spec.priority_class_name = Some("system-node-critical".into());
    assert_eq!(adj(&critical, 0), 1000, "only a static pod may say so itself");
    let source = ("kubernetes.io/config.source".into(), "file".into());
    critical.metadata.annotations = Some([source].into());
    assert_eq!(adj(&critical, 0), -997);
}

#[test]
fn a_sidecar_is_not_killed_before_the_containers_it_serves() {
    let pod = pod(json!({
        "containers": [{"name": "a", "resources": {"requests": {"memory": "2Gi"}}}],
        "initContainers": [{"name": "s", "restartPolicy": "Always"}],
    }));
    let sidecar = &pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0];
    assert_eq!(oom_score_adj(&pod, sidecar, 4 << 30).unwrap(), 500);
}

#[test]
fn a_pod_needs_the_sum_of_its_containers_or_the_largest_init_step() {
    let cpu = |name: &str, amount: &str| json!({"name": name, "resources": {"requests": {"cpu": amount}}});
    let mut sidecar = cpu("s", "100m");
    sidecar["restartPolicy"] = "Always".into();
    let total = |init: Vec<Value>| {
        let pod = pod(json!({
            "containers": [cpu("a", "200m"), cpu("b", "300m")],
            "initContainers": init,
        }));
        requests::of_pod::<Quantity>(&pod).unwrap().request("cpu").unwrap().milli_value()
    };
    assert_eq!(total(vec![]), 500);
    assert_eq!(total(vec![cpu("i", "400m")]), 500);
    assert_eq!(total(vec![cpu("i", "900m")]), 900);
    assert_eq!(total(vec![sidecar.clone()]), 600);
    // An init container after a sidecar runs beside it.
    assert_eq!(total(vec![sidecar, cpu("i", "900m")]), 1000);
}

#[test]
fn a_pod_is_bounded_only_if_all_of_it_is() {
    let bound = |spec: Value| requests::pod_memory_bound(&pod(spec)).unwrap();
    let limit = |name: &str, m: &str| json!({"name": name, "resources": {"limits": {"memory": m}}});
    assert_eq!(bound(json!({"containers": [limit("a", "1Mi"), limit("b", "2Mi")]})), Some(3 << 20));
    assert_eq!(bound(json!({"containers": [limit("a", "1Mi"), {"name": "b"}]})), None);
    let at_pod_level = json!({"limits": {"memory": "5Mi"}});
    assert_eq!(
        bound(json!({"resources": at_pod_level, "containers": [{"name": "b"}]})),
        Some(5 << 20)
    );
}

#[test]
fn container_resources_have_shares_quota_memory_and_huge_pages() {
    let pod = pod(one(
        json!({"cpu": "250m", "memory": "64Mi"}),
        json!({"cpu": "500m", "memory": "128Mi", "hugepages-2Mi": "4Mi"}),
    ));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let reported =
        container_resources(&pod, container, &node(), &ResourceEnforcement::default()).unwrap();
    assert_eq!(reported.cpu_shares, 256);
    assert_eq!(reported.cpu_quota, 50_000);
    assert_eq!(reported.cpu_period, 100_000);
    assert_eq!(reported.memory_limit_in_bytes, 128 << 20);
    assert_eq!(reported.oom_score_adj, 985);
    assert!(reported.unified.is_empty());
    let pages: Vec<_> =
        reported.hugepage_limits.iter().map(|l| (l.page_size.as_str(), l.limit)).collect();
    assert_eq!(pages, [("64KB", 0), ("2MB", 4 << 20), ("1GB", 0)]);
}

#[test]
fn a_limit_stands_in_for_a_missing_request_and_the_pods_for_a_missing_limit() {
    let pod = pod(json!({
        "resources": {"limits": {"memory": "1Gi"}},
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}],
    }));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let settings = ResourceEnforcement {
        cfs_quota: false,
        oom_group: true,
        swap: SwapBehavior::NoSwap,
        ..ResourceEnforcement::default()
    };
    let reported = container_resources(&pod, container, &node(), &settings).unwrap();
    assert_eq!(reported.cpu_shares, 2048);
    assert_eq!((reported.cpu_quota, reported.cpu_period), (0, 0));
    assert_eq!(reported.memory_limit_in_bytes, 1 << 30);
    assert_eq!(reported.unified["memory.oom.group"], "1");
    assert_eq!(reported.unified["memory.swap.max"], "0");
    let sandbox = sandbox_resources(&pod, &settings).unwrap();
    assert!(!sandbox.unified.contains_key("memory.swap.max"));
}

#[test]
fn huge_pages_of_the_pod_are_those_of_containers_without_their_own() {
    let pod = pod(json!({
        "resources": {"limits": {"memory": "1Gi", "hugepages-2Mi": "64Mi"}},
        "containers": [
            {"name": "shares"},
            {"name": "own", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
        ],
    }));
    for (container, limit) in pod.spec.as_ref().unwrap().containers.iter().zip([64, 4]) {
        let reported =
            container_resources(&pod, container, &node(), &ResourceEnforcement::default());
        let pages = reported.unwrap().hugepage_limits;
        let pages: Vec<_> = pages.iter().map(|l| (l.page_size.as_str(), l.limit >> 20)).collect();
        assert_eq!(pages, [("64KB", 0), ("2MB", limit), ("1GB", 0)]);
    }
}

#[test]
fn without_swap_on_cgroup_v1_memory_and_swap_have_one_limit() {
    let settings =
        ResourceEnforcement { swap: SwapBehavior::NoSwapV1, ..ResourceEnforcement::default() };
    for (limits, expected) in [(json!({"memory": "1Gi"}), 1 << 30), (json!({}), 0)] {
        let pod = pod(one(json!({}), limits));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let reported = container_resources(&pod, container, &node(), &settings).unwrap();
        assert_eq!(reported.memory_swap_limit_in_bytes, expected);
        assert!(reported.unified.is_empty());
    }
}

#[test]
fn all_containers_share_what_the_pod_requests_beyond_them() {
    let pod = pod(json!({
        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "initContainers": [{"name": "first"}],
        "containers": [{"name": "c"}],
    }));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(oom_score_adj(&pod, container, 8 << 30), Ok(938));
}

#[test]
fn overhead_is_set_only_when_declared() {
    let mut spec = one(json!({"cpu": "1"}), json!({}));
    let enforcement = ResourceEnforcement::default();
    assert_eq!(sandbox_overhead(&pod(spec.clone()), &enforcement).unwrap(), None);
    spec["overhead"] = json!({"cpu": "250m", "memory": "10Mi"});
    let overhead = sandbox_overhead(&pod(spec.clone()), &enforcement).unwrap().unwrap();
    assert_eq!(overhead.cpu_shares, 256);
    assert_eq!(overhead.memory_limit_in_bytes, 10 << 20);
    let whole = sandbox_resources(&pod(spec), &enforcement).unwrap();
    assert_eq!(whole.cpu_shares, 1024, "overhead is told apart");
}

#[test]
fn a_bad_amount_names_its_place() {
    let pod = pod(one(json!({"cpu": "lots"}), json!({})));
    let error = pod_qos(&pod).unwrap_err();
    assert_eq!(
        crate::base::error_chain(&error),
        "requests[cpu] of container \"c\": \"lots\" is not a quantity \
         (a number such as 2, 1.5, 500m, 1Gi or 2e3)"
    );
}

#[test]
fn overhead_is_added_to_requests_and_existing_limits() {
    let pod = pod(json!({
        "overhead": {"cpu": "50m", "memory": "1Mi"},
        "containers": [
            {"name": "a", "resources": {
                "requests": {"cpu": "0.1", "memory": "64Mi"},
                "limits": {"memory": "64Mi", "cpu": "0"},
            }},
        ],
    }));
    let total = requests::of_pod_and_overhead::<Amount>(&pod).unwrap();
    let shown = |amounts: &requests::Amounts<Amount>| {
        let shown = amounts.iter().map(|(k, v)| format!("{k}={}", v.to_api().0));
        shown.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&total.requests), "cpu=150m memory=65Mi");
    assert_eq!(shown(&total.limits), "cpu=0 memory=65Mi");
}

#[test]
fn shares_and_quotas_convert_back_to_millicores() {
    for (shares, milli) in [(0, 0), (1, 0), (2, 2), (102, 100), (256, 250), (1024, 1000)] {
        assert_eq!(shares_to_milli_cpu(shares), milli, "{shares} shares");
    }
    for (quota, period, milli) in [
        (50_000, 100_000, 500),
        (1000, 100_000, 10),
        (-1, 100_000, 0),
        (0, 100_000, 0),
        (50_000, 0, 0),
        (i64::MAX, 1, i64::MAX),
    ] {
        let reported = quota_to_milli_cpu(quota, period);
        assert_eq!(reported, milli, "{quota} in {period}");
    }
}

#[test]
fn amounts_of_many_spellings_add_up_as_they_do_upstream() {
    let pod = pod(json!({"containers": [
        {"name": "a", "resources": {
            "requests": {"cpu": "1001m", "memory": "1536Ki"},
            "limits": {"cpu": "2", "memory": "2M"},
        }},
        {"name": "b", "resources": {
            "requests": {"cpu": "1m", "memory": "107374182400m"},
            "limits": {"memory": "268435456"},
        }},
        {"name": "c", "resources": {"requests": {"cpu": "0", "memory": "7M"}}},
    ]}));
    let total = requests::of_pod::<Amount>(&pod).unwrap();
    let shown = |amounts: &requests::Amounts<Amount>, name: &str| amounts[name].to_api().0;
    assert_eq!(shown(&total.requests, "cpu"), "1002m");
    assert_eq!(shown(&total.requests, "memory"), "115947046400m");
    assert_eq!(shown(&total.limits, "cpu"), "2");
    assert_eq!(shown(&total.limits, "memory"), "270435456");
}
