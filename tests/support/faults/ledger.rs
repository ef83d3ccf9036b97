//! What the harness did: which version of each pod it wanted when, and what it did to containers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::pods::Version;

/// By how much the kubelet may act later than the harness: a file that was away for a moment is handled, or a
/// probe that was under way ends.
const SLACK: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub struct Ledger {
    /// Every change of each manifest; `None` is its removal.
    wanted: BTreeMap<String, Vec<(Instant, Option<Version>)>>,
    /// Containers that the harness ended.
    crashed: BTreeSet<String>,
    /// When the liveness of a pod failed, from when to when.
    sick: BTreeMap<String, Vec<(Instant, Option<Instant>)>>,
    /// Pods whose readiness probe fails at present.
    unready: BTreeSet<String>,
}

impl Ledger {
    pub fn want(&mut self, at: Instant, name: &str, version: Option<Version>) {
        let changes = self.wanted.entry(name.to_owned()).or_default();
        changes.push((at, version));
    }

    pub fn crash(&mut self, container: &str) {
        self.crashed.insert(container.to_owned());
    }

    pub fn crashed(&self, container: &str) -> bool {
        self.crashed.contains(container)
    }

    pub fn sicken(&mut self, at: Instant, name: &str) {
        let windows = self.sick.entry(name.to_owned()).or_default();
        windows.push((at, None));
    }

    pub fn heal(&mut self, at: Instant, name: &str) {
        if let Some((_, end @ None)) = self.sick.get_mut(name).and_then(|all| all.last_mut()) {
            *end = Some(at);
        }
    }

    /// Pods whose liveness fails at present, and since when.
    pub fn sick(&self) -> Vec<(String, Instant)> {
        let open = self.sick.iter().filter_map(|(name, windows)| {
            let (since, end) = windows.last()?;
            end.is_none().then(|| (name.clone(), *since))
        });
        open.collect()
    }

    pub fn set_ready(&mut self, name: &str, ready: bool) {
        if ready {
            self.unready.remove(name);
        } else {
            self.unready.insert(name.to_owned());
        }
    }

    pub fn is_ready(&self, name: &str) -> bool {
        !self.unready.contains(name)
    }

    /// The pods that are wanted at present.
    pub fn wanted(&self) -> BTreeMap<String, Version> {
        let present = self
            .wanted
            .iter()
            .filter_map(|(name, changes)| Some((name.clone(), changes.last()?.1?)));
        present.collect()
    }

    pub fn version(&self, name: &str) -> Option<Version> {
        self.wanted.get(name)?.last()?.1
    }

    /// How many manifests were put, edited or removed.
    pub fn changes(&self) -> usize {
        self.wanted.values().map(Vec::len).sum()
    }

    /// How often this version of a pod began to be wanted.
    pub fn times_wanted(&self, name: &str, number: u32) -> usize {
        let changes = self.wanted.get(name).into_iter().flatten();
        let versions: Vec<_> = changes.map(|(_, v)| v.map(|v| v.number)).collect();
        let mut before = None;
        let mut times = 0;
        for version in versions {
            if version == Some(number) && before != version {
                times += 1;
            }
            before = version;
        }
        times
    }

    /// Whether this version of a pod was not wanted at some moment of that time, or shortly before it.
    pub fn unwanted_within(&self, name: &str, number: u32, from: Instant, to: Instant) -> bool {
        let Some(changes) = self.wanted.get(name) else {
            return true;
        };
        let from = from.checked_sub(SLACK).unwrap_or(from);
        let is_it = |version: &Option<Version>| version.is_some_and(|v| v.number == number);
        let before = changes.iter().rfind(|(at, _)| *at <= from);
        before.is_some_and(|(_, version)| !is_it(version))
            || changes.iter().any(|(at, version)| *at > from && *at <= to && !is_it(version))
    }

    /// Whether the liveness of a pod failed at some moment of that time, or shortly before it.
    pub fn sick_within(&self, name: &str, from: Instant, to: Instant) -> bool {
        let windows = self.sick.get(name).into_iter().flatten();
        let mut overlaps =
            windows.map(|(begin, end)| *begin <= to && end.is_none_or(|end| end + SLACK >= from));
        overlaps.any(|overlaps| overlaps)
    }
}
