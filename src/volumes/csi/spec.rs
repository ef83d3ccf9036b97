//! What the calls for one CSI volume need to know, from a PersistentVolume or from a pod's inline volume; checked. Pure.

use super::identity::{
    BLOCK, FILESYSTEM, InvalidName, Lifecycle, NameField, VolumeIdentity, check_file_name,
};
use crate::model::PodUid;
use crate::model::validation::is_dns_subdomain;
use crate::volumes::Unsupported;
use k8s_openapi::api::core::v1::{
    CSIVolumeSource, ObjectReference, PersistentVolume, SecretReference,
};
use std::collections::BTreeMap;

pub use super::access_mode::{AccessMode, CsiAccessMode, csi_access_mode};

/// Maximum size of all keys and values of a volume's attributes. The CSI specification has 4 KiB, but no driver is known
/// to insist on it.
const MAX_ATTRIBUTES: usize = 256 * 1024;
/// Maximum size of all mount options.
const MAX_MOUNT_OPTIONS: usize = 16 * 1024;
/// Maximum length of the type of a file system.
const MAX_FS_TYPE: usize = 128;
/// How many characters of a name an error repeats.
const SHOWN: usize = 64;

/// A secret whose data goes with a call. Only the reference is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The claim that a PersistentVolume is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOfVolume {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// One CSI volume of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiVolumeSpec {
    /// Its driver and handle, or its pod and name.
    pub identity: VolumeIdentity,
    /// Name of the PersistentVolume, or of the inline volume. Directories below a pod have this name.
    pub spec_name: String,
    /// The access modes of the PersistentVolume in its order; none for an inline volume.
    pub access_modes: Vec<AccessMode>,
    /// The file system; empty if the driver chooses.
    pub fs_type: String,
    /// Mount options, for stage and publish.
    pub mount_options: Vec<String>,
    /// `readOnly` of an inline volume. False for a PersistentVolume, whose `csi.readOnly` is for controllers: there the
    /// claim's reference in the pod decides.
    pub read_only: bool,
    /// For the driver.
    pub volume_attributes: BTreeMap<String, String>,
    /// The secret for `NodeStageVolume`.
    pub stage_secret: Option<SecretRef>,
    /// The secret for `NodePublishVolume`.
    pub publish_secret: Option<SecretRef>,
    /// The secret for `NodeExpandVolume`.
    pub expand_secret: Option<SecretRef>,
    /// The claim, if the PersistentVolume names it completely.
    pub claim: Option<ClaimOfVolume>,
    /// The capacity of the PersistentVolume, which may be invalid.
    pub capacity: Option<String>,
    /// It was translated from the volume of a former in-tree plugin.
    pub is_migrated: bool,
}

