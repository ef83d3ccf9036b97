//! Amounts, with numbers from upstream's formulas.

use super::resource_config::{
    NodeAmounts, PodRules, higher_limits, limited_to_usage, of_classes, resource_config_for_pod,
};
use crate::host::cgroup::CgroupSettings;
use crate::model::Pod;
use crate::resources::ResourceEnforcement;
use serde_json::{Value, json};

const MI: i64 = 1 << 20;

fn pod(spec: Value) -> Pod {
    let containers = spec.get("containers").is_some();
    assert!(containers, "{spec}");
    serde_json::from_value(json!({"metadata": {"name": "a", "uid": "u"}, "spec": spec})).unwrap()
}

fn container(requests: Value, limits: Value) -> Value {
    json!({"name": "c", "image": "i", "resources": {"requests": requests, "limits": limits}})
}

fn one(requests: Value, limits: Value) -> Pod {
    pod(json!({"containers": [container(requests, limits)]}))
}

fn rules() -> PodRules {
    PodRules { page_sizes: vec![2 << 20, 1 << 30], ..PodRules::default() }
}

/// Shares, quota, period, memory.
fn shown(settings: &CgroupSettings) -> (Option<u64>, Option<i64>, Option<u64>, Option<i64>) {
    let CgroupSettings { cpu_shares, cpu_quota, cpu_period, memory, .. } = settings;
    (*cpu_shares, *cpu_quota, *cpu_period, *memory)
}

#[test]
fn a_pod_gets_what_upstream_gives_it() {
    let (small, full) =
        (json!({"cpu": "100m", "memory": "100Mi"}), json!({"cpu": "200m", "memory": "200Mi"}));
    let none = json!({});
    let full_c = || container(full.clone(), full.clone());
    let period = Some(100_000);
    for (what, pod, expected) in [
        ("best effort", one(none.clone(), none.clone()), (Some(2), None, None, None)),
        ("only requests", one(small.clone(), none.clone()), (Some(102), None, None, None)),
        (
            "burstable with limits",
            one(small.clone(), full.clone()),
            (Some(102), Some(20_000), period, Some(200 * MI)),
        ),
        (
            "burstable with one container without limits",
            pod(json!({"containers": [
                container(small.clone(), full.clone()),
                {"name": "d", "image": "i"},
            ]})),
            (Some(102), None, None, None),
        ),
        (
            "burstable with one limit of memory and all of CPU",
            pod(json!({"containers": [
                container(small.clone(), full.clone()),
                {"name": "d", "image": "i", "resources": {"limits": {"cpu": "100m"}, "requests": {"cpu": "100m"}}},
            ]})),
            (Some(204), Some(30_000), period, None),
        ),
        (
            "guaranteed",
            pod(json!({"containers": [full_c(), full_c()]})),
            (Some(409), Some(40_000), period, Some(400 * MI)),
        ),
        (
            "guaranteed with overhead",
            pod(json!({"containers": [full_c()], "overhead": {"cpu": "50m", "memory": "10Mi"}})),
            (Some(256), Some(25_000), period, Some(210 * MI)),
        ),
        (
            "a hungry init container",
            pod(
                json!({"containers": [container(small.clone(), small.clone())], "initContainers": [full_c()]}),
            ),
            (Some(204), Some(20_000), period, Some(200 * MI)),
        ),
        (
            "limits of the pod itself",
            pod(json!({
                "containers": [{"name": "c", "image": "i"}],
                "resources": {"requests": small.clone(), "limits": full.clone()},
            })),
            (Some(102), Some(20_000), period, Some(200 * MI)),
        ),
        (
            "less than the least quota",
            one(json!({"cpu": "1m"}), json!({"cpu": "5m"})),
            (Some(2), Some(1_000), period, None),
        ),
    ] {
        let settings = resource_config_for_pod(&pod, &rules()).unwrap();
        assert_eq!(shown(&settings), expected, "{what}");
    }
}

#[test]
fn quotas_follow_the_settings_of_the_node() {
    let amounts = json!({"cpu": "500m", "memory": "100Mi"});
    let pod = one(amounts.clone(), amounts);
    let with = |cfs_quota, period_microseconds| PodRules {
        enforcement: ResourceEnforcement {
            cfs_quota,
            period_microseconds,
            ..ResourceEnforcement::default()
        },
        pids: Some(100),
        ..rules()
    };
    for (cfs_quota, period, quota) in [(true, 5_000, 2_500), (false, 100_000, -1)] {
        let settings = resource_config_for_pod(&pod, &with(cfs_quota, period)).unwrap();
        assert_eq!(settings.cpu_quota, Some(quota));
        assert_eq!(settings.cpu_period, u64::try_from(period).ok());
        assert_eq!(settings.pids, Some(100));
    }
}

#[test]
fn every_page_size_has_a_limit() {
    let amounts = json!({"hugepages-2Mi": "4Mi", "cpu": "1", "memory": "1Gi"});
    let pod = one(amounts.clone(), amounts);
    let limits = resource_config_for_pod(&pod, &rules()).unwrap().huge_pages;
    let expected = [("1GB".to_owned(), 0), ("2MB".to_owned(), 4 << 20)];
    assert_eq!(limits, expected.into());
    let without = PodRules::default();
    assert!(resource_config_for_pod(&pod, &without).unwrap().huge_pages.is_empty());
}

