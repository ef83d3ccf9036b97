//! What would happen if this kubelet started in place of the one that runs on this node.
//!
//! 1. [`locate`]: the kubelet that runs, its unit and their flags, of which [`target`] chooses.
//! 2. The configuration and what `kubelet config check` checks.
//! 3. [`collect`] and [`state`]: the pods of the runtime, of the manifests and of the API server, and the checkpoints.
//! 4. [`pods`] and [`forecast`]: what would become of each pod, by the functions with which a running kubelet decides.
//! 5. [`report`]: the verdict. What could not be found out is never safe.
//!
//! Nothing is changed: files are only read, calls of the runtime and of the API server are those that read.

mod collect;
mod forecast;
mod locate;
mod metrics;
mod node;
mod pods;
mod report;
mod state;
mod target;
mod unit;

pub use metrics::families_not_served;
pub use report::{Outcome, PodForecast, PreflightReport, Verdict};

use super::{Finding, Level, node_findings, settings};
use crate::apiserver::{ApiServer, ClientIdentity};
use crate::base::metrics::Metrics;
use crate::base::otel::Tracer;
use crate::base::{error_chain, spawn_blocking};
use crate::config::{Flags, HostFacts, KubeletConfig, Problems, load};
use crate::cri::{self, RuntimeClient, RuntimeConfig, RuntimeFeatures};
use crate::host::{HostMachine, ProcDir};
use crate::model::{AddressOrder, PodSource};
use crate::node::certificates::client_identity;
use anyhow::Context as _;
use collect::blocking;
use node::NodeChecks;
use pods::{RuntimePods, SourceList, StaticPod, adopt, forecasts, way_back};
use state::LeftState;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{env, io};

/// How long the runtime may take for one call.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What to check.
#[derive(Clone, Debug)]
pub struct PreflightRequest {
    /// The process of the kubelet; `None` to search for it.
    pub process: Option<u32>,
    /// The kubelet's flags; `None` to take those of the process or of the unit.
    pub flags: Option<Flags>,
}

/// Checks the node. Enters the working directory of the process or the unit whose flags are taken.
///
/// # Errors
/// The machine cannot be read.
pub async fn preflight(request: PreflightRequest) -> anyhow::Result<PreflightReport> {
    let mut checked = Checked::default();
    if let Err(finding) = check(request, &mut checked).await? {
        checked.findings.push(finding);
    }
    // Without the rights to read the process, other rights may be missing, too.
    let is_hidden = |one: &Finding| one.level == Level::Unknown && one.subject == "process";
    let is_powerless = checked.findings.iter().any(is_hidden);
    let findings = checked.findings.into_iter();
    let findings = findings.map(|finding| known_or_not(finding, is_powerless));
    Ok(PreflightReport::new(checked.pods, findings.collect(), checked.way_back))
}

/// The results, until something could not be found out.
#[derive(Default)]
struct Checked {
    findings: Vec<Finding>,
    /// `None` if they are not known.
    pods: Option<Vec<PodForecast>>,
    way_back: Vec<String>,
}

/// Checks as much as possible. The inner error is what keeps it from checking more.
async fn check(
    request: PreflightRequest,
    checked: &mut Checked,
) -> anyhow::Result<Result<(), Finding>> {
    let machine = spawn_blocking(HostMachine::read).await??;
    let (hostname, process) = (machine.hostname.clone(), request.process);
    let find = move || locate::find(&ProcDir::default(), Path::new("/"), process, &hostname);
    let found = match blocking("process", find).await {
        Ok(found) => found,
        Err(finding) => return Ok(Err(finding)),
    };
    let target = target::choose(found, request.flags);
    checked.findings.extend(target.findings);
    let Some(flags) = target.flags else {
        return Ok(Ok(()));
    };
    let facts = HostFacts { hostname: machine.hostname.clone() };
    let directory = target.directory;
    let load = move || {
        if let Some(directory) = directory {
            env::set_current_dir(&directory)
                .with_context(|| format!("working directory {}", directory.display()))?;
        }
        load(&flags, &facts)
    };
    let mut config = match blocking("configuration", load).await {
        Ok(Ok(config)) => config,
        Ok(Err(error)) => {
            checked.findings.extend(unusable(&error));
            return Ok(Ok(()));
        }
        Err(finding) => return Ok(Err(finding)),
    };
    config.identity.proxies = target.proxies;
    checked.findings.extend(configuration_findings(&config));
    checked.findings.extend(node_findings(&config).await?);
    Ok(check_pods(&config, machine, checked).await)
}

