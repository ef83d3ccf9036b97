use super::*;
use serde_json::{Value, json};

fn pod(metadata: Value, spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn admitted(pod: &Pod, app_armor: bool, strict_groups: bool) -> Result<(), (&'static str, String)> {
    let node = NodeView {
        sysctls: &Allowlist::new("6.1", &[]).unwrap(),
        app_armor,
        features: RuntimeFeatures {
            supplemental_groups_policy: strict_groups,
            ..RuntimeFeatures::default()
        },
        object: None,
        others: &[],
    };
    admit(pod, &node).map_err(|rejection| (rejection.reason, rejection.message))
}

fn refused(reason: &'static str, message: &str) -> Result<(), (&'static str, String)> {
    Err((reason, message.to_string()))
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
            refused(
                "SysctlForbidden",
                r#"forbidden sysctl: "net.core.somaxconn" not allowlisted"#,
            ),
        ),
        (json!({"os": {"name": "linux"}}), Ok(())),
        (
            json!({"os": {"name": "windows"}}),
            refused(
                "PodOSNotSupported",
                "Failed to admit pod as the OS field doesn't match node OS",
            ),
        ),
        (
            json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}}),
            Ok(()),
        ),
        (
            json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
            refused(
                "SupplementalGroupsPolicyNotSupported",
                "SupplementalGroupsPolicy=Strict is not supported in this node",
            ),
        ),
    ] {
        assert_eq!(
            admitted(&pod(json!({}), spec.clone()), false, false),
            expected,
            "{spec}"
        );
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
            refused(
                "AppArmor",
                "Cannot enforce AppArmor: AppArmor is not enabled on the host",
            )
        } else {
            Ok(())
        };
        assert_eq!(admitted(&pod, false, false), expected, "{pod:?}");
        assert_eq!(admitted(&pod, true, false), Ok(()), "{pod:?}");
    }
}
