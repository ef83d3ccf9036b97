//! What the configuration needs of the node. Only reads: a port is bound for a moment at most.

use crate::apiserver::{ApiError, ApiServer, ClientIdentity, ResourcePath, kubeconfig_certificate};
use crate::base::metrics::Metrics;
use crate::base::otel::Tracer;
use crate::base::{clock, error_chain, spawn_blocking, x509};
use crate::config::KubeletConfig;
use crate::cri::{self, RuntimeConfig};
use crate::host::files::may_write;
use crate::host::{HostMachine, listener_of};
use crate::model::LenientNode;
use crate::node::certificates::client_identity;
use crate::server::tls::ServingCertificate;
use anyhow::Context as _;
use jiff::Timestamp;
use serde::Serialize;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};
use tokio::time::timeout;

/// How long the runtime, the API server and the file systems may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A certificate that ends earlier is reported.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The kubelet would not start, or pods of the node would not run.
    Error,
    /// It could not be found out; only a preflight says so.
    Unknown,
    /// It works, and probably not as intended.
    Warning,
    /// It is as it should be.
    Ok,
}

/// One result of the check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How serious it is.
    pub level: Level,
    /// What was checked, such as `runtime`.
    pub subject: &'static str,
    /// What was found.
    pub message: String,
}

impl Finding {
    /// An error.
    pub fn error(subject: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Error, subject, message)
    }

    /// Something that could not be found out.
    pub fn unknown(subject: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Unknown, subject, message)
    }

    /// A warning.
    pub fn warning(subject: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Warning, subject, message)
    }

    /// Nothing is wrong.
    pub fn ok(subject: &'static str, message: impl Into<String>) -> Self {
        Self::new(Level::Ok, subject, message)
    }

    fn new(level: Level, subject: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { level, subject, message }
    }
}

/// Checks everything at the same time.
///
/// # Errors
/// The machine cannot be read.
pub async fn node_findings(config: &KubeletConfig) -> anyhow::Result<Vec<Finding>> {
    let own = config.clone();
    let local = spawn_blocking(move || local(&own));
    let (local, runtime, api) = tokio::join!(
        timeout(TIMEOUT, local),
        runtime(config),
        timeout(TIMEOUT + Duration::from_secs(5), api_server(config))
    );
    let mut findings = match local {
        Ok(found) => found??,
        Err(_) => vec![Finding::error("files", "a file system does not respond")],
    };
    findings.extend(runtime);
    let late = |_| vec![Finding::error("API server", "no response")];
    findings.extend(api.unwrap_or_else(late));
    Ok(findings)
}

/// What keeps the kubelet from running on this machine: cgroup v1 or swap, unless the configuration permits it, as
/// upstream.
pub(super) fn machine_problems(config: &KubeletConfig, machine: &HostMachine) -> Vec<&'static str> {
    let mut problems = Vec::new();
    if !machine.cgroup_v2 && config.fail_cgroup_v1 {
        problems.push(
            "kubelet is configured to not run on a host using cgroup v1; set failCgroupV1 to false to allow it",
        );
    }
    if machine.swap_on && config.fail_swap_on {
        problems.push(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false",
        );
    }
    problems
}

/// Blocking.
fn local(config: &KubeletConfig) -> anyhow::Result<Vec<Finding>> {
    let machine = HostMachine::read()?;
    let problems = machine_problems(config, &machine).into_iter();
    let mut findings: Vec<_> = problems.map(|problem| Finding::error("machine", problem)).collect();
    findings.extend(directories(config));
    findings.extend(certificates(config));
    findings.extend(ports(config));
    Ok(findings)
}

