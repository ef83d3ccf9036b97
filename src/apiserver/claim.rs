//! PersistentVolumeClaims of pods, and the PersistentVolumes that they are bound to.
//!
//! * Owns: per pod and claim, the PersistentVolume that the claim is bound to. The claim is read until it is bound, and
//!   not again, because binding is permanent, and a node may get these objects but not watch them. Pods do not share
//!   results: a later pod may use a new claim of the same name.
//! * Woken by: its callers and timers.
//! * Publishes: the set of pods whose claims were bound.
//! * Must never treat a failed request as a missing claim.
//! * Upstream: the claims of `pkg/kubelet/volumemanager/populator`.

use super::subscriptions::{NoValue, Publisher, Subscriptions};
use super::{ApiError, ApiServer, ResourcePath};
use crate::base::{DirtySet, clock, error_chain};
use crate::model::PodUid;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The delay before the next read, doubling from `FIRST_DELAY` to `MAX_DELAY`.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(15);
/// The finalizer that keeps a claim in use from being deleted.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Identifies a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersistentVolumeClaimKey {
    /// Namespace of the pod and the claim.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Name of the pod for whose `ephemeral` volume the claim is generated: then that pod has to be its controller, because
    /// a claim of this name may be there for another reason.
    pub generated_for: Option<String>,
}

/// Why the volume of a claim is not available; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// There is no API server.
    #[error("cannot use persistentVolumeClaim when kubelet is in standalone mode")]
    Standalone,
    /// The claim cannot be read.
    #[error("failed to fetch PVC from API server: {0}")]
    Claim(String),
    /// No response from the API server yet, so it is unknown whether the claim is bound.
    #[error("failed to fetch PVC from API server: {0}")]
    Unsynced(String),
    /// The PersistentVolume cannot be read.
    #[error("failed to fetch PV {name} from API server: {why}")]
    Volume {
        /// The volume's name.
        name: String,
        /// The error.
        why: String,
    },
    /// The claim is being deleted.
    #[error("PVC is being deleted")]
    Deleted,
    /// Another claim has the name of the one that is generated for the pod.
    #[error("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwned {
        /// Namespace of the claim and the pod.
        namespace: String,
        /// The claim's name.
        name: String,
        /// The pod's name.
        pod: String,
    },
    /// The claim is not bound yet.
    #[error("PVC is not bound")]
    NotBound,
    /// The claim is bound, but names no volume.
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName,
    /// The volume has no `claimRef`.
    #[error(
        "found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    )]
    NoClaimRef(String),
    /// The volume is bound to another claim.
    #[error(
        "found PV object {name} but its pv.Spec.ClaimRef.UID {other} does not point to claim.UID {own}"
    )]
    OtherClaim {
        /// The volume's name.
        name: String,
        /// The UID of the claim in the volume's `claimRef`.
        other: String,
        /// The UID of this claim.
        own: String,
    },
}

/// The results of a request; every requested claim has one.
pub type FoundClaims =
    BTreeMap<PersistentVolumeClaimKey, Result<Arc<PersistentVolume>, ClaimError>>;

/// Reads the claims that pods mount. Cheap to clone.
#[derive(Clone, Default)]
pub struct ApiPersistentVolumeClaims(
    Subscriptions<
        ApiServer,
        (PodUid, PersistentVolumeClaimKey),
        Result<Arc<PersistentVolume>, ClaimError>,
    >,
);

impl From<NoValue> for ClaimError {
    fn from(none: NoValue) -> Self {
        match none {
            NoValue::Unsynced(why) => Self::Unsynced(why),
            none => none.why().map_or(Self::Standalone, Self::Claim),
        }
    }
}

impl ApiPersistentVolumeClaims {
    /// Reads from this API server; with `None` every claim fails. A pod is marked in `changed` when one of its claims
    /// is bound.
    pub fn new(api: Option<ApiServer>, changed: Arc<DirtySet<PodUid>>) -> Self {
        Self(Subscriptions::new(api, changed))
    }

    /// Sets the claims that a pod mounts.
    pub fn register(&self, uid: &PodUid, keys: BTreeSet<PersistentVolumeClaimKey>) {
        let keys = keys.into_iter().map(|key| (uid.clone(), key)).collect();
        self.0.register(uid, keys, |api, (uid, key), publisher| async move {
            read_until_bound(&api, &uid, &key, &publisher).await;
        });
    }

    /// Removes the claims of a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.0.forget(uid);
    }

    /// Returns the volumes of these claims of a pod. Waits a bounded time for the first result.
    pub async fn get(&self, uid: &PodUid, keys: BTreeSet<PersistentVolumeClaimKey>) -> FoundClaims {
        let keys = keys.into_iter().map(|key| (uid.clone(), key)).collect();
        let found = self.0.results(keys).await.into_iter();
        found.map(|((_, key), value)| (key, value)).collect()
    }
}

