//! The Node object of this kubelet, as the API server has it.
//!
//! * Owns: its newest known version; none before it was read, and after it was deleted.
//! * Woken by: the task that registers the node, its one writer.
//! * Publishes: labels, taints, allocatable and addresses for other parts.
//! * Must never go back to an older version that the watch delivers late.

use k8s_openapi::api::core::v1::Node;
use std::sync::Arc;
use tokio::sync::watch;

/// Reading end; cheap to clone.
pub type NodeObject = watch::Receiver<Option<Arc<Node>>>;

/// Writing end, for the task that registers the node alone.
#[derive(Debug)]
pub struct NodeObjectWriter(watch::Sender<Option<Arc<Node>>>);

impl Default for NodeObjectWriter {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl NodeObjectWriter {
    /// A reader of it.
    pub fn reader(&self) -> NodeObject {
        self.0.subscribe()
    }

    /// The newest version.
    pub fn get(&self) -> Option<Arc<Node>> {
        self.0.borrow().clone()
    }

    /// Takes a version of the watch unless a newer one is known: the response to a request may overtake it.
    pub fn set(&self, node: Node) {
        self.0.send_if_modified(|known| {
            let newer = known.as_deref().is_none_or(|known| is_newer(&node, known));
            if newer {
                *known = Some(Arc::new(node));
            }
            newer
        });
    }

    /// Takes what a list or the response to a request says, however old it looks: storage may have been restored from a
    /// backup.
    pub fn replace(&self, node: Node) {
        self.0.send_replace(Some(Arc::new(node)));
    }

    /// It was deleted.
    pub fn clear(&self) {
        self.0
            .send_if_modified(|known| std::mem::take(known).is_some());
    }
}

/// Whether one version comes after another. Versions are numbers that grow, also from one object to the next.
fn is_newer(node: &Node, known: &Node) -> bool {
    let version =
        |node: &Node| -> Option<u64> { node.metadata.resource_version.as_deref()?.parse().ok() };
    match (version(node), version(known)) {
        (Some(new), Some(old)) => new > old,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str, version: &str) -> Node {
        let mut node = Node::default();
        node.metadata.uid = Some(uid.into());
        node.metadata.resource_version = Some(version.into());
        node
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        for (known, next, taken) in [
            (node("a", "10"), node("a", "9"), false),
            (node("a", "10"), node("a", "10"), false),
            (node("a", "9"), node("a", "10"), true),
            (node("a", "10"), node("b", "9"), false),
            (node("a", "10"), node("a", "?"), true),
        ] {
            let writer = NodeObjectWriter::default();
            let mut reader = writer.reader();
            writer.set(known);
            reader.mark_unchanged();
            writer.set(next.clone());
            assert_eq!(reader.has_changed().unwrap(), taken);
            let kept = writer.get().unwrap();
            assert!(!taken || *kept == next);
        }
    }

    #[test]
    fn a_deleted_node_is_no_more_and_what_is_listed_may_have_any_version() {
        let writer = NodeObjectWriter::default();
        writer.set(node("a", "10"));
        writer.replace(node("a", "7"));
        assert_eq!(*writer.get().unwrap(), node("a", "7"));
        writer.clear();
        assert_eq!(writer.get(), None);
        writer.set(node("a", "3"));
        assert_eq!(*writer.reader().borrow(), Some(Arc::new(node("a", "3"))));
    }
}
