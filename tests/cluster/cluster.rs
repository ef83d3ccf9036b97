//! A cluster with one node: a control plane, a containerd and the kubelet under test, in namespaces that all end
//! together.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use crate::audit::{self, Request};
use crate::kubelet::{Join, Kubelet};
use crate::support::manifests::Manifests;
use crate::support::scripts::{self, printed, script};

/// The node's name and address.
pub const NODE: &str = "node1";
pub const ADDRESS: &str = "10.88.0.1";

/// Within which everything happens that needs no back-off, also where the machine has much else to do.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// The kubelet is dropped first. Dropping stops all; a scenario fails if something stays.
pub struct Cluster {
    pub kubelet: Kubelet,
    machine: Machine,
}

impl Cluster {
    /// A cluster whose node is Ready.
    pub fn start() -> Cluster {
        Self::start_with(Join::Certificate, std::process::id())
    }

    /// The same with more flags of the kubelet.
    pub fn start_with_flags(flags: &[&str]) -> Cluster {
        Self::start_all(Join::Certificate, std::process::id(), flags)
    }

    /// The same with more flags of the API server, too.
    pub fn start_with_api_server_flags(api_server: &str, flags: &[&str]) -> Cluster {
        let machine = Machine::start(std::process::id(), None, api_server);
        Self::start_on(machine, Join::Certificate, flags)
    }

    /// `owner`: the process with which the cluster ends, also when that is killed.
    pub fn start_with(join: Join, owner: u32) -> Cluster {
        Self::start_all(join, owner, &[])
    }

    /// A cluster on the containerd that `hack/build-containerd.sh` builds.
    pub fn start_on_containerd2() -> Cluster {
        let built = scripts::installed("build-containerd.sh", &[]);
        built.unwrap_or_else(|missing| panic!("{missing:?}"));
        let directory = scripts::target().join("tools/containerd2");
        let machine = Machine::start(std::process::id(), Some(&directory), "");
        Self::start_on(machine, Join::Certificate, &[])
    }

    fn start_all(join: Join, owner: u32, flags: &[&str]) -> Cluster {
        Self::start_on(Machine::start(owner, None, ""), join, flags)
    }

    fn start_on(machine: Machine, join: Join, flags: &[&str]) -> Cluster {
        let kubelet = Kubelet::start(machine.dir.path(), &machine.runtime, join, flags);
        let mut cluster = Cluster { kubelet, machine };
        cluster.wait_registered();
        cluster.wait("condition=Ready", &format!("node/{NODE}"));
        cluster
    }

    /// Kills the kubelet and starts another one.
    pub fn restart_kubelet(&mut self) {
        self.restart_kubelet_with(&[]);
    }

    /// The same with more flags.
    pub fn restart_kubelet_with(&mut self, flags: &[&str]) {
        self.kubelet.kill();
        let (dir, runtime) = (self.machine.dir.path(), &self.machine.runtime);
        self.kubelet = Kubelet::start(dir, runtime, Join::Certificate, flags);
    }

    /// A kubelet that ends is reported at once.
    fn wait_registered(&mut self) {
        let node = format!("node/{NODE}");
        let start = Instant::now();
        let wait = ["wait", "--for=create", &node, "--timeout=1s"];
        while let Err(error) = self.try_kubectl(&wait) {
            assert!(!self.kubelet.ended(), "the kubelet ended");
            assert!(start.elapsed() < DEADLINE, "no node: {error}");
        }
    }

    /// Everything of the cluster is below it.
    pub fn dir(&self) -> &Path {
        self.machine.dir.path()
    }

    /// The node's runtime: `unix://...`, inside.
    pub fn runtime(&self) -> &str {
        &self.machine.runtime
    }

