//! Errors of preparing and unpreparing claims; texts as upstream's where it has one.

/// Why claims of a pod are not prepared or unprepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DraError {
    /// There is no API server.
    #[error("cannot use resource claims when kubelet is in standalone mode")]
    Standalone,
    /// The claim has not been generated from its template yet.
    #[error("pod {pod:?}: ResourceClaim not created yet")]
    NotCreated {
        /// Namespace and name of the pod.
        pod: String,
    },
    /// The kind of claim is unknown to this kubelet.
    #[error("pod {pod:?}, spec.resourceClaim {claim:?}: none of the supported fields are set")]
    UnknownKind {
        /// Namespace and name of the pod.
        pod: String,
        /// The name of the claim within the pod.
        claim: String,
    },
    /// The claim cannot be read.
    #[error("fetch ResourceClaim {claim}: {why}")]
    Fetch { claim: String, why: String },
    /// The generated claim has another owner.
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwner {
        /// Namespace and name of the claim.
        claim: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// The claim is not reserved for the pod.
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved {
        /// The pod's name.
        pod: String,
        uid: String,
        claim: String,
        claim_uid: String,
    },
    /// The claim is not allocated.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    /// No driver of this name has registered.
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    /// The checkpoint has another claim of this name, which is still in use.
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim {
        /// The name of both claims.
        claim: String,
        /// The UID of the old one.
        uid: String,
    },
    /// The driver is registered but not connected.
    #[error("DRA driver {0} is not connected")]
    NotConnected(String),
    /// The checkpoint cannot be written.
    #[error("checkpoint ResourceClaim state: {0}")]
    Checkpoint(String),
    /// The call failed.
    #[error("{call}: {why}")]
    Call { call: &'static str, why: String },
    /// The response has a claim that was not in the request.
    #[error("{call} returned result for unknown claim UID {uid}")]
    UnknownClaim {
        call: &'static str,
        /// UID of the claim.
        uid: String,
    },
    /// The driver returned an error for a claim.
    #[error("{call} failed for ResourceClaim {claim}: {why}")]
    Failed { call: &'static str, claim: String, why: String },
    /// Claims of the request are missing in the response.
    #[error("{call} skipped {number} ResourceClaims")]
    Skipped {
        call: &'static str,
        /// Number of missing claims.
        number: usize,
    },
}
