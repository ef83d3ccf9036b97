//! The loop through which desired becomes actual.
//!
//! * Owns: the board of desired pods (its only writer) and the decision what a change means.
//! * Woken by: messages of sources, pods whose picture or probe verdicts changed, workers that
//!   finished, a slow audit.
//! * Publishes: updates to pod workers; which sources have delivered.
//! * Must never wait for a pod: every branch is bookkeeping that takes microseconds. Must never clean
//!   up without proof that the picture is complete and that the source in question has delivered.
//! * Answers to upstream's `syncLoopIteration` and `HandlePodCleanups`.

pub mod dispatch;
mod orphans;

use crate::{
    base::chain,
    journal::Journal,
    kuberuntime::KubeGenericRuntimeManager,
    model::{Pod, PodExt, PodStatus, PodUid, PodUpdate, ProbeKind},
    pod_cache::PodCache,
    pod_config::SourcesReady,
    pod_manager::PodManagerWriter,
    pod_sync::{StatusPublisher, syncer::TerminationReason},
    pod_workers::{PodWorkers, Update, WorkerEvent},
    probe_results::ProbeResults,
    prober::ProbeManager,
};
use dispatch::{Step, dispatch};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

/// How often what nobody claims is looked for. Everything else is event-driven.
const AUDIT: Duration = Duration::from_secs(60);
/// How soon after a removal, a lost source or a new picture an audit runs.
const SOON: Duration = Duration::from_millis(200);
