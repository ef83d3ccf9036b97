//! What happened to the containers, from snapshots of the runtime alone, and whether it should have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::findings::{Finding, Goal};
use super::ledger::Ledger;
use super::pods::{ends_by_itself, full, runs_once, short};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Created,
    Running,
    Exited,
    /// It will never run: the call that was to start it was cut short.
    CutShort,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    /// The pod's name as the runtime has it.
    pub pod: String,
    /// The version of the manifest, by its label.
    pub version: u32,
    pub ready: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub sandbox: String,
    pub name: String,
    pub state: State,
}

/// All that the runtime has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<Container>,
}

impl Snapshot {
    pub fn sandbox(&self, id: &str) -> Option<&Sandbox> {
        self.sandboxes.iter().find(|sandbox| sandbox.id == id)
    }

    /// The containers of a pod that run, by the name in its manifest.
    pub fn running(&self, name: &str) -> Vec<&Container> {
        let pod = full(name);
        let of_pod = |container: &&Container| {
            let sandbox = self.sandbox(&container.sandbox);
            sandbox.is_some_and(|s| s.pod == pod) && container.state == State::Running
        };
        self.containers.iter().filter(of_pod).collect()
    }
}

/// One container from its first to its last snapshot.
#[derive(Debug)]
struct Track {
    name: String,
    pod: String,
    sandbox: String,
    version: u32,
    /// Since when it is known.
    since: Instant,
    started: bool,
    cut_short: bool,
    /// When it was first seen not to run any more.
    ended: Option<Instant>,
}

/// Follows all containers through the snapshots.
#[derive(Debug, Default)]
pub struct Oracle {
    tracks: BTreeMap<String, Track>,
    duplicates: BTreeSet<String>,
    latest: Snapshot,
}

impl Oracle {
    pub fn latest(&self) -> &Snapshot {
        &self.latest
    }

    pub fn starts(&self) -> usize {
        self.tracks.values().filter(|track| track.started).count()
    }

    pub fn observe(&mut self, at: Instant, snapshot: Snapshot) {
        if snapshot == self.latest {
            return;
        }
        let mut gone: BTreeSet<_> = self.tracks.keys().cloned().collect();
        for container in &snapshot.containers {
            gone.remove(&container.id);
            let Some(sandbox) = snapshot.sandbox(&container.sandbox) else {
                continue;
            };
            let new = || Track {
                name: container.name.clone(),
                pod: short(&sandbox.pod).to_owned(),
                sandbox: sandbox.id.clone(),
                version: sandbox.version,
                since: at,
                started: false,
                cut_short: false,
                ended: None,
            };
            let track = self.tracks.entry(container.id.clone());
            let track = track.or_insert_with(new);
            track.started |= matches!(container.state, State::Running | State::Exited);
            track.cut_short |= container.state == State::CutShort;
            if container.state == State::Running {
                // A list may have lacked it once; what has ended does not run again under its id.
                track.ended = None;
            }
            if matches!(container.state, State::Exited | State::CutShort) {
                track.ended.get_or_insert(at);
            }
        }
        for id in gone {
            if let Some(track) = self.tracks.get_mut(&id) {
                track.ended.get_or_insert(at);
            }
        }
        self.duplicates.extend(duplicates(&snapshot));
        self.latest = snapshot;
    }

    /// What ended, started or ran beside something else and should not have.
    pub fn judge(&self, ledger: &Ledger) -> Vec<Finding> {
        let duplicates = self.duplicates.iter().cloned();
        let mut findings: Vec<_> =
            duplicates.map(|text| Finding::new(Goal::Duplicate, text)).collect();
        let started = || self.tracks.iter().filter(|(_, track)| track.started);
        for (id, track) in started() {
            if let Some(ended) = track.ended
                && !track.may_have_ended(id, ended, ledger)
            {
                let text = format!("{} of {} ({id})", track.name, track.pod);
                findings.push(Finding::new(Goal::HealthyRestart, text));
            }
        }
        for (id, track) in self.tracks.iter().filter(|(_, track)| track.cut_short) {
            let text = format!("{} of {} ({id})", track.name, track.pod);
            findings.push(Finding::new(Goal::StartCutShort, text));
        }
        let mut runs: BTreeMap<_, usize> = BTreeMap::new();
        for (_, track) in started().filter(|(_, track)| runs_once(&track.name)) {
            // A job ends for good, with its pod; an init container as long as its sandbox lasts.
            let sandbox = if track.name == "job" { "" } else { &track.sandbox };
            let key = (&track.pod, track.version, &track.name, sandbox);
            *runs.entry(key).or_default() += 1;
        }
        for ((pod, version, name, sandbox), times) in runs {
            let allowed =
                if sandbox.is_empty() { ledger.times_wanted(pod, version).max(1) } else { 1 };
            if times > allowed {
                let text = format!("{name} of {pod} version {version} ran {times} times");
                findings.push(Finding::new(Goal::RunAgain, text));
            }
        }
        findings
    }

    /// Containers that the kubelet ended because their pod was not wanted any more, by name.
    pub fn stopped(&self, name: &str, ledger: &Ledger) -> Vec<String> {
        let stopped = self.tracks.iter().filter(|(id, track)| {
            let ended = track.ended.is_some() && track.started;
            track.name == name && ended && !ledger.crashed(id)
        });
        stopped.map(|(id, _)| id.clone()).collect()
    }
}

impl Track {
    fn may_have_ended(&self, id: &str, at: Instant, ledger: &Ledger) -> bool {
        ends_by_itself(&self.name)
            || ledger.crashed(id)
            || ledger.unwanted_within(&self.pod, self.version, self.since, at)
            || ledger.sick_within(&self.pod, self.since, at)
    }
}

/// Containers of one name of one pod that run at once, and sandboxes of one pod that are up at once.
fn duplicates(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    let mut running = BTreeMap::new();
    for container in &snapshot.containers {
        let Some(sandbox) = snapshot.sandbox(&container.sandbox) else {
            continue;
        };
        if container.state != State::Running {
            continue;
        }
        if let Some(other) = running.insert((&sandbox.pod, &container.name), &container.id) {
            let (name, pod, id) = (&container.name, &sandbox.pod, &container.id);
            found.push(format!("{name} of {pod} runs as {other} and {id}"));
        }
    }
    let mut up = BTreeMap::new();
    for sandbox in snapshot.sandboxes.iter().filter(|sandbox| sandbox.ready) {
        if let Some(other) = up.insert(&sandbox.pod, &sandbox.id) {
            let (pod, id) = (&sandbox.pod, &sandbox.id);
            found.push(format!("{pod} has the sandboxes {other} and {id}"));
        }
    }
    found
}
