//! containerd's own events, for versions whose CRI has none or delivers each to one subscriber only. Pure except
//! for the generated client.

use prost::Message;

use crate::cri::v1::VersionResponse;
use wire::{Envelope, SubscribeRequest};

/// The generated client of containerd's event service.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing, dead_code)]
pub(crate) mod wire {
    tonic::include_proto!("containerd.services.events.v1");
}

/// The containerd namespace of objects created through the CRI.
const NAMESPACE: &str = "k8s.io";
/// Sent after the main process of a container exited and its task was deleted; containerd's CRI plugin records the exit
/// right after this. (`/tasks/exit` is sent earlier, and for every exec as well.)
const DELETE: &str = "/tasks/delete";

/// The fields of the event that identify the container and the process.
#[derive(Clone, PartialEq, Message)]
struct TaskDelete {
    #[prost(string, tag = "1")]
    container_id: String,
    /// The process in the container; empty or the container's id for the main one.
    #[prost(string, tag = "5")]
    id: String,
}

/// Whether a runtime delivers each CRI event to only one of its subscribers, as containerd 1.7 does.
pub(super) fn delivers_events_to_one_subscriber(version: &VersionResponse) -> bool {
    let number = version.runtime_version.trim_start_matches('v');
    version.runtime_name == "containerd" && number.starts_with("1.7.")
}

/// The subscription. Conditions within one filter are ANDed.
pub(super) fn subscription() -> SubscribeRequest {
    let filter = format!("namespace==\"{NAMESPACE}\",topic==\"{DELETE}\"");
    SubscribeRequest { filters: vec![filter] }
}

/// The id of the container or sandbox whose main process exited; `None` for other events.
pub(super) fn container_of(envelope: &Envelope) -> Option<String> {
    if envelope.namespace != NAMESPACE || envelope.topic != DELETE {
        return None;
    }
    let event = TaskDelete::decode(envelope.event.as_ref()?.value.as_slice()).ok()?;
    let main_process = event.id.is_empty() || event.id == event.container_id;
    (main_process && !event.container_id.is_empty()).then_some(event.container_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_containerd_1_7_delivers_cri_events_to_one_subscriber() {
        for (name, version, delivers_to_one) in [
            ("containerd", "v1.7.27", true),
            ("containerd", "1.7.12-0ubuntu1", true),
            ("containerd", "1.6.20~ds1", false),
            ("containerd", "v2.1.7", false),
            ("cri-o", "1.7.1", false),
        ] {
            let version = VersionResponse {
                runtime_name: name.into(),
                runtime_version: version.into(),
                ..VersionResponse::default()
            };
            assert_eq!(delivers_events_to_one_subscriber(&version), delivers_to_one, "{version:?}");
        }
    }

    fn envelope(topic: &str, value: Vec<u8>) -> Envelope {
        Envelope {
            namespace: NAMESPACE.into(),
            topic: topic.into(),
            event: Some(prost_types::Any { type_url: String::new(), value }),
            ..Default::default()
        }
    }

    fn delete(container: &str, id: &str) -> Vec<u8> {
        TaskDelete { container_id: container.into(), id: id.into() }.encode_to_vec()
    }

    #[test]
    fn only_the_end_of_a_main_process_is_a_change() {
        let table = [
            (DELETE, delete("c1", ""), Some("c1")),
            (DELETE, delete("c1", "c1"), Some("c1")),
            (DELETE, delete("c1", "exec-7"), None),
            ("/tasks/exit", delete("c1", "c1"), None),
            (DELETE, delete("", ""), None),
            (DELETE, vec![0xff, 0xff], None),
        ];
        for (topic, payload, expected) in table {
            let found = container_of(&envelope(topic, payload.clone()));
            assert_eq!(found.as_deref(), expected, "{topic} {payload:?}");
        }
        let mut foreign = envelope(DELETE, delete("c1", "c1"));
        foreign.namespace = "moby".into();
        assert_eq!(container_of(&foreign), None);
    }
}
