//! Host names and hosts files.

use super::{node_agent_pod, web_pod};
use crate::model::{Pod, PodExt};
use crate::runtime::kuberuntime::fixtures::{pod, pod_with};
use crate::runtime::kuberuntime::generate::hostname::{PodHostname, kernel_hostname, pod_hostname};
use crate::runtime::kuberuntime::generate::mounts;
use serde_json::{Value, json};

#[test]
fn host_names_are_labels_of_at_most_63_characters() {
    let name = |spec: Value| {
        let pod = pod(spec);
        pod_hostname(&pod, "cluster.local").and_then(|name| kernel_hostname(&pod, &name))
    };
    let long = format!("{}-.{}", "x".repeat(61), "y".repeat(20));
    let mut named = pod(json!({"containers": []}));
    named.metadata.name = Some(long);
    assert_eq!(pod_hostname(&named, "").unwrap().name, "x".repeat(61));
    named.metadata.name = Some("-".repeat(70));
    assert!(pod_hostname(&named, "").is_err());
    assert_eq!(name(json!({"containers": []})).unwrap(), "web");
    assert_eq!(name(json!({"containers": [], "hostname": "h"})).unwrap(), "h");
    let fqdn =
        json!({"containers": [], "hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true});
    assert_eq!(name(fqdn).unwrap(), "h.s.shop.svc.cluster.local");
    let fqdn = json!({"containers": [], "subdomain": "s".repeat(50), "setHostnameAsFQDN": true});
    assert!(
        name(fqdn)
            .unwrap_err()
            .to_string()
            .contains("(64 characters is the max, 77 characters requested)")
    );
    let own = |name: &str| json!({"containers": [], "hostname": "h", "subdomain": "s", "hostnameOverride": name});
    assert_eq!(name(own("any.name")).unwrap(), "any.name");
    assert_eq!(name(own(&"o".repeat(64))).unwrap(), "o".repeat(63));
    for bad in ["A", "a.b", "-a", "a_b"] {
        assert!(name(json!({"containers": [], "hostname": bad})).is_err(), "{bad}");
    }
}

#[test]
fn hosts_files_read_as_upstreams() {
    let pod = node_agent_pod();
    let name = PodHostname { name: "web".into(), domain: "sub.shop.svc.cluster.local".into() };
    assert_eq!(
        mounts::pod_hosts(&pod, &name, &["10.1.0.5".into(), "fd00::5".into()]),
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
         10.1.0.5\tweb.sub.shop.svc.cluster.local\tweb\n\
         fd00::5\tweb.sub.shop.svc.cluster.local\tweb\n\
         \n# Entries added by HostAliases.\n10.9.9.9\ta\tb\n"
    );
    let plain = mounts::pod_hosts(
        &web_pod(),
        &PodHostname { name: "web".into(), domain: String::new() },
        &["10.1.0.5".into()],
    );
    assert!(plain.ends_with("ip6-allrouters\n10.1.0.5\tweb\n"));
    assert_eq!(
        String::from_utf8(mounts::node_hosts(&pod, b"1.2.3.4 node\n")).unwrap(),
        "# Kubernetes-managed hosts file (host network).\n1.2.3.4 node\n\
         \n# Entries added by HostAliases.\n10.9.9.9\ta\tb\n"
    );
}

#[test]
fn the_hosts_file_is_for_pods_with_a_network_and_containers_without_their_own() {
    let ips = ["10.1.0.5".to_string()];
    let plain = pod_with(json!({}));
    let own = pod_with(json!({"volumeMounts": [{"name": "etc", "mountPath": "/etc/hosts/"}]}));
    let node = node_agent_pod();
    let wants =
        |pod: &Pod, ips: &[String]| mounts::wants_hosts_file(pod, &pod.containers()[0], ips);
    assert!(wants(&plain, &ips));
    assert!(!wants(&plain, &[]));
    assert!(!wants(&own, &ips));
    assert!(wants(&node, &[]));
}
