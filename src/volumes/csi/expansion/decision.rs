//! What this node has to do about the size of a volume. Pure.

/// The size of a volume that this node has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSize {
    /// In bytes.
    pub bytes: i64,
    /// The claim has it, as far as this node has to see to that.
    pub is_reported: bool,
}

/// What is known of the sizes of a volume between expansions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The capacity of the PersistentVolume when it was last read, if it has a valid one.
    pub volume: Option<i64>,
    /// What this node has reached; `None` until the claim has been read.
    pub node: Option<NodeSize>,
    /// The driver has refused to expand the volume as long as it is on this node (`FAILED_PRECONDITION`).
    pub is_refused: bool,
}

impl Sizes {
    /// Whether the claim has to be read: the node may have to expand the volume, or to report that it has.
    pub fn is_behind(&self) -> bool {
        let is_behind = |volume| {
            let node = self.node;
            node.is_none_or(|node| node.bytes < volume || !node.is_reported)
        };
        self.volume.is_some_and(is_behind)
    }
}

/// `status.allocatedResourceStatuses.storage` of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResizeStatus {
    /// Nothing is in progress.
    #[default]
    None,
    /// `NodeResizePending`: the controller has done its part.
    NodePending,
    /// `NodeResizeInProgress`: a node has begun.
    NodeInProgress,
    /// Anything else: the controller is at work, or has failed, or the node has failed for good.
    Other,
}

/// What a claim says about the size of its volume, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimSize {
    /// `status.capacity`; zero if there is none.
    pub capacity: i64,
    /// `status.allocatedResources`, which only controllers write that can recover from failures.
    pub allocated: Option<i64>,
    /// How far the expansion is.
    pub status: ResizeStatus,
    /// It has the annotation `volume.kubernetes.io/node-expansion-not-required`.
    pub no_node_expansion: bool,
}

/// What a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpansionFacts {
    /// The claim.
    pub claim: ClaimSize,
    /// The capacity of the PersistentVolume, in bytes.
    pub volume: i64,
    /// The size that this node has reached; `None` takes it from the claim.
    pub node: Option<NodeSize>,
    /// The volume is mounted on several nodes (`ReadWriteMany`).
    pub is_shared: bool,
    /// The pod mounts it read-only.
    pub is_read_only: bool,
    /// The driver has the capability `EXPAND_VOLUME`.
    pub can_expand: bool,
    /// See [`Sizes::is_refused`].
    pub is_refused: bool,
}

/// What a node writes to the claim's status about an expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimUpdate {
    /// Nothing: another node has written it.
    None,
    /// The capacity, at the end: the controller is an old one.
    Capacity,
    /// The status before the expansion, and the capacity or the error after it.
    Status,
}

/// What to do about the size of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: node, claim and volume agree.
    Nothing,
    /// Nothing yet: the controller or the user has to act first.
    Later,
    /// The node has this size without an expansion.
    TakeOver(i64),
    /// The driver expands the volume to this size.
    Expand(i64, ClaimUpdate),
    /// The driver has expanded it, and only the claim lacks the size.
    Report,
    /// It cannot be expanded where it is mounted read-only.
    ReadOnly,
    /// The claim waits for the node, and the driver cannot expand volumes there.
    NotSupported,
}

