//! Which images are in use. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::cri::v1::{Container, Image};
use crate::images::image_name::ImageName;
use crate::model::{Pod, PodExt};

/// The images of the node under all their names.
pub(super) struct ImageNames<'a> {
    ids: HashMap<&'a str, &'a str>,
}

impl<'a> ImageNames<'a> {
    pub(super) fn of(images: &'a [Image]) -> ImageNames<'a> {
        let mut ids = HashMap::new();
        for image in images {
            let id = image.id.as_str();
            ids.insert(id, id);
            for name in image.repo_tags.iter().chain(&image.repo_digests) {
                ids.insert(name, id);
            }
        }
        ImageNames { ids }
    }

    /// The ID of the image that a reference of the runtime or of a user names; `None` if it is not present.
    pub(super) fn id(&self, reference: &str) -> Option<&'a str> {
        let as_written = self.ids.get(reference);
        let in_full = || {
            let full = ImageName::parse(reference).ok()?.full();
            self.ids.get(full.as_str())
        };
        as_written.or_else(in_full).copied()
    }

    /// The images of all containers, including exited ones and images that are `mounted`, and of all desired pods.
    pub(super) fn in_use(
        &self,
        containers: &[Container],
        mounted: &[Arc<str>],
        pods: &[impl AsRef<Pod>],
    ) -> HashSet<&'a str> {
        let of_containers = containers.iter().flat_map(|container| {
            let spec = container.image.as_ref().map(|spec| spec.image.as_str());
            [container.image_id.as_str(), container.image_ref.as_str()].into_iter().chain(spec)
        });
        let of_pods = pods.iter().flat_map(|pod| references(pod.as_ref()));
        // A tag may have moved since an image was mounted, and a pod may end after it was removed.
        let mounted = mounted.iter().map(|image| &**image);
        of_containers
            .chain(mounted)
            .chain(of_pods)
            .filter(|reference| !reference.is_empty())
            .filter_map(|reference| self.id(reference))
            .collect()
    }
}

/// Images referenced by a pod's init, regular and ephemeral containers and image volumes.
fn references(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.init_containers().iter().chain(pod.containers());
    let containers = containers.filter_map(|container| container.image.as_deref());
    let ephemeral = pod.ephemeral_containers().iter();
    let ephemeral = ephemeral.filter_map(|container| container.image.as_deref());
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volumes = volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    containers.chain(ephemeral).chain(volumes)
}

/// The sandbox (pause) image according to the runtime's configuration in its verbose status. Newer runtimes report it
/// as pinned; for older ones it has to be kept this way.
pub(crate) fn sandbox_image(info: &HashMap<String, String>) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(info.get("config")?).ok()?;
    let image = config.get("sandboxImage")?.as_str()?;
    (!image.is_empty()).then(|| image.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::v1::ImageSpec;

    fn image(id: &str, tags: &[&str], digests: &[&str]) -> Image {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Image {
            id: id.into(),
            repo_tags: owned(tags),
            repo_digests: owned(digests),
            ..Image::default()
        }
    }

    fn images() -> Vec<Image> {
        let sha = "d".repeat(64);
        vec![
            image("sha256:a", &["docker.io/library/busybox:latest"], &[]),
            image("sha256:b", &["r.io/b:1", "r.io/b:2"], &[&format!("r.io/b@sha256:{sha}")]),
            image("sha256:c", &[], &[]),
        ]
    }

    fn used(containers: &[Container], pods: &[Arc<Pod>]) -> Vec<String> {
        let images = images();
        let names = ImageNames::of(&images);
        let mut ids: Vec<_> =
            names.in_use(containers, &[], pods).into_iter().map(str::to_owned).collect();
        ids.sort();
        ids
    }

    #[test]
    fn a_container_uses_the_image_that_any_of_its_references_names() {
        let by_id = Container {
            image_id: "sha256:c".into(),
            image_ref: "r.io/gone@sha256:00".into(),
            ..Container::default()
        };
        let by_ref = Container { image_ref: "sha256:a".into(), ..Container::default() };
        let by_spec = Container {
            image: Some(ImageSpec { image: "r.io/b:2".into(), ..ImageSpec::default() }),
            ..Container::default()
        };
        assert_eq!(used(&[by_id], &[]), ["sha256:c"]);
        assert_eq!(used(&[by_ref], &[]), ["sha256:a"]);
        assert_eq!(used(&[by_spec], &[]), ["sha256:b"]);
        assert!(used(&[Container::default()], &[]).is_empty());
    }

    #[test]
    fn an_image_that_is_mounted_is_in_use() {
        let images = images();
        let pods: &[Arc<Pod>] = &[];
        let mounted = ["sha256:c".into(), "sha256:gone".into()];
        let used = ImageNames::of(&images).in_use(&[], &mounted, pods);
        assert_eq!(used, HashSet::from(["sha256:c"]));
    }

    #[test]
    fn a_pod_that_is_wanted_uses_all_that_it_names_though_nothing_of_it_runs() {
        let pod = |spec: &str| -> Arc<Pod> {
            let text = format!(r#"{{"metadata": {{"name": "p"}}, "spec": {spec}}}"#);
            Arc::new(serde_json::from_str(&text).unwrap())
        };
        let digest = format!("r.io/b@sha256:{}", "d".repeat(64));
        let table = [
            (r#"{"containers": [{"name": "c", "image": "busybox"}]}"#.to_owned(), "sha256:a"),
            (
                r#"{"containers": [], "initContainers": [{"name": "c", "image": "r.io/b:1"}]}"#.to_owned(),
                "sha256:b",
            ),
            (
                format!(r#"{{"containers": [], "ephemeralContainers": [{{"name": "c", "image": "{digest}"}}]}}"#),
                "sha256:b",
            ),
            (
                r#"{"containers": [], "volumes": [{"name": "v", "image": {"reference": "r.io/b:2"}}]}"#.to_owned(),
                "sha256:b",
            ),
        ];
        for (spec, expected) in table {
            assert_eq!(used(&[], &[pod(&spec)]), [expected], "{spec}");
        }
        let other = r#"{"containers": [{"name": "c", "image": "r.io/b:3"}, {"name": "d"}]}"#;
        assert!(used(&[], &[pod(other)]).is_empty());
    }

    #[test]
    fn the_sandbox_image_is_in_the_runtimes_own_configuration() {
        let info = |config: &str| HashMap::from([("config".to_owned(), config.to_owned())]);
        let image = sandbox_image(&info(r#"{"containerd": {}, "sandboxImage": "k8s.io/pause:3"}"#));
        assert_eq!(image.as_deref(), Some("k8s.io/pause:3"));
        for other in ["{}", "no json", r#"{"sandboxImage": 3}"#, r#"{"sandboxImage": ""}"#] {
            assert_eq!(sandbox_image(&info(other)), None);
        }
        assert_eq!(sandbox_image(&HashMap::new()), None);
    }
}
