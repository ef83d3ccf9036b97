//! `/events`: recent events, in the API's format.

use super::{
    list,
    query::BadQuery,
    response::{Body, json_stream},
    route_parts::RequestParams,
};
use crate::{
    model::{PodUid, fnv64a},
    state::events::{EventRecorder, RecentEvent},
};
use hyper::Response;
use k8s_openapi::{
    api::core::v1::{Event as ApiEvent, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use std::sync::Arc;

/// The reporting component, as in upstream's kubelet.
const COMPONENT: &str = "kubelet";
/// The namespace of events about cluster-scoped objects, as upstream.
const DEFAULT_NAMESPACE: &str = "default";

/// Parameters of `/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsQuery {
    /// `namespace=<namespace>`: only events of objects in this namespace.
    pub namespace: Option<String>,
    /// `name=<name>`: only events of objects with this name.
    pub name: Option<String>,
    /// `limit=<n>`: only the newest `n` events.
    pub limit: Option<usize>,
}

impl EventsQuery {
    pub(super) fn parse(params: &RequestParams) -> Result<Self, BadQuery> {
        Ok(Self {
            limit: params.query_usize("limit")?,
            namespace: params.query_parameter("namespace")?,
            name: params.query_parameter("name")?,
        })
    }
}

/// `/events`: recent events.
pub(super) fn serve(
    events: &EventRecorder,
    node: &Arc<str>,
    query: &EventsQuery,
) -> Response<Body> {
    let node = node.clone();
    let items = select(events.recent(), query).map(move |event| to_api_event(&event, &node));
    json_stream(list::body("EventList", items))
}

/// The events that a query selects, oldest first.
fn select(
    events: Vec<Arc<RecentEvent>>,
    query: &EventsQuery,
) -> impl Iterator<Item = Arc<RecentEvent>> + use<> {
    let wanted = |event: &Arc<RecentEvent>| {
        let namespace = query.namespace.as_deref();
        let name = query.name.as_deref();
        namespace.is_none_or(|namespace| event.object.namespace == namespace)
            && name.is_none_or(|name| event.object.name == name)
    };
    let selected: Vec<Arc<RecentEvent>> = events.into_iter().filter(wanted).collect();
    let skip = selected
        .len()
        .saturating_sub(query.limit.unwrap_or(usize::MAX));
    selected.into_iter().skip(skip)
}

/// A recorded event in the API's format. Repetitions of an event have the same name.
fn to_api_event(event: &RecentEvent, node: &str) -> ApiEvent {
    let name = format!("{}.{:x}", event.object.name, identity(event));
    let namespace = if event.object.namespace.is_empty() {
        DEFAULT_NAMESPACE.to_owned()
    } else {
        event.object.namespace.clone()
    };
    let uid = |uid: &PodUid| (!uid.as_str().is_empty()).then(|| uid.to_string());
    ApiEvent {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            creation_timestamp: Some(Time(event.first_seen)),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some(event.object.kind.into()),
            namespace: none_if_empty(&event.object.namespace),
            name: Some(event.object.name.clone()),
            uid: uid(&event.object.uid),
            field_path: none_if_empty(&event.object.field_path),
            ..ObjectReference::default()
        },
        type_: Some(event.kind.as_str().into()),
        reason: Some(event.reason.clone().into()),
        message: Some(event.message.clone()),
        count: Some(i32::try_from(event.count).unwrap_or(i32::MAX)),
        first_timestamp: Some(Time(event.first_seen)),
        last_timestamp: Some(Time(event.last_seen)),
        source: Some(EventSource {
            component: Some(COMPONENT.into()),
            host: Some(node.into()),
        }),
        reporting_component: Some(COMPONENT.into()),
        reporting_instance: Some(node.into()),
        ..ApiEvent::default()
    }
}

fn identity(event: &RecentEvent) -> u64 {
    let object = &event.object;
    let parts = [
        object.kind,
        &object.namespace,
        &object.name,
        object.uid.as_str(),
        &object.field_path,
        event.kind.as_str(),
        &event.reason,
        &event.message,
    ];
    fnv64a(parts.into_iter().flat_map(|part| part.bytes().chain([0])))
}

fn none_if_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