/// Blocking.
fn directories(config: &KubeletConfig) -> Vec<Finding> {
    let written = [
        ("--root-dir", &config.root_dir),
        ("--cert-dir", &config.identity.cert_dir),
        ("podLogsDir", &config.pod_logs_dir),
    ];
    let mut findings: Vec<_> = written
        .into_iter()
        .filter_map(|(field, path)| {
            let why = unusable(path)?;
            let message = format!("{field}: {}: {why}", path.display());
            Some(Finding::error("directories", message))
        })
        .collect();
    let providers = config.images.credential_providers.as_ref();
    let needed = [
        ("--image-credential-provider-config", providers.map(|providers| &providers.config)),
        ("--image-credential-provider-bin-dir", providers.map(|providers| &providers.bin_dir)),
    ];
    let static_pods = config.static_pods.path.as_deref();
    let local_objects = config.local_objects_dir.as_deref();
    let expected = [
        static_pods.and_then(|path| {
            missing_with_effect("staticPodPath", path, "no static pod runs until it exists")
        }),
        config.dns.resolv_conf.as_deref().and_then(missing_resolv_conf),
        local_objects.and_then(|path| {
            missing_with_effect("--local-objects-dir", path, "lookups fail until it exists")
        }),
    ];
    for (field, path) in needed {
        let missing = path.and_then(|path| missing(field, path));
        findings.extend(missing.map(|message| Finding::error("files", message)));
    }
    let expected = expected.into_iter().flatten();
    findings.extend(expected.map(|message| Finding::warning("files", message)));
    findings
}

/// What to say about a missing `resolvConf`. Blocking.
pub(super) fn missing_resolv_conf(path: &Path) -> Option<String> {
    missing_with_effect("resolvConf", path, "pods that need it do not start")
}

fn missing_with_effect(field: &str, path: &Path, effect: &str) -> Option<String> {
    Some(format!("{}; {effect}", missing(field, path)?))
}

fn missing(field: &str, path: &Path) -> Option<String> {
    let error = fs::metadata(path).err()?;
    Some(format!("{field}: {}: {error}", path.display()))
}

/// Why a directory cannot be written to or made.
fn unusable(path: &Path) -> Option<String> {
    let existing = path.ancestors().find(|path| path.exists())?;
    if !existing.is_dir() {
        return Some(format!("{} is not a directory", existing.display()));
    }
    let error = may_write(existing).err()?;
    Some(format!("{} cannot be written: {error}", existing.display()))
}

/// The certificates in files. Blocking.
fn certificates(config: &KubeletConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !config.server.enabled {
        return findings;
    }
    if let Err(error) = config.server.auth.check(config.kubeconfig.is_some()) {
        findings.push(Finding::error("server", error.to_string()));
    }
    if let ServingCertificate::Files { certificate, key } = &config.server.tls.certificate {
        let read = || -> anyhow::Result<Timestamp> {
            let chain = read_file(certificate)?;
            let (_, facts) = x509::key_pair(&chain, &read_file(key)?)?;
            Ok(facts.not_after)
        };
        findings.push(validity("tlsCertFile", certificate, read(), clock::timestamp()));
    }
    if let Some(path) = &config.server.auth.client_ca_file {
        let read = || -> anyhow::Result<Timestamp> {
            let found = x509::certificates(&read_file(path)?)?;
            let ends = found.iter().filter_map(|der| x509::parse(der));
            let last = ends.map(|facts| facts.not_after).max();
            last.context("the certificate cannot be read")
        };
        findings.push(validity("clientCAFile", path, read(), clock::timestamp()));
    }
    findings
}

fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The finding for a certificate that was read, which ends at this time.
fn validity(field: &str, path: &Path, read: anyhow::Result<Timestamp>, now: Timestamp) -> Finding {
    let place = format!("{field}: {}", path.display());
    match read {
        Err(error) => {
            Finding::error("certificates", format!("{place}: {}", error_chain(error.as_ref())))
        }
        Ok(end) if end <= now => {
            Finding::error("certificates", format!("{place}: expired at {end}"))
        }
        Ok(end) if end.duration_since(now).unsigned_abs() < SOON => {
            Finding::warning("certificates", format!("{place}: expires at {end}"))
        }
        Ok(end) => Finding::ok("certificates", format!("{place}: valid until {end}")),
    }
}

