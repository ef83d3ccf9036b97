//! Whole configurations, and the pieces that are best seen in them.

use super::container_config::{ContainerInputs, generate_container_config};
use super::dns::ResolvConf;
use super::env::{EnvInputs, make_environment};
use super::fixtures::{pod, pod_with, settings};
use super::hostname::{PodHostname, kernel_hostname, pod_hostname};
use super::mounts::{self, ContainerFiles, MountError};
use super::sandbox_config::{SandboxInputs, generate_pod_sandbox_config};
use super::security_context::ImageUser;
use super::settings::ConfigError;
use crate::cri::v1::{self, NamespaceMode, security_profile::ProfileType};
use crate::model::{Pod, PodExt};
use crate::volumes::{VolumePath, VolumePaths};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};

fn sandbox(pod: &Pod) -> Result<v1::PodSandboxConfig, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let host = ResolvConf::default();
    let inputs = SandboxInputs {
        attempt: 2,
        host_resolv: Some(&host),
        cgroup_parent: "/kubepods/pod-u-1",
    };
    generate_pod_sandbox_config(pod, &settings(dir.path()), &inputs).map(|(config, _)| config)
}

fn volumes() -> VolumePaths {
    let at = |path: &str, managed| VolumePath {
        host_path: path.into(),
        managed,
    };
    VolumePaths::from([
        ("scratch".to_string(), at("/k/scratch", true)),
        ("etc".to_string(), at("/etc/app", false)),
    ])
}

fn container(pod: &Pod, user: ImageUser) -> Result<v1::ContainerConfig, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let container = &pod.containers()[0];
    let env_inputs = EnvInputs {
        pod_ips: &["10.1.0.5".into()],
        node: &settings.node,
    };
    let inputs = ContainerInputs {
        restart_count: 3,
        image_ref: "sha256:abc",
        image_user: &user,
        environment: &make_environment(pod, container, &env_inputs)?,
        volumes: &volumes(),
        files: &ContainerFiles {
            hosts_file: Some("/k/pods/u-1/etc-hosts".into()),
            termination_log: Some("/k/pods/u-1/containers/c/0123abcd".into()),
            ..ContainerFiles::default()
        },
    };
    generate_container_config(pod, container, &settings, &inputs)
}

