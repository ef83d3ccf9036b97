//! The kubelet against a runtime that runs nothing and misbehaves as scripted.
// Tests of processes and threads observe what happens in real time, so they read the real clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types
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

#[allow(dead_code)]
#[path = "../../src/host/systemd/fake.rs"]
mod systemd;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/resources/plugin_manager/tests/registrar.rs"]
mod registrar;
use kubelet::base::{self, connections};
use kubelet::resources::plugin_manager::registration_proto;

mod adopted_api_pods;
mod api_pods;
mod api_source;
mod cgroups;
mod checkpoint;
mod claims;
mod cli_subcommands;
mod collected_containers;
mod container_logs;
mod csi;
mod csi_bad_input;
mod csi_block;
mod csi_drivers;
mod csi_expansion;
mod csi_kills;
mod csi_node;
mod csi_pods;
mod deep_volumes;
mod devices;
mod disk_orphans;
mod dra;
mod edited;
mod eviction;
mod exclusive;
mod fake_runtime;
mod families;
mod faults;
mod foreign_objects;
mod idle_cost;
mod kill_during_sync;
mod killed_to_restart;
mod kubelet_restarts;
mod leaving_pods;
mod log_backpressure;
mod logs;
mod lost_containers;
mod manifests;
mod monitoring;
mod names;
mod node;
mod orphans;
mod user_namespace_ids;
mod panics;
mod pending_volumes;
mod pods;
mod posted;
mod preflight;
mod preemption;
mod profile;
mod pulls;
mod races;
mod reused_uid;
mod refused;
mod resize;
mod restarting;
mod room;
mod runtime_faults;
mod runtime_losses;
mod secured;
mod service;
mod shutdown;
mod slow_syncs;
mod starting;
mod statuses;
mod stopping;
mod stopping_volumes;
mod streaming;
mod streaming_server;
mod sysfs;
mod threaded_kubelet;
mod traces;
mod unreadable;
mod unsupported;
mod virtual_time;
mod web;
