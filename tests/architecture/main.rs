//! The law of `ARCHITECTURE.md`, checked by reading the sources.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod documents;
mod guides;
mod imports;
mod lines;
mod manifest;
mod metrics;
#[allow(dead_code, unreachable_pub)]
#[path = "../support/metric_facts.rs"]
mod metric_facts;
mod reexports;
mod rules;
mod text;

use imports::{Import, Module, circles, deepest, imports, module_of};
use reexports::Reexports;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use text::{find_words, without_comments_and_strings, without_tests, words_after};

/// An area and its modules, both bottom to top: one uses only those before it. A new arrow upward is an edit
/// of this table.
type Areas<'a> = &'a [(&'a str, &'a [&'a str])];

#[rustfmt::skip]
const AREAS: Areas = &[
    ("base", &["clock", "blocking", "metrics", "otel", "atomic_file", "backoff", "error_chain", "dirty", "document", "early_release", "encoding", "file_io", "path_authority", "go_duration", "go_quote", "http1", "keyed_lock", "named_enum", "observed", "panics", "rate", "connections", "reload", "single_flight", "string_interner", "tasks", "tls_provider", "url", "proxy", "x509", "work_queue"]),
    ("model", &["addresses", "grace", "hash", "ids", "keys", "lenient_node", "measurable_volume", "node_selector", "pending_volume", "probe", "quantity", "amount", "reasons", "source", "pod", "field_path", "requests", "node_facts", "field_ref", "validation", "restart", "status", "update"]),
    ("host", &["address", "files", "identity", "kernel_log", "kernel_tunables", "lock_file", "machine", "memory", "mountinfo", "mount", "peer", "proc", "process_metrics", "profile", "program", "remove", "tree_walk", "disk_usage", "project_quota", "service_manager", "confined", "system_bus", "logind", "system", "systemd", "cgroup", "port_owner", "proc_dir", "process_limits", "terminal", "topology", "unix_socket"]),
    ("cri", &["codec", "endpoint", "features", "list_fingerprint", "rpc", "metrics", "secrets", "transport", "error", "connection", "image", "runtime", "connect", "events", "lists", "streaming", "wait"]),
    ("apiserver", &["error", "metrics", "rate_limit", "storage", "recovery", "request", "review", "subscriptions", "claim", "token", "transport", "kubeconfig", "watch", "collection", "configmap_secret", "csi_driver", "runtime_class", "service", "volume_attachment", "pem", "trust_bundle", "pod_certificate", "cluster_objects"]),
    ("state", &["device_capacity", "events", "node_object", "node_pressure", "node_shutdown", "volumes_in_use", "pod_history", "pod_state_store", "pod_cache", "pod_manager", "probe_results", "store_sizes", "area"]),
    ("resources", &["checkpoint", "checkpoint_file", "allocation", "deps", "plugin_manager", "qos", "memory_controls", "linux", "topology", "pod_level", "cpu", "devices", "dra", "device_managers", "memory", "managers", "cm", "pod_resources", "area"]),
    ("images", &["backoff", "credentials", "error", "image_name", "pull_metrics", "records", "gc", "puller", "request", "getter", "manager", "open"]),
    ("volumes", &["paths", "disk_dirs", "devices_in_use", "project_files", "project_quotas", "error", "mounter", "pod_dirs", "group", "ownership", "metrics", "csi", "prepared", "state", "mount_threads", "cluster", "pod_volumes", "kinds", "record", "sub_path", "container_start", "set_up", "refresh", "steps", "teardown", "totals", "repair"]),
    ("runtime", &["logs", "handlers", "kuberuntime"]),
    ("pods", &["pleg", "status", "prober", "pod_config", "pod_sync", "pod_workers", "mirror", "status_writer", "sync_loop", "area"]),
    ("node", &["stats", "certificates", "node_status", "registration", "runtime_facts", "startup_latency", "node_manager", "lease", "event_sink", "csi_node", "membership", "reclaim", "active_pods", "eviction", "shutdown", "oom", "area"]),
    ("server", &["http", "known_pods", "tls", "auth", "connections", "streaming", "explain", "handlers", "router", "listener", "pods_api", "area"]),
    ("config", &["document", "decode", "known_gates", "feature_gates", "fields", "kubelet_configuration", "defaults", "files", "flags", "logging", "resolved", "redacted", "supported", "values", "cgroups", "managers", "server", "node", "validate", "resolve", "origins"]),
    ("app", &["process_metrics", "settings", "pod_certificates", "open", "start", "node_check", "manager_check", "preflight", "service_status"]),
    ("cli", &["verbs", "manual", "args", "client", "table", "term", "explain", "pods", "validate", "config", "preflight"]),
];

/// Uses of one area by another. Volumes of CSI drivers call plugins (`resources::plugin_manager`) by gRPC (`cri`'s codec) and
/// read the Node object (`state`), and the node registers their drivers. `kubelet config check` checks what a start would
/// (`app`). The server asks `volumes` itself what a pod waits for: a closure in between would be the same use, uncounted.
const MAX_ARROWS: usize = 96;
const MAX_LINES: usize = 500;

/// Starts of tasks that have no name and whose panics nothing catches. `base` has those to use.
const UNNAMED_TASKS: &[&str] = &["tokio::spawn(", "tokio::task::spawn("];
/// The owners of the tasks in the others wait for what these return, and handle a panic themselves.
#[rustfmt::skip]
const STARTS_TASKS: &[&str] = &[
    "src/base/blocking.rs", "src/base/tasks.rs", "src/node/eviction/measurements.rs", "src/node/eviction/mod.rs",
    "src/node/eviction/reclaim_disk.rs",
];

/// What a file that says `Pure` in its header does not do.
#[rustfmt::skip]
const EFFECTS: &[&str] = &[
    ".await", "async ", "spawn(", "spawn_blocking(", "tracing::", "trace!(", "debug!(", "info!(",
    "warn!(", "error!(", "println!(", "clock::instant", "clock::since",
    "clock::timestamp", "clock::system_time", "clock::local_time", "std::fs", "tokio::fs",
    "std::env", "env::var",
];

#[rustfmt::skip]
const UNBOUNDED: &[&str] = &[
    "unbounded", "unbounded_channel", "UnboundedSender", "UnboundedReceiver",
    "std::sync::mpsc",
];

#[test]
fn the_sources_keep_the_law() {
    let files = sources();
    assert!(files.len() > AREAS.len(), "the sources were not found");
    let broken = check(AREAS, &files);
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn areas_use_few_other_areas() {
    let uses = graph(&sources());
    let arrows = uses
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (&from[0], &to[0])))
        .filter(|(from, to)| from != to)
        .collect::<BTreeSet<_>>();
    assert!(arrows.len() <= MAX_ARROWS, "{}: {arrows:?}", arrows.len());
}

#[test]
fn no_files_use_one_another_in_a_circle() {
    let uses = graph(&sources());
    let mut list = Vec::new();
    for circle in circles(&uses) {
        for from in &circle {
            let to = uses[from].intersection(&circle).map(|to| to.join("::"));
            let to = to.collect::<Vec<_>>().join(", ");
            list.push(format!("{} uses {to}", from.join("::")));
        }
        list.push(String::new());
    }
    assert!(list.is_empty(), "\n{}\n", list.join("\n"));
}

/// As rustfmt's `imports_granularity = "Module"`, which is not stable.
#[test]
fn a_use_names_one_module() {
    let mut files = sources();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), "tests", &mut files);
    let mut broken = Vec::new();
    for (name, text) in files {
        let code = without_comments_and_strings(&text);
        for at in find_words(&code, "use").filter(|at| code[at + 3..].starts_with(' ')) {
            let statement = code[at..].split(';').next().unwrap_or_default();
            if statement.split_once('{').is_some_and(|(_, names)| names.contains("::")) {
                broken.push(format!("{name}:{}", 1 + code[..at].matches('\n').count()));
            }
        }
    }
    assert!(broken.is_empty(), "a `use` of several modules:\n{}", broken.join("\n"));
}

fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    read(&root, "src", &mut files);
    files
}

fn read(dir: &Path, name: &str, files: &mut Vec<(String, String)>) {
    let mut entries =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    entries.sort();
    for path in entries {
        let name = format!("{name}/{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            read(&path, &name, files);
        } else if name.ends_with(".rs") {
            files.push((name, fs::read_to_string(path).unwrap()));
        }
    }
}

fn is_test(file: &str) -> bool {
    file.ends_with("tests.rs")
        || file.ends_with("/fake.rs")
        || file.contains("/tests/")
        || file.contains("fixture")
}

fn modules(files: &[(String, String)]) -> BTreeSet<Module> {
    files.iter().filter_map(|(name, _)| module_of(name)).collect()
}

/// The modules with their code, tests left out.
fn production(files: &[(String, String)]) -> Vec<(Module, String)> {
    let production = |(name, text): &(String, String)| {
        let own = module_of(name).filter(|_| !is_test(name))?;
        Some((own, without_tests(&without_comments_and_strings(text))))
    };
    files.iter().filter_map(production).collect()
}

fn reexports(files: &[(String, String)]) -> Reexports {
    let mut reexports = Reexports::new(modules(files));
    for (own, code) in production(files) {
        reexports.add(&own, &code);
    }
    reexports
}