impl CsiVolumeSpec {
    /// The volume of a PersistentVolume; `None` if it is not a CSI volume.
    ///
    /// # Errors
    /// A field is invalid, or the volume is not supported.
    pub fn from_persistent_volume(volume: &PersistentVolume) -> Result<Option<Self>, SpecError> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let subject = Subject(format!("PersistentVolume {:?}", shortened(name)));
        let Some(spec) = &volume.spec else {
            return Ok(None);
        };
        let Some(source) = &spec.csi else {
            return Ok(None);
        };
        check_file_name(NameField::SpecName, name)
            .map_err(|error| subject.invalid("metadata.name", error.why))?;
        let (driver, handle) = (&source.driver, &source.volume_handle);
        let identity = match spec.volume_mode.as_deref().unwrap_or(FILESYSTEM) {
            FILESYSTEM => VolumeIdentity::persistent(driver, handle),
            BLOCK => VolumeIdentity::block(driver, handle, name),
            mode => {
                let mode = shortened(mode);
                let what = format!("spec.volumeMode {mode:?} of {} beside spec.csi", subject.0);
                return Err(Unsupported(what).into());
            }
        };
        let identity = identity.map_err(|error| subject.invalid_name("spec.csi", &error))?;
        let modes = spec.access_modes.iter().flatten();
        let mut access_modes = Vec::new();
        for (index, mode) in modes.enumerate() {
            match AccessMode::parse(mode) {
                Some(mode) => access_modes.push(mode),
                // Only the first mode is used in requests.
                None if index > 0 => {}
                None => return Err(subject.invalid("spec.accessModes", "has an unknown mode")),
            }
        }
        // In the volume's order and without the annotation of other kinds, as upstream passes them to drivers.
        let mount_options = spec.mount_options.clone().unwrap_or_default();
        subject.check_bytes(
            "spec.mountOptions",
            mount_options.iter().map(String::len),
            MAX_MOUNT_OPTIONS,
        )?;
        let attributes = source.volume_attributes.clone().unwrap_or_default();
        subject.check_attributes("spec.csi.volumeAttributes", &attributes)?;
        let stage_secret = source.node_stage_secret_ref.as_ref();
        let publish_secret = source.node_publish_secret_ref.as_ref();
        let expand_secret = source.node_expand_secret_ref.as_ref();
        let capacity = spec.capacity.as_ref().and_then(|all| all.get("storage"));
        Ok(Some(Self {
            identity,
            spec_name: name.to_owned(),
            access_modes,
            fs_type: subject.fs_type("spec.csi.fsType", source.fs_type.as_deref())?,
            mount_options,
            read_only: false,
            volume_attributes: attributes,
            stage_secret: subject.secret("spec.csi.nodeStageSecretRef", stage_secret)?,
            publish_secret: subject.secret("spec.csi.nodePublishSecretRef", publish_secret)?,
            expand_secret: subject.secret("spec.csi.nodeExpandSecretRef", expand_secret)?,
            claim: spec.claim_ref.as_ref().and_then(claim_of),
            capacity: capacity.map(|size| size.0.clone()),
            is_migrated: false,
        }))
    }

    /// The volume that a pod of this UID and namespace defines inline, by its name in the pod.
    ///
    /// # Errors
    /// A field is invalid.
    pub fn from_inline(
        source: &CSIVolumeSource,
        name: &str,
        pod: &PodUid,
        namespace: &str,
    ) -> Result<Self, SpecError> {
        let subject = Subject(format!("volume {:?}", shortened(name)));
        let identity = VolumeIdentity::inline(&source.driver, pod, name)
            .map_err(|error| subject.invalid_name("csi", &error))?;
        let attributes = source.volume_attributes.clone().unwrap_or_default();
        subject.check_attributes("csi.volumeAttributes", &attributes)?;
        let secret = source.node_publish_secret_ref.as_ref();
        let secret = secret.map(|secret| SecretReference {
            name: Some(secret.name.clone()),
            namespace: Some(namespace.to_owned()),
        });
        Ok(Self {
            identity,
            spec_name: name.to_owned(),
            access_modes: Vec::new(),
            fs_type: subject.fs_type("csi.fsType", source.fs_type.as_deref())?,
            mount_options: Vec::new(),
            read_only: source.read_only.unwrap_or_default(),
            volume_attributes: attributes,
            stage_secret: None,
            publish_secret: subject.secret("csi.nodePublishSecretRef", secret.as_ref())?,
            expand_secret: None,
            claim: None,
            capacity: None,
            is_migrated: false,
        })
    }

    /// The name of the driver.
    pub fn driver(&self) -> &str {
        self.identity.driver()
    }

    /// The driver's name of the volume.
    pub fn handle(&self) -> String {
        self.identity.handle()
    }

    /// How long the volume lives.
    pub fn lifecycle(&self) -> Lifecycle {
        self.identity.lifecycle()
    }

    /// Upstream's unique name of the volume.
    pub fn unique_name(&self) -> String {
        self.identity.unique_name()
    }

    /// The mode for requests.
    pub fn access_mode(&self, multi_writer: bool) -> CsiAccessMode {
        csi_access_mode(self.access_modes.first().copied(), multi_writer)
    }

    /// Whether only one pod may use the volume. As upstream, only if `ReadWriteOncePod` is its single mode.
    pub fn is_for_single_pod(&self) -> bool {
        self.access_modes == [AccessMode::ReadWriteOncePod]
    }
}

