//! Routes written down as requests again.

use kubelet::runtime::logs::SelectedStreams;
use kubelet::server::{
    ContainerName, EventsQuery, HealthQuery, LegacyStatsQuery, LegacyStatsTarget, LogQuery,
    OverviewQuery, PodName, PostMode, Route,
};

pub(crate) type Pairs = Vec<(&'static str, String)>;

/// The variable segments of a route's path, and its query.
pub(crate) fn written(route: &Route) -> (Vec<String>, Pairs) {
    let some = |key, value: &Option<String>| {
        value.iter().map(move |value| (key, value.clone())).collect::<Pairs>()
    };
    let after = |query: &OverviewQuery| some("after", &query.after);
    let explained = |query: &PodName| {
        plain(&[&query.namespace, &query.name]);
        (vec![query.namespace.clone(), query.name.clone()], some("uid", &query.uid))
    };
    match route {
        Route::Pods
        | Route::RunningPods
        | Route::Metrics
        | Route::SliMetrics
        | Route::CadvisorMetrics
        | Route::ResourceMetrics
        | Route::ProbeMetrics
        | Route::Configz
        | Route::Flagz
        | Route::Statusz
        | Route::PutVerbosity
        | Route::PostPods(PostMode::Add | PostMode::Replace)
        | Route::Machine => (vec![], vec![]),
        Route::Overview(query) | Route::NodePage(query) => (vec![], after(query)),
        Route::Explain(query) => explained(query),
        Route::PodPage(query, overview) => {
            let (names, pairs) = explained(query);
            (names, [pairs, after(overview)].concat())
        }
        Route::Events(EventsQuery { namespace, name, limit }) => {
            let limit = limit.map(|limit| limit.to_string());
            (
                vec![],
                [some("namespace", namespace), some("name", name), some("limit", &limit)].concat(),
            )
        }
        Route::Profile(seconds) => (vec![], vec![("seconds", seconds.to_string())]),
        Route::Summary(only) => (vec![], vec![("only_cpu_and_memory", only.to_string())]),
        Route::LegacyStats(target, query) => (info_target(target), info_query(query)),
        Route::Health(HealthQuery { verbose, exclude }) => {
            let exclude = exclude.iter().map(|name| ("exclude", name.clone()));
            let verbose = verbose.then(|| ("verbose", String::new()));
            (vec![], verbose.into_iter().chain(exclude).collect())
        }
        Route::HealthCheck(name) => (vec![name.clone()], vec![]),
        Route::NodeLogs(below, _) => (vec![below.clone()], vec![]),
        Route::PodInfo(PodName { namespace, name, uid }) => {
            let pairs = vec![("podNamespace", namespace.clone()), ("podID", name.clone())];
            (vec![], [pairs, some("UUID", uid)].concat())
        }
        Route::Checkpoint(name, seconds) => {
            (container(name), some("timeout", &seconds.map(|seconds| seconds.to_string())))
        }
        Route::Exec(name, command, streams) => {
            let command = command.iter().map(|word| ("command", word.clone()));
            (container(name), command.chain(flags(streams)).collect())
        }
        Route::Attach(name, streams) => (container(name), flags(streams)),
        Route::PortForward(name, ports) => {
            let ports = ports.iter().map(|port| ("port", port.to_string()));
            (pod(name), ports.collect())
        }
        Route::Run(name, command) => {
            (container(name), some("cmd", &command.as_ref().map(|words| words.join(" "))))
        }
        Route::ContainerLogs(name, query) => (container(name), log_query(query)),
    }
}

/// Without a UID the namespace is `default`, and is not written.
fn info_target(target: &LegacyStatsTarget) -> Vec<String> {
    match target {
        LegacyStatsTarget::Machine | LegacyStatsTarget::Cgroup => vec![],
        LegacyStatsTarget::Container(name) if name.pod.uid.is_none() => {
            assert_eq!(name.pod.namespace, "default");
            container(name).split_off(1)
        }
        LegacyStatsTarget::Container(name) => container(name),
    }
}

fn info_query(query: &LegacyStatsQuery) -> Pairs {
    let cgroup = ("containerName", query.cgroup.clone());
    let below = ("subcontainers", query.subcontainers.to_string());
    let start = query.start.map(|start| ("start", start.to_string()));
    let end = query.end.map(|end| ("end", end.to_string()));
    [cgroup, below].into_iter().chain(start).chain(end).collect()
}

fn flags(streams: &kubelet::cri::StdStreams) -> Pairs {
    let flags = [
        ("input", streams.stdin),
        ("output", streams.stdout),
        ("error", streams.stderr),
        ("tty", streams.tty),
    ];
    flags.map(|(name, set)| (name, u8::from(set).to_string())).to_vec()
}

fn log_query(query: &LogQuery) -> Pairs {
    let flags =
        [("follow", query.follow), ("previous", query.previous), ("timestamps", query.timestamps)];
    let mut pairs = flags.map(|(name, set)| (name, set.to_string())).to_vec();
    let numbers = [
        ("tailLines", query.tail_lines),
        ("limitBytes", query.limit_bytes),
        ("sinceSeconds", query.since_seconds),
    ];
    pairs.extend(numbers.iter().filter_map(|(name, value)| Some((*name, (*value)?.to_string()))));
    pairs.extend(query.since_time.map(|time| ("sinceTime", time.to_string())));
    let stream = query.stream.map(|stream| match stream {
        SelectedStreams::All => "All",
        SelectedStreams::Stdout => "Stdout",
        SelectedStreams::Stderr => "Stderr",
    });
    pairs.extend(stream.map(|stream| ("stream", stream.to_owned())));
    pairs
}

fn pod(name: &PodName) -> Vec<String> {
    let uid = name.uid.iter().cloned();
    let names: Vec<String> =
        [name.namespace.clone(), name.name.clone()].into_iter().chain(uid).collect();
    plain(&names.iter().collect::<Vec<_>>());
    names
}

fn container(name: &ContainerName) -> Vec<String> {
    plain(&[&name.container]);
    let mut names = pod(&name.pod);
    names.push(name.container.clone());
    names
}

/// Nothing that a path, a log line or a page could take for something else.
fn plain(names: &[&String]) {
    for name in names {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        assert!(!name.is_empty() && name.chars().all(fine), "{name:?}");
    }
}
