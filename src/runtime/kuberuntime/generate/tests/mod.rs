//! Whole configurations, and the pieces that are best seen in them.

mod mounts;
mod network;
mod user_namespaces;

use crate::cri::v1::security_profile::ProfileType;
use crate::cri::v1::{self, NamespaceMode};
use crate::model::{Pod, PodExt};
use crate::resources::devices::RunOptions;
use crate::runtime::kuberuntime::fixtures::{pod, settings};
use crate::runtime::kuberuntime::generate::container_config::{
    ContainerConfigRequest, ContainerInputs, generate_container_config,
};
use crate::runtime::kuberuntime::generate::dns::ResolvConf;
use crate::runtime::kuberuntime::generate::env::{EnvFiles, EnvInputs, make_environment};
use crate::runtime::kuberuntime::generate::mounts::{ContainerFiles, ImageVolumes};
use crate::runtime::kuberuntime::generate::sandbox_config::{
    SandboxInputs, generate_pod_sandbox_config,
};
use crate::runtime::kuberuntime::generate::security_context::ImageUser;
use crate::runtime::kuberuntime::generate::user_namespaces::ranges::IdRange;
use crate::volumes::{VolumePath, VolumePaths};
use serde_json::json;
use std::sync::Arc;

fn sandbox(pod: &Pod) -> anyhow::Result<v1::PodSandboxConfig> {
    sandbox_with_ids(pod, None)
}

fn sandbox_with_ids(
    pod: &Pod,
    user_namespace: Option<IdRange>,
) -> anyhow::Result<v1::PodSandboxConfig> {
    let dir = tempfile::tempdir().unwrap();
    let host = ResolvConf::default();
    let inputs = SandboxInputs {
        attempt: 2,
        host_resolv: Some(&host),
        cgroup_parent: "/kubepods/pod-u-1",
        user_namespace,
    };
    generate_pod_sandbox_config(pod, &settings(dir.path()), &inputs).map(|(config, _)| config)
}

fn volumes() -> VolumePaths {
    let at = |path: &str, managed| VolumePath {
        host_path: path.into(),
        persistent_volume: None,
        check: crate::volumes::HostPathCheck::None,
        managed,
        read_only: false,
        plugin: None,
        measured: false,
        is_device: false,
        group: None,
        project: None,
    };
    VolumePaths::from([
        ("scratch".to_string(), at("/k/scratch", true)),
        ("etc".to_string(), at("/etc/app", false)),
    ])
}

fn container(pod: &Pod, user: ImageUser) -> anyhow::Result<v1::ContainerConfig> {
    container_with_ids(pod, user, None)
}

fn container_with_ids(
    pod: &Pod,
    user: ImageUser,
    user_namespace: Option<IdRange>,
) -> anyhow::Result<v1::ContainerConfig> {
    container_with_devices(pod, user, user_namespace, &RunOptions::default())
}

fn container_with_devices(
    pod: &Pod,
    user: ImageUser,
    user_namespace: Option<IdRange>,
    devices: &RunOptions,
) -> anyhow::Result<v1::ContainerConfig> {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(dir.path());
    Arc::make_mut(&mut settings.node).selinux = true;
    let container = &pod.containers()[0];
    let env_inputs = EnvInputs {
        pod_ips: &["10.1.0.5".into()],
        host_ips: &[],
        node: &settings.node,
        files: &EnvFiles::new(),
        configmaps_and_secrets: &Default::default(),
        services: &Default::default(),
    };
    let inputs = ContainerInputs {
        request: ContainerConfigRequest {
            pod: &Arc::new(pod.clone()),
            container,
            restart_count: 3,
            other_restart_counts: &[],
            image_ref: "sha256:abc",
            image_user: &user,
            pod_ips: &[],
            volumes: &volumes(),
            images: &ImageVolumes::new(),
        },
        environment: &make_environment(pod, container, &env_inputs)?,
        files: &ContainerFiles {
            hosts_file: Some("/k/pods/u-1/etc-hosts".into()),
            termination_log: Some("/k/pods/u-1/containers/c/0123abcd".into()),
            ..ContainerFiles::default()
        },
        user_namespace,
        recursive_read_only_mounts: false,
        devices,
    };
    generate_container_config(&settings, &inputs)
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
    assert_eq!(ports, [(80, 8080, v1::Protocol::Tcp), (53, 0, v1::Protocol::Udp)]);
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
    assert_eq!(security.seccomp.unwrap().profile_type(), ProfileType::RuntimeDefault);
    let namespaces = security.namespace_options.unwrap();
    assert_eq!(namespaces.network(), NamespaceMode::Pod);
    assert_eq!(namespaces.pid(), NamespaceMode::Container);
    assert_eq!(namespaces.ipc(), NamespaceMode::Pod);
    let users = namespaces.userns_options.unwrap();
    assert_eq!(users.mode(), NamespaceMode::Node);
    assert!(users.uids.is_empty() && users.gids.is_empty());
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
    let envs: Vec<_> = config.envs.iter().map(|e| (e.key.as_str(), e.value.as_slice())).collect();
    assert_eq!(envs, [("WHO", &b"server"[..]), ("IP", &b"10.1.0.5"[..])]);
    let mounts: Vec<_> = config
        .mounts
        .iter()
        .map(|m| (m.container_path.as_str(), m.host_path.as_str(), m.readonly, m.selinux_relabel))
        .collect();
    assert_eq!(
        mounts,
        [
            ("/tmp", "/k/scratch", false, true),
            ("/etc/app", "/etc/app", true, false),
            ("/etc/hosts", "/k/pods/u-1/etc-hosts", false, true),
            ("/dev/termination-log", "/k/pods/u-1/containers/c/0123abcd", false, true),
        ]
    );
    assert_eq!(config.mounts[1].propagation(), v1::MountPropagation::PropagationHostToContainer);
    assert_eq!(config.labels.len(), 4);
    assert_eq!(config.labels["io.kubernetes.container.name"], "c");
    assert_eq!(config.annotations["io.kubernetes.container.restartCount"], "3");
    assert_eq!(config.annotations["io.kubernetes.pod.terminationGracePeriod"], "45");
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
    assert_eq!(security.seccomp.unwrap().profile_type(), ProfileType::Unconfined);
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
    assert_eq!(config.mounts[0].propagation(), v1::MountPropagation::PropagationBidirectional);
    let security = config.linux.unwrap().security_context.unwrap();
    assert!(security.privileged && security.readonly_rootfs && !security.no_new_privs);
    assert_eq!(security.run_as_user.unwrap().value, 0, "the container's own wins");
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
    assert_eq!((selinux.r#type.as_str(), selinux.level.as_str()), ("spc_t", "s0:c1"));
}