fn web_pod() -> Pod {
    let mut pod = pod(json!({
        "terminationGracePeriodSeconds": 45,
        "hostname": "front",
        "subdomain": "web",
        "securityContext": {
            "runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "supplementalGroups": [4000],
            "sysctls": [
                {"name": "net/ipv4/ip_local_port_range", "value": "1024 65535"},
                {"name": "net.ipv4.conf.eth0/1.rp_filter", "value": "1"},
            ],
        },
        "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "etc", "hostPath": {"path": "/etc/app"}}],
        "containers": [{
            "name": "c",
            "image": "docker.io/library/web:1",
            "command": ["/bin/$(WHO)", "$$(WHO)"],
            "args": ["--ip=$(IP)"],
            "workingDir": "/srv",
            "env": [
                {"name": "WHO", "value": "server"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "ports": [
                {"containerPort": 80, "hostPort": 8080, "protocol": "TCP", "name": "http"},
                {"containerPort": 53, "protocol": "UDP"},
                {"containerPort": 53, "protocol": "UDP"},
                {"containerPort": 81, "name": "http"},
            ],
            "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "volumeMounts": [
                {"name": "scratch", "mountPath": "/tmp"},
                {"name": "etc", "mountPath": "etc/app", "readOnly": true, "mountPropagation": "HostToContainer"},
            ],
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "lifecycle": {"preStop": {"exec": {"command": ["stop"]}}},
            "stdin": true, "tty": true,
        }],
        "initContainers": [{"name": "side", "restartPolicy": "Always", "ports": [{"containerPort": 99, "hostPort": 99}]}],
    }));
    pod.metadata.labels = Some([("app".into(), "web".into())].into());
    pod.metadata.annotations = Some([("kubernetes.io/config.source".into(), "file".into())].into());
    pod
}

#[test]
fn the_sandbox_of_an_ordinary_pod() {
    let config = sandbox(&web_pod()).unwrap();
    let metadata = config.metadata.unwrap();
    assert_eq!(
        (
            metadata.name.as_str(),
            metadata.namespace.as_str(),
            metadata.uid.as_str(),
            metadata.attempt
        ),
        ("web", "shop", "u-1", 2)
    );
    assert_eq!(config.hostname, "front");
    assert_eq!(config.log_directory, "/var/log/pods/shop_web_u-1");
    assert_eq!(config.dns_config.unwrap().servers, ["10.96.0.10"]);
    let ports: Vec<_> = config
        .port_mappings
        .iter()
        .map(|p| (p.container_port, p.host_port, p.protocol()))
        .collect();
    assert_eq!(
        ports,
        [(80, 8080, v1::Protocol::Tcp), (53, 0, v1::Protocol::Udp)]
    );
    assert_eq!(config.labels["app"], "web");
    assert_eq!(config.labels["io.kubernetes.pod.uid"], "u-1");
    assert_eq!(config.labels.len(), 4);
    assert_eq!(config.annotations["kubernetes.io/config.source"], "file");
    let linux = config.linux.unwrap();
    assert_eq!(linux.cgroup_parent, "/kubepods/pod-u-1");
    assert_eq!(linux.sysctls["net.ipv4.ip_local_port_range"], "1024 65535");
    assert_eq!(linux.sysctls["net.ipv4.conf.eth0/1.rp_filter"], "1");
    assert_eq!(linux.overhead, None);
    assert_eq!(linux.resources.unwrap().cpu_shares, 256);
    let security = linux.security_context.unwrap();
    assert_eq!(security.run_as_user.unwrap().value, 1000);
    assert_eq!(security.run_as_group.unwrap().value, 3000);
    assert_eq!(security.supplemental_groups, [2000, 4000]);
    assert!(!security.privileged);
    assert_eq!(
        security.seccomp.unwrap().profile_type(),
        ProfileType::RuntimeDefault
    );
    let namespaces = security.namespace_options.unwrap();
    assert_eq!(namespaces.network(), NamespaceMode::Pod);
    assert_eq!(namespaces.pid(), NamespaceMode::Container);
    assert_eq!(namespaces.ipc(), NamespaceMode::Pod);
    assert_eq!(namespaces.userns_options, None);
}

#[test]
fn the_container_of_an_ordinary_pod() {
    let config = container(&web_pod(), ImageUser::Uid(0)).unwrap();
    let metadata = config.metadata.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.attempt), ("c", 3));
    let image = config.image.unwrap();
    assert_eq!(image.image, "sha256:abc");
    assert_eq!(image.user_specified_image, "docker.io/library/web:1");
    assert_eq!(config.command, ["/bin/server", "$(WHO)"]);
    assert_eq!(config.args, ["--ip=10.1.0.5"]);
    assert_eq!(config.working_dir, "/srv");
    assert_eq!(config.log_path, "c/3.log");
    assert!(config.stdin && config.tty && !config.stdin_once);
    let envs: Vec<_> = config
        .envs
        .iter()
        .map(|e| (e.key.as_str(), e.value.as_slice()))
        .collect();
    assert_eq!(envs, [("WHO", &b"server"[..]), ("IP", &b"10.1.0.5"[..])]);
    let mounts: Vec<_> = config
        .mounts
        .iter()
        .map(|m| {
            (
                m.container_path.as_str(),
                m.host_path.as_str(),
                m.readonly,
                m.selinux_relabel,
            )
        })
        .collect();
    assert_eq!(
        mounts,
        [
            ("/tmp", "/k/scratch", false, true),
            ("/etc/app", "/etc/app", true, false),
            ("/etc/hosts", "/k/pods/u-1/etc-hosts", false, true),
            (
                "/dev/termination-log",
                "/k/pods/u-1/containers/c/0123abcd",
                false,
                true
            ),
        ]
    );
    assert_eq!(
        config.mounts[1].propagation(),
        v1::MountPropagation::PropagationHostToContainer
    );
    assert_eq!(config.labels.len(), 4);
    assert_eq!(config.labels["io.kubernetes.container.name"], "c");
    assert_eq!(
        config.annotations["io.kubernetes.container.restartCount"],
        "3"
    );
    assert_eq!(
        config.annotations["io.kubernetes.pod.terminationGracePeriod"],
        "45"
    );
}

