//! One kubelet on one runtime, and the checks that scenarios make of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::runtime::{Container, Runtime, Sandbox};
use crate::support::http;
use crate::support::kubelet_process::{KubeletProcess, Settings};
use crate::support::wait::{holds, wait_for};

/// Within which anything happens that needs no back-off, also where the machine has much else to do; sooner
/// than a relist would find what was missed.
pub const WAIT_LIMIT: Duration = Duration::from_secs(45);

/// Fields are dropped in this order: the kubelet first, the directory last.
pub struct Node {
    pub kubelet: KubeletProcess,
    pub runtime: Runtime,
    dir: tempfile::TempDir,
}

impl Node {
    pub async fn start() -> Node {
        Self::start_with("").await
    }

    /// `config`: lines for the configuration file.
    pub async fn start_with(config: &str) -> Node {
        Self::build(Self::fresh_dir(), config, &[], None).await
    }

    /// A node whose ConfigMaps and Secrets are files of [`Self::object`].
    pub async fn start_with_objects(config: &str) -> Node {
        let dir = Self::fresh_dir();
        let objects = dir.path().join("objects").display().to_string();
        let args = ["--local-objects-dir".to_owned(), objects];
        Self::start_in(dir, config, &args).await
    }

    /// On a runtime that sends no reply larger than this, in bytes.
    pub async fn start_limited(message_limit: usize) -> Node {
        Self::build(Self::fresh_dir(), "", &[], Some(message_limit)).await
    }

