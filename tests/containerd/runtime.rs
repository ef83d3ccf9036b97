//! A private runtime, started and stopped by a script of `hack`, and crictl to look into it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::flavour::Flavour;
use crate::support::scripts::{run, script, target};

fn crictl_path() -> PathBuf {
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        std::env::split_paths(&path).map(|dir| dir.join("crictl")).collect::<Vec<_>>()
    });
    on_path.into_iter().find(|path| path.exists()).unwrap_or_else(|| target().join("tools/crictl"))
}

/// A running private runtime of the current flavour. Dropping it stops it; if this process dies, it stops by itself.
pub struct Runtime {
    dir: PathBuf,
    endpoint: String,
}

impl Runtime {
    /// `message_limit`: the largest reply in bytes that it sends, if not its own limit.
    pub fn start(dir: &Path, message_limit: Option<usize>) -> Runtime {
        let mut runtime = Runtime { dir: dir.to_owned(), endpoint: String::new() };
        let own_pid = std::process::id().to_string();
        let limit = message_limit.map(|limit| ("MESSAGE_LIMIT", limit.to_string()));
        runtime.command_with("start", &[&own_pid], limit);
        runtime.endpoint = runtime.command("endpoint", &[]).trim().to_owned();
        runtime
    }

    fn command(&self, word: &str, args: &[&str]) -> String {
        self.command_with(word, args, None)
    }

    fn command_with(&self, word: &str, args: &[&str], env: Option<(&str, String)>) -> String {
        let flavour = Flavour::current();
        let mut command = script(flavour.script());
        command.arg(word).arg(&self.dir).args(args);
        command.envs(env).envs(flavour.environment());
        let output = run(&mut command);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Kills the daemon; its containers run on.
    pub fn halt(&self) {
        self.command("halt", &[]);
    }

    /// From now on no container can be started: CRI-O's runc creates them and refuses to start them.
    pub fn break_starts(&self) {
        assert!(Flavour::current().is_crio());
        let runc = self.dir.join("opt/runc");
        let script = std::fs::read_to_string(&runc).unwrap();
        let broken = "#!/bin/bash\nif [[ \" $* \" == *\" start \"* ]]; then echo starts are broken >&2; exit 1; fi\n";
        let script = script.replacen("#!/bin/bash\n", broken, 1);
        let new = self.dir.join("opt/runc.new");
        std::fs::write(&new, script).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&new, executable).unwrap();
        std::fs::rename(new, runc).unwrap();
    }

    /// Starts the daemon again.
    pub fn resume(&self) {
        self.command("resume", &[]);
    }

    /// `unix://...`
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The name that is this runtime's alone, for cgroups: `ktN_SUM` in `unix:///run/ktN_SUM/...`.
    pub fn name(&self) -> &str {
        self.endpoint.split('/').rev().nth(1).unwrap()
    }

    /// Runs ctr on the namespace of Kubernetes.
    fn ctr(&self, args: &[&str]) {
        let socket = self.endpoint.trim_start_matches("unix://");
        let mut command = Command::new("ctr");
        command.args(["-a", socket, "-n", "k8s.io"]).args(args);
        let output = run(command.stdin(Stdio::null()));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctr {args:?}: {errors}");
    }

    /// Gives it the image in an OCI archive, whose name the archive has as well.
    fn import(&self, tar: &Path, name: &str) {
        let tar = tar.to_str().unwrap();
        if Flavour::current().is_crio() {
            self.command("import", &[tar, name]);
        } else {
            self.ctr(&["images", "import", tar]);
        }
    }