/// Decides what to do about the size of a volume.
pub fn decide(facts: &ExpansionFacts) -> Decision {
    let claim = &facts.claim;
    let reached = facts.node.map_or(claim.capacity, |node| node.bytes);
    let can_recover = claim.allocated.is_some() || claim.status != ResizeStatus::None;
    let target = claim.allocated.unwrap_or(facts.volume);
    let waits_for_node = match claim.status {
        ResizeStatus::NodePending | ResizeStatus::NodeInProgress => true,
        ResizeStatus::None => !can_recover && claim.capacity < target,
        ResizeStatus::Other => false,
    };
    if waits_for_node {
        return match facts.node {
            // Killed, or without the API server, after the driver had done it.
            Some(node) if node.bytes >= target => Decision::Report,
            _ if facts.is_read_only => Decision::ReadOnly,
            _ if facts.is_refused => Decision::Later,
            _ if !facts.can_expand && can_recover => Decision::NotSupported,
            _ if !facts.can_expand => Decision::Later,
            _ if can_recover => Decision::Expand(target, ClaimUpdate::Status),
            _ => Decision::Expand(target, ClaimUpdate::Capacity),
        };
    }
    if reached < target {
        let is_done = claim.status == ResizeStatus::None && claim.capacity >= target;
        // Another node has expanded it. A file system that several nodes mount may have to be expanded on each.
        let is_due = is_done && facts.is_shared && !claim.no_node_expansion;
        return match is_done {
            false => Decision::Later,
            true if !is_due || !facts.can_expand => Decision::TakeOver(target),
            true if facts.is_read_only || facts.is_refused => Decision::Later,
            true => Decision::Expand(target, ClaimUpdate::None),
        };
    }
    match facts.node {
        Some(node) if node.is_reported => Decision::Nothing,
        _ => Decision::TakeOver(reached),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: i64 = 1 << 30;

    /// A volume that the controller has made two GiB large.
    fn facts(claim: ClaimSize, node: Option<i64>) -> ExpansionFacts {
        ExpansionFacts {
            claim,
            volume: 2 * GI,
            node: node.map(|bytes| NodeSize { bytes, is_reported: true }),
            is_shared: false,
            is_read_only: false,
            can_expand: true,
            is_refused: false,
        }
    }

    fn claim(capacity: i64, allocated: Option<i64>, status: ResizeStatus) -> ClaimSize {
        ClaimSize { capacity, allocated, status, no_node_expansion: false }
    }

    #[test]
    fn the_decision_follows_claim_volume_and_what_the_node_has_reached() {
        use ClaimUpdate::{Capacity, Status};
        use Decision::{Expand, Later, Nothing, Report, TakeOver};
        use ResizeStatus::{NodeInProgress, NodePending, None as NoStatus, Other};
        let two = 2 * GI;
        #[rustfmt::skip]
        let rows = [
            // Old controllers write neither field.
            (claim(two, None, NoStatus), None, TakeOver(two)),
            (claim(two, None, NoStatus), Some(two), Nothing),
            (claim(two, None, NoStatus), Some(GI), TakeOver(two)),
            (claim(GI, None, NoStatus), None, Expand(two, Capacity)),
            (claim(GI, None, NoStatus), Some(GI), Expand(two, Capacity)),
            (claim(GI, None, NoStatus), Some(two), Report),
            (claim(0, None, NoStatus), None, Expand(two, Capacity)),
            // Others write what they have allocated.
            (claim(two, Some(two), NoStatus), None, TakeOver(two)),
            (claim(two, Some(two), NoStatus), Some(two), Nothing),
            (claim(two, Some(two), NoStatus), Some(GI), TakeOver(two)),
            (claim(GI, Some(two), NoStatus), None, Later),
            (claim(GI, Some(two), NoStatus), Some(GI), Later),
            (claim(GI, Some(two), NodePending), None, Expand(two, Status)),
            (claim(GI, Some(two), NodePending), Some(GI), Expand(two, Status)),
            (claim(GI, Some(two), NodePending), Some(two), Report),
            (claim(GI, Some(two), NodeInProgress), None, Expand(two, Status)),
            (claim(GI, Some(two), NodeInProgress), Some(GI), Expand(two, Status)),
            (claim(GI, Some(two), NodeInProgress), Some(two), Report),
            (claim(GI, Some(two), Other), None, Later),
            (claim(GI, Some(two), Other), Some(GI), Later),
            (claim(GI, Some(two), Other), Some(two), Nothing),
            // The user has asked for less after a failure, and the volume stays larger.
            (claim(GI, Some(GI + 1), NodePending), Some(GI), Expand(GI + 1, Status)),
            (claim(GI + 1, Some(GI + 1), NoStatus), Some(GI + 1), Nothing),
            // A status without an amount is about the volume's.
            (claim(GI, None, NodePending), Some(GI), Expand(two, Status)),
            (claim(GI, None, Other), Some(GI), Later),
        ];
        for (claim, node, expected) in rows {
            assert_eq!(decide(&facts(claim, node)), expected, "{claim:?} {node:?}");
        }
        // What the driver has done and the claim lacks.
        let done = |claim| ExpansionFacts {
            node: Some(NodeSize { bytes: two, is_reported: false }),
            ..facts(claim, None)
        };
        for (claim, expected) in [
            (claim(GI, None, NoStatus), Report),
            (claim(GI, Some(two), NodeInProgress), Report),
            (claim(two, Some(two), NoStatus), TakeOver(two)),
        ] {
            assert_eq!(decide(&done(claim)), expected, "{claim:?}");
        }
    }

    #[test]
    fn a_volume_that_waits_for_the_node_is_expanded_only_if_that_is_possible() {
        use Decision::{Expand, Later, NotSupported, ReadOnly};
        let pending = claim(GI, Some(2 * GI), ResizeStatus::NodePending);
        let old = claim(GI, None, ResizeStatus::None);
        #[rustfmt::skip]
        let rows = [
            // Read-only, able, refused: with a recovering controller, with an old one.
            (false, true, false, Expand(2 * GI, ClaimUpdate::Status), Expand(2 * GI, ClaimUpdate::Capacity)),
            (false, true, true, Later, Later),
            (false, false, false, NotSupported, Later),
            (false, false, true, Later, Later),
            (true, true, false, ReadOnly, ReadOnly),
            (true, true, true, ReadOnly, ReadOnly),
            (true, false, false, ReadOnly, ReadOnly),
            (true, false, true, ReadOnly, ReadOnly),
        ];
        for (is_read_only, can_expand, is_refused, of_pending, of_old) in rows {
            for (claim, expected) in [(pending, of_pending), (old, of_old)] {
                for is_shared in [false, true] {
                    let facts = ExpansionFacts {
                        is_shared,
                        is_read_only,
                        can_expand,
                        is_refused,
                        ..facts(claim, Some(GI))
                    };
                    assert_eq!(decide(&facts), expected, "{facts:?}");
                }
            }
        }
    }

    #[test]
    fn what_another_node_has_expanded_is_expanded_again_only_where_volumes_are_shared() {
        use Decision::{Expand, Later, TakeOver};
        let again = Expand(2 * GI, ClaimUpdate::None);
        let taken = TakeOver(2 * GI);
        for allocated in [None, Some(2 * GI)] {
            let done = claim(2 * GI, allocated, ResizeStatus::None);
            #[rustfmt::skip]
            let rows = [
                // Shared, needs no node expansion, read-only, able, refused.
                (true, false, false, true, false, again),
                (true, false, false, true, true, Later),
                (true, false, true, true, false, Later),
                (true, false, false, false, false, taken),
                (true, false, true, false, true, taken),
                (true, true, false, true, false, taken),
                (true, true, true, true, true, taken),
                (false, false, false, true, false, taken),
                (false, false, true, true, true, taken),
                (false, true, false, false, false, taken),
            ];
            for (is_shared, no_node_expansion, is_read_only, can_expand, is_refused, expected) in
                rows
            {
                let claim = ClaimSize { no_node_expansion, ..done };
                let facts = ExpansionFacts {
                    is_shared,
                    is_read_only,
                    can_expand,
                    is_refused,
                    ..facts(claim, Some(GI))
                };
                assert_eq!(decide(&facts), expected, "{facts:?}");
            }
        }
    }

    #[test]
    fn every_decision_ends() {
        use ResizeStatus::{NodeInProgress, NodePending, None as NoStatus, Other};
        let sizes = [0, GI, 2 * GI, i64::MAX];
        let allocated = sizes.map(Some).into_iter().chain([None]);
        let nodes = sizes.into_iter().flat_map(|bytes| {
            [true, false].map(|is_reported| Some(NodeSize { bytes, is_reported }))
        });
        let nodes: Vec<_> = nodes.chain([None]).collect();
        for allocated in allocated {
            for (capacity, status, node) in sizes.into_iter().flat_map(|capacity| {
                let nodes = &nodes;
                [NoStatus, NodePending, NodeInProgress, Other]
                    .into_iter()
                    .flat_map(move |status| nodes.iter().map(move |node| (capacity, status, *node)))
            }) {
                for bits in 0..32u32 {
                    let is = |bit: u32| bits & (1 << bit) != 0;
                    let mut facts = ExpansionFacts {
                        claim: ClaimSize {
                            no_node_expansion: is(0),
                            ..claim(capacity, allocated, status)
                        },
                        node,
                        is_shared: is(1),
                        is_read_only: is(2),
                        can_expand: is(3),
                        is_refused: is(4),
                        ..facts(ClaimSize::default(), None)
                    };
                    let first = decide(&facts);
                    let after = match first {
                        Decision::Expand(size, update) => {
                            let reached = facts.node.map_or(capacity, |node| node.bytes);
                            assert!(
                                size > reached || facts.node.is_none(),
                                "nothing is repeated: {facts:?}"
                            );
                            assert!(
                                facts.can_expand && !facts.is_refused && !facts.is_read_only,
                                "{facts:?}"
                            );
                            Some((size, update != ClaimUpdate::None))
                        }
                        Decision::Report => facts.node.map(|node| (node.bytes, true)),
                        Decision::TakeOver(size) => Some((size, false)),
                        _ => None,
                    };
                    let Some((bytes, reports)) = after else {
                        continue;
                    };
                    facts.node = Some(NodeSize { bytes, is_reported: true });
                    if reports {
                        facts.claim.status = NoStatus;
                        facts.claim.capacity = facts.claim.allocated.unwrap_or(facts.volume);
                    }
                    let second = decide(&facts);
                    assert!(
                        matches!(second, Decision::Nothing | Decision::Later),
                        "{first:?} {second:?} {facts:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_claim_is_read_only_while_the_node_is_behind() {
        let node = |bytes, is_reported| Some(NodeSize { bytes, is_reported });
        for (volume, node, expected) in [
            (None, None, false),
            (None, node(1, false), false),
            (Some(2), None, true),
            (Some(2), node(1, true), true),
            (Some(2), node(2, false), true),
            (Some(2), node(2, true), false),
            (Some(2), node(3, true), false),
        ] {
            let sizes = Sizes { volume, node, is_refused: false };
            assert_eq!(sizes.is_behind(), expected, "{sizes:?}");
        }
    }
}
