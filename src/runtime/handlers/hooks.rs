//! Runs postStart and preStop hooks.

use super::exec::{self, ExecResult};
use super::net::join_host_port;
use super::{ExecFn, Handler, HandlerTarget, http, request};
use crate::base::metrics::{Metrics, metric_set};
use crate::cri::ExecOutput;
use crate::model::{ContainerId, NodeFacts, Pod, PodExt, PodStatus, reasons};
use crate::state::events::{EventRecorder, ObjectRef};
use k8s_openapi::api::core::v1::{ContainerPort, HTTPGetAction, LifecycleHandler};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs hooks; cheap to clone.
#[derive(Clone)]
pub struct Hooks {
    exec: ExecFn,
    events: EventRecorder,
    metrics: HookMetrics,
}

metric_set! {
    struct HookMetrics {
        http_fallbacks: Counter = "kubelet_lifecycle_handler_http_fallbacks_total",
            "Number of times lifecycle handlers fell back from https to http";
        sleeps_cut_short: Counter = "kubelet_sleep_action_terminated_early_total",
            "The number of times lifecycle sleep handler got terminated before it finishes";
    }
}

/// The container of a hook.
#[derive(Clone, Copy, Debug)]
pub struct HookTarget<'a> {
    /// The pod, for events and texts. For an orphan, the names in its labels are enough.
    pub pod: &'a ObjectRef,
    /// Name of the container.
    pub container: &'a str,
    /// The instance.
    pub container_id: &'a ContainerId,
    /// Address of the pod (of the node for host-network pods), once known.
    pub pod_ip: Option<&'a str>,
    /// The ports of the container, to resolve port names.
    pub ports: &'a [ContainerPort],
}

/// The address for network hooks of a pod: the pod's address, or the node's for a pod on the host network.
/// For an orphan, the network mode of its newest sandbox counts.
pub fn hook_address(node: &NodeFacts, pod: Option<&Pod>, status: &PodStatus) -> Option<String> {
    let host_network = pod.map_or_else(|| status.is_on_host_network(), PodExt::host_network);
    if host_network { Some(node.address().into()) } else { status.ips().first().cloned() }
}

/// The error of a hook. The message may contain output of the container or a secret of the request, so it is logged and
/// not put into events; [`HookError::cause`] may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The hook did not end within its budget.
    #[error("the hook did not end within its budget of {0:?}")]
    DeadlineExceeded(Duration),
    /// The hook failed.
    #[error("{message}")]
    Failed {
        /// The whole message.
        message: String,
        /// The cause, without output of the container, command and URL.
        cause: String,
    },
    /// The runtime could not be reached: the hook has not run.
    #[error("{0}")]
    RuntimeUnavailable(String),
    /// The hook has no supported handler.
    #[error("Cannot run handler: {0}")]
    Invalid(String),
}

impl HookError {
    /// Why the hook failed, for an event.
    pub fn cause(&self) -> String {
        match self {
            Self::DeadlineExceeded(_) | Self::Invalid(_) => self.to_string(),
            Self::Failed { cause, .. } => cause.clone(),
            Self::RuntimeUnavailable(_) => "the runtime is unavailable".to_owned(),
        }
    }
}

impl Hooks {
    /// `exec` runs the commands. Registers the metric in `metrics`.
    pub fn new(exec: ExecFn, events: EventRecorder, metrics: &Metrics) -> Self {
        Self { exec, events, metrics: HookMetrics::register(metrics) }
    }

    /// Runs a postStart hook. As upstream, it has no timeout; dropping the future cancels it.
    pub async fn run_post_start(
        &self,
        hook: &LifecycleHandler,
        target: &HookTarget<'_>,
    ) -> Result<(), HookError> {
        Box::pin(self.run(hook, target, Duration::ZERO)).await
    }

    /// Runs a preStop hook for at most `budget`, then cancels it; the runtime stops a command.
    pub async fn run_pre_stop(
        &self,
        hook: &LifecycleHandler,
        target: &HookTarget<'_>,
        budget: Duration,
    ) -> Result<(), HookError> {
        let over = HookError::DeadlineExceeded(budget);
        if budget.is_zero() {
            return Err(over);
        }
        match tokio::time::timeout(budget, Box::pin(self.run(hook, target, budget))).await {
            Ok(result) => result,
            Err(_) => {
                if matches!(Handler::of_hook(hook), Some(Handler::Sleep(_))) {
                    self.metrics.sleeps_cut_short.inc();
                }
                Err(over)
            }
        }
    }