    /// kubectl of a cluster administrator.
    pub fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = self.machine.command("kubectl");
        command.args(args);
        command
    }

    /// What kubectl prints.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        printed(&mut self.kubectl_command(args))
    }

    pub fn kubectl(&self, args: &[&str]) -> String {
        let result = self.try_kubectl(args);
        result.unwrap_or_else(|error| panic!("kubectl {args:?}: {error}"))
    }

    /// One object, or a list of objects, as JSON.
    pub fn get(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "-o", "json"], args].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Creates the objects of a manifest.
    pub fn create(&self, manifest: &str) {
        let mut command = self.machine.command("kubectl");
        command.args(["create", "-f", "-"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(manifest.as_bytes()).unwrap();
        drop(input);
        assert!(child.wait().unwrap().success(), "{manifest}");
    }

    /// Resizes the containers of a pod in place.
    pub fn resize(&self, pod: &str, patch: &str) {
        self.kubectl(&["patch", "pod", pod, "--subresource", "resize", "--patch", patch]);
    }

    /// Starts metrics-server beside the control plane; does not wait for it.
    pub fn start_metrics_server(&self) {
        let started = printed(&mut self.machine.command("metrics"));
        started.unwrap_or_else(|error| panic!("control-plane.sh metrics: {error}"));
    }

    /// Waits for what `kubectl wait --for` can wait for.
    pub fn wait(&self, what: &str, object: &str) {
        let (what, timeout) = (format!("--for={what}"), timeout());
        self.kubectl(&["wait", &what, object, &timeout]);
    }

    /// Waits until all pods of a Deployment are Ready.
    pub fn rolled_out(&self, deployment: &str) {
        let object = format!("deployment/{deployment}");
        self.kubectl(&["rollout", "status", &object, &timeout()]);
    }

    /// A command that runs beside the kubelet.
    pub fn inside_command(&self, command: &[&str]) -> Command {
        let mut inside = self.machine.command("exec");
        inside.args(command);
        inside
    }

    /// What a command prints that runs beside the kubelet.
    pub fn inside(&self, command: &[&str]) -> String {
        let result = printed(&mut self.inside_command(command));
        result.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// The static pods of the node.
    pub fn manifests(&self) -> Manifests {
        Manifests::new(&self.dir().join("manifests"), &self.dir().join("aside"))
    }

    /// What crictl prints of the node's runtime.
    pub fn crictl(&self, args: &[&str]) -> Value {
        let own = scripts::target().join("tools/crictl");
        let program = if own.exists() { own.to_str().unwrap() } else { "crictl" };
        let front = [program, "-r", &self.machine.runtime];
        let text = self.inside(&[&front, args, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Sends a signal to a program of the control plane.
    pub fn signal(&self, signal: &str, component: &str) {
        self.inside(&["pkill", signal, "-x", component]);
    }

    /// Starts etcd or kube-apiserver again, and does not wait for it.
    pub fn start_again(&self, component: &str) {
        let started = printed(self.machine.command("again").arg(component));
        started.unwrap_or_else(|error| panic!("{component}: {error}"));
    }

    /// The requests of the node that arrived at or after `since`, in the order in which they were answered.
    pub fn requests(&self, since: Timestamp) -> Vec<Request> {
        let mut requests = audit::read(&self.dir().join("audit.log"));
        requests.retain(|request| request.received >= since);
        requests
    }
}

fn timeout() -> String {
    format!("--timeout={}s", DEADLINE.as_secs())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for args in [&["get", "nodes,pods", "-A", "-o", "wide"][..], &["events", "-A"]] {
                let shown = self.try_kubectl(args).unwrap_or_else(|error| error);
                eprintln!("---- kubectl {} ----\n{shown}", args.join(" "));
            }
            eprintln!("---- the end of the kubelet's log ----\n{}", self.kubelet.last_lines());
        }
    }
}

/// The namespaces with the control plane and containerd.
struct Machine {
    /// `unix://...`, inside.
    runtime: String,
    dir: tempfile::TempDir,
    api_server_flags: String,
}

impl Machine {
    /// `containerd`: where another one is than the machine's own.
    fn start(owner: u32, containerd: Option<&Path>, api_server_flags: &str) -> Machine {
        let dir = tempfile::Builder::new().prefix("kcluster").tempdir().unwrap();
        let mut machine =
            Machine { runtime: String::new(), dir, api_server_flags: api_server_flags.to_owned() };
        let started = printed(machine.command("start").arg(owner.to_string()));
        started.unwrap_or_else(|error| panic!("control-plane.sh start: {error}"));
        machine.runtime = machine.start_containerd(containerd);
        machine
    }

    /// Its directory goes with the namespaces, as its processes, mounts and network do.
    fn start_containerd(&self, programs: Option<&Path>) -> String {
        let containerd = script("containerd.sh");
        let dir = self.dir.path().join("private/containerd");
        let run = |word: &str| {
            let mut command = self.command("exec");
            if let Some(programs) = programs {
                command.arg("env");
                command.arg(format!("CONTAINERD_DIR={}", programs.display()));
            }
            let printed = printed(command.arg(containerd.get_program()).arg(word).arg(&dir));
            printed.unwrap_or_else(|error| panic!("containerd.sh {word}: {error}"))
        };
        run("start");
        run("endpoint").trim().to_owned()
    }

    /// `hack/control-plane.sh WORD DIR`
    fn command(&self, word: &str) -> Command {
        let mut command = script("control-plane.sh");
        command.arg(word).arg(self.dir.path());
        command.env("KUBE_APISERVER_FLAGS", &self.api_server_flags);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Err(error) = printed(&mut self.command("stop")) else {
            return;
        };
        if std::thread::panicking() {
            eprintln!("control-plane.sh stop: {error}");
        } else {
            panic!("control-plane.sh stop: {error}");
        }
    }
}
