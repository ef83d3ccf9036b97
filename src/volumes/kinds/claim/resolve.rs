//! Resolves a claim to a volume on this node. Pure.

use super::{
    Unsupported, VolumeError,
    local::{self, LocalMount},
    plan::{ClaimVolume, HostPathCheck},
};
use crate::apiserver::claim::ClaimError;
use crate::model::node_selector;
use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeSpec};
use serde::{Deserialize, Serialize};

/// The fields of a PersistentVolume's spec besides its source.
const COMMON_FIELDS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];
/// Annotation with a supplemental group for containers.
const GROUP: &str = "pv.beta.kubernetes.io/gid";

/// The resolved volume of a pod's claim; recorded on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResolvedClaim {
    /// Name of the claim, in the pod's namespace.
    pub(super) claim: String,
    /// Name of the PersistentVolume.
    pub(super) volume: String,
    /// The path of its data.
    pub(super) at: NodePath,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodePath {
    pub(super) path: String,
    /// The required type of the path.
    pub(super) check: HostPathCheck,
    /// The runtime may relabel it for SELinux.
    pub(super) managed: bool,
    /// `fsGroup` applies to it.
    pub(super) owned: bool,
    /// Its usage is reported; as upstream, for `local` and not for `hostPath`.
    pub(super) measured: bool,
    pub(super) is_device: bool,
    /// A supplemental group for containers.
    pub(super) group: Option<i64>,
    /// For a `local` volume that containers mount: how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) local: Option<LocalMount>,
    /// For a volume of a CSI driver: which. Its path is empty until it is published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) csi: Option<CsiOfClaim>,
}

/// A volume of a CSI driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CsiOfClaim {
    pub(super) driver: String,
    pub(super) handle: String,
}

/// Resolves a claim. While the API server has returned no claim or no node, the volume that an earlier sync of the pod
/// recorded (`recorded`) is used, because a claim stays bound to its volume. `name` is the volume's name in the pod.
pub(super) fn resolve(
    name: &str,
    claim: &ClaimVolume,
    found: Result<&PersistentVolume, ClaimError>,
    node: Option<&Node>,
    recorded: Option<ResolvedClaim>,
) -> Result<ResolvedClaim, VolumeError> {
    let recorded = recorded.filter(|recorded| recorded.claim == claim.key.name);
    let volume = match (found, recorded) {
        (Err(ClaimError::Unsynced(_)), Some(recorded)) => return Ok(recorded),
        (Ok(volume), Some(recorded))
            if node.is_none() && volume.metadata.name.as_ref() == Some(&recorded.volume) =>
        {
            return Ok(recorded);
        }
        (found, _) => found.map_err(|source| VolumeError::Claim {
            volume: name.to_owned(),
            key: claim.key.clone(),
            source: Box::new(source),
        })?,
    };
    Ok(ResolvedClaim {
        claim: claim.key.name.clone(),
        volume: volume.metadata.name.clone().unwrap_or_default(),
        at: node_path(name, claim, volume, node)?,
    })
}

