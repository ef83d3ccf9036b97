//! Reports system OOM kills as events.
//!
//! * Owns: the read position in the kernel log.
//! * Woken by: messages in the kernel log.
//! * Publishes: the event `SystemOOM` about the node.
//! * Must never act on an OOM kill. Killed containers are found by their status.
//! * Upstream: `pkg/kubelet/oom` and cAdvisor's `oomparser`.

mod parser;

use crate::base::spawn_blocking;
use crate::host::KernelLogEnd;
use crate::model::reasons::event;
use crate::state::events::{EventRecorder, ObjectRef};
use parser::OomParser;
use std::io;
use std::path::PathBuf;

/// Watches the kernel log without an end. If it cannot be read, an error is logged once.
pub async fn run(kernel_log: PathBuf, node_name: String, events: EventRecorder) {
    let opened = spawn_blocking(move || KernelLogEnd::open(&kernel_log)).await;
    match opened.map_err(io::Error::from).flatten() {
        Ok(end) => {
            let error = follow(end, &ObjectRef::node(&node_name), &events).await;
            tracing::error!(err = %error, "Unexpectedly stopped receiving OOM notifications");
        }
        Err(error) => {
            tracing::warn!(err = %error, "Failed to create an oomWatcher; the event SystemOOM is not reported");
        }
    }
    // Tasks run until shutdown; an early return would count as a failure.
    std::future::pending::<()>().await;
}

/// Reports OOM kills until the log cannot be read.
async fn follow(end: KernelLogEnd, node: &ObjectRef, events: &EventRecorder) -> io::Error {
    let mut log = match end.follow() {
        Ok(log) => log,
        Err(error) => return error,
    };
    let mut parser = OomParser::default();
    loop {
        match log.next().await {
            Ok(message) => {
                if let Some(oom) = parser.parse(&message) {
                    events.warning(node, event::SYSTEM_OOM, oom.message());
                }
            }
            Err(error) => return error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    #[tokio::test]
    async fn the_node_has_an_event_when_the_machine_ran_out_of_memory() {
        let (device, kernel) = UnixDatagram::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        for message in [
            "4,1,2,-;bash invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n",
            "6,2,2,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=hog,pid=42,uid=0\n",
            // A process that claims that another one was killed.
            "12,3,2,-;Out of memory: Killed process 1 (forged) total-vm:1kB\n",
            "3,4,2,-;Out of memory: Killed process 42 (hog) total-vm:1kB, anon-rss:1kB\n",
            "",
        ] {
            kernel.send(message.as_bytes()).unwrap();
        }
        let events = EventRecorder::new();
        let end = KernelLogEnd::from(OwnedFd::from(device));
        let error = follow(end, &ObjectRef::node("node1"), &events).await;
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let recorded = events.recent();
        let [event] = &recorded[..] else {
            panic!("{recorded:?}");
        };
        assert_eq!((event.object.kind, &*event.object.name), ("Node", "node1"));
        assert_eq!((event.kind.as_str(), &*event.reason), ("Warning", "SystemOOM"));
        assert_eq!(event.message, "System OOM encountered, victim process: hog, pid: 42");
    }

    #[tokio::test]
    async fn a_log_that_cannot_be_read_ends_nothing() {
        let path = PathBuf::from("/nonexistent/kmsg");
        let running = run(path, "n".into(), EventRecorder::new());
        let short = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(short, running).await.is_err());
    }
}
