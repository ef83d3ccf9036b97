//! What calls carry, from what is known of a volume, its pod and its driver. Pure.

use super::facts::NodeCapabilities;
use super::identity::Lifecycle;
use super::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use super::proto::{CapacityRange, NodeExpandVolumeRequest, VolumeCapability};
use super::selinux;
use super::spec::{self, CsiVolumeSpec};
use crate::apiserver::csi_driver::{CsiDriver, FsGroupPolicy};
use crate::model::{Pod, PodExt as _, PodUid};
use crate::state::events::ObjectRef;
use std::collections::BTreeMap;

/// Prefix of the facts about a pod in a volume context.
const CONTEXT_PREFIX: &str = "csi.storage.k8s.io/";
/// The service account of a pod that names none.
const DEFAULT_ACCOUNT: &str = "default";

/// The pod that mounts a volume, as calls name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountingPod {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of its service account.
    pub service_account: String,
    /// The SELinux labels of files in its volumes, by the volume's name.
    pub file_labels: BTreeMap<String, String>,
}

impl MountingPod {
    /// The facts of a pod. `file_context` is the SELinux context of files of containers, if SELinux is enabled.
    pub fn of(pod: &Pod, file_context: Option<&str>) -> Self {
        let file_labels = file_context.map(|context| selinux::file_labels(pod, context));
        let account = pod.spec().and_then(|spec| spec.service_account_name.clone());
        let account = account.filter(|name| !name.is_empty());
        Self {
            uid: pod.uid(),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            service_account: account.unwrap_or_else(|| DEFAULT_ACCOUNT.to_owned()),
            file_labels: file_labels.unwrap_or_default(),
        }
    }

    /// The pod in events.
    pub(super) fn reference(&self) -> ObjectRef {
        ObjectRef {
            kind: "Pod",
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            field_path: String::new(),
        }
    }

    /// What a driver with `podInfoOnMount` receives.
    pub(super) fn context(&self, lifecycle: Lifecycle) -> BTreeMap<String, String> {
        let is_ephemeral = lifecycle == Lifecycle::Ephemeral;
        let pairs = [
            ("pod.name", self.name.clone()),
            ("pod.namespace", self.namespace.clone()),
            ("pod.uid", self.uid.to_string()),
            ("serviceAccount.name", self.service_account.clone()),
            ("ephemeral", is_ephemeral.to_string()),
        ];
        let pairs = pairs.map(|(key, value)| (format!("{CONTEXT_PREFIX}{key}"), value));
        pairs.into()
    }
}

/// The capability of a volume in requests. The driver applies `group` if it can. `label` is the SELinux label of files.
pub(super) fn capability(
    spec: &CsiVolumeSpec,
    driver: NodeCapabilities,
    group: Option<u32>,
    label: Option<&str>,
) -> VolumeCapability {
    let group = group.filter(|_| driver.volume_mount_group);
    let mode = spec.access_mode(driver.single_node_multi_writer);
    let access_type = if spec.identity.is_block() {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: spec.fs_type.clone(),
            mount_flags: selinux::mount_flags(&spec.mount_options, label),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        })
    };
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.number() }),
    }
}

/// The request to expand a volume to this many bytes, without staging path and secrets. `path` is where it is published:
/// a directory, or the path of a device.
pub(super) fn expand(
    handle: String,
    path: String,
    bytes: i64,
    capability: VolumeCapability,
) -> NodeExpandVolumeRequest {
    NodeExpandVolumeRequest {
        volume_id: handle,
        volume_path: path,
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capability: Some(capability),
        ..NodeExpandVolumeRequest::default()
    }
}

/// Whether the kubelet gives the files of a published volume to the pod's `fsGroup` (upstream's `supportsFSGroup`).
pub(super) fn changes_group(
    spec: &CsiVolumeSpec,
    policy: FsGroupPolicy,
    driver: NodeCapabilities,
    read_only: bool,
) -> bool {
    use spec::AccessMode::{ReadWriteOnce, ReadWriteOncePod};
    if read_only || driver.volume_mount_group || spec.identity.is_block() {
        return false;
    }
    match policy {
        FsGroupPolicy::None => false,
        FsGroupPolicy::File => true,
        FsGroupPolicy::ReadWriteOnceWithFsType => {
            let of_one_node = |mode| matches!(mode, &ReadWriteOnce | &ReadWriteOncePod);
            let is_inline = spec.lifecycle() == Lifecycle::Ephemeral;
            !spec.fs_type.is_empty() && (is_inline || spec.access_modes.iter().any(of_one_node))
        }
    }
}