async fn read_until_bound(
    api: &ApiServer,
    uid: &PodUid,
    key: &PersistentVolumeClaimKey,
    publisher: &Publisher<Result<Arc<PersistentVolume>, ClaimError>>,
) {
    let mut delay = FIRST_DELAY;
    let mut recovery = api.recovery();
    loop {
        match read(api, uid, key).await {
            Ok(Ok(volume)) => {
                publisher.publish(Ok(Arc::new(volume)));
                return;
            }
            Ok(Err(why)) => publisher.publish(Err(why)),
            Err(error) => {
                if publisher.failed(error_chain(&error)) && !error.is_transient() {
                    tracing::warn!(
                        namespace = key.namespace, name = key.name, err = %error_chain(&error),
                        "Failed to read a claim or its volume"
                    );
                }
            }
        }
        let wait = delay.mul_f64(1.0 + 0.5 * fastrand::f64());
        recovery.wait(&mut (clock::instant() + wait)).await;
        delay = (delay * 2).min(MAX_DELAY);
    }
}

/// Reads a claim and its volume. The outer error is a failed request, after which the last result is kept.
async fn read(
    api: &ApiServer,
    uid: &PodUid,
    key: &PersistentVolumeClaimKey,
) -> Result<Result<PersistentVolume, ClaimError>, ApiError> {
    let place = ResourcePath::namespaced(&key.namespace, &key.name);
    let claim = match api.get::<PersistentVolumeClaim>(place).await {
        Err(error) if error.is_not_found() => {
            return Ok(Err(ClaimError::Claim(error_chain(&error))));
        }
        claim => claim?,
    };
    if let Err(why) = check_owner(&claim, uid, key) {
        return Ok(Err(why));
    }
    let name = match volume_name(&claim) {
        Ok(name) => name,
        Err(why) => return Ok(Err(why)),
    };
    let volume = match api.get::<PersistentVolume>(ResourcePath::cluster(name)).await {
        Err(error) if error.is_not_found() => {
            let (name, why) = (name.to_owned(), error_chain(&error));
            return Ok(Err(ClaimError::Volume { name, why }));
        }
        volume => volume?,
    };
    Ok(is_bound_to(&volume, &claim).map(|()| volume))
}

/// Checks that a generated claim is that of the pod (upstream's `PVCIsForPod`).
fn check_owner(
    claim: &PersistentVolumeClaim,
    uid: &PodUid,
    key: &PersistentVolumeClaimKey,
) -> Result<(), ClaimError> {
    let Some(pod) = &key.generated_for else {
        return Ok(());
    };
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    if controllers.any(|owner| owner.uid == uid.as_str()) {
        return Ok(());
    }
    Err(ClaimError::NotOwned {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        pod: pod.clone(),
    })
}

