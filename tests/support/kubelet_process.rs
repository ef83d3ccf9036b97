//! The built kubelet as a process with directories and ports of its own.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::http;
use super::manifests::Manifests;
use super::wait::wait_for;

/// How much of its log is shown when a test fails.
const SHOWN_LINES: usize = 150;

/// What a test may choose; the rest is private to the process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Everything the kubelet writes is below it.
    pub dir: PathBuf,
    /// `unix://...`
    pub runtime: String,
    pub node: String,
    /// Lines added to the configuration file.
    pub config: String,
    /// Arguments added to the command line.
    pub args: Vec<String>,
    /// Variables of its environment, beside those of the tests.
    pub environment: Vec<(String, String)>,
    /// Its log goes into a pipe, which is for the test to read; else into a file.
    pub piped_log: bool,
    /// Another program with the same flags, to hold the tests against it: `KUBELET_UNDER_TEST`.
    pub program: PathBuf,
}

impl Settings {
    pub fn new(dir: &Path, runtime: &str) -> Self {
        Settings {
            dir: dir.to_owned(),
            runtime: runtime.to_owned(),
            node: "node1".to_owned(),
            config: String::new(),
            args: Vec::new(),
            environment: Vec::new(),
            piped_log: false,
            program: Self::program_under_test(),
        }
    }

    /// `KUBELET_UNDER_TEST` or the one that cargo built.
    pub fn program_under_test() -> PathBuf {
        let built = env!("CARGO_BIN_EXE_kubelet");
        std::env::var_os("KUBELET_UNDER_TEST").map_or(PathBuf::from(built), PathBuf::from)
    }
}

/// A running kubelet. It is killed, not terminated, when dropped.
pub struct KubeletProcess {
    child: Child,
    settings: Settings,
    pub manifests: Manifests,
    pub read_only_port: u16,
    pub healthz_port: u16,
}

impl KubeletProcess {
    /// Writes the configuration and starts the process; does not wait for it.
    pub fn spawn(settings: Settings) -> KubeletProcess {
        let [read_only_port, healthz_port] = free_ports();
        let dir = &settings.dir;
        let manifests = Manifests::new(&dir.join("manifests"), &dir.join("manifests.new"));
        for name in ["root", "logs"] {
            std::fs::create_dir_all(dir.join(name)).expect("a directory of the kubelet");
        }
        let config = config_file(&settings, read_only_port, healthz_port);
        std::fs::write(dir.join("config.yaml"), config).expect("write the configuration");
        let child = launch(&settings);
        KubeletProcess { child, settings, manifests, read_only_port, healthz_port }
    }

    /// Starts and waits until it says that it is healthy.
    pub async fn start(settings: Settings) -> KubeletProcess {
        let mut kubelet = Self::spawn(settings);
        kubelet.wait_healthy(Duration::from_secs(60)).await;
        kubelet
    }

    pub async fn wait_healthy(&mut self, deadline: Duration) {
        let port = self.healthz_port;
        let child = &mut self.child;
        wait_for("the kubelet is healthy", deadline, || {
            let exited = child.try_wait().ok().flatten();
            async move {
                assert!(exited.is_none(), "the kubelet ended: {exited:?}");
                match http::get(port, "/healthz").await {
                    Ok((200, _)) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            }
        })
        .await;
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// As kill -9 does it.
    pub fn kill(&mut self) {
        // It may have ended already, which is just as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How it ended, unless it still runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child to wait for")
    }

    /// SIGTERM, and the exit status once it has ended.
    pub async fn terminate(&mut self, deadline: Duration) -> ExitStatus {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("run kill");
        assert!(sent.success(), "the kubelet was gone before SIGTERM");
        let child = &mut self.child;
        wait_for("the kubelet ends on SIGTERM", deadline, || {
            let status = child.try_wait().ok().flatten();
            async move { status.ok_or_else(|| "it runs".to_owned()) }
        })
        .await
    }

    /// Starts the same program again with the same directories and ports.
    pub fn respawn(&mut self) {
        self.kill();
        self.child = launch(&self.settings);
    }

    /// All pods it serves.
    pub async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        http::pods(self.read_only_port).await
    }

    /// One pod by namespace and name.
    pub async fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        let pods = self.pods().await.ok()?;
        pods.into_iter().find(|pod| {
            pod.metadata.name.as_deref() == Some(name)
                && pod.metadata.namespace.as_deref() == Some(namespace)
        })
    }