/// Why a volume cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// This kubelet does not support it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A field is invalid.
    #[error("{field} of {volume} {why}")]
    Invalid {
        /// The field.
        field: String,
        /// The volume, such as `PersistentVolume "pv1"`.
        volume: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// The claim of a PersistentVolume; `None` unless the reference is complete.
fn claim_of(reference: &ObjectReference) -> Option<ClaimOfVolume> {
    Some(ClaimOfVolume {
        namespace: reference.namespace.clone()?,
        name: reference.name.clone()?,
        uid: reference.uid.clone()?,
    })
}

fn shortened(name: &str) -> String {
    name.chars().take(SHOWN).collect()
}

/// The volume that errors name.
struct Subject(String);

impl Subject {
    fn invalid(&self, field: &str, why: &'static str) -> SpecError {
        SpecError::Invalid { field: field.to_owned(), volume: self.0.clone(), why }
    }

    /// `source` is the field with the CSI source.
    fn invalid_name(&self, source: &str, error: &InvalidName) -> SpecError {
        let field = match error.field {
            NameField::Driver => format!("{source}.driver"),
            NameField::Handle => format!("{source}.volumeHandle"),
            NameField::SpecName => "name".to_owned(),
            NameField::PodUid => "the pod's UID".to_owned(),
        };
        self.invalid(&field, error.why)
    }

    fn check_bytes(
        &self,
        field: &str,
        lengths: impl Iterator<Item = usize>,
        max: usize,
    ) -> Result<(), SpecError> {
        if lengths.sum::<usize>() > max {
            return Err(self.invalid(field, "is too large"));
        }
        Ok(())
    }

    fn check_attributes(
        &self,
        field: &str,
        attributes: &BTreeMap<String, String>,
    ) -> Result<(), SpecError> {
        let lengths = attributes.iter().map(|(key, value)| key.len() + value.len());
        self.check_bytes(field, lengths, MAX_ATTRIBUTES)
    }

    fn fs_type(&self, field: &str, fs_type: Option<&str>) -> Result<String, SpecError> {
        let fs_type = fs_type.unwrap_or_default();
        if fs_type.len() > MAX_FS_TYPE {
            return Err(self.invalid(field, "is too long"));
        }
        // Drivers pass it to programs as an option or its value.
        if fs_type.starts_with('-') || fs_type.contains(|c: char| c.is_control() || c == '/') {
            return Err(self.invalid(field, "is not the name of a file system"));
        }
        Ok(fs_type.to_owned())
    }

    fn secret(
        &self,
        field: &str,
        secret: Option<&SecretReference>,
    ) -> Result<Option<SecretRef>, SpecError> {
        let Some(secret) = secret else {
            return Ok(None);
        };
        let name = secret.name.clone().unwrap_or_default();
        let namespace = secret.namespace.clone().unwrap_or_default();
        if !is_dns_subdomain(&name) || !is_dns_subdomain(&namespace) {
            return Err(self.invalid(field, "does not name a secret"));
        }
        Ok(Some(SecretRef { namespace, name }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn merged(spec: Value, csi: Value) -> PersistentVolume {
        let mut source = json!({"driver": "d.example", "volumeHandle": "h1"});
        let mut all = json!({"accessModes": ["ReadWriteOnce"]});
        let (source_map, all_map) = (source.as_object_mut().unwrap(), all.as_object_mut().unwrap());
        source_map.extend(csi.as_object().unwrap().clone());
        all_map.extend(spec.as_object().unwrap().clone());
        all_map.insert("csi".into(), source);
        serde_json::from_value(json!({"metadata": {"name": "pv1"}, "spec": all})).unwrap()
    }

    fn error(spec: Value, csi: Value) -> String {
        let found = CsiVolumeSpec::from_persistent_volume(&merged(spec, csi));
        found.unwrap_err().to_string()
    }

    #[test]
    fn a_persistent_volume_has_everything_that_calls_need() {
        let volume = merged(
            json!({
                "mountOptions": ["noatime"], "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "shop", "name": "data", "uid": "c1"},
            }),
            json!({
                "fsType": "ext4", "readOnly": true, "volumeAttributes": {"a": "b"},
                "nodeStageSecretRef": {"name": "s1", "namespace": "n1"},
                "nodePublishSecretRef": {"name": "s2", "namespace": "n2"},
                "nodeExpandSecretRef": {"name": "s3", "namespace": "n3"},
            }),
        );
        let spec = CsiVolumeSpec::from_persistent_volume(&volume);
        let spec = spec.unwrap().unwrap();
        let secret = |name: &str, namespace: &str| {
            Some(SecretRef { namespace: namespace.into(), name: name.into() })
        };
        let expected = CsiVolumeSpec {
            identity: VolumeIdentity::persistent("d.example", "h1").unwrap(),
            spec_name: "pv1".into(),
            access_modes: vec![AccessMode::ReadWriteOnce],
            fs_type: "ext4".into(),
            mount_options: vec!["noatime".into()],
            read_only: false,
            volume_attributes: [("a".to_owned(), "b".to_owned())].into(),
            stage_secret: secret("s1", "n1"),
            publish_secret: secret("s2", "n2"),
            expand_secret: secret("s3", "n3"),
            claim: Some(ClaimOfVolume {
                namespace: "shop".into(),
                name: "data".into(),
                uid: "c1".into(),
            }),
            capacity: Some("1Gi".into()),
            is_migrated: false,
        };
        assert_eq!(spec, expected);
        assert_eq!(spec.unique_name(), "kubernetes.io/csi/d.example^h1");
        let local = json!({"metadata": {"name": "pv1"}, "spec": {"local": {"path": "/d"}}});
        let local = serde_json::from_value(local).unwrap();
        assert_eq!(CsiVolumeSpec::from_persistent_volume(&local), Ok(None));
    }

    #[test]
    fn what_is_invalid_is_named_with_its_field() {
        let large = "x".repeat(MAX_ATTRIBUTES);
        for (spec, csi, why) in [
            (
                json!({}),
                json!({"driver": "../d"}),
                r#"spec.csi.driver of PersistentVolume "pv1" is not the name of a CSI driver"#,
            ),
            (
                json!({}),
                json!({"volumeHandle": ""}),
                r#"spec.csi.volumeHandle of PersistentVolume "pv1" is empty"#,
            ),
            (
                json!({"volumeMode": "Odd"}),
                json!({}),
                r#"spec.volumeMode "Odd" of PersistentVolume "pv1" beside spec.csi is not supported by this kubelet"#,
            ),
            (
                json!({"accessModes": ["Odd"]}),
                json!({}),
                r#"spec.accessModes of PersistentVolume "pv1" has an unknown mode"#,
            ),
            (
                json!({"mountOptions": [large]}),
                json!({}),
                r#"spec.mountOptions of PersistentVolume "pv1" is too large"#,
            ),
            (
                json!({}),
                json!({"volumeAttributes": {"a": large}}),
                r#"spec.csi.volumeAttributes of PersistentVolume "pv1" is too large"#,
            ),
            (
                json!({}),
                json!({"fsType": "-o"}),
                r#"spec.csi.fsType of PersistentVolume "pv1" is not the name of a file system"#,
            ),
            (
                json!({}),
                json!({"nodeStageSecretRef": {"name": "s"}}),
                r#"spec.csi.nodeStageSecretRef of PersistentVolume "pv1" does not name a secret"#,
            ),
            (
                json!({}),
                json!({"nodePublishSecretRef": {"name": "../s", "namespace": "n"}}),
                r#"spec.csi.nodePublishSecretRef of PersistentVolume "pv1" does not name a secret"#,
            ),
        ] {
            assert_eq!(error(spec, csi), why);
        }
        let mut hidden = merged(json!({}), json!({}));
        hidden.metadata.name = Some("..".into());
        let error = CsiVolumeSpec::from_persistent_volume(&hidden).unwrap_err();
        let expected = r#"metadata.name of PersistentVolume ".." cannot be the name of a file"#;
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_single_pod_is_the_rule_only_of_a_single_mode() {
        for (modes, single) in [
            (json!(["ReadWriteOncePod"]), true),
            (json!(["ReadWriteOncePod", "ReadWriteOnce"]), false),
            (json!(["ReadWriteOnce", "Odd"]), false),
            (json!([]), false),
        ] {
            let volume = merged(json!({"accessModes": modes}), json!({}));
            let spec = CsiVolumeSpec::from_persistent_volume(&volume);
            assert_eq!(spec.unwrap().unwrap().is_for_single_pod(), single);
        }
    }

    #[test]
    fn an_inline_volume_takes_its_secret_from_the_pods_namespace() {
        let source = |source: Value| serde_json::from_value::<CSIVolumeSource>(source).unwrap();
        let of =
            |value: Value| CsiVolumeSpec::from_inline(&source(value), "data", &"u1".into(), "ns1");
        let source =
            json!({"driver": "d", "readOnly": true, "nodePublishSecretRef": {"name": "s"}});
        let spec = of(source).unwrap();
        assert!(spec.read_only && spec.lifecycle() == Lifecycle::Ephemeral);
        assert_eq!(spec.access_mode(false), CsiAccessMode::SingleNodeWriter);
        assert_eq!(spec.publish_secret.unwrap().namespace, "ns1");
        let error = of(json!({"driver": "d/e"})).unwrap_err();
        let expected = r#"csi.driver of volume "data" is not the name of a CSI driver"#;
        assert_eq!(error.to_string(), expected);
    }
}
