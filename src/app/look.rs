//! The parts that are needed to look, with nothing running and nothing changed.

use super::build::{self, Shared, Stores};
use crate::{
    apiserver::configmap_secret::Objects,
    config::KubeletConfig,
    cri::{CriError, ImageClient, RuntimeClient, RuntimeFeatures, features_store, v1},
    host::Machine,
    images::{ImageName, ReadyImage},
    model::{AddressOrder, Pod, PodExt, PodStatus},
    pods::sync_loop::admission::{self, NodeView, sysctls::Allowlist},
    runtime::kuberuntime::{
        KubeGenericRuntimeManager,
        preview::{KnownImages, Preview, read_pods},
    },
    state::pod_state_store::PodStateStore,
    state::probe_results::{self, ProbeResultsWriter},
    volumes::{HostMounter, VolumeManager},
};
use std::{sync::Arc, time::Duration};

/// How long the runtime may take to answer that it is there.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the runtime is and can.
#[derive(Clone, Debug, Default)]
pub struct RuntimeReport {
    /// Name and version; empty when it was not asked.
    pub name: String,
    /// What pods may ask of it.
    pub features: RuntimeFeatures,
}

/// A node to look at.
pub struct Look {
    manager: KubeGenericRuntimeManager,
    runtime: RuntimeClient,
    images: ImageClient,
    state_store: PodStateStore,
    results: ProbeResultsWriter,
    sysctls: Allowlist,
    app_armor: bool,
    features: RuntimeFeatures,
    address_order: AddressOrder,
}

/// The clients of a configuration's runtime.
pub struct Runtime {
    stores: Stores,
}

impl Runtime {
    /// Nothing is asked yet. Blocking.
    ///
    /// # Errors
    /// The configuration, or what is on disk, cannot be used.
    pub fn of(config: &KubeletConfig) -> anyhow::Result<Self> {
        let stores = Stores::look(config, Machine::read()?)?;
        Ok(Self { stores })
    }

    /// Asks what the runtime is and can.
    ///
    /// # Errors
    /// It does not answer, or not as it should.
    pub async fn ask(&self) -> anyhow::Result<RuntimeReport> {
        let asked = async {
            let runtime = &self.stores.runtime;
            Ok::<_, CriError>((runtime.version().await?, runtime.status(false).await?))
        };
        let (version, status) = tokio::time::timeout(TIMEOUT, asked).await??;
        Ok(RuntimeReport {
            name: format!("{} {}", version.runtime_name, version.runtime_version),
            features: RuntimeFeatures::of(&status),
        })
    }

    /// Builds what is looked with.
    ///
    /// # Errors
    /// The configuration, or what is on disk, cannot be used.
    pub async fn look(self, config: &KubeletConfig, word: &RuntimeReport) -> anyhow::Result<Look> {
        let stores = self.stores;
        let node = Arc::new(build::node_facts(config, &stores.machine)?);
        let user_namespaces = build::user_namespaces(config, &stores.root).await?;
        let objects = Objects::new(config.local_objects_dir.clone());
        let volumes = VolumeManager::new(stores.root.clone(), node.clone(), objects, HostMounter);
        let (results, probe_results) = probe_results::probe_results();
        let (_, features) = features_store(word.features);
        let sysctls = Allowlist::new(
            &stores.machine.kernel_release,
            &config.containers.allowed_unsafe_sysctls,
        )?;
        let shared = Shared {
            node,
            volumes,
            results: probe_results,
            features,
            user_namespaces,
        };
        Ok(Look {
            manager: build::runtime_manager(config, &stores, shared),
            runtime: stores.runtime,
            images: stores.images,
            state_store: stores.state_store,
            results,
            sysctls,
            app_armor: stores.machine.app_armor,
            features: word.features,
            address_order: AddressOrder::of_node(&config.node_ips),
        })
    }
}

impl Look {
    /// The manager, for questions about back-offs.
    pub fn manager(&self) -> &KubeGenericRuntimeManager {
        &self.manager
    }

    /// Why this node would refuse the pod, if it would.
    pub fn refusal(&self, pod: &Pod) -> Option<String> {
        let node = NodeView {
            sysctls: &self.sysctls,
            app_armor: self.app_armor,
            features: self.features,
        };
        let refused = admission::admit(pod, &node).err()?;
        Some(format!("{}: {}", refused.reason, refused.message))
    }

    /// What the runtime has of the pods of this name.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn pods(&self, pod: &Pod) -> Result<Vec<PodStatus>, CriError> {
        read_pods(
            &self.runtime,
            pod.namespace(),
            pod.name(),
            self.address_order,
        )
        .await
    }

    /// Those of the images that are here.
    ///
    /// # Errors
    /// The runtime cannot say.
    pub async fn images(&self, written: &[&str]) -> Result<KnownImages, CriError> {
        let mut known = KnownImages::new();
        for name in written {
            let Ok(image) = ImageName::with_default_tag(name) else {
                continue;
            };
            let spec = v1::ImageSpec {
                image,
                ..v1::ImageSpec::default()
            };
            if let Some(found) = self.images.image_status(spec).await? {
                known.insert((*name).to_string(), ReadyImage::of_status(&found));
            }
        }
        Ok(known)
    }

    /// What the pod would be made into, given what the runtime has of it.
    pub async fn preview(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        images: &KnownImages,
    ) -> Preview {
        let uid = pod.uid();
        self.results.restore(&uid, &self.state_store.get(&uid));
        self.manager.preview(pod, status, images).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostFacts, Invocation, parse_args, resolve};
    use std::{fs, path::Path};

    /// All that is below a directory.
    fn tree(dir: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            found.push(path.display().to_string());
            if path.is_dir() {
                found.extend(tree(&path));
            }
        }
        found.sort();
        found
    }

    #[tokio::test]
    async fn who_looks_makes_nothing_and_takes_nothing_away() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let args = ["--root-dir".into(), root.clone().into_os_string()];
        let Ok(Invocation::Run(flags)) = parse_args(args) else {
            panic!("the command line is not accepted");
        };
        let facts = HostFacts {
            hostname: "n".into(),
        };
        let config = resolve(&flags, Vec::new(), &facts).unwrap();
        Runtime::of(&config).unwrap();
        assert!(tree(dir.path()).is_empty(), "{:?}", tree(dir.path()));
        // What a kubelet that runs there is writing at this moment.
        for place in ["image_manager/pulling", "image_manager/pulled", "journal"] {
            let place = root.join(place);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(".sha256-0.1-2.tmp"), "half").unwrap();
        }
        let before = tree(dir.path());
        Runtime::of(&config).unwrap();
        assert_eq!(tree(dir.path()), before);
    }
}
