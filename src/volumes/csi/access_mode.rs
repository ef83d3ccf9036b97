//! Access modes of volumes, as the API and as CSI have them. Pure.

use crate::base::named_enum;

named_enum! {
    /// Access modes of a PersistentVolume.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AccessMode {
        /// Pods of one node.
        ReadWriteOnce = "ReadWriteOnce",
        /// Readers on any node.
        ReadOnlyMany = "ReadOnlyMany",
        /// Pods of any node.
        ReadWriteMany = "ReadWriteMany",
        /// A single pod.
        ReadWriteOncePod = "ReadWriteOncePod",
    }
}

/// Access modes of CSI, with their numbers in `VolumeCapability.AccessMode.Mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum CsiAccessMode {
    /// `SINGLE_NODE_WRITER`
    SingleNodeWriter = 1,
    /// `MULTI_NODE_READER_ONLY`
    MultiNodeReaderOnly = 3,
    /// `MULTI_NODE_MULTI_WRITER`
    MultiNodeMultiWriter = 5,
    /// `SINGLE_NODE_SINGLE_WRITER`
    SingleNodeSingleWriter = 6,
    /// `SINGLE_NODE_MULTI_WRITER`
    SingleNodeMultiWriter = 7,
}

impl CsiAccessMode {
    /// The number in a request.
    pub fn number(self) -> i32 {
        self as i32
    }
}

/// The mode for a request, from the volume's first access mode; a volume without one is `ReadWriteOnce`.
/// `multi_writer` says whether the driver has the capability `SINGLE_NODE_MULTI_WRITER`, which splits
/// `SINGLE_NODE_WRITER` in two.
pub fn csi_access_mode(first: Option<AccessMode>, multi_writer: bool) -> CsiAccessMode {
    match (first.unwrap_or(AccessMode::ReadWriteOnce), multi_writer) {
        (AccessMode::ReadWriteOnce, true) => CsiAccessMode::SingleNodeMultiWriter,
        (AccessMode::ReadWriteOncePod, true) => CsiAccessMode::SingleNodeSingleWriter,
        (AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod, false) => {
            CsiAccessMode::SingleNodeWriter
        }
        (AccessMode::ReadOnlyMany, _) => CsiAccessMode::MultiNodeReaderOnly,
        (AccessMode::ReadWriteMany, _) => CsiAccessMode::MultiNodeMultiWriter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_mode_follows_the_first_mode_and_the_capability() {
        use AccessMode::*;
        for (first, without, with) in [
            (None, 1, 7),
            (Some(ReadWriteOnce), 1, 7),
            (Some(ReadOnlyMany), 3, 3),
            (Some(ReadWriteMany), 5, 5),
            (Some(ReadWriteOncePod), 1, 6),
        ] {
            let numbers = [false, true].map(|multi| csi_access_mode(first, multi).number());
            assert_eq!(numbers, [without, with], "{first:?}");
        }
    }
}