/// The path of a volume's data, if the volume is supported and its node affinity matches. `name` is the volume's name
/// in the pod.
fn node_path(
    name: &str,
    claim: &ClaimVolume,
    volume: &PersistentVolume,
    node: Option<&Node>,
) -> Result<NodePath, VolumeError> {
    let own_name = volume.metadata.name.clone().unwrap_or_default();
    let fail = |source| VolumeError::SetUp {
        volume: own_name.clone(),
        source,
    };
    let unsupported = |what: &str| {
        let what = format!("{what} of PersistentVolume {own_name:?}");
        Err(fail(Unsupported(what).into()))
    };
    let Some(spec) = &volume.spec else {
        return unsupported("an empty spec");
    };
    let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
    let is_device = match mode {
        "Filesystem" => false,
        "Block" => true,
        _ => return unsupported(&format!("spec.volumeMode {mode:?}")),
    };
    let misused = if is_device {
        claim.is_mounted.then_some("volumeMounts")
    } else {
        claim.is_mapped.then_some("volumeDevices")
    };
    if let Some(field) = misused {
        return Err(fail(anyhow!(
            "volume {name} has volumeMode {mode}, but is specified in {field}"
        )));
    }
    let annotations = volume.metadata.annotations.as_ref();
    let group = annotations.and_then(|all| all.get(GROUP)?.parse().ok());
    check_affinity(spec, node).map_err(|why| VolumeError::NodeAffinity {
        volume: own_name.clone(),
        why,
    })?;
    let options = local::mount_options(volume);
    if let Some(host_path) = &spec.host_path {
        if is_device {
            return unsupported("spec.volumeMode \"Block\" beside spec.hostPath");
        }
        if !options.is_empty() {
            return Err(VolumeError::MountOptions(own_name));
        }
        let wanted = host_path.type_.as_deref().unwrap_or_default();
        let check = HostPathCheck::parse(wanted)
            .with_context(|| format!("{wanted} is an invalid volume type"));
        return Ok(NodePath {
            path: host_path.path.clone(),
            check: check.map_err(fail)?,
            managed: false,
            owned: false,
            measured: false,
            is_device,
            group,
            local: None,
            csi: None,
        });
    }
    if let Some(source) = &spec.csi {
        if is_device {
            return unsupported("spec.volumeMode \"Block\" beside spec.csi");
        }
        return Ok(NodePath {
            path: String::new(),
            check: HostPathCheck::None,
            managed: !claim.read_only,
            owned: false,
            measured: false,
            is_device,
            group,
            local: None,
            csi: Some(CsiOfClaim {
                driver: source.driver.clone(),
                handle: source.volume_handle.clone(),
            }),
        });
    }
    let Some(source) = &spec.local else {
        return unsupported(&format!("spec.{}", kind(spec)));
    };
    let Some(fs_type) = local::fs_type(source.fs_type.as_deref()) else {
        let wanted = source.fs_type.as_deref().unwrap_or_default();
        return unsupported(&format!("spec.local.fsType {wanted:?}"));
    };
    Ok(NodePath {
        path: source.path.clone(),
        check: if is_device {
            HostPathCheck::BlockDevice
        } else {
            HostPathCheck::Directory
        },
        managed: !claim.read_only && !is_device,
        owned: claim.group.0.is_some() && !claim.read_only && !is_device,
        measured: !is_device,
        is_device,
        group,
        local: (!is_device).then_some(LocalMount { fs_type, options }),
        csi: None,
    })
}

fn check_affinity(spec: &PersistentVolumeSpec, node: Option<&Node>) -> Result<(), &'static str> {
    let affinity = spec.node_affinity.as_ref();
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return Ok(());
    };
    match node {
        None => Err("the Node object is not known yet"),
        Some(node) if node_selector::selects(required, node) => Ok(()),
        Some(_) => Err("no matching NodeSelectorTerms"),
    }
}