/// Which module uses which, tests left out. What a module only passes on counts as of the module that defines it.
fn graph(files: &[(String, String)]) -> BTreeMap<Module, BTreeSet<Module>> {
    let reexports = reexports(files);
    let mut uses = BTreeMap::new();
    for (own, code) in &production(files) {
        let found = imports(own, code, |path| reexports.resolve(path));
        let found = found.into_iter().map(|import| import.module).collect();
        uses.insert(own.clone(), found);
    }
    uses
}

/// Every breach, as `file:line: what`.
fn check(areas: Areas, files: &[(String, String)]) -> Vec<String> {
    let (all, reexports) = (modules(files), reexports(files));
    let mut broken = Vec::new();
    for (name, text) in files {
        let code = without_comments_and_strings(text);
        let mut breach = |at: usize, what: String| {
            let line = 1 + code[..at].matches('\n').count();
            broken.push(format!("{name}:{line}: {what}"));
        };
        check_lists(areas, name, &code, &mut breach);
        check_file(name, text, &code, &mut breach);
        let Some(own) = module_of(name) else { continue };
        let mut found = imports(&own, &code, |path| deepest(path, &all));
        if !is_test(name) {
            // A re-export does not hide where a name comes from.
            let code = without_tests(&code);
            found.extend(imports(&own, &code, |path| reexports.resolve(path)));
        }
        found.sort();
        found.dedup();
        for import in found {
            if let Some(what) = check_import(areas, &own, &import) {
                breach(import.at, what);
            }
        }
    }
    broken
}

/// The modules that `lib.rs` and the areas declare are those of the table, in its order.
fn check_lists(areas: Areas, name: &str, code: &str, breach: &mut impl FnMut(usize, String)) {
    let code = without_tests(code);
    let declared = words_after(&code, "mod ")
        .filter(|(at, module)| code[at + "mod ".len() + module.len()..].starts_with(';'))
        .map(|(_, module)| module)
        .collect::<Vec<_>>();
    let expected = if name == "src/lib.rs" {
        areas.iter().map(|(area, _)| *area).collect()
    } else {
        let of_area = |(area, _): &&(&str, &[&str])| name == format!("src/{area}/mod.rs");
        areas.iter().find(of_area).map_or_else(Vec::new, |(_, modules)| modules.to_vec())
    };
    if !expected.is_empty() && declared != expected {
        breach(0, format!("its modules are not those of the table in order: {declared:?}"));
    }
}

fn check_file(name: &str, text: &str, code: &str, breach: &mut impl FnMut(usize, String)) {
    let is_test = is_test(name);
    if text.lines().count() > MAX_LINES && !is_test {
        breach(0, format!("longer than {MAX_LINES} lines"));
    }
    for at in find_words(code, "unsafe").filter(|_| !name.starts_with("src/host/")) {
        breach(at, "unsafe outside of host".to_owned());
    }
    if is_test {
        return;
    }
    let production = without_tests(code);
    for word in UNBOUNDED {
        for at in find_words(&production, word) {
            breach(at, format!("an unbounded channel: {word}"));
        }
    }
    for spawn in UNNAMED_TASKS.iter().filter(|_| !STARTS_TASKS.contains(&name)) {
        for (at, _) in production.match_indices(spawn) {
            breach(at, "a task that base does not start".to_owned());
        }
    }
    let mut header = text.lines().take_while(|line| line.starts_with("//!"));
    if header.any(|line| find_words(line, "Pure").next().is_some() || line.ends_with("pure.")) {
        for effect in EFFECTS {
            for (at, _) in production.match_indices(effect) {
                breach(at, format!("an effect in a pure file: {effect}"));
            }
        }
    }
}

/// What is wrong with a use, if anything.
fn check_import(areas: Areas, own: &Module, import: &Import) -> Option<String> {
    let area = |name: &String| areas.iter().position(|(area, _)| area == name);
    let (from, to) = (&own[0], &import.module[0]);
    let (Some(below), Some(above)) = (area(to), area(from)) else {
        return Some(format!("{from} or {to} is not an area of the table"));
    };
    if below > above {
        return Some(format!("{from} may not use {to}, which is above it"));
    }
    if from != to {
        return None;
    }
    let place = |module: &Module| {
        let name = module.get(1)?;
        areas[above].1.iter().position(|module| module == name)
    };
    let upward = place(own)? < place(&import.module)?;
    upward.then(|| format!("{} may not use {}, which is above it", own[1], import.module[1]))
}