/// The findings about a configuration that cannot be used. A file that may not be read is not a wrong one.
fn unusable(error: &anyhow::Error) -> Vec<Finding> {
    if let Some(Problems(problems)) = error.downcast_ref::<Problems>() {
        let problems = problems.iter();
        return problems
            .map(|problem| Finding::error("configuration", problem.to_string()))
            .collect();
    }
    let is_denied = error.chain().any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
    });
    let text = error_chain(error.as_ref());
    vec![if is_denied {
        Finding::unknown("configuration", text)
    } else {
        Finding::error("configuration", text)
    }]
}

fn configuration_findings(config: &KubeletConfig) -> Vec<Finding> {
    let warnings = config.warnings.iter();
    let mut findings: Vec<_> =
        warnings.map(|warning| Finding::warning("configuration", warning)).collect();
    if !config.unsupported.is_empty() {
        let names = config.unsupported.join(", ");
        let message = format!("accepted and without effect in this kubelet: {names}");
        findings.push(Finding::warning("configuration", message));
    }
    findings
}

/// A server that does not answer now may answer later, and what may not be read may be as it should: then it is not known
/// what would happen.
fn known_or_not(finding: Finding, is_powerless: bool) -> Finding {
    let is_server = matches!(finding.subject, "API server" | "runtime");
    let is_error = finding.level == Level::Error;
    Finding {
        level: if is_error && (is_server || is_powerless) { Level::Unknown } else { finding.level },
        ..finding
    }
}

/// What of the node's pods and objects could be read.
struct NodePods {
    runtime: Option<RuntimePods>,
    sources: Vec<SourceList>,
    static_pods: Vec<StaticPod>,
}

async fn check_pods(
    config: &KubeletConfig,
    machine: HostMachine,
    checked: &mut Checked,
) -> Result<(), Finding> {
    let Some((client, features)) = runtime(config).await? else {
        return Ok(());
    };
    checked.findings.extend(node::runtime_findings(&features));
    checked.findings.push(metrics::finding());
    let own = config.clone();
    let (own_machine, machine) = (machine.clone(), Arc::new(machine));
    let left = blocking("checkpoints", move || state::read(&own, &own_machine)).await?;
    let api = api_server(config).await;
    if let Some(proxy) = api.as_ref().and_then(ApiServer::proxy) {
        let message = format!("requests to the API server go through {proxy}");
        checked.findings.push(Finding::ok("proxies", message));
    }
    let found = node_pods(config, &client, api.as_ref(), &left, &mut checked.findings).await;
    checked.findings.extend(left.findings.iter().cloned());
    let Some(runtime) = &found.runtime else {
        return Ok(());
    };
    checked.way_back = way_back(&found.static_pods, runtime);
    let desired = found.sources.iter();
    let desired = desired.flat_map(|list| list.pods.iter().flatten());
    let pods: Vec<_> = desired.cloned().collect();
    let checks =
        NodeChecks::new(config, machine, &client, features, api.as_ref(), &pods, runtime, &left);
    let (checks, more) =
        checks.await.map_err(|error| Finding::unknown("node", error_chain(error.as_ref())))?;
    checked.findings.extend(more);
    checked.pods = Some(forecasts(&found.sources, runtime, &checks));
    Ok(())
}

/// The runtime; `None` if it cannot be reached at all, which is among the findings of the node.
async fn runtime(
    config: &KubeletConfig,
) -> Result<Option<(RuntimeClient, RuntimeFeatures)>, Finding> {
    let settings = RuntimeConfig {
        request_timeout: config.runtime.request_timeout.min(TIMEOUT),
        ..config.runtime.clone()
    };
    let connected = cri::connect(&settings, false, &Tracer::disabled(), &Metrics::new());
    let Ok((client, _)) = connected else {
        return Ok(None);
    };
    let info = cri::runtime_info(&client).await;
    let info = info.map_err(|why| Finding::unknown("runtime", why))?;
    Ok(Some((client, RuntimeFeatures::of(&info.status))))
}

