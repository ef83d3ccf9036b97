//! The containers whose images are prefetched.

use super::{ContainerStart, PodActions};
use crate::model::{Pod, PodExt, PodStatus};
use k8s_openapi::api::core::v1::Container;

/// The containers without an instance that this or one of the next syncs starts, in start order. Containers with an
/// instance are left out, because their images are present. Empty if the sandbox exists and only the first container to
/// start is left.
pub fn containers_to_prefetch<'p>(
    pod: &'p Pod,
    status: &PodStatus,
    actions: &PodActions,
) -> Vec<&'p Container> {
    let starts = &actions.init_containers_to_start;
    let planned = |starts: &[ContainerStart], index| starts.iter().any(|s| s.index == index);
    let new = |container: &&Container| status.newest(&container.name).is_none();
    // If a regular container has an instance, init containers without one have completed.
    let initialized =
        !actions.containers_to_start.is_empty() || !pod.containers().iter().all(|c| new(&c));
    let first = starts.first().map(|start| start.index);
    let waits_for_first_init = !initialized && first.is_some();
    let inits = pod.init_containers().iter().enumerate();
    let inits = inits.filter(|(index, _)| {
        planned(starts, *index)
            || (waits_for_first_init && first.is_some_and(|first| *index > first))
    });
    let regular = pod.containers().iter().enumerate();
    let regular = regular
        .filter(|(index, _)| waits_for_first_init || planned(&actions.containers_to_start, *index));
    let wanted: Vec<&Container> = inits.chain(regular).map(|(_, c)| c).filter(new).collect();
    let first_start = starts.first().or_else(|| actions.containers_to_start.first());
    let is_first_start = |c: &&Container| first_start.is_some_and(|start| start.name == c.name);
    if !actions.create_sandbox && wanted.iter().all(is_first_start) { Vec::new() } else { wanted }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Build as _, CREATED, RUNNING, Runtime, pod};
    use super::*;

    #[test]
    fn images_are_needed_by_what_starts_now_and_by_what_waits_for_it() {
        let good = Runtime::good;
        let plain = || pod("Always", &["a", "b", "c"]);
        let inits = || pod("Always", &["a", "b"]).init("i").sidecar("s").init("j");
        let table = [
            ("all start", plain(), good(), "a b c"),
            ("a single container requests its own image", pod("Always", &["a"]), good(), ""),
            (
                "a single container, while its sandbox is made",
                pod("Always", &["a"]),
                Runtime::default(),
                "a",
            ),
            ("the rest starts", plain(), good().with("a", RUNNING), "b c"),
            ("the last one starts", plain(), good().with("a", RUNNING).with("b", RUNNING), ""),
            ("a restart", plain(), good().exited("a", 1).with("b", RUNNING).exited("c", 1), ""),
            (
                "a restart beside a first start",
                plain(),
                good().exited("a", 1).with("b", RUNNING),
                "c",
            ),
            ("created is an instance", plain(), good().with("a", CREATED), "b c"),
            ("everything waits for the first", inits(), good(), "i s j a b"),
            ("the first runs", inits(), good().with("i", RUNNING), ""),
            ("the first failed", inits(), good().exited("i", 1), "s j a b"),
            ("the second starts", inits(), good().exited("i", 0), "s j a b"),
            (
                "a sidecar is started again before the rest",
                inits(),
                good().exited("i", 0).exited("s", 1),
                "j a b",
            ),
            (
                "a sidecar is started again in a pod that runs; what it ran before may be gone",
                inits(),
                good().exited("s", 1).with("a", RUNNING).with("b", RUNNING),
                "",
            ),
            (
                "nothing starts",
                plain(),
                good().with("a", RUNNING).with("b", RUNNING).with("c", RUNNING),
                "",
            ),
            ("in a new sandbox", inits(), Runtime::default(), "i s j a b"),
        ];
        for (case, pod, runtime, expected) in table {
            let wanted = containers_to_prefetch(&pod, &runtime.status, &runtime.actions(&pod));
            let names: Vec<_> = wanted.iter().map(|c| c.name.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{case}");
        }
    }
}