fn volume_name(claim: &PersistentVolumeClaim) -> Result<&str, ClaimError> {
    let finalizers = claim.metadata.finalizers.as_deref().unwrap_or_default();
    let is_protected = finalizers.iter().any(|finalizer| finalizer == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !is_protected {
        return Err(ClaimError::Deleted);
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase != Some("Bound") {
        return Err(ClaimError::NotBound);
    }
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref());
    name.filter(|name| !name.is_empty()).ok_or(ClaimError::NoVolumeName)
}

fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), ClaimError> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let of = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let Some(of) = of else {
        return Err(ClaimError::NoClaimRef(name));
    };
    let text = |uid: &Option<String>| uid.clone().unwrap_or_default();
    let (other, own) = (text(&of.uid), text(&claim.metadata.uid));
    if other == own { Ok(()) } else { Err(ClaimError::OtherClaim { name, other, own }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::stored::{Mode, Stored};
    use serde_json::{Value, json};

    fn claim(patch: Value) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "c1"},
            "spec": {"volumeName": "pv1"},
            "status": {"phase": "Bound"},
        });
        for (name, part) in patch.as_object().unwrap() {
            for (key, value) in part.as_object().unwrap() {
                claim[name][key] = value.clone();
            }
        }
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn a_claim_names_its_volume_once_it_is_bound() {
        let going = "2026-01-01T00:00:00Z";
        for (patch, expected) in [
            (json!({}), Ok("pv1")),
            (json!({"status": {"phase": "Pending"}}), Err("PVC is not bound")),
            (json!({"status": {"phase": null}}), Err("PVC is not bound")),
            (json!({"spec": {"volumeName": ""}}), Err("PVC has empty pvc.Spec.VolumeName")),
            (json!({"metadata": {"deletionTimestamp": going}}), Err("PVC is being deleted")),
            (
                json!({"metadata": {"deletionTimestamp": going, "finalizers": [PROTECTION]}}),
                Ok("pv1"),
            ),
        ] {
            let claim = claim(patch.clone());
            let found = volume_name(&claim).map_err(|error| error.to_string());
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|e| *e),
                "{patch}"
            );
        }
    }

    #[test]
    fn a_generated_claim_has_its_pod_as_controller() {
        let owner = |uid: &str, controller: bool| json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid, "controller": controller});
        let error = "PVC shop/web-data was not created for pod shop/web (pod is not owner)";
        for (generated_for, owners, expected) in [
            (None, json!([]), ""),
            (Some("web"), json!([]), error),
            (Some("web"), json!([owner("u1", true)]), ""),
            (Some("web"), json!([owner("u1", false)]), error),
            (Some("web"), json!([owner("u2", true)]), error),
            (Some("web"), json!([owner("u2", false), owner("u1", true)]), ""),
        ] {
            let claim = claim(json!({"metadata": {"ownerReferences": owners}}));
            let key = PersistentVolumeClaimKey {
                namespace: "shop".into(),
                name: "web-data".into(),
                generated_for: generated_for.map(Into::into),
            };
            let found = check_owner(&claim, &"u1".into(), &key).err();
            let found = found.map(|error| error.to_string());
            assert_eq!(found.unwrap_or_default(), expected, "{generated_for:?} {owners}");
        }
    }

    #[test]
    fn a_volume_is_only_that_of_the_claim_that_it_names() {
        for (reference, expected) in [
            (json!({"uid": "c1"}), ""),
            (
                json!({"uid": "c2"}),
                "found PV object pv1 but its pv.Spec.ClaimRef.UID c2 does not point to claim.UID c1",
            ),
            (
                Value::Null,
                "found PV object pv1 but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
            ),
        ] {
            let volume = json!({"metadata": {"name": "pv1"}, "spec": {"claimRef": reference}});
            let volume = serde_json::from_value(volume).unwrap();
            let found = is_bound_to(&volume, &claim(json!({})));
            let found = found.err().map(|error| error.to_string());
            assert_eq!(found.unwrap_or_default(), expected);
        }
    }

    #[tokio::test]
    async fn a_claim_that_is_bound_later_wakes_its_pods_and_is_then_not_read_again() {
        let server = Stored::start().await;
        let changed = Arc::<DirtySet<PodUid>>::default();
        let claims = ApiPersistentVolumeClaims::new(Some(server.client().await), changed.clone());
        let key = PersistentVolumeClaimKey {
            namespace: "shop".into(),
            name: "data".into(),
            generated_for: None,
        };
        let uid = PodUid::from("u1");
        claims.register(&uid, [key.clone()].into());
        let get = async || {
            let found = claims.get(&uid, [key.clone()].into()).await;
            found[&key].clone().map(|it| it.metadata.name.clone())
        };
        let error = get().await.unwrap_err().to_string();
        assert!(error.starts_with("failed to fetch PVC from API server: "), "{error}");
        let pending = json!({"metadata": {"uid": "c1"}, "status": {"phase": "Pending"}});
        server.put("persistentvolumeclaims", "shop", "data", pending);
        let marked = async || {
            let marked = tokio::time::timeout(Duration::from_secs(20), changed.take());
            assert!(marked.await.unwrap().contains(&uid));
        };
        marked().await;
        assert_eq!(get().await, Err(ClaimError::NotBound));
        let of = json!({"spec": {"claimRef": {"uid": "c1"}}});
        server.put("persistentvolumes", "", "pv1", of);
        let bound = json!({"metadata": {"uid": "c1"}, "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}});
        server.put("persistentvolumeclaims", "shop", "data", bound);
        marked().await;
        assert_eq!(get().await, Ok(Some("pv1".into())));
        // An API server that goes wrong takes no volume away.
        server.set(Mode::Refusing(500));
        assert_eq!(get().await, Ok(Some("pv1".into())));
        claims.forget(&uid);
        let error = get().await.unwrap_err().to_string();
        assert!(error.contains("not registered"), "{error}");
        let none = ApiPersistentVolumeClaims::default().get(&uid, [key.clone()].into()).await;
        assert_eq!(none[&key], Err(ClaimError::Standalone));
    }

    #[tokio::test]
    async fn a_claim_that_is_made_again_gives_a_new_pod_its_new_volume() {
        let server = Stored::start().await;
        let claims = ApiPersistentVolumeClaims::new(Some(server.client().await), Arc::default());
        let key = PersistentVolumeClaimKey {
            namespace: "shop".into(),
            name: "data".into(),
            generated_for: None,
        };
        let bind = |claim: &str, volume: &str| {
            let of = json!({"spec": {"claimRef": {"uid": claim}}});
            server.put("persistentvolumes", "", volume, of);
            let bound = json!({"metadata": {"uid": claim}, "spec": {"volumeName": volume}, "status": {"phase": "Bound"}});
            server.put("persistentvolumeclaims", "shop", "data", bound);
        };
        let volume = async |uid: &PodUid| {
            let found = claims.get(uid, [key.clone()].into()).await;
            found[&key].clone().map(|it| it.metadata.name.clone())
        };
        let [stopping, new] = ["u1", "u2"].map(PodUid::from);
        bind("c1", "pv1");
        claims.register(&stopping, [key.clone()].into());
        assert_eq!(volume(&stopping).await, Ok(Some("pv1".into())));
        server.delete("persistentvolumeclaims", "shop", "data");
        bind("c2", "pv2");
        claims.register(&new, [key.clone()].into());
        assert_eq!(volume(&new).await, Ok(Some("pv2".into())));
        assert_eq!(volume(&stopping).await, Ok(Some("pv1".into())));
    }
}
