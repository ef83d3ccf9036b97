//! The kubelet under test, as a process beside the control plane.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cluster::{ADDRESS, NODE};
use crate::support::runner;
use crate::support::scripts::{self, Missing, printed, script};

/// How much of its log is shown when a scenario fails.
const SHOWN_LINES: usize = 100;

/// The kubelets that scenarios run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// The Go kubelet of `hack/build-kubernetes.sh`. What the scenarios expect of a kubelet comes from it, and
    /// they test the harness with it.
    Go,
    /// The kubelet of this crate.
    Rust,
}

thread_local! {
    /// Every scenario has a thread to itself.
    static CURRENT: Cell<Flavour> = const { Cell::new(Flavour::Go) };
}

impl Flavour {
    /// The one that the scenario of this thread runs with.
    pub fn current() -> Flavour {
        CURRENT.get()
    }

    pub fn program(self) -> PathBuf {
        match self {
            Flavour::Go => scripts::target().join("tools/kubernetes/kubelet"),
            Flavour::Rust => PathBuf::from(env!("CARGO_BIN_EXE_kubelet")),
        }
    }
}

impl runner::Flavour for Flavour {
    const ALL: &'static [Flavour] = &[Flavour::Go, Flavour::Rust];

    fn name(self) -> &'static str {
        match self {
            Flavour::Go => "go-kubelet",
            Flavour::Rust => "rust-kubelet",
        }
    }

    fn make_current(self) {
        CURRENT.set(self);
    }

    /// The cluster's programs; where `CI=true` they have to be there, as any Go builds them. Of another version than
    /// the pinned one (`KUBERNETES_VERSION`) there is the control plane alone.
    fn missing(self) -> Option<Missing> {
        let other_version = std::env::var_os("KUBERNETES_VERSION").is_some();
        let needed: &[&str] = match self {
            Flavour::Rust if other_version => &["--control-plane"],
            Flavour::Go => &["--control-plane", "--kubelet"],
            Flavour::Rust => &["--control-plane", "--kubeadm", "--metrics"],
        };
        scripts::installed("build-kubernetes.sh", needed).err()
    }
}

/// How the kubelet gets its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// The administrator made it.
    Certificate,
    /// The kubelet requests it with a bootstrap token.
    Token,
}

/// A running kubelet. It is killed when dropped.
pub struct Kubelet {
    /// Outside of the namespaces: the kubelet's parent, and the kubelet dies with it.
    nsenter: Child,
    log: PathBuf,
}

impl Kubelet {
    /// Writes its configuration below the cluster's directory and starts it; does not wait for it. A kubelet that
    /// is started again finds what the former one left.
    pub fn start(dir: &Path, runtime: &str, join: Join, flags: &[&str]) -> Kubelet {
        std::fs::create_dir_all(dir.join("manifests")).unwrap();
        let config = dir.join("kubelet.yaml");
        std::fs::write(&config, configuration(dir, runtime)).unwrap();
        let kubeconfig = dir.join("private/kubelet.conf");
        if join == Join::Certificate {
            let made = printed(script("control-plane.sh").arg("kubeconfig").arg(dir).arg(NODE));
            std::fs::write(&kubeconfig, made.expect("the node's kubeconfig")).unwrap();
        }
        let log = dir.join("kubelet.log");
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = beside_control_plane(dir, &Flavour::current().program());
        command.arg("--config").arg(&config);
        command.arg("--kubeconfig").arg(&kubeconfig);
        if join == Join::Token {
            command.arg("--bootstrap-kubeconfig").arg(dir.join("bootstrap.conf"));
        }
        command.args(["--hostname-override", NODE, "--node-ip", ADDRESS]);
        command.args(flags);
        command.stdout(output.try_clone().unwrap()).stderr(output);
        Kubelet { nsenter: command.spawn().expect("start the kubelet"), log }
    }

    /// The kubelet itself, as this process sees it; `None` once it has ended, or before it has begun.
    pub fn pid(&self) -> Option<u32> {
        let pid = self.nsenter.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.ok()?.split_whitespace().next()?.parse().ok()
    }

    /// Kills the kubelet as kill -9 does, and waits for its end.
    pub fn kill(&mut self) {
        self.signal("-9", self.pid());
        // It stops with a kubelet that is paused, and waits for its end only when it runs.
        self.signal("-CONT", Some(self.nsenter.id()));
        self.nsenter.wait().unwrap();
    }

    /// Stops the kubelet in the middle of whatever it does: what changes then was changed by something else.
    pub fn pause(&self) {
        self.signal("-STOP", self.pid());
    }

    /// Lets a paused kubelet go on.
    pub fn resume(&self) {
        self.signal("-CONT", self.pid());
        self.signal("-CONT", Some(self.nsenter.id()));
    }

    fn signal(&self, signal: &str, pid: Option<u32>) {
        let pid = pid.expect("a running kubelet").to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.unwrap().success(), "kill {signal} {pid}");
    }

    pub fn ended(&mut self) -> bool {
        self.nsenter.try_wait().is_ok_and(|status| status.is_some())
    }

    /// The end of its log.
    pub fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines = text.lines().collect::<Vec<_>>();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.nsenter.kill();
        let _ = self.nsenter.wait();
    }
}

/// A command of a program beside the control plane, which is killed when the thread that starts it ends.
pub fn beside_control_plane(dir: &Path, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(script("control-plane.sh").get_program());
    command.arg("exec").arg(dir).arg(program);
    command.env("CARGO_TARGET_DIR", scripts::target());
    command.stdin(Stdio::null());
    command
}

/// As kubeadm configures a kubelet, but for what this machine may lack.
fn configuration(dir: &Path, runtime: &str) -> String {
    let authority = dir.join("pki/ca.crt");
    let manifests = dir.join("manifests");
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {ADDRESS}
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {}}}
authorization: {{mode: Webhook}}
cgroupDriver: cgroupfs
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: {runtime}
staticPodPath: {}
rotateCertificates: true
enableSystemLogQuery: true
failSwapOn: false
failCgroupV1: false
# A machine that is nearly full may not change what a scenario sees.
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: \"0%\", nodefs.available: \"0%\", nodefs.inodesFree: \"0%\", imagefs.available: \"0%\", imagefs.inodesFree: \"0%\"}}
# Outside of containers there are no iptables rules to add.
makeIPTablesUtilChains: false
",
        authority.display(),
        manifests.display()
    )
}
