use super::*;

fn read(paths: &VolumePaths, volume: &str, file: &str) -> String {
    fs::read_to_string(paths[volume].host_path.join(file)).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(".."))
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn config_maps_are_on_disk_and_secrets_in_memory_in_upstreams_places() {
    let node = node();
    node.put("configmaps/ns/app/key", "map");
    node.put("secrets/ns/db/password", "hush");
    let pod = pod(json!([
        {"name": "m", "configMap": {"name": "app", "defaultMode": 0o640}},
        {"name": "s", "secret": {"secretName": "db", "defaultMode": 0o400}},
    ]));
    let paths = node.prepare(&pod).await.unwrap();
    let volumes = node.base.join("kubelet/pods/u1/volumes");
    let (map, secret) = (&paths["m"], &paths["s"]);
    assert_eq!(map.host_path, volumes.join("kubernetes.io~configmap/m"));
    assert_eq!(secret.host_path, volumes.join("kubernetes.io~secret/s"));
    assert!(map.managed && map.read_only && secret.read_only);
    assert_eq!(read(&paths, "m", "key"), "map");
    assert_eq!(read(&paths, "s", "password"), "hush");
    assert_eq!(mode(&map.host_path), 0o777);
    assert_eq!(mode(&map.host_path.join("key")), 0o640);
    assert_eq!(mode(&secret.host_path.join("password")), 0o400);
    let mounted = node.mounter.0.lock().tmpfs.clone();
    assert_eq!(mounted, [(secret.host_path.clone(), 1 << 30)]);
}

#[tokio::test]
async fn items_choose_name_and_mode_and_the_pods_group_may_read() {
    let node = node();
    node.put("configmaps/ns/app/a", "1");
    node.put("configmaps/ns/app/b", "2");
    let mut pod = pod(json!([{"name": "m", "configMap": {"name": "app", "items": [
        {"key": "b", "path": "deep/er", "mode": 0o400},
    ]}}]));
    let group = rustix::process::getgid().as_raw();
    pod.spec.as_mut().unwrap().security_context =
        serde_json::from_value(json!({"fsGroup": group})).unwrap();
    let paths = node.prepare(&pod).await.unwrap();
    let volume = &paths["m"].host_path;
    assert_eq!(names(volume), ["deep"]);
    assert_eq!(read(&paths, "m", "deep/er"), "2");
    assert_eq!(mode(&volume.join("deep/er")), 0o440);
    assert_eq!(mode(&volume.join("deep")), 0o2755);
    assert_eq!(mode(volume), 0o2777);
    assert_eq!(fs::metadata(volume.join("deep/er")).unwrap().gid(), group);
}

#[tokio::test]
async fn what_is_missing_is_an_error_in_upstreams_words_unless_it_is_optional() {
    let node = node();
    node.put("configmaps/ns/app/a", "1");
    node.put("secrets/ns/db/a", "1");
    let key = json!([{"key": "zz", "path": "p"}]);
    for (source, text) in [
        (json!({"configMap": {"name": "none"}}), "configmap \"none\" not found"),
        (json!({"secret": {"secretName": "none"}}), "secret \"none\" not found"),
        (
            json!({"configMap": {"name": "app", "items": key}}),
            "configmap references non-existent config key: zz",
        ),
        (
            json!({"secret": {"secretName": "db", "items": key}}),
            "references non-existent secret key: zz",
        ),
        (
            json!({"projected": {"sources": [
                {"secret": {"name": "none"}},
                {"downwardAPI": {"items": []}},
                {"configMap": {"name": "app", "items": key}},
            ]}}),
            "[secret \"none\" not found, configmap references non-existent config key: zz]",
        ),
        (
            json!({"secret": {"secretName": "db", "items": [{"key": "a", "path": "../a"}]}}),
            "invalid path: must not contain '..': ../a",
        ),
    ] {
        let mut volume = source.clone();
        volume["name"] = "v".into();
        let error = node.prepare(&pod(json!([volume]))).await.unwrap_err();
        let expected = format!("MountVolume.SetUp failed for volume \"v\" : {text}");
        assert_eq!(error_chain(&error), expected);
        for kind in ["configMap", "secret"] {
            if volume[kind].is_object() {
                volume[kind]["optional"] = true.into();
            }
        }
        if text.starts_with('[') || text.starts_with("invalid") {
            continue;
        }
        let paths = node.prepare(&pod(json!([volume]))).await.unwrap();
        assert_eq!(names(&paths["v"].host_path), [""; 0], "{source}");
    }
}

