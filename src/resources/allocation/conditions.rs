//! The resize conditions of a pod. Pure.

use crate::base::named_enum;
use k8s_openapi::api::core::v1::PodCondition;

named_enum! {
    /// Why a resize is pending: the reason in conditions and events.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PendingReason {
        /// The node does not have enough free resources at the moment.
        Deferred = "Deferred",
        /// The resize is impossible on this node.
        Infeasible = "Infeasible",
    }
}

/// A pending resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingResize {
    /// The reason.
    pub reason: PendingReason,
    /// The message of the condition.
    pub message: String,
    /// `metadata.generation` of the pod that requests the resize.
    pub generation: Option<i64>,
}

/// A resize that is being actuated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeInProgress {
    /// The error of the last attempt.
    pub error: Option<String>,
    /// `metadata.generation` of the pod that requests the resize.
    pub generation: Option<i64>,
}

/// The resize conditions of one pod. Both are set if a later resize is pending while an earlier one is being actuated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeConditions {
    /// `PodResizePending`.
    pub pending: Option<PendingResize>,
    /// `PodResizeInProgress`.
    pub in_progress: Option<ResizeInProgress>,
    /// A resize was requested and neither accepted nor rejected yet. No condition says that, so the status must not show
    /// the version of the pod that requests it as observed.
    pub undecided: bool,
}

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";
const ERROR: &str = "Error";

impl ResizeConditions {
    /// Condition types of resizes.
    pub const TYPES: [&str; 2] = [PENDING, IN_PROGRESS];

    /// Restores the conditions that an earlier kubelet reported.
    pub fn reported(conditions: &[PodCondition]) -> Self {
        let find = |type_: &str| {
            let mut conditions = conditions.iter();
            conditions.find(|condition| condition.type_ == type_ && condition.status == "True")
        };
        let message =
            |condition: &PodCondition| condition.message.clone().filter(|text| !text.is_empty());
        Self {
            pending: find(PENDING).map(|condition| PendingResize {
                reason: if condition.reason.as_deref() == Some("Infeasible") {
                    PendingReason::Infeasible
                } else {
                    PendingReason::Deferred
                },
                message: message(condition).unwrap_or_default(),
                generation: condition.observed_generation,
            }),
            in_progress: find(IN_PROGRESS).map(|condition| ResizeInProgress {
                error: message(condition),
                generation: condition.observed_generation,
            }),
            undecided: false,
        }
    }

    /// The API conditions, without `lastTransitionTime`.
    pub fn to_api(&self) -> Vec<PodCondition> {
        let condition =
            |type_: &str, reason: Option<&str>, message: Option<&String>, generation| {
                PodCondition {
                    type_: type_.to_owned(),
                    status: "True".to_owned(),
                    reason: reason.map(str::to_owned),
                    message: message.filter(|text| !text.is_empty()).cloned(),
                    observed_generation: generation,
                    ..PodCondition::default()
                }
            };
        let pending = self.pending.iter().map(|pending| {
            let (reason, message) = (pending.reason.as_str(), &pending.message);
            condition(PENDING, Some(reason), Some(message), pending.generation)
        });
        let in_progress = self.in_progress.iter().map(|resize| {
            let error = resize.error.as_ref();
            condition(IN_PROGRESS, error.map(|_| ERROR), error, resize.generation)
        });
        pending.chain(in_progress).collect()
    }
}
