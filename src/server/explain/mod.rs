//! Why pods are as they are, for people and programs.
//!
//! * Owns: what is told ([`Overview`], [`Explanation`]; their JSON is served and read back), and the
//!   rules that make it (`row`, `generate`). Both are pure.
//! * Woken by a question; nothing is kept and nothing is computed for nobody.
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

/// All pods of the node, a line each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Says which state of the board this is; another text is another state.
    pub version: String,
    /// The node's name.
    pub node: String,
    /// What is to be known about the node as a whole, if anything is out of order.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// In order of namespace and name.
    pub pods: Vec<PodRow>,
}

/// One pod as `kubelet pods` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    /// Namespace.
    pub namespace: String,
    /// Name, with the node's suffix.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `file`, `http` or `api`; empty when nobody says so.
    pub source: String,
    /// Containers that are ready, sidecars included.
    pub ready: usize,
    /// Containers there are to be, sidecars included.
    pub containers: usize,
    /// What `kubectl get pods` would print: `Running`, `CrashLoopBackOff`, `Init:0/2`, …
    pub status: String,
    /// The API's phase.
    pub phase: String,
    /// Restarts of all containers that count.
    pub restarts: i64,
    /// When a container ended last before it was restarted.
    pub last_restart: Option<Timestamp>,
    /// When the pod was created, or first seen here.
    pub since: Option<Timestamp>,
    /// The primary address; empty when there is none.
    pub ip: String,
    /// How a container ended last, or why one cannot start; empty when all is well.
    pub last_reason: String,
}

/// Whether anybody has to look at a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All its containers are ready, or it has done what it was there for.
    Well,
    /// It is on its way, and nothing has failed so far.
    UnderWay,
    /// Something has failed.
    Wrong,
}

impl PodRow {
    /// Whether anybody has to look at it.
    pub fn order(&self) -> Order {
        let waiting = matches!(
            &*self.status,
            "Pending" | "ContainerCreating" | "Terminating"
        ) || self.status.starts_with("Init:") && self.last_reason.is_empty();
        match self.ready == self.containers && self.containers > 0 {
            true => Order::Well,
            false if self.phase == "Succeeded" => Order::Well,
            false if waiting => Order::UnderWay,
            false if self.status == "Running" && self.last_reason.is_empty() => Order::UnderWay,
            false => Order::Wrong,
        }
    }
}

/// Everything about one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The pod's line.
    pub pod: PodRow,
    /// When this was true.
    pub now: Timestamp,
    /// One sentence: why it is in this state.
    pub summary: String,
    /// What the kubelet is doing about it at this moment.
    pub doing: Option<Doing>,
    /// What it waits for.
    pub waits: Vec<Wait>,
    /// What will happen next without anything else happening before, soonest first.
    pub next: Vec<Upcoming>,
    /// What has happened to it so far, as far as that is known, in order.
    #[serde(default)]
    pub timeline: Vec<Moment>,
    /// Its containers, in the order in which they are started.
    pub containers: Vec<ContainerView>,
    /// Conditions that do not hold.
    pub conditions: Vec<ConditionView>,
    /// Its probes.
    pub probes: Vec<ProbeReport>,
    /// What was decided lately, oldest first.
    #[serde(rename = "decisions")]
    pub pod_history: Vec<HistoryReport>,
    /// The last events, oldest first.
    pub events: Vec<EventReport>,
}

/// A step that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Doing {
    /// What.
    pub step: String,
    /// Since when.
    pub since: Timestamp,
}

/// Something that has to happen first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The container that waits; empty for the pod.
    pub container: String,
    /// For what.
    pub what: String,
    /// Until when at the latest, where that is known.
    pub until: Option<Timestamp>,
}

/// Something that will happen at a known instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upcoming {
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: String,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moment {
    /// When. What a status tells may be cut to whole seconds.
    pub at: Timestamp,
    /// The container; empty for the pod.
    pub container: String,
    /// What, in a few words.
    pub what: String,
    /// The same in more words; may be empty.
    pub detail: String,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// Name.
    pub name: String,
    /// `init`, `sidecar` or `container`.
    pub kind: String,
    /// As the user wrote it.
    pub image: String,
    /// `waiting`, `running`, `terminated`, or `unknown` when there is no status yet.
    pub state: String,
    /// Why it is in that state.
    pub reason: String,
    /// The same in more words.
    pub message: String,
    /// Since when, where that is known.
    pub since: Option<Timestamp>,
    /// Exit code of a container that has ended.
    pub exit_code: Option<i32>,
    /// It counts as ready.
    pub ready: bool,
    /// It counts as started.
    pub started: bool,
    /// Restarts.
    pub restarts: i32,
    /// How the instance before ended.
    pub last: Option<LastEnd>,
}

/// How an instance of a container ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEnd {
    /// Why, by the runtime's or the kubelet's word.
    pub reason: String,
    /// Its last words.
    pub message: String,
    /// Exit code.
    pub exit_code: i32,
    /// When.
    pub at: Option<Timestamp>,
}

/// A condition of the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionView {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Why it does not hold.
    pub reason: String,
    /// The same in more words.
    pub message: String,
    /// Since when.
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
    /// The verdict that holds: `success`, `failure`, or `unknown` before there is one.
    #[serde(rename = "verdict")]
    pub probe_result: String,
    /// How it ran last: `success`, `failure`, or `unknown` when it could not be run.
    pub last_result: Option<String>,
    /// When it ran last.
    pub last_at: Option<Timestamp>,
    /// How many times in a row it ended like that.
    pub in_a_row: u32,
    /// What it said when it last did not succeed.
    pub message: String,
    /// When it runs next.
    pub next: Option<Timestamp>,
}

/// A decision; equal ones are one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    /// What.
    pub action: Action,
    /// The container; empty for the pod.
    pub container: String,
    /// Why.
    pub why: String,
    /// Until when it holds, where that is known.
    pub until: Option<Timestamp>,
    /// How often it was made.
    pub count: u32,
    /// When first.
    pub first: Timestamp,
    /// When last.
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
    /// The container that it is about; empty for the pod.
    #[serde(default)]
    pub container: String,
    /// Message.
    pub message: String,
    /// How often.
    pub count: u32,
    /// When first.
    pub first: Timestamp,
    /// When last.
    pub last: Timestamp,
}