/// The API server, if its kubeconfig can be used; what is wrong with it is among the findings of the node.
async fn api_server(config: &KubeletConfig) -> Option<ApiServer> {
    let kubeconfig = config.kubeconfig.clone()?;
    let identity =
        ClientIdentity { is_awaited: false, ..client_identity(kubeconfig, &config.identity) };
    ApiServer::open(identity).await.ok()
}

async fn node_pods(
    config: &KubeletConfig,
    client: &RuntimeClient,
    api: Option<&ApiServer>,
    left: &LeftState,
    findings: &mut Vec<Finding>,
) -> NodePods {
    let order = AddressOrder::new(config.ipv6_first);
    let runtime = match collect::runtime_pods(client, order).await {
        Ok(runtime) => Some(runtime),
        Err(error) => {
            findings.push(Finding::unknown("runtime", error_chain(&error)));
            None
        }
    };
    let mut sources = Vec::new();
    let mut static_pods = Vec::new();
    for files in settings::manifest_sources(config) {
        let (mut list, of_files) = collect::manifests(files, &config.node_name).await;
        findings.extend(of_files);
        if let (Some(pods), Some(runtime)) = (list.pods.take(), &runtime) {
            let adopted = adopt(list.source, pods, runtime);
            list.pods = Some(adopted.iter().map(|one| one.pod.clone()).collect());
            static_pods.extend(adopted);
        }
        sources.push(list);
    }
    if config.static_pods.url.is_some() {
        let message = "the pods of staticPodURL are not read";
        findings.push(Finding::unknown("configuration", message));
        sources.push(SourceList::unread(PodSource::Http));
    }
    if config.kubeconfig.is_some() {
        let listed = match api {
            Some(api) => collect::api_pods(api, &config.node_name).await,
            None => Err("the kubeconfig cannot be used".to_owned()),
        };
        sources.push(listed.unwrap_or_else(|why| {
            findings.push(Finding::unknown("API server", format!("its pods: {why}")));
            SourceList::unread(PodSource::Api)
        }));
    }
    // A pod runs with the amounts that it is allocated, which may be others than those in its spec.
    for pod in sources.iter_mut().flat_map(|list| list.pods.iter_mut().flatten()) {
        *pod = left.allocations.apply(pod);
    }
    NodePods { runtime, sources, static_pods }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_read_is_not_known_and_what_is_wrong_is_not_safe() {
        for (kind, level) in [
            (io::ErrorKind::PermissionDenied, Level::Unknown),
            (io::ErrorKind::NotFound, Level::Error),
        ] {
            let error = Err::<(), _>(io::Error::from(kind)).context("cannot read /c");
            assert_eq!(unusable(&error.unwrap_err())[0].level, level);
        }
        for (subject, is_powerless, level) in [
            ("API server", false, Level::Unknown),
            ("runtime", false, Level::Unknown),
            ("ports", false, Level::Error),
            ("ports", true, Level::Unknown),
        ] {
            let finding = known_or_not(Finding::error(subject, "m"), is_powerless);
            assert_eq!(finding.level, level, "{subject}");
        }
        assert_eq!(known_or_not(Finding::ok("ports", "m"), true).level, Level::Ok);
    }

    #[tokio::test]
    async fn a_configuration_that_cannot_be_used_is_not_safe() {
        let directory = tempfile::tempdir().unwrap();
        let mut flags = Flags::default();
        flags.config = Some(directory.path().join("none"));
        let request = PreflightRequest { process: None, flags: Some(flags) };
        let report = preflight(request).await.unwrap();
        assert_eq!(report.verdict, Verdict::NotSafe, "{report:?}");
        let mut findings = report.findings.iter();
        assert!(findings.any(|one| one.subject == "configuration"), "{report:?}");
    }
}
