//! Resources assigned to containers. Pure.

use std::collections::BTreeMap;

/// Something by the UID of a pod and the name of a container.
pub type Assignments<T> = BTreeMap<String, BTreeMap<String, T>>;

/// Removes containers for which `keep` is false, and returns their assignments.
pub(super) fn release<T>(
    assignments: &mut Assignments<T>,
    keep: impl Fn(&str, &str) -> bool,
) -> Vec<(String, String, T)> {
    let mut released = Vec::new();
    assignments.retain(|pod, containers| {
        let gone = containers.extract_if(.., |container, _| !keep(pod, container));
        released.extend(gone.map(|(container, held)| (pod.clone(), container, held)));
        !containers.is_empty()
    });
    released
}