/// Blocking.
fn ports(config: &KubeletConfig) -> Vec<Finding> {
    let server = &config.server;
    let ports = [
        ("port", Some(server.address).filter(|_| server.enabled)),
        ("readOnlyPort", server.read_only),
        ("healthzPort", server.healthz),
    ];
    let ports = ports.into_iter().filter_map(|(field, address)| Some((field, address?)));
    let found = ports.map(|(field, address)| {
        let bound = TcpListener::bind(address).map(drop);
        let in_use = bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
        let owner = if in_use { listener_of(address.port()) } else { None };
        port(field, address, bound, owner)
    });
    found.collect()
}

/// The finding for a port. A kubelet that has it is the one that is to be replaced.
fn port(
    field: &str,
    address: SocketAddr,
    bound: io::Result<()>,
    owner: Option<(u32, String)>,
) -> Finding {
    match (bound, owner) {
        (Ok(()), _) => Finding::ok("ports", format!("{field}: {address} is free")),
        (Err(_), Some((process, name))) if name == "kubelet" => Finding::ok(
            "ports",
            format!("{field}: {address} belongs to the kubelet that runs (process {process})"),
        ),
        (Err(error), Some((process, name))) => Finding::error(
            "ports",
            format!(
                "{field}: cannot listen on {address}: {error}; process {process} ({name}) does"
            ),
        ),
        (Err(error), None) => {
            Finding::error("ports", format!("{field}: cannot listen on {address}: {error}"))
        }
    }
}

async fn runtime(config: &KubeletConfig) -> Vec<Finding> {
    let config = RuntimeConfig {
        request_timeout: config.runtime.request_timeout.min(TIMEOUT),
        ..config.runtime.clone()
    };
    let client = cri::connect(&config, false, &Tracer::disabled(), &Metrics::new());
    let (client, _) = match client {
        Ok(clients) => clients,
        Err(error) => return vec![Finding::error("runtime", error_chain(error.as_ref()))],
    };
    let endpoint = client.connection().endpoint();
    match cri::runtime_info(&client).await {
        Err(missing) => vec![Finding::error("runtime", format!("{endpoint}: {missing}"))],
        Ok(info) => {
            let (name, version) = (&info.version.runtime_name, &info.version.runtime_version);
            let answers = format!("{endpoint}: {name} {version}");
            let mut findings = vec![Finding::ok("runtime", answers)];
            if let Some(why) = cri::network_error(&info.status) {
                let message = format!("only pods of the host's network will start: {why}");
                findings.push(Finding::warning("pod network", message));
            }
            findings
        }
    }
}

async fn api_server(config: &KubeletConfig) -> Vec<Finding> {
    let Some(kubeconfig) = config.kubeconfig.clone() else {
        return Vec::new();
    };
    let bootstrap = config.identity.bootstrap_kubeconfig.clone();
    let path = match bootstrap {
        Some(bootstrap) if !kubeconfig.exists() => bootstrap,
        _ => kubeconfig,
    };
    let mut findings = Vec::new();
    findings.extend(client_certificate(path.clone()).await);
    let identity = ClientIdentity {
        // A kubelet that runs would wait for a bootstrap to replace what cannot be used.
        is_awaited: false,
        ..client_identity(path.clone(), &config.identity)
    };
    let api = match ApiServer::open(identity).await {
        Ok(api) => api,
        Err(error) => {
            findings.push(Finding::error("kubeconfig", error_chain(error.as_ref())));
            return findings;
        }
    };
    let node = ResourcePath::cluster(&config.node_name);
    let read = api.get::<LenientNode>(node).await.map(drop);
    let place = format!("{} ({})", api.url(), path.display());
    findings.push(api_finding(&place, &config.node_name, &api.credentials(), &read));
    findings
}