#[test]
fn what_the_container_of_an_ordinary_pod_may_use_and_do() {
    let config = container(&web_pod(), ImageUser::Uid(0)).unwrap();
    let linux = config.linux.unwrap();
    let resources = linux.resources.unwrap();
    assert_eq!(resources.cpu_shares, 256);
    assert_eq!(resources.memory_limit_in_bytes, 128 << 20);
    assert_eq!(resources.oom_score_adj, 985);
    let security = linux.security_context.unwrap();
    assert_eq!(security.run_as_user.unwrap().value, 1000);
    assert_eq!(security.supplemental_groups, [2000, 4000]);
    assert_eq!(
        security.seccomp.unwrap().profile_type(),
        ProfileType::Unconfined
    );
    assert_eq!(security.masked_paths.len(), 12);
    assert_eq!(security.readonly_paths.len(), 5);
    assert!(!security.privileged && !security.no_new_privs && !security.readonly_rootfs);
}

fn node_agent_pod() -> Pod {
    pod(json!({
        "hostNetwork": true, "hostPID": true, "hostIPC": true,
        "overhead": {"cpu": "100m"},
        "hostAliases": [{"ip": "10.9.9.9", "hostnames": ["a", "b"]}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 7,
            "seLinuxOptions": {"type": "pod_t"}},
        "containers": [{
            "name": "c", "image": "agent",
            "securityContext": {
                "privileged": true, "procMount": "Unmasked", "readOnlyRootFilesystem": true,
                "runAsUser": 0, "allowPrivilegeEscalation": true,
                "seccompProfile": {"type": "Localhost", "localhostProfile": "dir/agent.json"},
                "appArmorProfile": {"type": "Localhost", "localhostProfile": "agent"},
                "capabilities": {"add": ["NET_ADMIN", "CAP_SYS_TIME"], "drop": ["ALL"]},
                "seLinuxOptions": {"level": "s0:c1", "type": "spc_t"},
            },
            "volumeMounts": [{"name": "etc", "mountPath": "/host", "mountPropagation": "Bidirectional"}],
        }],
    }))
}

