//! One kubelet on one containerd, and the questions that scenarios ask about them.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::runtime::{Container, Containerd};
use crate::support::kubelet_process::{KubeletProcess, Settings};
use crate::support::wait::wait_for;

/// Within which anything happens that needs no back-off.
pub const SOON: Duration = Duration::from_secs(30);

/// Fields are dropped in this order: the kubelet first, the directory last.
pub struct Node {
    pub kubelet: KubeletProcess,
    pub runtime: Containerd,
    dir: tempfile::TempDir,
}

impl Node {
    pub async fn start() -> Node {
        Self::start_with("").await
    }

    /// `config`: lines for the configuration file.
    pub async fn start_with(config: &str) -> Node {
        let dir = tempfile::Builder::new().prefix("kt").tempdir().unwrap();
        // The kubelet's directory lies within, so that its mounts go when containerd is stopped.
        let runtime = Containerd::start(dir.path());
        let mut settings = Settings::new(&dir.path().join("kubelet"), runtime.endpoint());
        std::fs::create_dir_all(&settings.dir).unwrap();
        settings.config = format!("cgroupRoot: /{}\n{config}", runtime.name());
        Node {
            kubelet: KubeletProcess::start(settings).await,
            runtime,
            dir,
        }
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

    /// Puts a manifest under the pod's name.
    pub fn put(&self, name: &str, manifest: &str) {
        self.kubelet
            .manifests
            .put(&format!("{name}.yaml"), manifest);
    }

    pub fn remove(&self, name: &str) {
        self.kubelet.manifests.remove(&format!("{name}.yaml"));
    }

    /// Waits until `/pods` shows the pod of namespace `default` as `fact` wants it.
    pub async fn pod_when(&self, name: &str, what: &str, fact: impl Fn(&Pod) -> bool) -> Pod {
        self.pod_within(name, what, SOON, fact).await
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
        self.pod_when(name, "is ready", |pod| {
            condition(pod, "Ready") == Some(true)
        })
        .await
    }

    /// Waits until the runtime's containers of a pod (without the node suffix) are as `fact` wants.
    pub async fn containers_when(
        &self,
        pod: &str,
        what: &str,
        deadline: Duration,
        fact: impl Fn(&[Container]) -> bool,
    ) -> Vec<Container> {
        wait_for(
            &format!("containers of {pod}: {what}"),
            deadline,
            || async {
                let found = self.runtime.containers_of(&format!("{pod}-node1"));
                if fact(&found) {
                    Ok(found)
                } else {
                    Err(format!("{found:#?}"))
                }
            },
        )
        .await
    }

    /// Waits until nothing of the pod runs any more and `/pods` does not show it. What is dead may stay
    /// in the runtime until it is collected.
    pub async fn gone(&self, name: &str, deadline: Duration) {
        let full = format!("{name}-node1");
        wait_for(&format!("{full} is gone"), deadline, || async {
            let sandboxes = self.runtime.sandboxes();
            let left = sandboxes
                .iter()
                .filter(|sandbox| sandbox.name == full)
                .count()
                + self
                    .runtime
                    .running()
                    .iter()
                    .filter(|container| container.pod == full)
                    .count();
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
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// The status of a container, whichever list it is in.
pub fn container<'p>(pod: &'p Pod, name: &str) -> Option<&'p ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists
        .into_iter()
        .flatten()
        .flatten()
        .find(|container| container.name == name)
}

pub fn restarts(pod: &Pod, name: &str) -> i32 {
    container(pod, name).map_or(-1, |container| container.restart_count)
}

/// A manifest of namespace `default` from the lines of its spec.
pub fn manifest(name: &str, spec: &str) -> String {
    let spec = spec
        .trim_matches('\n')
        .lines()
        .map(|line| format!("  {line}\n"))
        .collect::<String>();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n{spec}"
    )
}