    /// The events that it shows, as text.
    pub async fn events(&self) -> String {
        let answer = http::get(self.read_only_port, "/events").await;
        answer.expect("/events answers").1
    }

    /// Changes its configuration file; that counts from the next start on.
    pub fn reconfigure(&self, old: &str, new: &str) {
        let path = self.settings.dir.join("config.yaml");
        let text = std::fs::read_to_string(&path).expect("the configuration");
        assert!(text.contains(old), "{old} is not in {text}");
        std::fs::write(&path, text.replace(old, new)).expect("write the configuration");
    }

    /// The pipe that its log goes into, once.
    pub fn take_log_pipe(&mut self) -> std::process::ChildStderr {
        self.child.stderr.take().expect("a log in a pipe")
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(log_path(&self.settings)).unwrap_or_default()
    }
}

impl Drop for KubeletProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines = log.lines().collect::<Vec<_>>();
            let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
            eprintln!(
                "---- the kubelet's last {} lines ----\n{}\n----",
                shown.len(),
                shown.join("\n")
            );
        }
    }
}

fn log_path(settings: &Settings) -> PathBuf {
    settings.dir.join("kubelet.log")
}

fn launch(settings: &Settings) -> Child {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log_path(settings))
        .expect("the log file");
    let dir = &settings.dir;
    // It dies with the thread that started it, also when that is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(&settings.program);
    command.arg("--config").arg(dir.join("config.yaml"));
    command.arg("--root-dir").arg(dir.join("root"));
    command.arg("--hostname-override").arg(&settings.node);
    command.args(&settings.args);
    command.envs(settings.environment.iter().cloned());
    command
        .stdin(Stdio::null())
        .stdout(File::try_clone(&log).expect("a second handle"))
        .stderr(if settings.piped_log { Stdio::piped() } else { Stdio::from(log) });
    command.spawn().expect("start the kubelet")
}

fn config_file(settings: &Settings, read_only_port: u16, healthz_port: u16) -> String {
    let dir = settings.dir.display();
    let mut text =
        String::from("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n");
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        writeln!(text, "{key}: {value}").expect("a string takes all");
    };
    line("staticPodPath", &format_args!("{dir}/manifests"));
    line("podLogsDir", &format_args!("{dir}/logs"));
    line("containerRuntimeEndpoint", &settings.runtime);
    line("address", &"127.0.0.1");
    line("readOnlyPort", &read_only_port);
    line("healthzBindAddress", &"127.0.0.1");
    line("healthzPort", &healthz_port);
    line("cgroupDriver", &"cgroupfs");
    line("failSwapOn", &false);
    if !settings.config.contains("maxPods") {
        line("maxPods", &10_000);
    }
    line("failCgroupV1", &false);
    if !settings.config.contains("cgroupRoot:") {
        // The cgroups at the root are another kubelet's.
        line("cgroupsPerQOS", &false);
        line("enforceNodeAllocatable", &"[]");
    }
    if !settings.config.contains("imageGCHighThresholdPercent") {
        // The machine's disk may be nearly full.
        line("imageGCHighThresholdPercent", &100);
    }
    if !settings.config.contains("evictionHard") {
        let off = "{memory.available: '0%', nodefs.available: '0%', nodefs.inodesFree: '0%', \
                   imagefs.available: '0%', imagefs.inodesFree: '0%'}";
        line("evictionHard", &off);
    }
    if !settings.config.contains("enableServer") {
        // Its port is known to all who run here.
        line("enableServer", &false);
    }
    text.push_str(&settings.config);
    text
}

/// Those lie above the kubelet's own defaults, and below the ones that the kernel hands out, so that nobody
/// gets one of them by accident between the choice of a port and its use.
const PORTS: std::ops::Range<u16> = 10_300..30_000;

/// Ports without a listener, and that no other test is given as long as this process lives.
pub fn free_ports<const N: usize>() -> [u16; N] {
    std::array::from_fn(|_| {
        let mut ports = std::iter::repeat_with(|| fastrand::u16(PORTS));
        let free = |port: &u16| claim(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
        ports.find(free).expect("it goes on for ever")
    })
}

/// Marks the port as taken for all processes of tests, by a name that goes with this one.
fn claim(port: u16) -> bool {
    static CLAIMS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let name = SocketAddr::from_abstract_name(format!("kubelet-tests/port/{port}"));
    match UnixListener::bind_addr(&name.expect("a name")) {
        Ok(claim) => {
            CLAIMS.lock().expect("no panic holds it").push(claim);
            true
        }
        Err(_) => false,
    }
}
