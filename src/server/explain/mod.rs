//! Explains why pods are in their state, for users and programs.
//!
//! * Owns: the explanations ([`Overview`], [`Explanation`]), whose JSON is served and parsed by the subcommands, and
//!   the rules that generate them (`row`, `generate`). Both are pure.
//! * Woken by a request; keeps no state.
//! * Publishes nothing.
//! * Must never contain a value of an environment variable, or anything else that may be a secret.
//! * The column STATUS is that of `kubectl get pods` (upstream's `pkg/printers/internalversion`).

pub mod generate;
pub mod row;
pub mod timeline;
pub mod times;

pub use generate::explain;
pub use row::row;

use crate::state::pod_history::DecisionKind;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// All pods of the node, one row per pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// A version that changes with every change of the rows.
    pub version: String,
    /// The node's name.
    pub node: String,
    /// Conditions of the node that need attention.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Sorted by namespace and name.
    pub pods: Vec<PodRow>,
}

/// One row of `kubelet pods`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    /// Namespace.
    pub namespace: String,
    /// Name, with the node's suffix.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `file`, `http` or `api`; empty if unknown.
    pub source: String,
    /// Number of ready containers, including sidecars.
    pub ready: usize,
    /// Number of containers in the spec, including sidecars.
    pub containers: usize,
    /// The column STATUS of `kubectl get pods`: `Running`, `CrashLoopBackOff`, `Init:0/2`, …
    pub status: String,
    /// The API's phase.
    pub phase: String,
    /// Restarts, counted as by `kubectl get pods`.
    pub restarts: i64,
    /// When a container last terminated before a restart.
    pub last_restart: Option<Timestamp>,
    /// Creation time of the pod, or when this kubelet first saw it.
    pub since: Option<Timestamp>,
    /// Primary address; empty if there is none.
    pub ip: String,
    /// How a container last terminated, or why one cannot start; empty if neither applies.
    pub last_reason: String,
}

/// Whether a pod needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All its containers are ready, or it has succeeded.
    Well,
    /// It is starting or terminating, without failures so far.
    UnderWay,
    /// Something has failed.
    Wrong,
}

impl PodRow {
    /// Whether the pod needs attention.
    pub fn order(&self) -> Order {
        let waiting = matches!(&*self.status, "Pending" | "ContainerCreating" | "Terminating")
            || self.status.starts_with("Init:") && self.last_reason.is_empty();
        let all_ready = self.ready == self.containers && self.containers > 0;
        let starting = self.status == "Running" && self.last_reason.is_empty();
        if all_ready || self.phase == "Succeeded" {
            Order::Well
        } else if waiting || starting {
            Order::UnderWay
        } else {
            Order::Wrong
        }
    }
}

/// The explanation of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The pod's row.
    pub pod: PodRow,
    /// The time of the explanation.
    pub now: Timestamp,
    /// One sentence that explains the state.
    pub summary: String,
    /// The current step of the kubelet.
    pub doing: Option<Doing>,
    /// What the pod and its containers wait for.
    pub waits: Vec<Wait>,
    /// What will happen next if nothing changes, soonest first.
    pub next: Vec<Upcoming>,
    /// Known past steps, in order.
    #[serde(default)]
    pub timeline: Vec<PastEvent>,
    /// Its containers, in start order.
    pub containers: Vec<ExplainedContainer>,
    /// Conditions that are not true.
    pub conditions: Vec<ConditionView>,
    /// Its probes.
    pub probes: Vec<ProbeReport>,
    /// Its pod history, oldest first.
    #[serde(rename = "history")]
    pub pod_history: Vec<HistoryReport>,
    /// Recent events, oldest first.
    pub events: Vec<EventReport>,
}

/// A step in progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Doing {
    /// The step.
    pub step: String,
    /// Its start.
    pub since: Timestamp,
}

/// Something that must happen before the pod or container continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The waiting container; empty for the pod.
    pub container: String,
    /// What it waits for.
    pub what: String,
    /// The latest time at which the wait ends, if known.
    pub until: Option<Timestamp>,
}

/// Something that will happen at a known time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upcoming {
    /// The time.
    pub at: Timestamp,
    /// The step.
    pub what: String,
}

/// A past step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastEvent {
    /// Its time; may be in whole seconds.
    pub at: Timestamp,
    /// The container; empty for the pod.
    pub container: String,
    /// A short description.
    pub what: String,
    /// Details; may be empty.
    pub detail: String,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedContainer {
    /// Name.
    pub name: String,
    /// `init`, `sidecar` or `container`.
    pub kind: String,
    /// As in the manifest.
    pub image: String,
    /// `waiting`, `running`, `terminated`, or `unknown` without a status.
    pub state: String,
    /// The reason of that state.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Start of that state, if known.
    pub since: Option<Timestamp>,
    /// Exit code of a terminated container.
    pub exit_code: Option<i32>,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it has started.
    pub started: bool,
    /// `restartCount` of the status.
    pub restarts: i32,
    /// The termination of the previous instance.
    pub last: Option<LastEnd>,
}

/// The termination of a container instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEnd {
    /// The reason, of the runtime or of the kubelet.
    pub reason: String,
    /// Its termination message.
    pub message: String,
    /// Exit code.
    pub exit_code: i32,
    /// End time.
    pub at: Option<Timestamp>,
}

/// A condition of the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionView {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Why it is not true.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Time of the last transition.
    pub since: Option<Timestamp>,
}

/// One probe of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    /// Container.
    pub container: String,
    /// `Liveness`, `Readiness` or `Startup`.
    pub kind: String,
    /// The current probe result: `success`, `failure`, or `unknown` before the first one.
    #[serde(rename = "result")]
    pub probe_result: String,
    /// Result of the last run: `success`, `failure`, or `unknown` if it could not be run.
    pub last_result: Option<String>,
    /// Time of the last run.
    pub last_at: Option<Timestamp>,
    /// Number of consecutive results equal to the last one.
    pub in_a_row: u32,
    /// Its output at the last failure.
    pub message: String,
    /// Time of the next run.
    pub next: Option<Timestamp>,
}

/// An entry of the pod history; equal entries are combined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    /// The kind of the decision.
    #[serde(rename = "action")]
    pub kind: DecisionKind,
    /// The container; empty for the pod.
    pub container: String,
    /// The reason.
    pub why: String,
    /// When it ends, if known.
    pub until: Option<Timestamp>,
    /// Number of occurrences.
    pub count: u32,
    /// Time of the first occurrence.
    pub first: Timestamp,
    /// Time of the last occurrence.
    pub last: Timestamp,
}

/// An event about the pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventReport {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Reason.
    pub reason: String,
    /// The container; empty for the pod.
    #[serde(default)]
    pub container: String,
    /// Message.
    pub message: String,
    /// Number of occurrences.
    pub count: u32,
    /// Time of the first occurrence.
    pub first: Timestamp,
    /// Time of the last occurrence.
    pub last: Timestamp,
}
