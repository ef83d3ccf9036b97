//! Whether hooks ran as often as they should.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Episode, HookRun, Side};
use crate::support::faults::findings::Goal;
use crate::support::faults::oracle::State;

/// How long a hook takes at most.
const HOOK: Duration = Duration::from_secs(2);
/// Within which the kubelet has noted on the disk that a hook has ended.
const NOTED: Duration = Duration::from_millis(500);
impl<S: Side> Episode<'_, S> {
    /// The runs of each hook of each container, in order.
    fn hook_runs(&self) -> BTreeMap<(String, String), Vec<HookRun>> {
        let mut runs: BTreeMap<_, Vec<HookRun>> = BTreeMap::new();
        for run in self.side.hooks() {
            let key = (run.kind.clone(), run.instance.clone());
            runs.entry(key).or_default().push(run);
        }
        runs
    }

    /// Every container that runs has its hook behind it.
    pub(super) fn check_post_start(&self) {
        if !self.side.hooks_name_containers() {
            return;
        }
        let runs = self.hook_runs();
        for container in self.oracle.borrow().latest().containers.iter() {
            let finished = runs.get(&("post-start".to_owned(), container.id.clone()));
            let is_hooked = container.name == "hooked" && container.state == State::Running;
            let ended = |run: &HookRun| run.ended.is_some();
            if is_hooked && !finished.is_some_and(|all| all.iter().any(ended)) {
                self.find(Goal::PostStartLost, container.id.clone());
            }
        }
    }

    pub(super) fn check_hooks(&self) {
        let runs = self.hook_runs();
        for ((kind, instance), runs) in &runs {
            for (run, _next) in runs.iter().zip(runs.iter().skip(1)) {
                let goal = if self.was_cut_short(run) {
                    Goal::HookAgain
                } else {
                    Goal::HookTwice
                };
                self.find(goal, format!("{kind} in {instance}: {runs:?}"));
            }
        }
        if !self.side.hooks_name_containers() {
            return;
        }
        let stopped = self
            .oracle
            .borrow()
            .stopped("hooked", &self.ledger.borrow());
        for id in stopped {
            if !runs.contains_key(&("pre-stop".to_owned(), id.clone())) {
                self.find(Goal::PreStopLost, id);
            }
        }
    }

    /// Whether the kubelet was killed while a hook ran, or before it can have noted that it ended.
    fn was_cut_short(&self, run: &HookRun) -> bool {
        let Some(ended) = run.ended else { return true };
        let kills = self.kills.borrow();
        kills
            .iter()
            .any(|kill| *kill + HOOK >= ended && *kill <= ended + NOTED)
    }
}
