//! Names and addresses, as seen from within.

use std::io::Write as _;

use crate::node::{Node, manifest};

const SLEEPS: &str =
    r#"containers: [{ name: c, image: "localhost/busybox:dev", command: [sleep, "1000"] }]"#;

pub async fn pods_are_called_and_resolve_names_as_they_say() {
    let mut resolv = tempfile::NamedTempFile::new().unwrap();
    let lines = "search corp.test. .\noptions rotate\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n";
    resolv.write_all(lines.as_bytes()).unwrap();
    let node = Node::start_with(&format!(
        "clusterDNS: [10.96.0.10]\nclusterDomain: cluster.test\nresolvConf: {}\n",
        resolv.path().display()
    ))
    .await;
    let long = "l".repeat(70);
    for (name, spec) in [
        (
            "named",
            "hostname: front\nsubdomain: web\nhostAliases: [{ ip: 10.9.9.9, hostnames: [one, two.test] }]\n",
        ),
        ("fqdn", "hostname: front\nsubdomain: web\nsetHostnameAsFQDN: true\n"),
        (
            "other",
            "hostnameOverride: any.other.name\ndnsPolicy: None\ndnsConfig: { nameservers: [192.0.2.9], searches: [a.test, b.test], options: [{ name: ndots, value: '2' }, { name: edns0 }] }\n",
        ),
        (&long, "dnsPolicy: Default\ndnsConfig: { options: [{ name: rotate, value: '1' }] }\n"),
        (
            "hostnet",
            "hostNetwork: true\ndnsPolicy: ClusterFirstWithHostNet\nhostAliases: [{ ip: 10.9.9.9, hostnames: [one] }]\n",
        ),
    ] {
        node.put(name, &manifest(name, &format!("{spec}{SLEEPS}")));
    }
    for name in ["named", "fqdn", "other", "hostnet", &long] {
        node.ready(name).await;
    }
    let ip = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.clone().unwrap().pod_ip.unwrap();

    let named = ip(&node.ready("named").await);
    assert_eq!(node.sh("named", "c", "uname -n"), "front\n");
    let hosts = node.sh("named", "c", "cat /etc/hosts");
    let expected = format!(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
         {named}\tfront.web.default.svc.cluster.test\tfront\n\n# Entries added by HostAliases.\n10.9.9.9\tone\ttwo.test\n"
    );
    assert_eq!(hosts, expected);
    assert_eq!(node.sh("named", "c", "hostname -f"), "front.web.default.svc.cluster.test\n");
    assert_eq!(
        node.sh("named", "c", "cat /etc/resolv.conf"),
        "search default.svc.cluster.test svc.cluster.test cluster.test corp.test\nnameserver 10.96.0.10\noptions ndots:5\n"
    );

    assert_eq!(node.sh("fqdn", "c", "uname -n"), "front.web.default.svc.cluster.test\n");

    let other = ip(&node.ready("other").await);
    assert_eq!(node.sh("other", "c", "uname -n"), "any.other.name\n");
    assert!(
        node.sh("other", "c", "cat /etc/hosts").ends_with(&format!("{other}\tany.other.name\n"))
    );
    assert_eq!(
        node.sh("other", "c", "cat /etc/resolv.conf"),
        "search a.test b.test\nnameserver 192.0.2.9\noptions ndots:2 edns0\n"
    );

    assert_eq!(node.sh(&long, "c", "uname -n"), format!("{}\n", "l".repeat(63)));
    assert_eq!(
        node.sh(&long, "c", "cat /etc/resolv.conf"),
        "search corp.test\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\noptions rotate:1\n"
    );
    node.event(
        "DNSConfigForming",
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 192.0.2.1 192.0.2.2 192.0.2.3",
    )
    .await;

    let hosts = node.sh("hostnet", "c", "cat /etc/hosts");
    let own = std::fs::read_to_string("/etc/hosts").unwrap();
    assert_eq!(
        hosts,
        format!(
            "# Kubernetes-managed hosts file (host network).\n{own}\n# Entries added by HostAliases.\n10.9.9.9\tone\n"
        )
    );
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(node.sh("hostnet", "c", "uname -n"), own);
    assert!(node.sh("hostnet", "c", "cat /etc/resolv.conf").contains("nameserver 10.96.0.10\n"));
}