    /// Makes an image of one file with so many random bytes; nothing can be run in it.
    pub fn import_filler(&self, name: &str, bytes: u64) {
        let tar = self.dir.join("filler.tar");
        let mut build = script("build-images.sh");
        build.args(["--filler", name, &bytes.to_string()]).arg(&tar);
        let output = run(&mut build);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "build-images.sh: {errors}");
        self.import(&tar, name);
        std::fs::remove_file(&tar).unwrap();
    }

    /// Gives an image that it has another name as well.
    pub fn tag(&self, image: &str, name: &str) {
        if Flavour::current().is_crio() {
            self.command("tag", &[image, name]);
        } else {
            self.ctr(&["images", "tag", image, name]);
        }
    }

    /// Puts an image that it has into a registry on loopback. `login`: `USER:PASSWORD`.
    pub fn push(&self, image: &str, remote: &str, login: Option<&String>) {
        if Flavour::current().is_crio() {
            let login = login.map(String::as_str);
            self.command("push", &[&[image, remote], login.as_slice()].concat());
        } else {
            let login = login.map_or(vec![], |login| vec!["--user", login]);
            let args = [vec!["images", "push", "--plain-http"], login, vec![remote, image]];
            self.ctr(&args.concat());
        }
    }

    /// What crictl prints.
    pub fn try_crictl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(crictl_path());
        command
            .args(["-c", "/dev/null", "-t", "60s", "-r", &self.endpoint])
            .args(args)
            .stdin(Stdio::null());
        let output = run(&mut command);
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("crictl {args:?}: {}", String::from_utf8_lossy(&output.stderr)))
        }
    }

    pub fn crictl(&self, args: &[&str]) -> String {
        self.try_crictl(args).unwrap_or_else(|error| panic!("{error}"))
    }

    fn list(&self, args: &[&str], key: &str) -> Result<Vec<Value>, String> {
        let answer: Value = serde_json::from_str(&self.try_crictl(args)?).unwrap();
        Ok(answer[key].as_array().cloned().unwrap_or_default())
    }

    /// The sandboxes that are up. Dead ones may stay until they are collected.
    pub fn sandboxes(&self) -> Vec<Sandbox> {
        self.try_sandboxes().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_sandboxes(&self) -> Result<Vec<Sandbox>, String> {
        let items = self.list(&["pods", "-o", "json"], "items")?;
        let sandboxes = items.iter().map(Sandbox::read);
        Ok(sandboxes.filter(|sandbox| sandbox.ready).collect())
    }

    /// All containers, dead or alive, the oldest first.
    pub fn containers(&self) -> Vec<Container> {
        self.containers_where(&[]).unwrap_or_else(|error| panic!("{error}"))
    }

    fn containers_where(&self, filter: &[&str]) -> Result<Vec<Container>, String> {
        let mut items = self.list(&[&["ps", "-a", "-o", "json"], filter].concat(), "containers")?;
        let created = |item: &Value| item["createdAt"].as_str()?.parse::<i64>().ok();
        items.sort_by_key(|item| created(item).unwrap_or(0));
        Ok(items.iter().map(Container::read).collect())
    }

    /// The containers that run, the oldest first.
    pub fn running(&self) -> Vec<Container> {
        self.containers().into_iter().filter(|container| container.running).collect()
    }

    /// The containers of one pod (its full name), the oldest first.
    pub fn containers_of(&self, pod: &str) -> Vec<Container> {
        self.try_containers_of(pod).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_containers_of(&self, pod: &str) -> Result<Vec<Container>, String> {
        let label = format!("io.kubernetes.pod.name={pod}");
        self.containers_where(&["--label", &label])
    }

    /// Kills the main process of a container directly, without the runtime, which may be down.
    pub fn kill(&self, process: MainProcess) {
        self.signal("KILL", process);
    }

    pub fn signal(&self, signal: &str, process: MainProcess) {
        let status =
            Command::new("kill").args([&format!("-{signal}"), &process.0.to_string()]).status();
        assert!(status.unwrap().success(), "the process was gone before signal {signal}");
    }

    /// The main process of a container.
    pub fn main_process(&self, id: &str) -> MainProcess {
        let answer: Value =
            serde_json::from_str(&self.crictl(&["inspect", "-o", "json", id])).unwrap();
        let pid = answer["info"]["pid"].as_u64();
        MainProcess(pid.filter(|pid| *pid > 1).unwrap_or_else(|| panic!("{answer}")))
    }

    /// What the runtime says that it can do for pods without a runtime class.
    pub fn features(&self) -> Features {
        let info: Value = serde_json::from_str(&self.crictl(&["info", "-o", "json"])).unwrap();
        let handlers = info["runtimeHandlers"].as_array().cloned();
        let default = handlers
            .unwrap_or_default()
            .into_iter()
            .find(|handler| handler["name"].as_str().unwrap_or_default().is_empty())
            .unwrap_or_default();
        let can = |what: &str| default["features"][what] == true;
        let version = self.crictl(&["version"]);
        let value = |name: &str| {
            let line = version.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        Features {
            recursive_read_only_mounts: can("recursive_read_only_mounts"),
            user_namespaces: can("user_namespaces"),
            supplemental_groups_policy: info["features"]["supplemental_groups_policy"] == true,
            version_1: value("RuntimeName:") == "containerd"
                && value("RuntimeVersion:").trim_start_matches('v').starts_with("1."),
        }
    }

    /// When a container started and ended, from `crictl inspect`.
    pub fn times(&self, id: &str) -> Times {
        let answer: Value =
            serde_json::from_str(&self.crictl(&["inspect", "-o", "json", id])).unwrap();
        let time =
            |key: &str| answer["status"][key].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        Times { started: time("startedAt"), finished: time("finishedAt") }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.endpoint.is_empty() {
            return;
        }
        if std::thread::panicking() {
            for args in [["pods", "-v"], ["ps", "-a"]] {
                eprintln!(
                    "---- crictl {} ----\n{}",
                    args[0],
                    self.try_crictl(&args).unwrap_or_else(|e| e)
                );
            }
        }
        let mut command = script(Flavour::current().script());
        let output = run(command.arg("stop").arg(&self.dir));
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if std::thread::panicking() {
                eprintln!("{text}");
            } else {
                panic!("{command:?}: {text}");
            }
        }
    }
}

/// What a runtime can do.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
    pub supplemental_groups_policy: bool,
    /// It is a containerd older than image volumes and stop signals.
    pub version_1: bool,
}

/// One line of `crictl pods`.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub name: String,
    pub namespace: String,
    pub ready: bool,
}

impl Sandbox {
    fn read(item: &Value) -> Sandbox {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Sandbox {
            name: text(&item["metadata"]["name"]),
            namespace: text(&item["metadata"]["namespace"]),
            ready: item["state"] == "SANDBOX_READY",
        }
    }
}

/// One line of `crictl ps -a`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub name: String,
    pub pod: String,
    pub namespace: String,
    pub attempt: u64,
    pub running: bool,
}

impl Container {
    fn read(item: &Value) -> Container {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Container {
            id: text(&item["id"]),
            name: text(&item["metadata"]["name"]),
            pod: text(&item["labels"]["io.kubernetes.pod.name"]),
            namespace: text(&item["labels"]["io.kubernetes.pod.namespace"]),
            attempt: item["metadata"]["attempt"].as_u64().unwrap_or(0),
            running: item["state"] == "CONTAINER_RUNNING",
        }
    }
}

/// A process on the host.
#[derive(Debug, Clone, Copy)]
pub struct MainProcess(u64);

impl MainProcess {
    /// The shim that the runtime started for its pod.
    pub fn parent(self) -> MainProcess {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        MainProcess(parent.unwrap().trim().parse().unwrap())
    }
}

/// A container's life.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub started: jiff::Timestamp,
    pub finished: jiff::Timestamp,
}