#[tokio::test]
async fn without_local_objects_the_text_is_that_of_a_kubelet_without_an_api_server() {
    let node = node();
    let root = KubeletRoot::create(&node.base.join("kubelet")).unwrap();
    let facts = Arc::new(NodeFacts::default());
    let manager = VolumeManager::new(
        root,
        facts,
        ConfigMapSecretReader::default(),
        ClusterSources::default(),
        None,
        node.mounter.clone(),
    );
    let pod = pod(json!([{"name": "v", "secret": {"secretName": "db", "optional": true}}]));
    let error = error_chain(&manager.prepare(&pod, &never()).await.unwrap_err());
    assert!(error.ends_with("couldn't get secret ns/db, no kubeClient defined"), "{error}");
}

fn downward(labels: Value) -> Pod {
    let mut pod = pod(json!([{"name": "d", "downwardAPI": {"defaultMode": 0o644, "items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "one/label", "fieldRef": {"fieldPath": "metadata.labels['app']"}},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o400},
        {"path": "cpu", "resourceFieldRef": {
            "containerName": "c", "resource": "limits.cpu", "divisor": "1m"}},
        {"path": "memory", "resourceFieldRef": {
            "containerName": "c", "resource": "requests.memory", "divisor": "1Mi"}},
    ]}}]));
    pod.metadata.labels = serde_json::from_value(labels).unwrap();
    pod.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(json!({"requests": {"memory": "64Mi"}})).unwrap();
    pod
}

#[tokio::test]
async fn a_downward_volume_says_what_the_pod_is_and_follows_its_labels() {
    let node = node();
    let pod = downward(json!({"app": "web", "tier": "a\"b"}));
    let paths = node.prepare(&pod).await.unwrap();
    let place = "kubelet/pods/u1/volumes/kubernetes.io~downward-api/d";
    assert_eq!(paths["d"].host_path, node.base.join(place));
    for (file, text) in [
        ("labels", "app=\"web\"\ntier=\"a\\\"b\""),
        ("one/label", "web"),
        ("name", "p"),
        ("cpu", "4000"),
        ("memory", "64"),
    ] {
        assert_eq!(read(&paths, "d", file), text, "{file}");
    }
    assert_eq!(mode(&paths["d"].host_path.join("name")), 0o400);
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 1);
    let before = fs::read_link(paths["d"].host_path.join("..data")).unwrap();
    node.prepare(&pod).await.unwrap();
    let link = || fs::read_link(paths["d"].host_path.join("..data")).unwrap();
    assert_eq!(link(), before, "nothing changed, nothing is written");
    node.prepare(&downward(json!({"app": "other"}))).await.unwrap();
    assert_eq!(read(&paths, "d", "labels"), "app=\"other\"");
    assert_eq!(read(&paths, "d", "one/label"), "other");
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 1);
}

