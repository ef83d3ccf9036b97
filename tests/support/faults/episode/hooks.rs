//! Whether hooks ran as often as they should.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Episode, HookRun, Side};
use crate::support::faults::findings::Goal;
use crate::support::faults::oracle::State;

/// How long a hook takes at most.
const HOOK: Duration = Duration::from_secs(2);
/// The resolution of the times of hooks.
const TICK: Duration = Duration::from_millis(10);

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
            for (run, next) in runs.iter().zip(runs.iter().skip(1)) {
                let goal =
                    if self.was_cut_short(run, next) { Goal::HookAgain } else { Goal::HookTwice };
                let (known, kills) = (self.known_since(run), self.kills.borrow());
                let text = format!("{kind} in {instance}: {runs:?}, known {known:?}, {kills:?}");
                self.find(goal, text);
            }
        }
        if !self.side.hooks_name_containers() {
            return;
        }
        let stopped = self.oracle.borrow().stopped("hooked", &self.ledger.borrow());
        for id in stopped {
            if !runs.contains_key(&("pre-stop".to_owned(), id.clone())) {
                self.find(Goal::PreStopLost, id);
            }
        }
    }

    /// Whether the kubelet was killed before the next run, while the hook ran or before anybody could see that the kubelet
    /// knew of its end. How long that takes is a matter of the runtime's answer and of the disk, so it is not measured: the end
    /// of a hook is on disk before the kubelet goes on.
    fn was_cut_short(&self, run: &HookRun, next: &HookRun) -> bool {
        let Some(ended) = run.ended else { return true };
        let known = self.known_since(run);
        self.kills.borrow().iter().any(|kill| {
            *kill + HOOK >= ended
                && next.ended.is_none_or(|next| *kill <= next)
                && known.is_none_or(|known| *kill <= known)
        })
    }

    /// When it was seen that the kubelet knew of the end of a hook: it showed the container as running after a postStart hook,
    /// or had the container stopped after a preStop hook.
    fn known_since(&self, run: &HookRun) -> Option<Instant> {
        if run.kind == "pre-stop" {
            return self.side.stop_began(&run.instance);
        }
        let shown = self.first_shown.borrow();
        let shown = shown.iter().filter(|((pod, id), at)| {
            self.side.is_instance(&run.instance, pod, id)
                && run.ended.is_some_and(|ended| **at + TICK >= ended)
        });
        shown.map(|(_, at)| *at).min()
    }
}
