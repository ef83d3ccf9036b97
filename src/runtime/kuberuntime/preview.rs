//! What a pod would be made into, for people who want to see it first. Nothing is made: the runtime
//! is only read, and so are the files.

use super::{
    KubeGenericRuntimeManager,
    actions::PodActions,
    generate::{PreviewRequest, masked::masked, security_context::ImageUser},
    image_volumes::planned_image_volumes,
    translate,
};
use crate::{
    base::{Strings, chain},
    cri::{
        CriError, RuntimeClient,
        v1::{ContainerConfig, ContainerFilter, PodSandboxConfig, PodSandboxFilter},
    },
    images::ReadyImage,
    model::{AddressOrder, Pod, PodExt, PodStatus, PodUid, is_sidecar, keys},
};
use k8s_openapi::api::core::v1::Container;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// What the pod would be made into.
#[derive(Debug)]
pub struct Preview {
    /// What would be done at this moment.
    pub actions: PodActions,
    /// The sandbox's configuration, with remarks, or why there is none.
    pub sandbox: Result<(PodSandboxConfig, Vec<String>), String>,
    /// The containers in the order in which they are started: init containers, then regular ones.
    pub containers: Vec<ContainerPreview>,
}

/// What a container would be made into.
#[derive(Debug)]
pub struct ContainerPreview {
    /// Name.
    pub name: String,
    /// `init`, `sidecar` or `container`.
    pub kind: &'static str,
    /// What there is to say beside the configuration.
    pub remarks: Vec<String>,
    /// The configuration, or why there is none.
    pub config: Result<ContainerConfig, String>,
}

/// What the runtime said of images, by the name that the user wrote.
pub type KnownImages = HashMap<String, ReadyImage>;

impl KubeGenericRuntimeManager {
    /// What the pod would be made into, given what the runtime has of it. Values of variables that come
    /// from elsewhere are placeholders.
    pub async fn preview(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        images: &KnownImages,
    ) -> Preview {
        let actions = self.compute(pod, status);
        let sandbox = self.builder.preview_sandbox(pod, actions.attempt).await;
        let inits = pod.init_containers().iter();
        let inits = inits.map(|container| match is_sidecar(container) {
            true => ("sidecar", container),
            false => ("init", container),
        });
        let regulars = pod.containers().iter().map(|c| ("container", c));
        let mut containers = Vec::new();
        for (kind, container) in inits.chain(regulars) {
            let preview = self.preview_container(pod, status, container, kind, images);
            containers.push(Box::pin(preview).await);
        }
        Preview {
            actions,
            sandbox: sandbox.map_err(|error| chain(error.as_ref())),
            containers,
        }
    }

    async fn preview_container(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        container: &Container,
        kind: &'static str,
        images: &KnownImages,
    ) -> ContainerPreview {
        let (mut shown, mut remarks) = masked(container);
        let written = container.image.as_deref().unwrap_or_default();
        let image = images.get(written);
        let mut pod = pod.clone();
        let user = match image {
            Some(image) => ImageUser::of(image),
            None => {
                // The image's own user is not known, so it is neither shown nor judged.
                let pod = Arc::make_mut(&mut pod);
                let spec = pod.spec.as_mut();
                if let Some(context) = spec.and_then(|spec| spec.security_context.as_mut()) {
                    context.run_as_non_root = None;
                }
                if let Some(context) = shown.security_context.as_mut() {
                    context.run_as_non_root = None;
                }
                remarks.push("the image is not here, so its user is not known".into());
                ImageUser::Name(String::new())
            }
        };
        let name = &container.name;
        let newest = status.newest(name);
        let restart_count = self.next_restart_count(Some(&pod), name, newest).await;
        let unknown = ["<pod IP>".to_string()];
        let pod_ips = match status.ips() {
            [] => &unknown,
            known => known,
        };
        let reference = image.map_or(written, |image| &image.reference);
        let volumes = planned_image_volumes(&pod, container, images);
        let request = PreviewRequest {
            pod: &pod,
            container: &shown,
            restart_count,
            image_ref: reference,
            image_user: &user,
            pod_ips,
            images: &volumes,
        };
        let config = self.builder.preview_container(request);
        ContainerPreview {
            name: container.name.clone(),
            kind,
            remarks,
            config: config.map_err(|error| chain(error.as_ref())),
        }
    }
}

/// What the runtime has of the pods of a name: their present pictures, dead instances included. An
/// object that goes while it is read is left out.
///
/// # Errors
/// The runtime cannot be read.
pub async fn read_pods(
    runtime: &RuntimeClient,
    namespace: &str,
    name: &str,
    order: AddressOrder,
) -> Result<Vec<PodStatus>, CriError> {
    let labels = || {
        let pairs = [(keys::POD_NAME, name), (keys::POD_NAMESPACE, namespace)];
        pairs
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .into()
    };
    let sandboxes = runtime.list_pod_sandboxes(Some(PodSandboxFilter {
        label_selector: labels(),
        ..PodSandboxFilter::default()
    }));
    let containers = runtime.list_containers(Some(ContainerFilter {
        label_selector: labels(),
        ..ContainerFilter::default()
    }));
    let (sandboxes, containers) = (sandboxes.await?, containers.await?);
    let strings = Strings::new();
    let mut pods: BTreeMap<PodUid, PodStatus> = BTreeMap::new();
    let new = |uid: &PodUid| PodStatus {
        uid: uid.clone(),
        name: strings.share(name),
        namespace: strings.share(namespace),
        ..PodStatus::default()
    };
    for sandbox in sandboxes {
        let read = found(runtime.pod_sandbox_status(&sandbox.id, false).await)?;
        let read = read.and_then(|read| translate::sandbox_status(&read.sandbox, &strings, order));
        if let Some(owned) = read {
            let pod = pods.entry(owned.uid.clone());
            let pod = pod.or_insert_with_key(&new);
            pod.sandboxes.push(owned.object);
        }
    }
    for container in containers {
        let sandbox = container.pod_sandbox_id.as_str().into();
        let read = found(runtime.container_status(&container.id).await)?;
        let read = read.and_then(|read| translate::container_status(&read, sandbox, &strings));
        if let Some(owned) = read {
            let pod = pods.entry(owned.uid.clone());
            let pod = pod.or_insert_with_key(&new);
            pod.containers.push(owned.object);
        }
    }
    let mut pods: Vec<PodStatus> = pods.into_values().collect();
    pods.iter_mut().for_each(PodStatus::sort);
    Ok(pods)
}

fn found<T>(read: Result<T, CriError>) -> Result<Option<T>, CriError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