/// What reading the Node object says about the API server, to which `sent` was presented.
fn api_finding(place: &str, node: &str, sent: &str, read: &Result<(), ApiError>) -> Finding {
    let Err(error) = read else {
        return Finding::ok("API server", format!("{place}: has node {node}"));
    };
    let status = error.status().map(|status| status.as_u16());
    let text = error_chain(error);
    match status {
        Some(404) => Finding::ok(
            "API server",
            format!("{place}: answers; node {node} is not registered yet"),
        ),
        Some(401) => Finding::error("API server", format!("{place}: rejects {sent}: {text}")),
        Some(403) => Finding::warning(
            "API server",
            format!("{place}: answers, but these credentials may not read node {node}: {text}"),
        ),
        _ => Finding::error("API server", format!("{place}: {text}")),
    }
}

async fn client_certificate(path: PathBuf) -> Option<Finding> {
    let read = move || {
        let (certificate, _) = kubeconfig_certificate(&path)?;
        let first = x509::certificates(&certificate).ok()?;
        let facts = x509::parse(first.first()?)?;
        Some(validity("--kubeconfig", &path, Ok(facts.not_after), clock::timestamp()))
    };
    spawn_blocking(read).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_reported_before_it_ends() {
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        let path = Path::new("/c.pem");
        for (end, level) in [
            ("2026-01-09T23:59:59Z", Level::Error),
            ("2026-01-10T00:00:00Z", Level::Error),
            ("2026-01-16T00:00:00Z", Level::Warning),
            ("2026-01-18T00:00:00Z", Level::Ok),
        ] {
            let end = end.parse().map_err(anyhow::Error::from);
            assert_eq!(validity("f", path, end, now).level, level);
        }
        let unreadable = validity("f", path, Err(anyhow::anyhow!("cannot read")), now);
        assert_eq!(unreadable, Finding::error("certificates", "f: /c.pem: cannot read"));
    }

    #[test]
    fn a_port_belongs_to_the_kubelet_that_runs_or_to_a_stranger_that_is_named() {
        let address: SocketAddr = "127.0.0.1:10250".parse().unwrap();
        let taken = || Err(io::ErrorKind::AddrInUse.into());
        let owner = |name: &str| Some((7, name.to_owned()));
        for (bound, owner, level, part) in [
            (Ok(()), None, Level::Ok, "free"),
            (taken(), owner("kubelet"), Level::Ok, "process 7"),
            (taken(), owner("nginx"), Level::Error, "nginx"),
            (taken(), None, Level::Error, "cannot listen"),
        ] {
            let found = port("port", address, bound, owner);
            assert_eq!(found.level, level, "{found:?}");
            assert!(found.message.contains(part), "{found:?}");
        }
    }

    #[test]
    fn the_answer_of_the_api_server_is_judged_by_its_status() {
        let status = |code: u16| {
            let status = http::StatusCode::from_u16(code).unwrap();
            Err(ApiError::Status {
                status,
                reason: String::new(),
                causes: Vec::new(),
                text: "why".to_owned(),
            })
        };
        for (read, level, part) in [
            (Ok(()), Level::Ok, "has node n"),
            (status(404), Level::Ok, "not registered"),
            (status(401), Level::Error, "rejects the token"),
            (status(403), Level::Warning, "may not read"),
            (status(500), Level::Error, "why"),
            (Err(ApiError::Timeout(Duration::from_secs(10))), Level::Error, "10 s"),
        ] {
            let found = api_finding("https://a (k)", "n", "the token", &read);
            assert_eq!(found.level, level, "{found:?}");
            assert!(found.message.contains(part), "{found:?}");
            assert!(found.message.starts_with("https://a (k): "), "{found:?}");
        }
    }

    #[test]
    fn directories_that_are_missing_can_be_made_and_files_are_none() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(unusable(&directory.path().join("a/b")), None);
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let why = unusable(&file.join("below")).unwrap();
        assert!(why.ends_with("file is not a directory"), "{why}");
    }
}
