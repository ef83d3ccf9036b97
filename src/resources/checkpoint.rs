//! Common parts of the checkpoints of this area: checksum, error text, and assignments by pod and container. Pure.

use crate::model::fnv32a;
use std::collections::BTreeMap;
use std::fmt::Display;

/// The error of a checkpoint whose checksum is wrong.
pub(super) const CORRUPTED: &str = "checkpoint is corrupted";

/// FNV-1a-32 of a structure as Go's spew prints it.
pub(super) fn checksum(dump: &str) -> u64 {
    u64::from(fnv32a(dump.bytes()))
}

/// Elements of a list or map as Go's spew prints them.
pub(super) fn join<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(" ")
}

/// Assignments by the UID of the pod and the name of the container.
pub type Assignments<T> = BTreeMap<String, BTreeMap<String, T>>;

/// Removes the containers for which `keep` returns false, and returns their assignments.
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
