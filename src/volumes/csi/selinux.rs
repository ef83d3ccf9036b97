//! SELinux contexts of mounts. Pure.
//!
//! The files of a volume that is mounted with a context have the label of the pod without being relabelled one by one.
//! Only volumes for a single pod are mounted so, because a mount has one label on the node.
//!
//! Upstream: `pkg/volume/util/selinux.go`; `SELinuxMountReadWriteOncePod` and `SELinuxChangePolicy`.

use super::spec::{AccessMode, CsiVolumeSpec};
use crate::apiserver::csi_driver::CsiDriver;
use crate::model::{Pod, PodExt as _};
use k8s_openapi::api::core::v1::SELinuxOptions;
use std::collections::{BTreeMap, BTreeSet};

/// The labels of the files in volumes of a pod, by the volume's name. `file_context` is the context of files of containers
/// on this node.
pub fn file_labels(pod: &Pod, file_context: &str) -> BTreeMap<String, String> {
    let spec = pod.spec();
    let of_pod = spec.and_then(|spec| spec.security_context.as_ref());
    let policy = of_pod.and_then(|context| context.se_linux_change_policy.as_deref());
    if policy == Some("Recursive") {
        return BTreeMap::new();
    }
    let of_pod = of_pod.and_then(|context| context.se_linux_options.as_ref());
    let containers = pod.containers().iter().chain(pod.init_containers());
    let containers = containers.map(|it| (&it.security_context, &it.volume_mounts));
    let ephemeral = pod.ephemeral_containers().iter();
    let ephemeral = ephemeral.map(|it| (&it.security_context, &it.volume_mounts));
    let mut labels = BTreeMap::<String, BTreeSet<Option<String>>>::new();
    for (context, mounts) in containers.chain(ephemeral) {
        let own = context.as_ref().and_then(|context| context.se_linux_options.as_ref());
        let label = own.or(of_pod);
        let label = label.and_then(|options| file_label(options, file_context));
        for mount in mounts.iter().flatten() {
            let of_volume = labels.entry(mount.name.clone()).or_default();
            of_volume.insert(label.clone());
        }
    }
    let only = labels.into_iter().filter_map(|(volume, mut labels)| {
        let label = labels.pop_first().flatten()?;
        // Containers with several labels need files with several labels.
        labels.is_empty().then_some((volume, label))
    });
    only.collect()
}

/// The label of files for containers with these options. A container without a level gets a random one from the runtime.
fn file_label(options: &SELinuxOptions, file_context: &str) -> Option<String> {
    let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let level = given(&options.level)?;
    let mut parts = file_context.splitn(4, ':');
    let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
    // The type of a container is the type of its processes.
    let user = given(&options.user).unwrap_or_else(|| user.to_owned());
    Some(format!("{user}:{role}:{kind}:{level}"))
}

/// Whether a volume is mounted with a context.
pub(super) fn mounts_with_context(object: &CsiDriver, spec: &CsiVolumeSpec) -> bool {
    object.se_linux_mount && spec.access_modes == [AccessMode::ReadWriteOncePod]
}

/// The mount flags of a volume with the context of its files.
pub(super) fn mount_flags(flags: &[String], label: Option<&str>) -> Vec<String> {
    let context = label.map(|label| format!("context=\"{label}\""));
    flags.iter().cloned().chain(context).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::csi::identity::VolumeIdentity;
    use serde_json::{Value, json};

    const CONTEXT: &str = "system_u:object_r:container_file_t:s0";

    fn container(options: Value) -> Value {
        json!({
            "name": "c",
            "securityContext": {"seLinuxOptions": options},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        })
    }

    #[test]
    fn a_volume_has_the_label_that_all_of_its_containers_have() {
        let level = |level: &str| json!({"level": level});
        let with = |level: &str| Some(format!("system_u:object_r:container_file_t:{level}"));
        let none = Value::Null;
        for (of_pod, containers, policy, expected) in [
            (level("s0:c1,c2"), vec![none.clone()], None, with("s0:c1,c2")),
            (level("s0:c1"), vec![level("s0:c2")], None, with("s0:c2")),
            (
                none.clone(),
                vec![level("s0:c1"), level("s0:c1")],
                Some("MountOption"),
                with("s0:c1"),
            ),
            (
                json!({"user": "u", "role": "r", "type": "t", "level": "s0"}),
                vec![none.clone()],
                None,
                Some("u:object_r:container_file_t:s0".to_owned()),
            ),
            (level("s0:c1"), vec![none.clone()], Some("Recursive"), None),
            (level("s0:c1"), vec![none.clone(), level("s0:c2")], None, None),
            (none.clone(), vec![level("s0:c1"), none.clone()], None, None),
            (json!({"type": "t"}), vec![none.clone()], None, None),
            (level(""), vec![none.clone()], None, None),
            (none.clone(), vec![none.clone()], None, None),
        ] {
            let containers: Vec<_> = containers.into_iter().map(container).collect();
            let pod = json!({"spec": {
                "securityContext": {"seLinuxOptions": of_pod, "seLinuxChangePolicy": policy},
                "containers": containers,
            }});
            let shown = pod.to_string();
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let found = file_labels(&pod, CONTEXT).remove("v");
            assert_eq!(found, expected, "{shown}");
        }
        let pod = json!({"spec": {"containers": [container(level("s0"))]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(file_labels(&pod, "odd"), BTreeMap::new());
    }

    #[test]
    fn only_volumes_for_a_single_pod_of_drivers_that_support_it_have_a_context() {
        use AccessMode::{ReadWriteOnce, ReadWriteOncePod};
        for (se_linux_mount, modes, expected) in [
            (true, vec![ReadWriteOncePod], true),
            (false, vec![ReadWriteOncePod], false),
            (true, vec![ReadWriteOnce], false),
            (true, vec![ReadWriteOncePod, ReadWriteOnce], false),
        ] {
            let object = CsiDriver { se_linux_mount, ..CsiDriver::default() };
            let volume = json!({
                "metadata": {"name": "pv1"},
                "spec": {"csi": {"driver": "d", "volumeHandle": "h"}},
            });
            let volume = serde_json::from_value(volume).unwrap();
            let mut spec = CsiVolumeSpec::from_persistent_volume(&volume).unwrap().unwrap();
            assert_eq!(spec.identity, VolumeIdentity::persistent("d", "h").unwrap());
            spec.access_modes = modes;
            assert_eq!(mounts_with_context(&object, &spec), expected, "{spec:?}");
        }
        let flags = ["noatime".to_owned()];
        assert_eq!(mount_flags(&flags, None), flags);
        let label = "system_u:object_r:container_file_t:s0:c1,c2";
        let expected = format!("context=\"{label}\"");
        assert_eq!(mount_flags(&flags, Some(label)), ["noatime", &expected]);
    }
}
