//! The form of an event in the API.

use super::{EventRecord, ObjectRef};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// The reporting component, as in upstream's kubelet.
const COMPONENT: &str = "kubelet";
/// The namespace of events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";
/// Maximum length of the object's name within the event's name.
const MAX_NAME: usize = 236;

impl ObjectRef {
    /// The namespace of the events of this object.
    pub fn event_namespace(&self) -> &str {
        match self.namespace.as_str() {
            "" => DEFAULT_NAMESPACE,
            namespace => namespace,
        }
    }
}

impl EventRecord {
    /// The Event object, reported by this node. Its name contains the time of the first occurrence, so that all
    /// occurrences have the same name and a retry does not create a duplicate.
    pub fn to_api(&self, node_name: &str) -> Event {
        let object = &self.object;
        let stem: String = object.name.chars().take(MAX_NAME).collect();
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{stem}.{:x}", self.first_seen.as_nanosecond())),
                namespace: Some(object.event_namespace().to_owned()),
                annotations: Some(self.annotations.clone()).filter(|all| !all.is_empty()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(object.kind.to_owned()),
                namespace: some(&object.namespace),
                name: Some(object.name.clone()),
                uid: some(object.uid.as_str()),
                field_path: some(&object.field_path),
                resource_version: None,
            },
            reason: Some(self.reason.clone().into_owned()),
            message: Some(self.message.clone()),
            type_: Some(self.kind.as_str().to_owned()),
            count: Some(i32::try_from(self.count).unwrap_or(i32::MAX)),
            first_timestamp: Some(Time(self.first_seen)),
            last_timestamp: Some(Time(self.last_seen)),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(node_name.to_owned()),
            }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(node_name.to_owned()),
            ..Event::default()
        }
    }
}