/// Checks that a driver supports volumes of this lifecycle; `None` is a driver without a CSIDriver object.
///
/// # Errors
/// It does not; upstream's text.
pub(super) fn check_lifecycle(
    driver: &str,
    object: Option<&CsiDriver>,
    lifecycle: Lifecycle,
) -> Result<(), String> {
    let (is_supported, why) = match (object, lifecycle) {
        (None, Lifecycle::Persistent) => (true, ""),
        (None, Lifecycle::Ephemeral) => (false, "no CSIDriver object"),
        (Some(object), Lifecycle::Persistent) => {
            (object.is_persistent, r#"only supports ["Ephemeral"]"#)
        }
        (Some(object), Lifecycle::Ephemeral) => {
            (object.is_ephemeral, r#"only supports ["Persistent"]"#)
        }
    };
    if is_supported {
        return Ok(());
    }
    let mode = lifecycle.as_str();
    Err(format!("volume mode {mode:?} not supported by driver {driver} ({why})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::csi::identity::VolumeIdentity;
    use crate::volumes::csi::spec::AccessMode as Mode;

    fn spec(modes: &[Mode], fs_type: &str) -> CsiVolumeSpec {
        CsiVolumeSpec {
            identity: VolumeIdentity::persistent("d", "h").unwrap(),
            spec_name: "pv1".into(),
            access_modes: modes.to_vec(),
            fs_type: fs_type.into(),
            mount_options: vec!["noatime".into()],
            read_only: false,
            volume_attributes: BTreeMap::new(),
            stage_secret: None,
            publish_secret: None,
            expand_secret: None,
            claim: None,
            capacity: None,
            is_migrated: false,
        }
    }

    #[test]
    fn the_driver_has_the_group_only_if_it_applies_groups() {
        let driver = |volume_mount_group| NodeCapabilities {
            volume_mount_group,
            ..NodeCapabilities::default()
        };
        for (able, group, expected) in
            [(true, Some(7), "7"), (true, None, ""), (false, Some(7), "")]
        {
            let made = capability(&spec(&[], "ext4"), driver(able), group, None);
            let Some(AccessType::Mount(mount)) = made.access_type else {
                panic!("no mount");
            };
            assert_eq!(mount.volume_mount_group, expected);
            assert_eq!(mount.mount_flags, ["noatime"]);
        }
    }

    #[test]
    fn the_kubelet_changes_groups_by_the_drivers_policy() {
        use FsGroupPolicy as Policy;
        let once = spec(&[Mode::ReadWriteOnce], "ext4");
        let many = spec(&[Mode::ReadWriteMany], "ext4");
        let both = spec(&[Mode::ReadWriteMany, Mode::ReadWriteOncePod], "ext4");
        let no_type = spec(&[Mode::ReadWriteOnce], "");
        let mut inline = spec(&[], "ext4");
        inline.identity = VolumeIdentity::inline("d", &"u1".into(), "v").unwrap();
        for (spec, policy, expected) in [
            (&once, Policy::ReadWriteOnceWithFsType, true),
            (&many, Policy::ReadWriteOnceWithFsType, false),
            (&both, Policy::ReadWriteOnceWithFsType, true),
            (&no_type, Policy::ReadWriteOnceWithFsType, false),
            (&inline, Policy::ReadWriteOnceWithFsType, true),
            (&many, Policy::File, true),
            (&once, Policy::None, false),
        ] {
            let driver = NodeCapabilities::default();
            assert_eq!(changes_group(spec, policy, driver, false), expected, "{policy:?}");
            assert!(!changes_group(spec, policy, driver, true), "read-only");
        }
        let able = NodeCapabilities { volume_mount_group: true, ..NodeCapabilities::default() };
        assert!(!changes_group(&once, Policy::File, able, false));
    }

    #[test]
    fn a_device_has_neither_file_system_nor_options_nor_group() {
        let mut spec = spec(&[Mode::ReadWriteOnce], "ext4");
        spec.identity = VolumeIdentity::block("d", "h", "pv1").unwrap();
        let able = NodeCapabilities { volume_mount_group: true, ..NodeCapabilities::default() };
        let made = capability(&spec, able, Some(7), None);
        assert_eq!(made.access_type, Some(AccessType::Block(BlockVolume {})));
        let driver = NodeCapabilities::default();
        assert!(!changes_group(&spec, FsGroupPolicy::File, driver, false));
    }

    #[test]
    fn a_driver_supports_what_its_object_says() {
        let object = |is_persistent, is_ephemeral| CsiDriver {
            is_persistent,
            is_ephemeral,
            ..CsiDriver::default()
        };
        for (object, lifecycle, expected) in [
            (None, Lifecycle::Persistent, ""),
            (
                None,
                Lifecycle::Ephemeral,
                r#"volume mode "Ephemeral" not supported by driver d (no CSIDriver object)"#,
            ),
            (
                Some(object(true, false)),
                Lifecycle::Ephemeral,
                r#"volume mode "Ephemeral" not supported by driver d (only supports ["Persistent"])"#,
            ),
            (
                Some(object(false, true)),
                Lifecycle::Persistent,
                r#"volume mode "Persistent" not supported by driver d (only supports ["Ephemeral"])"#,
            ),
            (Some(object(true, true)), Lifecycle::Ephemeral, ""),
        ] {
            let checked = check_lifecycle("d", object.as_ref(), lifecycle);
            assert_eq!(checked.err().unwrap_or_default(), expected);
        }
    }

    #[test]
    fn a_driver_receives_five_facts_about_the_pod() {
        let pod = MountingPod {
            uid: "u1".into(),
            namespace: "shop".into(),
            name: "web".into(),
            service_account: "robot".into(),
            file_labels: BTreeMap::new(),
        };
        let context = pod.context(Lifecycle::Ephemeral);
        let pairs = context.iter().map(|(key, value)| format!("{key}={value}"));
        let expected = [
            "csi.storage.k8s.io/ephemeral=true",
            "csi.storage.k8s.io/pod.name=web",
            "csi.storage.k8s.io/pod.namespace=shop",
            "csi.storage.k8s.io/pod.uid=u1",
            "csi.storage.k8s.io/serviceAccount.name=robot",
        ];
        assert_eq!(pairs.collect::<Vec<_>>(), expected);
    }
}
