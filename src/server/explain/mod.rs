//! Why pods are in their state, for people and programs.
//!
//! * Owns: the explanations ([`Overview`], [`Explanation`]; their JSON is served and read back), and the rules
//!   that generate them (`row`, `generate`). Both are pure.
//! * Woken by a request; keeps nothing.
//! * Publishes nothing.
//! * Must never hold a value of an environment variable, or anything else that may be a secret.
//! * The column STATUS answers to `kubectl get pods` (upstream's `pkg/printers/internalversion`).

pub mod generate;
pub mod row;
pub mod timeline;
pub mod times;

pub use generate::explain;
pub use row::row;

use crate::state::pod_history::Action;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// All pods of the node, a row each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Changes with every change of the rows.
    pub version: String,
    /// The node's name.
    pub node: String,
    /// Conditions of the node that need attention.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// By namespace and name.
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
    /// `file`, `http` or `api`; empty when unknown.
    pub source: String,
    /// Containers that are ready, sidecars included.
    pub ready: usize,
    /// Containers of the spec, sidecars included.
    pub containers: usize,
    /// The column STATUS of `kubectl get pods`: `Running`, `CrashLoopBackOff`, `Init:0/2`, …
    pub status: String,
    /// The API's phase.
    pub phase: String,
    /// Restarts of all containers that count.
    pub restarts: i64,
    /// When a container terminated last before it was restarted.
    pub last_restart: Option<Timestamp>,
    /// When the pod was created, or first seen here.
    pub since: Option<Timestamp>,
    /// The primary address; empty when there is none.
    pub ip: String,
    /// How a container terminated last, or why one cannot start; empty when neither is so.
    pub last_reason: String,
}

/// Whether a pod needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All its containers are ready, or it has succeeded.
    Well,
    /// It is starting or terminating, and nothing has failed so far.
    UnderWay,
    /// Something has failed.
    Wrong,
}

impl PodRow {
    /// Whether the pod needs attention.
    pub fn order(&self) -> Order {
        let waiting = matches!(
            &*self.status,
            "Pending" | "ContainerCreating" | "Terminating"
        ) || self.status.starts_with("Init:") && self.last_reason.is_empty();
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

/// Everything about one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The pod's row.
    pub pod: PodRow,
    /// The time of the explanation.
    pub now: Timestamp,
    /// One sentence: why the pod is in this state.
    pub summary: String,
    /// The current step of the kubelet.
    pub doing: Option<Doing>,
    /// What it waits for.
    pub waits: Vec<Wait>,
    /// What will happen next unless something else happens before, soonest first.
    pub next: Vec<Upcoming>,
    /// What has happened so far, as far as that is known, in order.
    #[serde(default)]
    pub timeline: Vec<PastEvent>,
    /// Its containers, in the order in which they start.
    pub containers: Vec<ExplainedContainer>,
    /// Conditions that are not true.
    pub conditions: Vec<ConditionView>,
    /// Its probes.
    pub probes: Vec<ProbeReport>,
    /// Its history, oldest first.
    #[serde(rename = "history")]
    pub pod_history: Vec<HistoryReport>,
    /// The last events, oldest first.
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

/// Something that must happen first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The container that waits; empty for the pod.
    pub container: String,
    /// What it waits for.
    pub what: String,
    /// The latest end, if known.
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

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastEvent {
    /// The time. Times in a status may be whole seconds.
    pub at: Timestamp,
    /// The container; empty for the pod.
    pub container: String,
    /// What, in a few words.
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
    /// `waiting`, `running`, `terminated`, or `unknown` when there is no status yet.
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
    /// How the previous instance terminated.
    pub last: Option<LastEnd>,
}

/// How an instance of a container terminated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEnd {
    /// Reason, by the runtime or the kubelet.
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
    /// The reason why it is not true.
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
    /// Result of the last run: `success`, `failure`, or `unknown` when it could not run.
    pub last_result: Option<String>,
    /// Time of the last run.
    pub last_at: Option<Timestamp>,
    /// How many times in a row it had that result.
    pub in_a_row: u32,
    /// Its output when it last did not succeed.
    pub message: String,
    /// Time of the next run.
    pub next: Option<Timestamp>,
}

/// An entry of the history; equal ones are counted together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    /// The action.
    pub action: Action,
    /// The container; empty for the pod.
    pub container: String,
    /// Why.
    pub why: String,
    /// When it ends, if known.
    pub until: Option<Timestamp>,
    /// How many times.
    pub count: u32,
    /// The first time.
    pub first: Timestamp,
    /// The last time.
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
    /// Its container; empty for the pod.
    #[serde(default)]
    pub container: String,
    /// Message.
    pub message: String,
    /// How many times.
    pub count: u32,
    /// The first time.
    pub first: Timestamp,
    /// The last time.
    pub last: Timestamp,
}
