//! The kubelet against a runtime that runs nothing and can be told to misbehave.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/apiserver/tests/pki.rs"]
mod pki;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/apiserver/tests/scripted.rs"]
mod scripted;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/base/otel/tests/collector.rs"]
mod collector;

mod apart;
mod api_pods;
mod api_server;
mod api_source;
mod asking;
mod cgroups;
mod checkpoint;
mod collected;
mod container_logs;
mod deep_volumes;
mod devices;
mod dra;
mod edited;
mod exclusive;
mod fake_runtime;
mod families;
mod faults;
mod hurried;
mod kubelet_restarts;
mod left_behind;
mod log;
mod logs;
mod long_turns;
mod manifests;
mod names;
mod node;
mod orphans;
mod own_ids;
mod panics;
mod planted;
mod pods;
mod posted;
mod profile;
mod pulls;
mod races;
mod readded;
mod refused;
mod preemption;
mod resize;
mod restarting;
mod runtime_faults;
mod runtime_losses;
mod secured;
mod service;
mod starting;
mod statuses;
mod steady;
mod stopping;
mod streaming;
mod streaming_server;
mod sysfs;
mod traces;
mod unread_log;
mod unreadable;
mod vanished;
mod web;