#[tokio::test]
async fn a_field_that_no_volume_can_show_is_named() {
    let node = node();
    for (item, text) in [
        (
            json!({"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}),
            "unsupported fieldPath: status.podIP",
        ),
        (
            json!({"path": "x", "resourceFieldRef": {"containerName": "zz", "resource": "limits.cpu"}}),
            "container zz not found",
        ),
        (
            json!({"path": "/x", "fieldRef": {"fieldPath": "metadata.name"}}),
            "invalid path: must be relative path: /x",
        ),
    ] {
        let pod = pod(json!([{"name": "d", "downwardAPI": {"items": [item]}}]));
        let error = error_chain(&node.prepare(&pod).await.unwrap_err());
        assert!(error.ends_with(text), "{error}");
    }
}

#[tokio::test]
async fn a_projected_volume_joins_its_sources_and_later_ones_win() {
    let node = node();
    node.put("configmaps/ns/app/a", "map");
    node.put("configmaps/ns/app/b", "map");
    node.put("secrets/ns/db/b", "secret");
    let pod = pod(json!([{"name": "v", "projected": {"defaultMode": 0o600, "sources": [
        {"configMap": {"name": "app"}},
        {"secret": {"name": "db"}},
        {"downwardAPI": {"items": [
            {"path": "pod/uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
        {"secret": {"name": "none", "optional": true}},
    ]}}]));
    let paths = node.prepare(&pod).await.unwrap();
    let place = "kubelet/pods/u1/volumes/kubernetes.io~projected/v";
    assert_eq!(paths["v"].host_path, node.base.join(place));
    assert_eq!(read(&paths, "v", "a"), "map");
    assert_eq!(read(&paths, "v", "b"), "secret");
    assert_eq!(read(&paths, "v", "pod/uid"), "u1");
    assert_eq!(mode(&paths["v"].host_path.join("a")), 0o600);
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 1);
}

#[tokio::test]
async fn a_volume_follows_its_object_and_keeps_what_it_shows_while_that_is_away() {
    let node = node();
    node.put("secrets/ns/db/a", "1");
    node.put("secrets/ns/db/b", "1");
    let pod = pod(json!([{"name": "s", "secret": {"secretName": "db"}}]));
    let paths = node.prepare(&pod).await.unwrap();
    let link = || fs::read_link(paths["s"].host_path.join("..data")).unwrap();
    let first = link();
    node.prepare(&pod).await.unwrap();
    assert_eq!(link(), first, "nothing changed, nothing is written");
    node.put("secrets/ns/db/a", "2");
    fs::remove_file(node.base.join("objects/secrets/ns/db/b")).unwrap();
    node.prepare(&pod).await.unwrap();
    assert_eq!(names(&paths["s"].host_path), ["a"]);
    assert_eq!(read(&paths, "s", "a"), "2");
    assert_eq!(node.mounter.0.lock().tmpfs.len(), 1);

    fs::remove_dir_all(node.base.join("objects")).unwrap();
    // The same kubelet, and one that was restarted.
    for manager in [node.manager.clone(), manager(&node.base, &node.mounter)] {
        let prepared = manager.prepare(&pod, &never()).await.unwrap();
        assert_eq!(prepared.paths, paths);
        assert_eq!(
            error_chain(&prepared.update_errors[0]),
            "MountVolume.SetUp failed for volume \"s\" : secret \"db\" not found"
        );
        assert_eq!(read(&paths, "s", "a"), "2");
    }
    // Another specification needs another volume.
    let other = json!([{"name": "s", "secret": {"secretName": "other"}}]);
    let error = manager(&node.base, &node.mounter).prepare(&super::pod(other), &never()).await;
    assert!(error_chain(&error.unwrap_err()).ends_with("secret \"other\" not found"));
    node.put("secrets/ns/db/a", "3");
    node.prepare(&pod).await.unwrap();
    assert_eq!(read(&paths, "s", "a"), "3");
}

#[tokio::test]
async fn a_volume_is_kept_when_the_pod_changes_while_its_object_is_away() {
    let node = node();
    node.put("secrets/ns/db/a", "1");
    let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
    let mut pod = pod(json!([{"name": "v", "projected": {"sources": [
        {"secret": {"name": "db"}},
        {"downwardAPI": {"items": [labels]}},
    ]}}]));
    let paths = node.prepare(&pod).await.unwrap();
    fs::remove_dir_all(node.base.join("objects")).unwrap();
    pod.metadata.labels = Some([("tier".to_owned(), "web".to_owned())].into());
    let limits = json!({"limits": {"memory": "64Mi"}});
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.resources = serde_json::from_value(limits).unwrap();
    // The same kubelet, and one that was restarted.
    for manager in [node.manager.clone(), manager(&node.base, &node.mounter)] {
        let prepared = manager.prepare(&pod, &never()).await.unwrap();
        assert_eq!(prepared.paths, paths);
        assert_eq!(prepared.update_errors.len(), 1, "{:?}", prepared.update_errors);
        assert_eq!(read(&paths, "v", "a"), "1");
    }
}

#[tokio::test]
async fn an_immutable_object_is_what_it_was_when_the_pod_came_also_for_the_next_kubelet() {
    let node = node();
    node.put("secrets/ns/db/a", "1");
    node.put("configmaps/ns/app/b", "1");
    let pod = pod(json!([
        {"name": "s", "secret": {"secretName": "db"}},
        {"name": "v", "projected": {"sources": [{"secret": {"name": "db"}}, {"configMap": {"name": "app"}}]}},
    ]));
    let paths = node.prepare(&pod).await.unwrap();
    let shown = || {
        [("s", "a"), ("v", "a"), ("v", "b")]
            .map(|(volume, file)| read(&paths, volume, file))
            .concat()
    };
    // Until it is said to be immutable it is followed.
    node.put("secrets/ns/db/a", "2");
    node.put("secrets/ns/db/..immutable", "");
    node.prepare(&pod).await.unwrap();
    assert_eq!(shown(), "221");
    node.put("secrets/ns/db/a", "3");
    node.put("configmaps/ns/app/b", "3");
    node.prepare(&pod).await.unwrap();
    assert_eq!(shown(), "223", "the other source is followed on");
    let next = manager(&node.base, &node.mounter);
    next.prepare(&pod, &never()).await.unwrap();
    assert!(shown().starts_with('2'), "{}", shown());
    // Nothing is looked up any more for a pod that has nothing else.
    fs::remove_dir_all(node.base.join("objects/configmaps")).unwrap();
    fs::remove_dir_all(node.base.join("objects/secrets")).unwrap();
    let prepared = node.manager.prepare(&pod, &never()).await.unwrap();
    assert_eq!(prepared.update_errors.len(), 1, "{:?}", prepared.update_errors);
    assert!(error_chain(&prepared.update_errors[0]).ends_with("configmap \"app\" not found"));
    // Another pod gets what it says now.
    node.put("secrets/ns/db/a", "4");
    let mut other = super::pod(json!([{"name": "s", "secret": {"secretName": "db"}}]));
    other.metadata.uid = Some("u2".into());
    let paths = node.prepare(&other).await.unwrap();
    assert_eq!(read(&paths, "s", "a"), "4");
}

#[tokio::test]
async fn other_volumes_find_their_place_within() {
    let node = node();
    node.put("configmaps/ns/app/key", "1");
    let mut pod = pod(json!([
        {"name": "m", "configMap": {"name": "app"}},
        {"name": "e", "emptyDir": {}},
    ]));
    pod.spec.as_mut().unwrap().containers[0].volume_mounts = serde_json::from_value(json!([
        {"name": "m", "mountPath": "/etc/app"},
        {"name": "e", "mountPath": "/etc/app/cache/x"},
    ]))
    .unwrap();
    let paths = node.prepare(&pod).await.unwrap();
    let volume = &paths["m"].host_path;
    assert_eq!(names(volume), ["cache", "key"]);
    assert_eq!(mode(&volume.join("cache/x")), 0o755);
    node.put("configmaps/ns/app/key", "2");
    node.prepare(&pod).await.unwrap();
    assert_eq!(names(volume), ["cache", "key"], "an update leaves it alone");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_watched_is_updated_after_a_while_and_nothing_is_set_up() {
    let node = node();
    node.put("configmaps/ns/app/key", "1");
    let pod = pod(json!([
        {"name": "v", "configMap": {"name": "app"}},
        {"name": "late", "configMap": {"name": "late"}},
        {"name": "about", "downwardAPI": {"items": [
            {"path": "a", "fieldRef": {"fieldPath": "metadata.labels['a']"}},
        ]}},
    ]));
    assert!(node.prepare(&pod).await.is_err(), "one object is missing");
    node.put("configmaps/ns/late/key", "1");
    let next_kubelet = manager(&node.base, &node.mounter);
    for (manager, value) in [(&node.manager, "2"), (&next_kubelet, "3")] {
        node.put("configmaps/ns/app/key", value);
        let mut newest = pod.clone();
        newest.metadata.labels = Some([("a".to_owned(), value.to_owned())].into());
        let newest = Arc::new(newest);
        let volumes = node.base.join("kubelet/pods/u1/volumes");
        let text = |path: &str| fs::read_to_string(volumes.join(path)).unwrap_or_default();
        let updated = async {
            let files = ["kubernetes.io~configmap/v/key", "kubernetes.io~downward-api/about/a"];
            while files.map(text) != [value; 2] {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let report = |error: &VolumeError| panic!("{error}");
        tokio::select! {
            () = updated => {}
            never = manager.keep_current(|| newest.clone(), report) => match never {},
        }
        assert!(!volumes.join("kubernetes.io~configmap/late").exists());
    }
}
