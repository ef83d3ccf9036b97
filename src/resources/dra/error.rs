//! Why claims are not prepared or unprepared; texts as upstream's where it has one.

/// Why claims of a pod are not prepared or unprepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraError {
    /// There is no API server.
    #[error("cannot use resource claims when kubelet is in standalone mode")]
    Standalone,
    /// The claim of a template does not exist yet.
    #[error("pod {pod:?}: ResourceClaim not created yet")]
    NotCreated {
        /// Namespace and name of the pod.
        pod: String,
    },
    /// A claim of a kind that this kubelet does not know.
    #[error("pod {pod:?}, spec.resourceClaim {claim:?}: none of the supported fields are set")]
    UnknownKind {
        /// Namespace and name of the pod.
        pod: String,
        /// The name of the claim within the pod.
        claim: String,
    },
    /// The claim cannot be read.
    #[error("fetch ResourceClaim {claim}: {why}")]
    Fetch {
        /// The claim.
        claim: String,
        /// Why.
        why: String,
    },
    /// The claim of the template's name is another pod's.
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwner {
        /// Namespace and name of the claim.
        claim: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// The scheduler has not reserved the claim for the pod.
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved {
        /// The pod's name.
        pod: String,
        /// Its UID.
        uid: String,
        /// The claim.
        claim: String,
        /// Its UID.
        claim_uid: String,
    },
    /// The claim has no devices.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    /// No driver of this name has registered.
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    /// An earlier claim of the same name is still in use.
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim {
        /// The name of both claims.
        claim: String,
        /// The UID of the old one.
        uid: String,
    },
    /// The driver has registered and does not accept connections.
    #[error("DRA driver {0} is not connected")]
    NotConnected(String),
    /// The checkpoint cannot be written.
    #[error("checkpoint ResourceClaim state: {0}")]
    Checkpoint(String),
    /// The call failed.
    #[error("{call}: {why}")]
    Call {
        /// The call.
        call: &'static str,
        /// Why.
        why: String,
    },
    /// The driver responded for a claim that it was not called for.
    #[error("{call} returned result for unknown claim UID {uid}")]
    UnknownClaim {
        /// The call.
        call: &'static str,
        /// The UID.
        uid: String,
    },
    /// The driver failed for a claim.
    #[error("{call} failed for ResourceClaim {claim}: {why}")]
    Failed {
        /// The call.
        call: &'static str,
        /// The claim.
        claim: String,
        /// What the driver says.
        why: String,
    },
    /// The driver did not respond for all claims.
    #[error("{call} skipped {number} ResourceClaims")]
    Skipped {
        /// The call.
        call: &'static str,
        /// How many are missing.
        number: usize,
    },
}