    /// A directory for a node, to prepare something in.
    pub fn fresh_dir() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("kt").tempdir().unwrap()
    }

    /// `args`: more arguments for the kubelet.
    pub async fn start_in(dir: tempfile::TempDir, config: &str, args: &[String]) -> Node {
        Self::build(dir, config, args, None).await
    }

    async fn build(
        dir: tempfile::TempDir,
        config: &str,
        args: &[String],
        message_limit: Option<usize>,
    ) -> Node {
        // The kubelet's directory lies within, so that its mounts go when the runtime is stopped.
        let runtime = Runtime::start(dir.path(), message_limit);
        let mut settings = Settings::new(&dir.path().join("kubelet"), runtime.endpoint());
        std::fs::create_dir_all(&settings.dir).unwrap();
        settings.config = format!("cgroupRoot: /{}\n{config}", runtime.name());
        settings.args = args.to_vec();
        Node { kubelet: KubeletProcess::start(settings).await, runtime, dir }
    }

    /// Everything of the node is below it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The kubelet's root directory.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("kubelet/root")
    }

    /// Writes one entry of an object, such as `secrets/default/db/password`, as a whole.
    pub fn object(&self, path: &str, text: &str) {
        let path = self.dir.path().join("objects").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = self.dir.path().join("object.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// What a command in the one container of that name prints.
    pub fn exec(&self, pod: &str, container: &str, command: &[&str]) -> Result<String, String> {
        let found = self.runtime.containers_of(&format!("{pod}-node1"));
        let running = found.iter().find(|c| c.running && c.name == container);
        let id = running.ok_or_else(|| format!("{container} of {pod} does not run"))?;
        let args = [&["exec", &id.id], command].concat();
        self.runtime.try_crictl(&args)
    }

    /// Waits until some event says this, as it stands in JSON.
    pub async fn says(&self, text: &str) {
        wait_for(&format!("an event says {text}"), WAIT_LIMIT, || async {
            let events = http::get(self.kubelet.read_only_port, "/events").await;
            let events = events.map_err(|error| error.to_string())?.1;
            holds(events.contains(text), events)
        })
        .await;
    }

    /// Mounts and directories that are there for pods, and notes about them.
    pub fn left_of_pods(&self) -> Vec<String> {
        let root = self.kubelet.settings().dir.join("root");
        let pods = root.join("pods");
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let of_pods = |line: &&str| line.contains(&pods.display().to_string());
        let mut left: Vec<String> = table.lines().filter(of_pods).map(str::to_owned).collect();
        for below in ["pods", "journal"] {
            let entries = std::fs::read_dir(root.join(below)).into_iter().flatten();
            left.extend(entries.map(|entry| entry.unwrap().path().display().to_string()));
        }
        left
    }

    /// Waits until nothing of any pod is mounted or on disk.
    pub async fn nothing_left(&self) {
        wait_for("nothing is left of any pod", WAIT_LIMIT, || async {
            let left = self.left_of_pods();
            holds(left.is_empty(), left.join("\n"))
        })
        .await;
    }

    /// A directory on the host that pods may be given.
    pub fn shared(&self) -> PathBuf {
        let path = self.dir.path().join("shared");
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// What a pod wrote into a file of the shared directory; empty when there is none.
    pub fn shared_file(&self, name: &str) -> String {
        std::fs::read_to_string(self.shared().join(name)).unwrap_or_default()
    }

    /// The samples of the kubelet's metrics, by name and labels as they are written.
    pub async fn metrics(&self) -> BTreeMap<String, f64> {
        let (code, text) = http::get(self.kubelet.read_only_port, "/metrics").await.unwrap();
        assert_eq!(code, 200, "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect()
    }

    /// How often the kubelet has made each call of the runtime that has ended.
    pub async fn calls(&self) -> BTreeMap<String, u64> {
        let prefix = "kubelet_runtime_operations_total{operation_type=\"";
        let metrics = self.metrics().await;
        metrics
            .iter()
            .filter_map(|(name, value)| {
                let name = name.strip_prefix(prefix)?.strip_suffix("\"}")?;
                Some((name.to_owned(), *value as u64))
            })
            .collect()
    }

    /// How often it has made one of them.
    pub async fn count(&self, call: &str) -> u64 {
        self.calls().await.get(call).copied().unwrap_or(0)
    }

    /// Puts a manifest under the pod's name.
    pub fn put(&self, name: &str, manifest: &str) {
        self.kubelet.manifests.put(&format!("{name}.yaml"), manifest);
    }

    pub fn remove(&self, name: &str) {
        self.kubelet.manifests.remove(&format!("{name}.yaml"));
    }

    /// Waits until `/pods` shows the pod of namespace `default` as `fact` wants it.
    pub async fn pod_when(&self, name: &str, what: &str, fact: impl Fn(&Pod) -> bool) -> Pod {
        self.pod_within(name, what, WAIT_LIMIT, fact).await
    }

    pub async fn pod_within(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        fact: impl Fn(&Pod) -> bool,
    ) -> Pod {
        let full = format!("{name}-node1");
        let full = full.as_str();
        wait_for(&format!("pod {full} {what}"), deadline, || async {
            match self.kubelet.pod("default", full).await {
                Some(pod) if fact(&pod) => Ok(pod),
                other => Err(format!("{:?}", other.and_then(|pod| pod.status))),
            }
        })
        .await
    }

    pub async fn ready(&self, name: &str) -> Pod {
        self.pod_when(name, "is ready", |pod| condition(pod, "Ready") == Some(true)).await
    }

    /// Waits until the runtime's containers of a pod (without the node suffix) are as `fact` wants.
    pub async fn containers_when(
        &self,
        pod: &str,
        what: &str,
        deadline: Duration,
        fact: impl Fn(&[Container]) -> bool,
    ) -> Vec<Container> {
        wait_for(&format!("containers of {pod}: {what}"), deadline, || async {
            // A call that times out on a busy runtime is repeated.
            let found = self.runtime.try_containers_of(&format!("{pod}-node1"))?;
            if fact(&found) { Ok(found) } else { Err(format!("{found:#?}")) }
        })
        .await
    }

    /// What a command prints that runs in a container of a pod of namespace `default`.
    pub fn try_exec(&self, pod: &str, container: &str, command: &[&str]) -> Result<String, String> {
        let of_pod = self.runtime.containers_of(&format!("{pod}-node1"));
        let found = of_pod
            .iter()
            .rfind(|known| known.name == container && known.running)
            .ok_or_else(|| format!("{container} of {pod} does not run: {of_pod:?}"))?;
        let mut args = vec!["exec", "-s", &found.id];
        args.extend(command);
        // crictl ends both streams with a line break of its own.
        let printed = self.runtime.try_crictl(&args)?;
        Ok(printed.strip_suffix("\n\n").unwrap_or(&printed).to_owned())
    }

    /// What a shell script prints that runs in a container.
    pub fn sh(&self, pod: &str, container: &str, script: &str) -> String {
        self.try_exec(pod, container, &["sh", "-c", script])
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Restarts the kubelet with the same directories.
    pub async fn restart_kubelet(&mut self) {
        self.kubelet.respawn();
        self.kubelet.wait_healthy(WAIT_LIMIT).await;
    }

    /// The events that the kubelet shows, as JSON text.
    pub async fn events(&self) -> String {
        let answer = crate::support::http::get(self.kubelet.read_only_port, "/events").await;
        answer.map(|(_, text)| text).unwrap_or_default()
    }

    /// Waits until an event of this reason has this text in its message.
    pub async fn event(&self, reason: &str, text: &str) {
        wait_for(&format!("an event {reason}: {text}"), WAIT_LIMIT, || async {
            let events: serde_json::Value =
                serde_json::from_str(&self.events().await).unwrap_or_default();
            let items = events["items"].as_array().cloned().unwrap_or_default();
            let hit = items.iter().any(|event| {
                let message = event["message"].as_str().unwrap_or_default();
                event["reason"] == reason && message.contains(text)
            });
            if hit { Ok(()) } else { Err(format!("{items:#?}")) }
        })
        .await;
    }

    /// Waits until nothing of the pod runs any more and `/pods` does not show it. What is dead may stay
    /// in the runtime until it is collected.
    pub async fn gone(&self, name: &str, deadline: Duration) {
        let full = format!("{name}-node1");
        wait_for(&format!("{full} is gone"), deadline, || async {
            let sandboxes = self.runtime.try_sandboxes()?;
            let containers = self.runtime.try_containers_of(&full)?;
            let of_pod = |sandbox: &&Sandbox| sandbox.name == full;
            let left = sandboxes.iter().filter(of_pod).count()
                + containers.iter().filter(|c| c.running).count();
            let shown = self.kubelet.pod("default", &full).await.is_some();
            if left == 0 && !shown {
                Ok(())
            } else {
                Err(format!("{left} things run, in /pods: {shown}"))
            }
        })
        .await;
    }
}

/// A condition of a pod's status.
pub fn condition(pod: &Pod, kind: &str) -> Option<bool> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status == "True")
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The status of a container, whichever list it is in.
pub fn container<'p>(pod: &'p Pod, name: &str) -> Option<&'p ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|container| container.name == name)
}

pub fn restarts(pod: &Pod, name: &str) -> i32 {
    container(pod, name).map_or(-1, |container| container.restart_count)
}

/// A manifest of namespace `default` from the lines of its spec.
pub fn manifest(name: &str, spec: &str) -> String {
    let spec =
        spec.trim_matches('\n').lines().map(|line| format!("  {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n{spec}"
    )
}
