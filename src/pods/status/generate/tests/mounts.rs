use super::*;
use crate::model::ContainerUser;
use k8s_openapi::api::core::v1::Lifecycle;
use serde_json::{Value, json};
use std::sync::Arc;

fn with_mounts() -> Pod {
    let mut pod = pod("Always", &["i"], &["a"]);
    let mounts = json!([
        {"name": "v", "mountPath": "/rw"},
        {"name": "v", "mountPath": "/ro", "readOnly": true},
        {"name": "v", "mountPath": "/maybe", "readOnly": true, "recursiveReadOnly": "IfPossible"},
        {"name": "v", "mountPath": "/must", "readOnly": true, "recursiveReadOnly": "Enabled"},
    ]);
    edit(&mut pod, "a", |container| {
        container.volume_mounts = serde_json::from_value(mounts).unwrap();
    });
    pod
}

fn shown(supported: bool, instances: &[model::ContainerStatus]) -> Value {
    let pod = with_mounts();
    let runtime =
        model::PodStatus { containers: instances.to_vec(), ..model::PodStatus::default() };
    let inputs = StatusInputs {
        recursive_read_only_mounts: supported,
        ..StatusInputs::new(&pod, &runtime, now())
    };
    let status = generate_api_pod_status(&inputs).unwrap();
    assert_eq!(of(&status, "i").volume_mounts, None);
    serde_json::to_value(&of(&status, "a").volume_mounts).unwrap()
}

#[test]
fn mounts_are_as_requested_and_recursion_as_the_runtime_supports() {
    let expected = |maybe: &str| {
        json!([
            {"name": "v", "mountPath": "/rw"},
            {"name": "v", "mountPath": "/ro", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"name": "v", "mountPath": "/maybe", "readOnly": true, "recursiveReadOnly": maybe},
            {"name": "v", "mountPath": "/must", "readOnly": true, "recursiveReadOnly": maybe},
        ])
    };
    for instances in [vec![], vec![running("a", "c1")], vec![exited("a", "c1", 1)]] {
        assert_eq!(shown(true, &instances), expected("Enabled"));
        assert_eq!(shown(false, &instances), expected("Disabled"));
    }
}

#[test]
fn mounts_of_an_instance_stay_as_they_were_made_if_the_runtime_supports_more_after_an_update() {
    let pod = with_mounts();
    let with = |instance: &model::ContainerStatus, old: Option<&PodStatus>, supported| {
        let runtime = runtime_status(std::slice::from_ref(instance));
        let inputs = StatusInputs {
            old,
            recursive_read_only_mounts: supported,
            ..StatusInputs::new(&pod, &runtime, now())
        };
        generate_api_pod_status(&inputs).unwrap()
    };
    let mounts = |status: &PodStatus| of(status, "a").volume_mounts.clone();
    let before = with(&running("a", "c1"), None, false);
    let same = with(&running("a", "c1"), Some(&before), true);
    assert_eq!(mounts(&same), mounts(&before));
    let next = with(&instance("a", "c2", Cri::Running, 1), Some(&before), true);
    assert_eq!(mounts(&next), mounts(&with(&running("a", "c2"), None, true)));
    assert_ne!(mounts(&next), mounts(&before));
}

#[test]
fn user_and_stop_signal_are_those_of_the_newest_instance() {
    let mut pod = pod("Always", &[], &["a"]);
    let mut newest = running("a", "c2");
    newest.user = Some(Arc::new(ContainerUser { uid: 7, gid: 8, supplemental_groups: vec![8, 9] }));
    newest.stop_signal = Some("SIGUSR1");
    let instances = [newest, exited("a", "c1", 1)];
    let unasked = generate(&pod, &instances);
    assert_eq!(of(&unasked, "a").stop_signal, None, "none was chosen");
    edit(&mut pod, "a", |a| {
        a.lifecycle =
            Some(Lifecycle { stop_signal: Some("SIGUSR1".into()), ..Lifecycle::default() });
    });
    let status = generate(&pod, &instances);
    let a = of(&status, "a");
    assert_eq!(a.stop_signal.as_deref(), Some("SIGUSR1"));
    let user = a.user.as_ref().unwrap().linux.as_ref().unwrap();
    assert_eq!((user.uid, user.gid), (7, 8));
    assert_eq!(user.supplemental_groups.as_deref(), Some(&[8, 9][..]));
    let status = generate(&pod, &[running("a", "c1")]);
    assert_eq!((&of(&status, "a").user, &of(&status, "a").stop_signal), (&None, &None));
}