/// The API's name of the volume's source.
fn kind(spec: &PersistentVolumeSpec) -> String {
    let value = serde_json::to_value(spec).unwrap_or_default();
    let fields = value.as_object();
    let mut names = fields.into_iter().flat_map(|fields| fields.keys());
    let kind = names.find(|name| !COMMON_FIELDS.contains(&name.as_str()));
    kind.cloned().unwrap_or_else(|| "(no source)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        apiserver::claim::PersistentVolumeClaimKey,
        base::error_chain,
        volumes::{content::VolumeGroup, ownership::ChangePolicy},
    };
    use serde_json::{Value, json};

    fn claim(group: Option<u32>) -> ClaimVolume {
        ClaimVolume {
            key: PersistentVolumeClaimKey {
                namespace: "shop".into(),
                name: "data".into(),
                generated_for: None,
            },
            is_mounted: true,
            is_mapped: false,
            read_only: false,
            group: VolumeGroup(group),
            change_policy: ChangePolicy::Always,
        }
    }

    fn found(spec: Value, group: Option<u32>, node: Option<&Node>) -> Result<NodePath, String> {
        let volume = json!({"metadata": {"name": "pv1"}, "spec": spec});
        let volume = serde_json::from_value(volume).unwrap();
        node_path("v", &claim(group), &volume, node).map_err(|error| error_chain(&error))
    }

    #[test]
    fn a_device_is_mapped_and_a_file_system_is_mounted() {
        let set_up = r#"MountVolume.SetUp failed for volume "pv1" : "#;
        let block = |source: Value| json!({"volumeMode": "Block", "local": source});
        let disk = || json!({"path": "/dev/sdb"});
        for (spec, is_mounted, is_mapped, expected) in [
            (block(disk()), false, true, Ok(HostPathCheck::BlockDevice)),
            (
                block(disk()),
                true,
                true,
                Err("volume v has volumeMode Block, but is specified in volumeMounts"),
            ),
            (
                json!({"local": disk()}),
                false,
                true,
                Err("volume v has volumeMode Filesystem, but is specified in volumeDevices"),
            ),
            (
                json!({"volumeMode": "Block", "hostPath": disk()}),
                false,
                true,
                Err(
                    r#"spec.volumeMode "Block" beside spec.hostPath of PersistentVolume "pv1" is not supported by this kubelet"#,
                ),
            ),
        ] {
            let text = format!("{spec} {is_mounted} {is_mapped}");
            let volume = json!({"metadata": {"name": "pv1"}, "spec": spec});
            let claim = ClaimVolume {
                is_mounted,
                is_mapped,
                ..claim(Some(7))
            };
            let found = node_path("v", &claim, &serde_json::from_value(volume).unwrap(), None);
            match (found, expected) {
                (Ok(path), Ok(check)) => {
                    assert_eq!((path.check, path.is_device), (check, true), "{text}");
                    assert!(!path.owned && !path.managed && !path.measured, "{text}");
                }
                (found, expected) => {
                    let found = found.map(|_| ()).map_err(|error| error_chain(&error));
                    let expected = expected.map(|_| ()).map_err(|why| format!("{set_up}{why}"));
                    assert_eq!(found, expected, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_group_of_the_volume_is_a_number() {
        for (annotation, expected) in [("1234", Some(1234)), ("wheel", None)] {
            let metadata = json!({"name": "pv1", "annotations": {GROUP: annotation}});
            let volume = json!({"metadata": metadata, "spec": {"hostPath": {"path": "/d"}}});
            let volume = serde_json::from_value(volume).unwrap();
            let found = node_path("v", &claim(None), &volume, None).unwrap();
            assert_eq!(found.group, expected, "{annotation}");
        }
    }

    #[test]
    fn what_is_not_known_yet_is_as_it_was_noted() {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "pv1"},
            "spec": {"local": {"path": "/d"}, "nodeAffinity": on("a")},
        }))
        .unwrap();
        let claim = claim(None);
        let recorded = |claim: &str, volume: &str| ResolvedClaim {
            claim: claim.into(),
            volume: volume.into(),
            at: NodePath {
                path: "/recorded".into(),
                check: HostPathCheck::Directory,
                managed: true,
                owned: false,
                measured: true,
                is_device: false,
                group: None,
                local: None,
                csi: None,
            },
        };
        let away = || ClaimError::Unsynced("away".into());
        let gone = || ClaimError::NotBound;
        for (found, recorded, expected) in [
            (Err(away()), Some(recorded("data", "pv1")), Ok("/recorded")),
            (Err(away()), Some(recorded("other", "pv1")), Err("away")),
            (Err(away()), None, Err("away")),
            (Err(gone()), Some(recorded("data", "pv1")), Err("not bound")),
            (Ok(&volume), Some(recorded("data", "pv1")), Ok("/recorded")),
            (Ok(&volume), Some(recorded("data", "pv2")), Err("not known")),
            (Ok(&volume), None, Err("not known")),
        ] {
            let text = format!("{found:?} {recorded:?}");
            match (resolve("v", &claim, found, None, recorded), expected) {
                (Ok(resolved), Ok(path)) => assert_eq!(resolved.at.path, path, "{text}"),
                (Err(error), Err(why)) => {
                    assert!(error_chain(&error).contains(why), "{error} {text}")
                }
                (resolved, _) => panic!("{resolved:?} {text}"),
            }
        }
    }

    fn on(zone: &str) -> Value {
        let expression = json!({"key": "zone", "operator": "In", "values": [zone]});
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
    }

    #[test]
    fn a_path_of_the_node_is_one_and_all_else_is_refused_by_its_field() {
        let set_up = r#"MountVolume.SetUp failed for volume "pv1" "#;
        for (spec, group, expected) in [
            (
                json!({"hostPath": {"path": "/d"}}),
                Some(7),
                Ok(("/d", HostPathCheck::None, false, false)),
            ),
            (
                json!({"hostPath": {"path": "/d", "type": "Directory"}, "volumeMode": "Filesystem", "accessModes": ["ReadWriteOnce"]}),
                None,
                Ok(("/d", HostPathCheck::Directory, false, false)),
            ),
            (
                json!({"local": {"path": "/d"}}),
                None,
                Ok(("/d", HostPathCheck::Directory, true, false)),
            ),
            (
                json!({"local": {"path": "/d"}}),
                Some(7),
                Ok(("/d", HostPathCheck::Directory, true, true)),
            ),
            (
                json!({"nfs": {"server": "s", "path": "/"}, "capacity": {"storage": "1Gi"}}),
                None,
                Err(r#"spec.nfs of PersistentVolume "pv1" is not supported by this kubelet"#),
            ),
            (
                json!({"local": {"path": "/d", "fsType": "a/b"}}),
                None,
                Err(
                    r#"spec.local.fsType "a/b" of PersistentVolume "pv1" is not supported by this kubelet"#,
                ),
            ),
            (
                json!({"local": {"path": "/dev/sdb"}, "volumeMode": "Block"}),
                None,
                Err("volume v has volumeMode Block, but is specified in volumeMounts"),
            ),
            (
                json!({"hostPath": {"path": "/d", "type": "Odd"}}),
                None,
                Err("Odd is an invalid volume type"),
            ),
        ] {
            let local = || LocalMount {
                fs_type: "ext4".into(),
                options: Vec::new(),
            };
            let expected = expected
                .map(|(path, check, managed, owned)| NodePath {
                    local: managed.then(local),
                    measured: managed,
                    path: path.to_owned(),
                    check,
                    managed,
                    owned,
                    is_device: false,
                    group: None,
                    csi: None,
                })
                .map_err(|why| format!("{set_up}: {why}"));
            assert_eq!(found(spec, group, None), expected);
        }
    }

    #[test]
    fn mount_options_and_file_systems_are_for_local_volumes_that_are_mounted() {
        let options = json!(["noatime"]);
        let spec = json!({"hostPath": {"path": "/d"}, "mountOptions": options});
        assert_eq!(
            found(spec, None, None).unwrap_err(),
            r#"MountVolume.MountOptionSupport check failed for volume "pv1" : mount options are not supported for this volume type"#
        );
        let spec = json!({"local": {"path": "/d", "fsType": "xfs"}, "mountOptions": options});
        let expected = LocalMount {
            fs_type: "xfs".into(),
            options: vec!["noatime".into()],
        };
        let local = found(spec.clone(), None, None).unwrap().local;
        assert_eq!(local, Some(expected));
        // What an earlier version recorded.
        let recorded = r#"{"path":"/d","check":"Directory","managed":true,"owned":false,"measured":true,"isDevice":false,"group":null}"#;
        let recorded: NodePath = serde_json::from_str(recorded).unwrap();
        assert_eq!(recorded.local, None);
        let claim = ClaimVolume {
            is_mounted: false,
            is_mapped: true,
            ..claim(None)
        };
        let volume = json!({"metadata": {"name": "pv1"}, "spec": {
            "local": {"path": "/dev/sdb"}, "volumeMode": "Block", "mountOptions": options,
        }});
        let device = node_path("v", &claim, &serde_json::from_value(volume).unwrap(), None);
        assert_eq!(device.unwrap().local, None);
    }

    #[test]
    fn a_volume_is_only_for_the_nodes_that_it_names() {
        let labels = |zone: &str| {
            let node = json!({"metadata": {"name": "node1", "labels": {"zone": zone}}});
            serde_json::from_value::<Node>(node).unwrap()
        };
        let spec = json!({"local": {"path": "/d"}, "nodeAffinity": on("a")});
        assert!(found(spec.clone(), None, Some(&labels("a"))).is_ok());
        let failed = r#"MountVolume.NodeAffinity check failed for volume "pv1" : "#;
        for (node, why) in [
            (Some(&labels("b")), "no matching NodeSelectorTerms"),
            (None, "the Node object is not known yet"),
        ] {
            let error = found(spec.clone(), None, node).unwrap_err();
            assert_eq!(error, format!("{failed}{why}"));
        }
    }
}
