use super::*;
use crate::host::quota_disk::QuotaDisk;
use crate::host::{disk_usage, project_of, project_usage, set_project};
use crate::volumes::kinds::empty_dir::{EmptyDir, ProjectQuota};
use std::any::Any;

const FIRST: u32 = 1_048_577;

fn monitored(base: &Path) -> VolumeManager {
    let root = KubeletRoot::create(&base.join("kubelet")).unwrap();
    let etc = base.join("etc");
    fs::create_dir_all(&etc).unwrap();
    VolumeManager::new(
        root,
        Arc::default(),
        ConfigMapSecretReader::default(),
        ClusterSources::default(),
        Some(ProjectQuotas::recorded_in(&etc)),
        FakeMounter::default(),
    )
}

fn in_user_namespace(uid: &str, volumes: Value) -> Pod {
    let mut pod = pod(volumes);
    pod.metadata.uid = Some(uid.into());
    pod.spec.as_mut().unwrap().host_users = Some(false);
    pod
}

async fn projects(manager: &VolumeManager, pod: &Pod) -> Vec<Option<u32>> {
    manager.prepare(pod, &never()).await.unwrap();
    let volumes = manager.measurable(&pod.uid());
    let project = |volume: MeasurableVolume| match volume.source {
        UsageSource::Files(project) => project.map(|project| project.0),
        _ => None,
    };
    volumes.into_iter().map(project).collect()
}

#[tokio::test]
async fn what_an_empty_dir_takes_up_is_counted_for_its_project_until_it_is_torn_down() {
    for disk in QuotaDisk::all(400) {
        let base = disk.path.canonicalize().unwrap();
        let manager = monitored(&base);
        let etc = |name: &str| fs::read_to_string(base.join("etc").join(name)).unwrap();
        fs::write(base.join("etc/projects"), "7:/home\ngarbage").unwrap();
        // The file system knows an ID that the files do not.
        let foreign = base.join("foreign");
        fs::create_dir(&foreign).unwrap();
        set_project(&foreign, FIRST).unwrap();

        let limited = json!({"sizeLimit": "1Mi"});
        let volumes = json!([{"name": "a", "emptyDir": limited}, {"name": "b", "emptyDir": {}}]);
        let pod = in_user_namespace("u1", volumes);
        let given = projects(&manager, &pod).await;
        assert_eq!(given.len(), 2);
        let mut ids: Vec<u32> = given.iter().map(|id| id.unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [FIRST + 1, FIRST + 2]);

        let volume = |name| {
            let plugin = "kubelet/pods/u1/volumes/kubernetes.io~empty-dir";
            base.join(plugin).join(name)
        };
        fs::create_dir(volume("a").join("d")).unwrap();
        // More than the volume may take: the limit of the quota is never reached.
        fs::write(volume("a").join("d/file"), vec![1; 3 << 20]).unwrap();
        fs::hard_link(volume("a").join("d/file"), volume("a").join("again")).unwrap();
        rustix::fs::sync();
        for (name, id) in ["a", "b"].iter().zip(&given) {
            let path = volume(name);
            let counted = project_usage(&path, id.unwrap()).unwrap();
            assert_eq!(counted, disk_usage(&path, 100).unwrap(), "{name}");
            assert!(etc("projects").contains(&format!("{}:{}\n", id.unwrap(), path.display())));
            assert!(etc("projid").contains(&format!("volume{0}:{0}\n", id.unwrap())));
        }

        let successor = monitored(&base);
        assert_eq!(projects(&successor, &pod).await, given);
        let one = json!([{"name": "v", "emptyDir": {}}]);
        let next = in_user_namespace("u2", one.clone());
        assert_eq!(projects(&successor, &next).await, [Some(FIRST + 3)]);
        successor.teardown(&pod.uid()).await.unwrap();
        assert!(!etc("projects").contains("u1"));
        assert!(!etc("projid").contains(&format!("volume{}:", FIRST + 1)));
        assert_eq!(project_usage(&base, FIRST + 1).unwrap().inodes, 0);
        let again = in_user_namespace("u3", one);
        assert_eq!(projects(&successor, &again).await, [Some(FIRST + 1)]);
        for pod in [&next, &again] {
            successor.teardown(&pod.uid()).await.unwrap();
        }
        assert_eq!((&*etc("projects"), &*etc("projid")), ("7:/home\ngarbage\n", ""));
    }
}

