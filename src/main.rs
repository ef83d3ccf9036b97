//! The kubelet binary: parses arguments, then runs the kubelet or a subcommand.

use anyhow::Context as _;
use kubelet::app::App;
use kubelet::base::{error_chain, panics};
use kubelet::cli::{self, Command};
use kubelet::config::logging::{LogControl, LogFormat};
use kubelet::config::{self, COMMIT, Flags, HostFacts, KubeletConfig, NODE_VERSION};
use kubelet::host::ServiceManager;
use kubelet::resources::cm::enter_kubelet_cgroup;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fmt};

fn main() -> ExitCode {
    kubelet::host::memory::limit_malloc_arenas();
    match cli::parse(env::args_os().skip(1)) {
        Ok(Command::Run(flags)) => match run(&flags) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => print_error(&error_chain(error.as_ref())),
        },
        Ok(Command::Print(text)) => {
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Ok(Command::Subcommand(subcommand)) => cli::run(subcommand),
        Err(error) => print_error(&error.to_string()),
    }
}

/// How long an idle thread for blocking work is kept for the rest of a burst.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout at exit for blocking work on files.
const BLOCKED_THREADS_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the kubelet; false if it failed, which is in the log.
///
/// # Errors
/// The configuration, or the log, cannot be used.
fn run(flags: &Flags) -> anyhow::Result<bool> {
    let facts = HostFacts { hostname: kubelet::host::HostMachine::read()?.hostname };
    let config = config::load(flags, &facts)?;
    let (log, _flush_guard) = config::logging::init(&config.logging)?;
    let is_text = config.logging.format == LogFormat::Text;
    let Err(error) = run_kubelet(flags, config, log) else {
        return Ok(true);
    };
    let text = error_chain(error.as_ref());
    if is_text && text.contains('\n') {
        // The lines are for people, and a value of the log has one line.
        anyhow::bail!(text);
    }
    // In the format of the log, because what collects that drops other lines.
    tracing::error!(err = text, "command failed");
    Ok(false)
}

fn run_kubelet(flags: &Flags, config: KubeletConfig, log: LogControl) -> anyhow::Result<()> {
    report_start(flags, &config);
    panics::install_hook();
    let manager = service_manager()?;
    enter_kubelet_cgroup(&config.cgroups, config.oom_score_adj);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_keep_alive(IDLE_THREAD_TIMEOUT)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let mut app = App::build(config).await?;
        app.log = log;
        app.service_manager = manager;
        app.run().await
    });
    // With a timeout, so that a file system that hangs does not keep the process from exiting.
    runtime.shutdown_timeout(BLOCKED_THREADS_TIMEOUT);
    result
}

fn shown(path: Option<&Path>) -> impl fmt::Display {
    path.unwrap_or(Path::new("")).display()
}

/// Logs what was started and how.
fn report_start(flags: &Flags, config: &KubeletConfig) {
    tracing::info!(
        kubeletVersion = NODE_VERSION,
        commit = COMMIT.unwrap_or_default(),
        config = %shown(flags.config.as_deref()),
        configDir = %shown(flags.config_dir.as_deref()),
        flags = config::command_line(flags, &config.redacted_flags),
        "Kubelet version"
    );
}

/// The service manager that started this process, if it expects notifications.
fn service_manager() -> anyhow::Result<Option<ServiceManager>> {
    let variable = |name| env::var(name).ok();
    let Some(address) = variable("NOTIFY_SOCKET") else {
        return Ok(None);
    };
    let (usec, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
    let manager = ServiceManager::new(&address, usec.as_deref(), pid.as_deref());
    manager.context("NOTIFY_SOCKET").map(Some)
}

fn print_error(text: &str) -> ExitCode {
    cli::print_error(text);
    ExitCode::FAILURE
}
