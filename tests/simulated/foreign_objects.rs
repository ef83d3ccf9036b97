//! Sandboxes and containers that other clients created.

use std::collections::HashMap;

use hyper_util::rt::TokioIo;
use kubelet::cri::v1;
use kubelet::cri::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::pods::IMAGE;
use crate::support::fake_runtime::FakeRuntime;

/// Another client of the runtime.
pub(crate) struct Planter(RuntimeServiceClient<Channel>);

/// What to plant.
#[derive(Clone, Default)]
pub(crate) struct Plant {
    pub(crate) name: String,
    /// Labels that a kubelet writes; without them it belongs to another client.
    pub(crate) labelled: bool,
    pub(crate) sandbox_annotations: HashMap<String, String>,
    pub(crate) container_annotations: HashMap<String, String>,
    /// Number of its sandbox.
    pub(crate) attempt: u32,
    /// `uid-of-` and its name without one.
    uid: Option<String>,
}

impl Plant {
    /// A pod that looks as if a kubelet made it.
    pub(crate) fn of_a_kubelet(name: &str) -> Plant {
        Plant { name: name.to_owned(), labelled: true, ..Plant::default() }
    }

    /// A pod of another client.
    pub(crate) fn of_a_stranger(name: &str) -> Plant {
        Plant { labelled: false, ..Self::of_a_kubelet(name) }
    }

    pub(crate) fn made_for_a_file(self) -> Plant {
        self.made_for("file")
    }

    /// A pod of this kind of source.
    pub(crate) fn made_for(mut self, value: &str) -> Plant {
        let key = "kubernetes.io/config.source";
        self.sandbox_annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn noting(mut self, key: &str, value: &str) -> Plant {
        self.container_annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Another pod of the same name.
    pub(crate) fn uid(self, uid: &str) -> Plant {
        let uid = Some(uid.to_owned());
        Plant { uid, ..self }
    }

    fn own_uid(&self) -> String {
        let of_name = || format!("uid-of-{}", self.name);
        self.uid.clone().unwrap_or_else(of_name)
    }

    /// The same pod with another sandbox.
    pub(crate) fn attempt(self, attempt: u32) -> Plant {
        Plant { attempt, ..self }
    }

    fn labels(&self) -> HashMap<String, String> {
        if !self.labelled {
            return HashMap::new();
        }
        let uid = self.own_uid();
        let pairs = [
            ("io.kubernetes.pod.uid", uid.as_str()),
            ("io.kubernetes.pod.name", &self.name),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.container.name", "main"),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }
}

impl Planter {
    pub(crate) async fn new(fake: &FakeRuntime) -> Planter {
        let socket = fake.socket().to_owned();
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://fake")
            .connect_with_connector(connect)
            .await
            .expect("the fake listens");
        Planter(RuntimeServiceClient::new(channel))
    }

    /// Removes a container.
    pub(crate) async fn remove(&mut self, id: &str) {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.0.remove_container(request).await.expect("it is gone");
    }

    /// Removes a sandbox with all that is in it.
    pub(crate) async fn remove_sandbox(&mut self, id: &str) {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.0.remove_pod_sandbox(request).await.expect("it is gone");
    }

    /// Makes a sandbox without containers.
    pub(crate) async fn sandbox(&mut self, plant: &Plant) -> (String, v1::PodSandboxConfig) {
        let mut labels = plant.labels();
        labels.remove("io.kubernetes.container.name");
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: plant.name.clone(),
                uid: plant.own_uid(),
                namespace: "default".to_owned(),
                attempt: plant.attempt,
            }),
            labels,
            annotations: plant.sandbox_annotations.clone(),
            ..Default::default()
        };
        let request = v1::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        };
        let reply = self.0.run_pod_sandbox(request).await.expect("a sandbox");
        (reply.into_inner().pod_sandbox_id, config)
    }

    /// Makes a pod with the running container `main`; returns the container's id.
    pub(crate) async fn pod(&mut self, plant: &Plant) -> String {
        let (sandbox, sandbox_config) = self.sandbox(plant).await;
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: "main".to_owned(),
                attempt: plant.attempt,
            }),
            image: Some(v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() }),
            labels: plant.labels(),
            annotations: plant.container_annotations.clone(),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox,
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let created = self.0.create_container(request).await.expect("a container");
        let id = created.into_inner().container_id;
        let request = v1::StartContainerRequest { container_id: id.clone() };
        self.0.start_container(request).await.expect("it starts");
        id
    }
}
