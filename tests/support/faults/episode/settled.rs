//! What is not as the manifests say.

use std::collections::{BTreeMap, BTreeSet};

use super::shown::Pods;
use crate::support::faults::findings::{Finding, Goal};
use crate::support::faults::ledger::Ledger;
use crate::support::faults::oracle::{Snapshot, State};
use crate::support::faults::pods::{Kind, full, short};

/// What the runtime has and should not have. One dead instance of each container may stay,
/// see `MaxPerPodContainer` upstream.
pub fn left_in_runtime(snapshot: &Snapshot, ledger: &Ledger) -> Vec<Finding> {
    let mut left = Vec::new();
    let wanted = |pod: &str, number: u32| {
        let version = ledger.version(short(pod));
        version.is_some_and(|version| version.number == number)
    };
    let mut sandboxes: BTreeMap<_, usize> = BTreeMap::new();
    for sandbox in &snapshot.sandboxes {
        let text = format!("sandbox {} of {} {}", sandbox.id, sandbox.pod, sandbox.version);
        if !wanted(&sandbox.pod, sandbox.version) {
            let goal = if sandbox.ready { Goal::LostKill } else { Goal::Leak };
            left.push(Finding::new(goal, text));
            continue;
        }
        let number = sandboxes.entry(&sandbox.pod).or_default();
        *number += 1;
        // An interrupted start may leave one that is down beside the one that is up.
        if *number > 2 {
            left.push(Finding::new(Goal::Leak, text));
        }
    }
    let mut dead: BTreeMap<_, usize> = BTreeMap::new();
    for container in &snapshot.containers {
        let sandbox = snapshot.sandbox(&container.sandbox);
        let (pod, version) = sandbox.map_or(("", 0), |s| (s.pod.as_str(), s.version));
        let text = format!(
            "{} {} of {pod} {version}: {:?}",
            container.name, container.id, container.state
        );
        let runs = container.state == State::Running;
        if !wanted(pod, version) {
            let goal = if runs { Goal::LostKill } else { Goal::Leak };
            left.push(Finding::new(goal, text));
        } else if !runs {
            let number = dead.entry((pod, &container.name)).or_default();
            *number += 1;
            // One that crashes is replaced before the one before it is removed.
            let may_stay = if container.name == "crashing" { 2 } else { 1 };
            if *number > may_stay {
                left.push(Finding::new(Goal::Leak, text));
            }
        }
    }
    left
}

/// Wanted pods that do not run or are not shown as ready, or as not ready, as they should.
pub fn not_ready(snapshot: &Snapshot, ledger: &Ledger, shown: &Pods) -> Vec<Finding> {
    let mut left = Vec::new();
    for (name, version) in ledger.wanted() {
        let running = snapshot.running(&name);
        let names: BTreeSet<_> = running.iter().map(|container| container.name.as_str()).collect();
        let lasting: BTreeSet<_> = version.kind.lasting().iter().copied().collect();
        let pod = shown.get(&name).cloned().unwrap_or_default();
        let well = match version.kind {
            Kind::Crashing => shown.contains_key(&name),
            Kind::Job => pod.succeeded || was_cut_short(snapshot, &name),
            _ => {
                let all_shown = running.iter().all(|container| pod.running.contains(&container.id));
                names == lasting && all_shown && pod.ready == ledger.is_ready(&name)
            }
        };
        if !well {
            let text = format!("{name} {version:?}: {running:?} run, shown: {pod:?}");
            left.push(Finding::new(Goal::NeverReady, text));
        }
    }
    left
}

/// Whether the job of a pod has failed because its start was cut short.
fn was_cut_short(snapshot: &Snapshot, name: &str) -> bool {
    let pod = full(name);
    let mut of_pod = snapshot.containers.iter().filter(|container| {
        let sandbox = snapshot.sandbox(&container.sandbox);
        sandbox.is_some_and(|sandbox| sandbox.pod == pod)
    });
    of_pod.any(|container| container.state == State::CutShort)
}
