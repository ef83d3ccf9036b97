//! Checksums of upstream's checkpoints. Pure.

use crate::model::fnv32a;

/// The error of a checkpoint whose checksum is wrong.
pub(super) const CORRUPTED: &str = "checkpoint is corrupted";

/// The checksum of a structure as Go's spew prints it.
pub(super) fn of(dump: &str) -> u64 {
    u64::from(fnv32a(dump.bytes()))
}