    /// `exec_timeout` is the timeout of ExecSync; zero means none.
    async fn run(
        &self,
        hook: &LifecycleHandler,
        target: &HookTarget<'_>,
        exec_timeout: Duration,
    ) -> Result<(), HookError> {
        match Handler::of_hook(hook) {
            Some(Handler::Exec(command)) => self.run_exec(&command, target, exec_timeout).await,
            Some(Handler::HttpGet(action)) => self.run_http(action, target).await,
            Some(Handler::Sleep(seconds)) => {
                let seconds = u64::try_from(seconds).unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(())
            }
            Some(Handler::TcpSocket(_)) => Err(HookError::Invalid(
                "invalid handler: tcpSocket is not supported as a lifecycle hook".into(),
            )),
            Some(Handler::Grpc(_)) | None => Err(HookError::Invalid(
                "invalid handler: none of exec, httpGet and sleep is set".into(),
            )),
        }
    }

    async fn run_exec(
        &self,
        command: &[String],
        target: &HookTarget<'_>,
        timeout: Duration,
    ) -> Result<(), HookError> {
        let text = |error: String, output: String| {
            format!(
                "Exec lifecycle hook ([{}]) for Container {:?} in Pod {:?} failed - error: {error}, message: {output:?}",
                command.join(" "),
                target.container,
                target.pod_text(),
            )
        };
        Err(match exec::run(&self.exec, target.container_id, command, timeout).await {
            ExecResult::Exited(output) if output.exit_code == 0 => return Ok(()),
            ExecResult::Exited(output) => {
                let cause = format!("command exited with {}", output.exit_code);
                let message = text(exit_text(command, &output), exec::both(&output));
                HookError::Failed { message, cause }
            }
            ExecResult::TimedOut => HookError::DeadlineExceeded(timeout),
            ExecResult::Error(error) if error.is_unavailable() => {
                HookError::RuntimeUnavailable(text(error.grpc_text(), String::new()))
            }
            ExecResult::Error(error) => {
                let cause = error.grpc_text();
                let message = text(cause.clone(), String::new());
                HookError::Failed { message, cause }
            }
        })
    }

    /// Any response counts as success, whatever its status, as upstream.
    async fn run_http(
        &self,
        action: &HTTPGetAction,
        target: &HookTarget<'_>,
    ) -> Result<(), HookError> {
        let failed = |error: String, cause: String| HookError::Failed {
            message: format!(
                "HTTP lifecycle hook ({}) for Container {:?} in Pod {:?} failed - error: {error}",
                action.path.as_deref().unwrap_or_default(),
                target.container,
                target.pod_text(),
            ),
            cause,
        };
        let reading = AtomicBool::new(false);
        let request = request::of_action(action, &target.as_target(), request::HOOK_AGENT)
            .map_err(|error| failed(error.clone(), error))?;
        let address = join_host_port(&request.url.host, request.url.port());
        // A hook waits for a lookup for as long as the hook may take.
        let get = |request| http::get(request, Duration::MAX, &reading);
        let error = match get(request.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if error.no_tls && get(request.in_plain_text()).await.is_ok() {
            self.metrics.http_fallbacks.inc();
            self.events.warning(
                target.pod,
                reasons::event::LIFECYCLE_HTTP_FALLBACK,
                format!(
                    "request to HTTPS lifecycle hook {address} got HTTP response, \
                     retry with HTTP succeeded"
                ),
            );
            return Ok(());
        }
        Err(failed(error.error.text, error.cause))
    }
}

impl HookTarget<'_> {
    /// `name_namespace(uid)`.
    fn pod_text(&self) -> String {
        let ObjectRef { namespace, name, uid, .. } = self.pod;
        format!("{name}_{namespace}({uid})")
    }

    fn as_target(&self) -> HandlerTarget<'_> {
        HandlerTarget { container_id: self.container_id, pod_ip: self.pod_ip, ports: self.ports }
    }
}

fn exit_text(command: &[String], output: &ExecOutput) -> String {
    format!(
        "command '{}' exited with {}: {}",
        command.join(" "),
        output.exit_code,
        super::truncated(&output.stderr)
    )
}
