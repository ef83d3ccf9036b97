//! What is allocated, and what is in force.

use super::*;
use crate::model::ContainerResources;
use serde_json::{Value, json};
use std::sync::Arc;

fn requesting(resources: &Value) -> Pod {
    let mut pod = pod("Always", &[], &["a"]);
    edit(&mut pod, "a", |a| {
        a.resources = serde_json::from_value(resources.clone()).unwrap();
    });
    pod
}

fn reported(cpu_request: i64, cpu_limit: i64, memory_limit: i64) -> model::ContainerStatus {
    let known = |amount: i64| (amount > 0).then_some(amount);
    model::ContainerStatus {
        resources: Some(Arc::new(ContainerResources {
            cpu_request: known(cpu_request),
            cpu_limit: known(cpu_limit),
            memory_limit: known(memory_limit),
        })),
        ..running("a", "c1")
    }
}

fn shown(status: &PodStatus) -> Value {
    serde_json::to_value(&of(status, "a").resources).unwrap()
}

#[test]
fn resources_are_present_once_there_is_an_instance() {
    let requested = json!({"requests": {"cpu": "0.1"}, "limits": {"memory": "1024Ki"}});
    let pod = requesting(&requested);
    let waiting = generate(&pod, &[]);
    let a = of(&waiting, "a");
    assert_eq!((&a.resources, &a.allocated_resources), (&None, &None));
    for instance in [running("a", "c1"), exited("a", "c1", 1)] {
        let status = generate(&pod, &[instance]);
        assert_eq!(
            shown(&status),
            json!({"requests": {"cpu": "100m"}, "limits": {"memory": "1Mi"}})
        );
        let allocated = serde_json::to_value(&of(&status, "a").allocated_resources).unwrap();
        assert_eq!(allocated, json!({"cpu": "100m"}));
    }
    let plain = generate(&super::pod("Always", &[], &["a"]), &[running("a", "c1")]);
    assert_eq!(shown(&plain), json!({}));
    assert_eq!(of(&plain, "a").allocated_resources, None);
}

#[test]
fn resources_in_force_are_those_that_the_runtime_reports() {
    let both = json!({
        "requests": {"cpu": "100m", "memory": "64Mi"},
        "limits": {"cpu": "500m", "memory": "100M"},
    });
    let rows = [
        (
            &both,
            reported(102, 400, 100_000_000),
            json!({
                "requests": {"cpu": "102m", "memory": "64Mi"},
                "limits": {"cpu": "400m", "memory": "100000000"},
            }),
        ),
        // It knows nothing of the other two.
        (
            &both,
            reported(100, 0, 0),
            json!({
                "requests": {"cpu": "100m", "memory": "64Mi"},
                "limits": {"cpu": "500m", "memory": "100M"},
            }),
        ),
        // No list is invented.
        (&json!({}), reported(100, 200, 300), json!({})),
        // The least that a kernel can do says nothing about less than that.
        (
            &json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}}),
            reported(2, 10, 0),
            json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}}),
        ),
        (
            &json!({"requests": {"memory": "1Mi"}}),
            reported(2, 0, 0),
            json!({"requests": {"memory": "1Mi"}}),
        ),
        // A limit that came from the pod.
        (
            &json!({"limits": {"memory": "1Mi"}}),
            reported(2, 1000, 1 << 20),
            json!({"limits": {"memory": "1Mi", "cpu": "1"}}),
        ),
    ];
    for (requested, instance, expected) in rows {
        let status = generate(&requesting(requested), &[instance]);
        assert_eq!(shown(&status), expected, "{requested}");
    }
}

#[test]
fn a_report_of_the_runtime_holds_for_the_same_running_instance() {
    let pod = requesting(&json!({"limits": {"cpu": "500m"}}));
    let old = generate(&pod, &[reported(0, 400, 0)]);
    let cpu = |instance| {
        let status = after(&pod, &[instance], Some(&old));
        shown(&status)["limits"]["cpu"].as_str().unwrap().to_owned()
    };
    assert_eq!(cpu(running("a", "c1")), "400m", "listed, not read again");
    assert_eq!(cpu(running("a", "c2")), "500m", "another instance");
    assert_eq!(cpu(exited("a", "c1", 1)), "500m", "it does not run");
}

#[test]
fn the_pod_has_what_it_requests_as_a_whole() {
    let mut pod = pod("Always", &["i", "s*"], &["a", "b"]);
    for (name, requested) in [
        ("i", json!({"requests": {"cpu": "2"}})),
        ("s", json!({"requests": {"cpu": "100m"}})),
        ("a", json!({"requests": {"cpu": "0.5", "memory": "64Mi"}, "limits": {"memory": "64Mi"}})),
        ("b", json!({"requests": {"memory": "64Mi"}})),
    ] {
        edit(&mut pod, name, |c| {
            c.resources = serde_json::from_value(requested).unwrap();
        });
    }
    let status = serde_json::to_value(generate(&pod, &[])).unwrap();
    let requests = json!({"cpu": "2", "memory": "128Mi"});
    assert_eq!(status["allocatedResources"], requests);
    assert_eq!(status["resources"], json!({"requests": requests, "limits": {"memory": "64Mi"}}));
    let plain = serde_json::to_value(generate(&super::pod("Never", &[], &["a"]), &[])).unwrap();
    assert_eq!(plain["resources"], json!({}));
    assert_eq!(plain.get("allocatedResources"), None);
}

#[test]
fn a_pod_that_runs_shows_what_is_in_force_beside_what_it_was_allocated() {
    let sized = |memory: &str| {
        let mut pod = requesting(&json!({}));
        let level = json!({"requests": {"memory": memory}, "limits": {"memory": memory}});
        pod.spec.as_mut().unwrap().resources = serde_json::from_value(level).unwrap();
        pod
    };
    let (allocated, actuated_pod) = (sized("10Ki"), sized("30Mi"));
    for (containers, actuated_pod, expected) in [
        (vec![running("a", "c1")], Some(&actuated_pod), "30Mi"),
        (vec![running("a", "c1")], None, "10Ki"),
        (vec![], Some(&actuated_pod), "10Ki"),
    ] {
        let runtime = runtime_status(&containers);
        let inputs =
            StatusInputs { actuated_pod, ..StatusInputs::new(&allocated, &runtime, now()) };
        let status = generate_api_pod_status(&inputs).unwrap();
        let shown = serde_json::to_value((&status.allocated_resources, &status.resources)).unwrap();
        let of = |memory: &str| json!({"memory": memory});
        assert_eq!(
            shown,
            json!([of("10Ki"), {"requests": of(expected), "limits": of(expected)}]),
            "{containers:?}"
        );
    }
}
