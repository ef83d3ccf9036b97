//! What containers mount.

use super::volumes;
use crate::cri::v1;
use crate::model::PodExt;
use crate::runtime::kuberuntime::fixtures::pod_with;
use crate::runtime::kuberuntime::generate::mounts::{self, ContainerFiles, ImageVolumes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn mounts_of(mount: Value, rro: bool) -> anyhow::Result<Vec<v1::Mount>> {
    let pod = pod_with(json!({"volumeMounts": [mount]}));
    let files = ContainerFiles {
        sub_paths: BTreeMap::from([(0, "/k/bound".into())]),
        ..ContainerFiles::default()
    };
    let container = &pod.containers()[0];
    let (volumes, images) = (volumes(), images());
    mounts::container_mounts(container, &volumes, &images, &files, &environment(), rro)
}

fn environment() -> Vec<(String, String)> {
    vec![("WHO".to_string(), "me".to_string()), ("NOTHING".to_string(), String::new())]
}

fn images() -> ImageVolumes {
    let spec = v1::ImageSpec {
        image: "sha256:1".into(),
        user_specified_image: "data:1".into(),
        ..v1::ImageSpec::default()
    };
    ImageVolumes::from([("data".to_string(), spec)])
}

#[test]
fn mounts_that_make_no_sense_are_refused_with_upstreams_messages() {
    let on = |more: Value| {
        let mut mount = json!({"name": "etc", "mountPath": "/x"});
        mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        mount
    };
    for (mount, rro, refusal) in [
        (
            on(json!({"name": "nope"})),
            true,
            "cannot find volume \"nope\" to mount into container \"c\"",
        ),
        (on(json!({"mountPropagation": "Both"})), true, "invalid MountPropagation mode: \"Both\""),
        (
            on(json!({"recursiveReadOnly": "Enabled"})),
            true,
            "failed to resolve recursive read-only mode: volume \"etc\" requested recursive read-only mode, but it is not read-only",
        ),
        (
            on(
                json!({"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "HostToContainer"}),
            ),
            true,
            "failed to resolve recursive read-only mode: volume \"etc\" requested recursive read-only mode, but it is not compatible with propagation \"HostToContainer\"",
        ),
        (
            on(json!({"recursiveReadOnly": "Enabled", "readOnly": true})),
            false,
            "failed to resolve recursive read-only mode: volume \"etc\" requested recursive read-only mode, but it is not supported by the runtime",
        ),
        (
            on(json!({"recursiveReadOnly": "Maybe", "readOnly": true})),
            true,
            "failed to resolve recursive read-only mode: unknown recursive read-only mode \"Maybe\"",
        ),
    ] {
        assert_eq!(mounts_of(mount, rro).unwrap_err().to_string(), refusal);
    }
    let recursive = |mode: &str, rro| {
        let mount = on(json!({"recursiveReadOnly": mode, "readOnly": true}));
        mounts_of(mount, rro).unwrap()[0].recursive_read_only
    };
    assert!(recursive("Enabled", true));
    assert!(recursive("IfPossible", true));
    assert!(!recursive("IfPossible", false));
    assert!(!recursive("Disabled", true));
}

#[test]
fn sub_paths_are_expanded_checked_and_mounted_from_where_they_were_bound() {
    let request = |mount: Value| {
        let pod = pod_with(json!({"volumeMounts": [mount]}));
        let container = &pod.containers()[0];
        mounts::sub_path_requests(container, &volumes(), &images(), &environment())
    };
    let expr = json!({"name": "scratch", "mountPath": "/x", "subPathExpr": "a/$(WHO)"});
    let requests = request(expr.clone()).unwrap();
    assert_eq!(requests[0].sub_path, "a/me");
    assert_eq!(requests[0].volume_path, Path::new("/k/scratch"));
    assert_eq!(requests[0].spec_name, "scratch");
    assert_eq!(mounts_of(expr, false).unwrap()[0].host_path, "/k/bound");
    assert!(request(json!({"name": "scratch", "mountPath": "/x"})).unwrap().is_empty());
    let nothing = json!({"name": "scratch", "mountPath": "/x", "subPathExpr": "$(NOTHING)"});
    assert!(request(nothing.clone()).unwrap().is_empty());
    assert_eq!(mounts_of(nothing, false).unwrap()[0].host_path, "/k/scratch");
    for (mount, refusal) in [
        (json!({"subPath": "../x"}), "unable to provision SubPath `../x`: must not contain '..'"),
        (json!({"subPath": "/x"}), "error SubPath `/x` must not be an absolute path"),
        (json!({"subPathExpr": "$(NOBODY)"}), "missing value for \"NOBODY\""),
    ] {
        let mut whole = json!({"name": "scratch", "mountPath": "/x"});
        whole.as_object_mut().unwrap().extend(mount.as_object().unwrap().clone());
        assert!(request(whole).unwrap_err().to_string().contains(refusal), "{refusal}");
    }
}

#[test]
fn an_image_is_mounted_by_the_runtime_and_never_writable() {
    let mount = |more: Value| {
        let mut mount = json!({"name": "data", "mountPath": "data"});
        mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        mounts_of(mount, true)
    };
    let plain = mount(json!({})).unwrap().remove(0);
    assert_eq!((plain.container_path.as_str(), plain.host_path.as_str()), ("/data", ""));
    assert_eq!(plain.image, images().remove("data"));
    assert!(plain.readonly && !plain.selinux_relabel && !plain.recursive_read_only);
    assert_eq!(plain.image_sub_path, "");
    let part = mount(
        json!({"subPathExpr": "for/$(WHO)", "readOnly": true, "recursiveReadOnly": "Enabled"}),
    );
    let part = part.unwrap().remove(0);
    assert_eq!(part.image_sub_path, "for/me");
    assert!(part.recursive_read_only);
    assert!(mount(json!({"subPath": "../x"})).is_err());
    let pod =
        pod_with(json!({"volumeMounts": [{"name": "data", "mountPath": "/x", "subPath": "a"}]}));
    let bound =
        mounts::sub_path_requests(&pod.containers()[0], &volumes(), &images(), &environment());
    assert!(bound.unwrap().is_empty(), "the kubelet binds nothing of it");
}

#[test]
fn the_sub_paths_of_a_claim_are_named_after_its_persistent_volume() {
    let mut volumes = volumes();
    let of_claim = crate::volumes::VolumePath {
        persistent_volume: Some("pv-1".into()),
        ..volumes["scratch"].clone()
    };
    volumes.insert("claim".into(), of_claim);
    let mount = json!({"name": "claim", "mountPath": "/x", "subPath": "a"});
    let pod = pod_with(json!({"volumeMounts": [mount]}));
    let container = &pod.containers()[0];
    let requests = mounts::sub_path_requests(container, &volumes, &images(), &environment());
    let requests = requests.unwrap();
    assert_eq!((&*requests[0].volume, &*requests[0].spec_name), ("claim", "pv-1"));
}

#[test]
fn a_container_has_the_devices_that_it_names_and_the_groups_of_all_volumes() {
    let mut volumes = volumes();
    let disk = crate::volumes::VolumePath {
        host_path: "/dev/sdb".into(),
        is_device: true,
        group: Some(1234),
        ..volumes["etc"].clone()
    };
    let read_only =
        crate::volumes::VolumePath { read_only: true, group: Some(4000), ..disk.clone() };
    volumes.insert("disk".into(), disk);
    volumes.insert("archive".into(), read_only);
    let devices = |names: &[&str]| {
        let devices = names.iter();
        let devices =
            devices.map(|name| json!({"name": name, "devicePath": format!("/dev/{name}")}));
        let pod = pod_with(json!({"volumeDevices": devices.collect::<Vec<_>>()}));
        mounts::volume_devices(&pod.containers()[0], &volumes)
    };
    let device = |name: &str, permissions: &str| v1::Device {
        container_path: format!("/dev/{name}"),
        host_path: "/dev/sdb".into(),
        permissions: permissions.into(),
    };
    assert_eq!(
        devices(&["archive", "disk"]).unwrap(),
        [device("archive", "r"), device("disk", "mrw")]
    );
    for name in ["none", "etc"] {
        let error = devices(&[name]).unwrap_err().to_string();
        let expected = format!("cannot find volume {name:?} to pass into container \"c\"");
        assert_eq!(error, expected);
    }
    let mut pod = pod_with(json!({}));
    let groups = |pod: &_| Vec::from_iter(mounts::volume_groups(pod, &volumes));
    assert_eq!(groups(&pod), [1234, 4000]);
    let context = json!({"supplementalGroups": [4000]});
    pod.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
    assert_eq!(groups(&pod), [1234]);
}