#[tokio::test]
async fn a_volume_without_a_project_of_its_own_is_there_and_is_walked() {
    for disk in QuotaDisk::all(400) {
        let base = disk.path.canonicalize().unwrap();
        let volumes = json!([{"name": "v", "emptyDir": {}}]);
        let of = |uid| in_user_namespace(uid, volumes.clone());
        let place = |uid: &str| {
            let pods = base.join("kubelet/pods").join(uid);
            pods.join("volumes/kubernetes.io~empty-dir/v")
        };
        // It was made before the feature was on.
        let node = node();
        let root = KubeletRoot::create(&base.join("kubelet")).unwrap();
        let (facts, objects) = (Arc::default(), ConfigMapSecretReader::default());
        let before = VolumeManager::new(
            root,
            facts,
            objects,
            ClusterSources::default(),
            None,
            node.mounter.clone(),
        );
        assert_eq!(projects(&before, &of("u1")).await, [None]);
        let manager = monitored(&base);
        assert_eq!(projects(&manager, &of("u1")).await, [None]);
        assert_eq!(project_of(&place("u1")).unwrap(), None);
        // Something is in it already.
        fs::create_dir_all(place("u2").join("full")).unwrap();
        assert_eq!(projects(&manager, &of("u2")).await, [None]);
        // Its project is recorded and is not the one that it is in.
        assert_eq!(projects(&manager, &of("u3")).await, [Some(FIRST)]);
        set_project(&place("u3"), 7).unwrap();
        assert_eq!(projects(&monitored(&base), &of("u3")).await, [None]);
        // Two projects are recorded for it.
        let path = place("u4");
        let entries = format!("8:{0}\n9:{0}\n", path.display());
        fs::create_dir_all(&path).unwrap();
        fs::write(base.join("etc/projects"), &entries).unwrap();
        assert_eq!(projects(&manager, &of("u4")).await, [None]);
        let left = fs::read_to_string(base.join("etc/projects")).unwrap();
        assert_eq!(left, entries);
        // A kubelet died between the record and the volume.
        let path = place("u5");
        fs::create_dir_all(&path).unwrap();
        let entry = format!("{}:{}\n", FIRST + 5, path.display());
        fs::write(base.join("etc/projects"), entry).unwrap();
        assert_eq!(projects(&manager, &of("u5")).await, [Some(FIRST + 5)]);
        let inherited = project_of(&path).unwrap();
        assert_eq!(inherited, Some(FIRST + 5));
    }
}

#[test]
fn only_volumes_on_disk_of_pods_in_user_namespaces_have_a_quota() {
    use ProjectQuota::{OutOfReach, Unlimited};
    for (host_users, volume, limit, expected) in [
        (None, json!({}), None, None),
        (Some(true), json!({"sizeLimit": "1Gi"}), None, None),
        (Some(false), json!({"medium": "Memory"}), None, None),
        (Some(false), json!({}), None, Some(Unlimited)),
        (Some(false), json!({"sizeLimit": "0"}), None, Some(Unlimited)),
        (Some(false), json!({"sizeLimit": "1Gi"}), None, Some(OutOfReach)),
        (Some(false), json!({}), Some("1Gi"), Some(OutOfReach)),
    ] {
        let mut pod = pod(json!([{"name": "v", "emptyDir": volume}]));
        let spec = pod.spec.as_mut().unwrap();
        spec.host_users = host_users;
        let limits = limit.map(|limit| json!({"limits": {"ephemeral-storage": limit}}));
        spec.containers[0].resources = serde_json::from_value(json!(limits)).unwrap();
        let plan = plan::plan(&pod, &NodeFacts::default(), false).unwrap();
        let kind: &dyn Any = &*plan[0].kind;
        let quota = kind.downcast_ref::<EmptyDir>().unwrap().quota;
        assert_eq!(quota, expected, "{host_users:?} {volume} {limit:?}");
    }
}
