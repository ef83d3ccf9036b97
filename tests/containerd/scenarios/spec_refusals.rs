//! What a node will not run.

use crate::node::{Node, WAIT_LIMIT, manifest, phase};
use crate::support::wait::{holds, wait_for};

const SLEEPS: &str =
    r#"containers: [{ name: c, image: "localhost/busybox:dev", command: [sleep, "1000"] }]"#;

pub async fn what_a_node_refuses_has_failed_with_upstreams_reason() {
    let mut node =
        Node::start_with("allowedUnsafeSysctls: [\"net.core.*\", \"kernel.msg*\"]\n").await;
    let sysctls = |list: &[(&str, &str)]| {
        let list: Vec<String> = list
            .iter()
            .map(|(name, value)| format!("{{ name: {name}, value: \"{value}\" }}"))
            .collect();
        format!("securityContext: {{ sysctls: [{}] }}\n", list.join(", "))
    };
    let put = |node: &Node, name: &str, spec: &str| {
        node.put(name, &manifest(name, &format!("{spec}{SLEEPS}")));
    };
    put(
        &node,
        "tuned",
        &sysctls(&[
            ("net.ipv4.ip_unprivileged_port_start", "81"),
            ("net/core/somaxconn", "2047"),
            ("kernel.msgmax", "65530"),
        ]),
    );
    let strict =
        "securityContext: { supplementalGroups: [4000], supplementalGroupsPolicy: Strict }\n";
    put(&node, "strict", strict);
    let profile = "securityContext: { appArmorProfile: { type: RuntimeDefault } }\n";
    let mut refused = vec![
        (
            "vm",
            sysctls(&[("net.ipv4.tcp_syncookies", "1"), ("vm.swappiness", "1")]),
            "SysctlForbidden",
            "forbidden sysctl: \"vm.swappiness\" not allowlisted",
        ),
        (
            "windows",
            "os: { name: windows }\n".to_owned(),
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
    ];
    let app_armor = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    if !app_armor.is_ok_and(|text| text.starts_with('Y')) {
        refused.push((
            "armoured",
            profile.to_owned(),
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ));
    }
    for (name, spec, ..) in &refused {
        put(&node, name, spec);
    }
    for round in 0..2 {
        for (name, _, reason, message) in &refused {
            let pod = node.pod_when(name, "failed", |pod| phase(pod) == "Failed").await;
            let status = pod.status.unwrap();
            assert_eq!(status.reason.as_deref(), Some(*reason));
            let text = format!("Pod was rejected: {message}");
            assert_eq!(status.message, Some(text));
            assert_eq!(status.container_statuses, None, "{name}");
            node.event(reason, message).await;
        }
        node.ready("tuned").await;
        if round == 0 {
            node.restart_kubelet().await;
        }
    }
    for (name, value) in [
        ("net/ipv4/ip_unprivileged_port_start", "81\n"),
        ("net/core/somaxconn", "2047\n"),
        ("kernel/msgmax", "65530\n"),
    ] {
        assert_eq!(node.sh("tuned", "c", &format!("cat /proc/sys/{name}")), value);
    }
    if node.runtime.features().supplemental_groups_policy {
        node.ready("strict").await;
        assert_eq!(node.sh("strict", "c", "id -G"), "0 4000\n");
    } else {
        let failed = |pod: &_| phase(pod) == "Failed";
        let pod = node.pod_when("strict", "failed", failed).await;
        let status = pod.status.unwrap();
        assert_eq!(status.reason.as_deref(), Some("SupplementalGroupsPolicyNotSupported"));
        assert_eq!(
            status.message.as_deref(),
            Some("Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node")
        );
    }
    let of_refused = |name: &str| refused.iter().any(|(refused, ..)| name.starts_with(refused));
    let sandboxes = node.runtime.sandboxes();
    assert!(!sandboxes.iter().any(|sandbox| of_refused(&sandbox.name)), "{sandboxes:?}");
    // A manifest with smaller requests runs.
    put(&node, "vm", &sysctls(&[("net.ipv4.tcp_syncookies", "1")]));
    node.ready("vm").await;
    for name in ["vm", "windows"] {
        node.remove(name);
        node.gone(name, WAIT_LIMIT).await;
    }
    let root = node.kubelet.settings().dir.join("root/pods");
    wait_for("only what runs has a directory", WAIT_LIMIT, || async {
        let left = std::fs::read_dir(&root).unwrap().count();
        let runs = node.runtime.sandboxes().len();
        holds(left == runs, format!("{left} directories of {runs} pods"))
    })
    .await;
}
