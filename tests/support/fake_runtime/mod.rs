//! A CRI runtime that runs nothing: the generated servers on a temporary unix socket.
//!
//! It keeps honest state (`world.rs`), does what tests script (`behaviour.rs`, `exec.rs`, `images.rs`),
//! goes wrong as scripted (`faults.rs`) and records every call (`calls.rs`). The wire is real: the
//! code under test talks gRPC to it as to any runtime. It reads the kubelet's clock, also in virtual time.
//!
//! Included with `mod` by the tests and with `#[path]` by the benchmarks.

mod behaviour;
mod calls;
mod events;
mod exec;
mod faults;
mod handle;
mod history;
mod images;
mod logs;
mod runtime_service;
mod server;
mod stats;
mod views;
mod world;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kubelet::base::clock;
use kubelet::cri::v1;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Response, Status};

pub use behaviour::{Behaviour, OnTerm};
pub use calls::{Call, Rpc, Subject};
pub use exec::{ExecCall, ExecOutcome, StreamCall};
pub use faults::{Distortion, Fault};
pub use handle::{ContainerView, FakeRuntime, PodView};
pub use history::{End, Start};
pub use images::{Pull, image_id};

/// Items per message of the list streams.
const CHUNK: usize = 100;

/// What the runtime can do. The default is a current containerd.
#[derive(Debug, Clone)]
pub struct Features {
    /// GetContainerEvents; without it the call is Unimplemented.
    pub events: bool,
    /// It closes every stream of events at once, as CRI-O does without `enable_pod_events`.
    pub event_streams_end: bool,
    /// The list-streaming calls.
    pub streaming: bool,
    /// RuntimeConfig's answer; without it the call is Unimplemented.
    pub cgroup_driver: Option<v1::CgroupDriver>,
    /// What it says of its default handler.
    pub handler: v1::RuntimeHandlerFeatures,
    /// What it says of itself.
    pub runtime: v1::RuntimeFeatures,
}

impl Default for Features {
    fn default() -> Self {
        Features {
            events: true,
            event_streams_end: false,
            streaming: true,
            cgroup_driver: Some(v1::CgroupDriver::Cgroupfs),
            handler: v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: true,
                user_namespaces: true,
            },
            runtime: v1::RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() },
        }
    }
}

impl Features {
    /// What containerd 1.6 has: none of the newer calls.
    pub fn old() -> Self {
        Features {
            events: false,
            event_streams_end: false,
            streaming: false,
            cgroup_driver: None,
            handler: Default::default(),
            runtime: Default::default(),
        }
    }
}

/// How to build a fake.
#[derive(Debug, Clone)]
pub struct Options {
    pub features: Features,
    /// Images that are there from the beginning.
    pub images: Vec<String>,
    /// Write CRI-format log files where the pod's log directory says.
    pub write_logs: bool,
    /// How many calls are kept in full; counters count all.
    pub keep_calls: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            features: Features::default(),
            images: vec!["localhost/busybox:dev".to_owned(), "localhost/pause:dev".to_owned()],
            write_logs: true,
            keep_calls: 100_000,
        }
    }
}

/// The conditions that Status reports.
pub struct Conditions {
    runtime: Result<(), String>,
    network: Result<(), String>,
}

impl Conditions {
    fn answer(&self, features: &Features) -> v1::StatusResponse {
        let condition = |name: &str, fact: &Result<(), String>| v1::RuntimeCondition {
            r#type: name.to_owned(),
            status: fact.is_ok(),
            reason: fact.as_ref().err().map_or_else(String::new, |_| format!("{name}False")),
            message: fact.as_ref().err().cloned().unwrap_or_default(),
        };
        let conditions = vec![
            condition("RuntimeReady", &self.runtime),
            condition("NetworkReady", &self.network),
        ];
        let handler = v1::RuntimeHandler { name: String::new(), features: Some(features.handler) };
        v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions }),
            info: Default::default(),
            runtime_handlers: vec![handler],
            features: Some(features.runtime),
        }
    }
}

/// What the handle and the services share.
pub struct Shared {
    world: Mutex<world::World>,
    recorder: Mutex<calls::Recorder>,
    /// Path and `traceparent` of every call that has one.
    traced: Mutex<Vec<(String, String)>>,
    faults: Mutex<faults::Faults>,
    distortions: Mutex<Vec<Distortion>>,
    exec: Mutex<exec::ExecScript>,
    streams: Mutex<exec::StreamScript>,
    pulls: Mutex<images::Pulls>,
    conditions: Mutex<Conditions>,
    pace: Mutex<Option<Pace>>,
    features: Mutex<Features>,
    version: watch::Sender<u64>,
}

impl Shared {
    /// Nanoseconds since 1970, by the kubelet's clock.
    fn now(&self) -> i64 {
        i64::try_from(clock::timestamp().as_nanosecond()).unwrap_or(i64::MAX)
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    fn require_streaming(&self) -> Result<(), Status> {
        let there = self.features.lock().streaming;
        if there {
            Ok(())
        } else {
            Err(Status::unimplemented("unknown method of service runtime.v1"))
        }
    }

    /// Records a call, lets its faults happen and does its work.
    async fn call<T>(
        &self,
        rpc: Rpc,
        subject: Subject,
        detail: String,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let mut hits = self.faults.lock().hitting(rpc, &subject);
        let seq = self.recorder.lock().begin(rpc, subject, detail);
        self.changed();
        let mut record = Record { shared: self, seq, code: Code::Cancelled };
        let result = async {
            self.pass_time().await;
            hits.before().await?;
            let answer = work.await?;
            self.pass_time().await;
            hits.after()?;
            Ok(answer)
        };
        let result: Result<T, Status> = result.await;
        record.code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        drop(record);
        result.map(Response::new)
    }

    async fn pass_time(&self) {
        let takes = self.pace.lock().as_mut().map(Pace::next);
        if let Some(takes) = takes {
            tokio::time::sleep(takes).await;
        }
    }

    fn end(&self, id: &str, code: i32) -> bool {
        let ended = self.world.lock().end(id, code, self.now());
        self.changed();
        ended
    }

    fn kill(&self, id: &str) {
        self.world.lock().kill(id, self.now());
        self.changed();
    }

    fn end_later(self: &Arc<Self>, id: &str, after: Duration, code: i32) {
        let at = self.now().saturating_add(i64::try_from(after.as_nanos()).unwrap_or(i64::MAX));
        self.world.lock().will_end(id, at, code);
        if after.is_zero() {
            self.end(id, code);
            return;
        }
        let (shared, id) = (Arc::downgrade(self), id.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(shared) = shared.upgrade() {
                shared.end(&id, code);
            }
        });
    }
}

/// How long calls take, before and after their work.
pub struct Pace {
    rng: fastrand::Rng,
    longest: Duration,
}

impl Pace {
    fn next(&mut self) -> Duration {
        self.longest.mul_f64(self.rng.f64())
    }
}

/// Closes a record, also when the caller went away in the middle.
struct Record<'s> {
    shared: &'s Shared,
    seq: u64,
    code: Code,
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.shared.recorder.lock().end(self.seq, self.code);
        self.shared.changed();
    }
}

/// Splits a list into stream messages; an empty list is one empty message.
fn chunks<T>(items: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter().peekable();
    let mut first = true;
    std::iter::from_fn(move || {
        if !std::mem::take(&mut first) && items.peek().is_none() {
            return None;
        }
        Some(items.by_ref().take(CHUNK).collect())
    })
}