#[test]
fn memory_is_protected_by_class_where_that_is_wanted() {
    let rules = PodRules { protect_memory: true, ..PodRules::default() };
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    let guaranteed = one(amounts.clone(), amounts);
    let burstable = one(json!({"memory": "32Mi"}), json!({}));
    let min = resource_config_for_pod(&guaranteed, &rules).unwrap().unified;
    assert_eq!(min, [("memory.min", (64 * MI).to_string())].into());
    let low = resource_config_for_pod(&burstable, &rules).unwrap().unified;
    assert_eq!(low, [("memory.low", (32 * MI).to_string())].into());
    let pods = [&guaranteed, &burstable];
    let classes = of_classes(pods.into_iter(), &rules, true, None);
    let all = (96 * MI).to_string();
    assert_eq!(classes.guaranteed.unified, [("memory.min", all)].into());
    assert_eq!(classes.burstable.unified, low);
    let unprotected = of_classes(pods.into_iter(), &PodRules::default(), true, None);
    assert_eq!(unprotected.burstable.unified, [("memory.low", "0".to_owned())].into());
    let off = of_classes(pods.into_iter(), &PodRules::default(), false, None);
    assert!(off.guaranteed.unified.is_empty() && off.burstable.unified.is_empty());
}

#[test]
fn classes_get_the_sum_of_their_pods() {
    let full = json!({"cpu": "1", "memory": "100Mi"});
    let pods = [
        one(json!({"cpu": "100m", "memory": "40Mi"}), json!({})),
        one(json!({"cpu": "150m"}), json!({"cpu": "1"})),
        one(full.clone(), full),
        one(json!({}), json!({})),
    ];
    let classes = of_classes(pods.iter(), &rules(), false, Some((1000 * MI, 50)));
    assert_eq!(classes.burstable.cpu_shares, Some(256));
    assert_eq!(classes.best_effort.cpu_shares, Some(2));
    assert_eq!(classes.guaranteed.cpu_shares, None, "the node's own share stays");
    assert_eq!(classes.burstable.memory, Some(950 * MI));
    assert_eq!(classes.best_effort.memory, Some(930 * MI));
    for class in [&classes.guaranteed, &classes.burstable, &classes.best_effort] {
        let unbounded = ["1GB", "2MB"].map(|size| (size.to_owned(), 1 << 62));
        assert_eq!(class.huge_pages, unbounded.into());
    }
    let empty = of_classes([].into_iter(), &rules(), false, None);
    assert_eq!(empty.burstable.cpu_shares, Some(2));
}

#[test]
fn the_node_gets_what_is_not_reserved() {
    let amounts = |milli_cpu, memory, pids| NodeAmounts { milli_cpu, memory, pids };
    let capacity = amounts(Some(2000), Some(1 << 30), Some(32_768));
    let system = amounts(Some(200), Some(1 << 29), Some(1000));
    let kube = amounts(Some(100), Some(1 << 30), None);
    let left = capacity.without(&[&system, &kube]);
    assert_eq!(left, amounts(Some(1700), Some(0), Some(31_768)));
    let settings = capacity.settings(false);
    assert_eq!(shown(&settings), (Some(2048), None, None, Some(1 << 30)));
    assert_eq!(settings.pids, Some(32_768));
    let share = CgroupSettings { cpu_shares: Some(204), ..CgroupSettings::default() };
    assert_eq!(system.settings(true), share);
}

#[test]
fn a_limit_below_the_usage_becomes_the_usage() {
    let settings =
        |memory| CgroupSettings { cpu_shares: Some(2), memory, ..CgroupSettings::default() };
    for (limit, usage, expected) in [
        (Some(100), 101, Some(Some(101))),
        (Some(100), 100, None),
        (None, 100, None),
        (Some(0), u64::MAX, Some(Some(i64::MAX))),
    ] {
        let limited = limited_to_usage(&settings(limit), usage);
        assert_eq!(limited, expected.map(settings), "{limit:?} {usage}");
    }
}

#[test]
fn a_pod_with_sidecars_is_limited_only_if_each_container_is() {
    let limit = |memory: &str| json!({"limits": {"memory": memory}});
    let with = |resources: Value| json!({"name": "c", "image": "i", "resources": resources});
    let sidecar = |resources: Value| {
        let mut container = with(resources);
        container["restartPolicy"] = "Always".into();
        container
    };
    let (limited, none) = (|| limit("100Mi"), || json!({}));
    for (what, init, expected) in [
        ("limited", vec![sidecar(limited()), with(limited())], Some(200 * MI)),
        ("an init container", vec![sidecar(limited()), with(none())], None),
        ("a second sidecar", vec![sidecar(limited()), sidecar(none())], None),
        ("a first init container", vec![with(none()), sidecar(limited())], None),
    ] {
        let pod = pod(json!({"containers": [with(limited())], "initContainers": init}));
        let settings = resource_config_for_pod(&pod, &rules()).unwrap();
        assert_eq!(settings.memory, expected, "{what}");
    }
}

#[test]
fn between_two_limits_the_higher_one_is_set_and_none_where_one_is_missing() {
    let settings = |cpu_shares, cpu_quota, memory| CgroupSettings {
        cpu_shares: Some(cpu_shares),
        cpu_quota,
        memory,
        ..CgroupSettings::default()
    };
    for (one, other, wanted) in [
        (
            settings(2, Some(1000), Some(10)),
            settings(3, Some(500), Some(20)),
            settings(3, Some(1000), Some(20)),
        ),
        (settings(5, Some(1000), Some(10)), settings(3, Some(-1), None), settings(5, None, None)),
        (settings(2, None, Some(10)), settings(2, Some(500), Some(0)), settings(2, None, None)),
    ] {
        assert_eq!(higher_limits(one.clone(), &other), wanted, "{one:?} {other:?}");
        assert_eq!(higher_limits(other.clone(), &one), wanted, "{other:?} {one:?}");
    }
}
