//! `/events`: recent events, in the API's format.

use crate::server::http::list;
use crate::server::http::params::RequestParams;
use crate::server::http::query::BadQuery;
use crate::server::http::response::{Body, json_stream};
use crate::state::events::{EventRecord, EventRecorder};
use hyper::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::sync::Arc;

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
    pub(in crate::server) fn parse(params: &RequestParams) -> Result<Self, BadQuery> {
        Ok(Self {
            limit: params.query_usize("limit")?,
            namespace: params.query_parameter("namespace")?,
            name: params.query_parameter("name")?,
        })
    }
}

/// `/events`: recent events.
pub(in crate::server) fn serve(
    events: &EventRecorder,
    node: &Arc<str>,
    query: &EventsQuery,
) -> Response<Body> {
    let node = node.clone();
    let items = select(events.recent(), query).map(move |event| {
        let mut item = event.to_api(&node);
        item.metadata.creation_timestamp = Some(Time(event.first_seen));
        item
    });
    json_stream(list::body("EventList", items))
}

/// The events that a query selects, oldest first.
fn select(
    events: Vec<Arc<EventRecord>>,
    query: &EventsQuery,
) -> impl Iterator<Item = Arc<EventRecord>> + use<> {
    let wanted = |event: &Arc<EventRecord>| {
        let namespace = query.namespace.as_deref();
        let name = query.name.as_deref();
        namespace.is_none_or(|namespace| event.object.namespace == namespace)
            && name.is_none_or(|name| event.object.name == name)
    };
    let selected: Vec<Arc<EventRecord>> = events.into_iter().filter(wanted).collect();
    let skip = selected.len().saturating_sub(query.limit.unwrap_or(usize::MAX));
    selected.into_iter().skip(skip)
}