#[test]
fn the_sandbox_of_a_privileged_node_agent() {
    let config = sandbox(&node_agent_pod()).unwrap();
    assert_eq!(config.hostname, "");
    assert!(config.port_mappings.is_empty());
    let linux = config.linux.unwrap();
    assert_eq!(linux.overhead.unwrap().cpu_shares, 102);
    let security = linux.security_context.unwrap();
    assert!(security.privileged);
    assert_eq!(security.selinux_options.unwrap().r#type, "pod_t");
    let namespaces = security.namespace_options.unwrap();
    assert_eq!(namespaces.network(), NamespaceMode::Node);
    assert_eq!(namespaces.pid(), NamespaceMode::Node);
    assert_eq!(namespaces.ipc(), NamespaceMode::Node);
}

#[test]
fn the_container_of_a_privileged_node_agent() {
    let config = container(&node_agent_pod(), ImageUser::Name("nobody".into())).unwrap();
    assert!(config.command.is_empty() && config.envs.is_empty());
    assert_eq!(
        config.mounts[0].propagation(),
        v1::MountPropagation::PropagationBidirectional
    );
    let security = config.linux.unwrap().security_context.unwrap();
    assert!(security.privileged && security.readonly_rootfs && !security.no_new_privs);
    assert_eq!(
        security.run_as_user.unwrap().value,
        0,
        "the container's own wins"
    );
    assert_eq!(security.run_as_username, "");
    assert!(security.masked_paths.is_empty() && security.readonly_paths.is_empty());
    let capabilities = security.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["NET_ADMIN", "CAP_SYS_TIME"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
    let seccomp = security.seccomp.unwrap();
    assert_eq!(seccomp.profile_type(), ProfileType::Localhost);
    assert!(seccomp.localhost_ref.ends_with("/seccomp/dir/agent.json"));
    let apparmor = security.apparmor.unwrap();
    assert_eq!(apparmor.localhost_ref, "agent");
    let selinux = security.selinux_options.unwrap();
    assert_eq!(
        (selinux.r#type.as_str(), selinux.level.as_str()),
        ("spc_t", "s0:c1")
    );
}

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
    assert_eq!(
        name(json!({"containers": [], "hostname": "h"})).unwrap(),
        "h"
    );
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
    assert_eq!(
        name(json!({"containers": [], "hostnameOverride": "any.name"})).unwrap(),
        "any.name"
    );
    for bad in ["A", "a.b", "-a", "a_b"] {
        assert!(
            name(json!({"containers": [], "hostname": bad})).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn hosts_files_read_as_upstreams() {
    let pod = node_agent_pod();
    let name = PodHostname {
        name: "web".into(),
        domain: "sub.shop.svc.cluster.local".into(),
    };
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
        &PodHostname {
            name: "web".into(),
            domain: String::new(),
        },
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

fn mounts_of(mount: Value, rro: bool) -> Result<Vec<v1::Mount>, MountError> {
    let pod = pod_with(json!({"volumeMounts": [mount]}));
    let files = ContainerFiles {
        sub_paths: BTreeMap::from([(0, "/k/bound".into())]),
        ..ContainerFiles::default()
    };
    mounts::container_mounts(&pod.containers()[0], &volumes(), &files, rro)
}

#[test]
fn mounts_that_make_no_sense_are_refused_with_upstreams_words() {
    let on = |more: Value| {
        let mut mount = json!({"name": "etc", "mountPath": "/x"});
        mount
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        mount
    };
    for (mount, rro, refusal) in [
        (
            on(json!({"name": "nope"})),
            true,
            "cannot find volume \"nope\" to mount into container \"c\"",
        ),
        (
            on(json!({"mountPropagation": "Both"})),
            true,
            "invalid MountPropagation mode: \"Both\"",
        ),
        (
            on(json!({"recursiveReadOnly": "Enabled"})),
            true,
            "volume \"etc\" requested recursive read-only mode, but it is not read-only",
        ),
        (
            on(
                json!({"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "HostToContainer"}),
            ),
            true,
            "volume \"etc\" requested recursive read-only mode, but it is not compatible with propagation \"HostToContainer\"",
        ),
        (
            on(json!({"recursiveReadOnly": "Enabled", "readOnly": true})),
            false,
            "volume \"etc\" requested recursive read-only mode, but it is not supported by the runtime",
        ),
        (
            on(json!({"recursiveReadOnly": "Maybe", "readOnly": true})),
            true,
            "unknown recursive read-only mode \"Maybe\"",
        ),
    ] {
        assert_eq!(mounts_of(mount, rro).unwrap_err().to_string(), refusal);
    }
    let recursive = |mode: &str, rro| {
        let mount = on(json!({"recursiveReadOnly": mode, "readOnly": true}));
        mounts_of(mount, rro).unwrap()[0].recursive_read_only
    };
    assert!(recursive("Enabled", true));
    assert!(recursive("IfPossible", true));
    assert!(!recursive("IfPossible", false));
    assert!(!recursive("Disabled", true));
}

#[test]
fn sub_paths_are_expanded_checked_and_mounted_from_where_they_were_bound() {
    let ask = |mount: Value| {
        let pod = pod_with(json!({"volumeMounts": [mount]}));
        let environment = vec![("WHO".to_string(), "me".to_string())];
        mounts::sub_path_requests(&pod.containers()[0], &volumes(), &environment)
    };
    let expr = json!({"name": "scratch", "mountPath": "/x", "subPathExpr": "a/$(WHO)"});
    let requests = ask(expr.clone()).unwrap();
    assert_eq!(requests[0].sub_path, "a/me");
    assert_eq!(requests[0].volume_path, Path::new("/k/scratch"));
    assert_eq!(mounts_of(expr, false).unwrap()[0].host_path, "/k/bound");
    assert!(
        ask(json!({"name": "scratch", "mountPath": "/x"}))
            .unwrap()
            .is_empty()
    );
    for (mount, refusal) in [
        (json!({"subPath": "../x"}), "'..'"),
        (json!({"subPath": "/x"}), "relative path"),
        (
            json!({"subPathExpr": "$(NOBODY)"}),
            "missing value for \"NOBODY\"",
        ),
    ] {
        let mut whole = json!({"name": "scratch", "mountPath": "/x"});
        whole
            .as_object_mut()
            .unwrap()
            .extend(mount.as_object().unwrap().clone());
        assert!(
            ask(whole).unwrap_err().to_string().contains(refusal),
            "{refusal}"
        );
    }
}
