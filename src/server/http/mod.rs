//! HTTP without routes: requests' paths and queries, bodies and responses, lists, compression, and upgrades.
//!
//! * Owns: how responses and errors are written.
//! * Must never know a route or a store.
//! * Upstream: `k8s.io/apiserver/pkg/endpoints/handlers/responsewriters`.

pub(super) mod query;
pub(super) mod response;
pub(super) mod params;
pub(super) mod list;
pub(super) mod websocket;
pub(super) mod cross_site;
pub(super) mod gzip;
