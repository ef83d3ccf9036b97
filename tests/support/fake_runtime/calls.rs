//! The calls that the runtime received, their subjects and their responses.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

macro_rules! rpcs {
    ($($name:ident: $kind:ident),* $(,)?) => {
        /// Every call of the two services that the fake answers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rpc { $($name),* }

        impl Rpc {
            /// All of them, in the order of the protocol.
            pub const ALL: &'static [Rpc] = &[$(Rpc::$name),*];

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(Rpc::$name => stringify!($name)),* }
            }

            /// Whether the call can change a sandbox, a container or an image.
            pub fn is_mutating(self) -> bool {
                match self { $(Rpc::$name => rpcs!(@ $kind)),* }
            }
        }
    };
    (@ reads) => { false };
    (@ changes) => { true };
}

rpcs! {
    Version: reads, RunPodSandbox: changes, StopPodSandbox: changes, RemovePodSandbox: changes,
    PodSandboxStatus: reads, ListPodSandbox: reads, StreamPodSandboxes: reads,
    CreateContainer: changes, StartContainer: changes, StopContainer: changes, RemoveContainer: changes,
    ListContainers: reads, StreamContainers: reads, ContainerStatus: reads,
    UpdateContainerResources: changes, ReopenContainerLog: changes, ExecSync: reads,
    Exec: reads, Attach: reads, PortForward: reads,
    ContainerStats: reads, ListContainerStats: reads, PodSandboxStats: reads, ListPodSandboxStats: reads,
    UpdateRuntimeConfig: changes, CheckpointContainer: reads, Status: reads, GetContainerEvents: reads, RuntimeConfig: reads,
    UpdatePodSandboxResources: changes,
    ListImages: reads, StreamImages: reads, ImageStatus: reads, PullImage: changes, RemoveImage: changes,
    ImageFsInfo: reads, Unsupported: reads,
}

impl std::fmt::Display for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a call is about; fields that do not apply are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub container: String,
    /// The sandbox, container or image named in the request.
    pub id: String,
}

impl Subject {
    /// Whether `word` is the pod, the container, `pod/container`, the uid or the id.
    pub fn matches(&self, word: &str) -> bool {
        self.pod == word
            || self.container == word
            || self.uid == word
            || self.id == word
            || word.split_once('/') == Some((self.pod.as_str(), self.container.as_str()))
    }
}

/// One recorded call.
#[derive(Debug, Clone)]
pub struct Call {
    pub seq: u64,
    pub rpc: Rpc,
    pub subject: Subject,
    /// The arguments that matter, for people and for `contains`.
    pub detail: String,
    pub at: Instant,
    /// None while it runs.
    pub took: Option<Duration>,
    /// None while it runs; `Cancelled` when the caller went away.
    pub code: Option<Code>,
}

impl Call {
    /// Whether it was answered without an error.
    pub fn succeeded(&self) -> bool {
        self.code == Some(Code::Ok)
    }
}

/// The recorder: the newest calls in full, the number of all.
pub struct Recorder {
    keep: usize,
    next: u64,
    calls: VecDeque<Call>,
    counts: BTreeMap<Rpc, u64>,
}

impl Recorder {
    pub fn new(keep: usize) -> Self {
        Recorder { keep, next: 0, calls: VecDeque::new(), counts: BTreeMap::new() }
    }

    pub fn begin(&mut self, rpc: Rpc, subject: Subject, detail: String) -> u64 {
        let seq = self.next;
        self.next += 1;
        *self.counts.entry(rpc).or_default() += 1;
        if self.calls.len() >= self.keep {
            self.calls.pop_front();
        }
        if self.keep > 0 {
            let at = Instant::now();
            self.calls.push_back(Call { seq, rpc, subject, detail, at, took: None, code: None });
        }
        seq
    }

    pub fn end(&mut self, seq: u64, code: Code) {
        let Some(first) = self.calls.front().map(|call| call.seq) else {
            return;
        };
        let Some(at) = seq.checked_sub(first) else {
            return;
        };
        if let Some(call) = self.calls.get_mut(at as usize) {
            call.took = Some(call.at.elapsed());
            call.code = Some(code);
        }
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.iter().cloned().collect()
    }

    pub fn counts(&self) -> BTreeMap<Rpc, u64> {
        self.counts.clone()
    }

    pub fn clear(&mut self) {
        self.calls.clear();
        self.counts.clear();
    }
}
