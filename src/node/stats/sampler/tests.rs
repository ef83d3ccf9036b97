use super::*;
use crate::node::stats::running_pods::ContainerSubject;
use std::fs;
use std::path::Path;

fn cgroup(root: &Path, path: &str, cpu: u64, memory: u64, faults: u64) {
    let at = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(&at).unwrap();
    let put = |name: &str, text: String| fs::write(at.join(name), text).unwrap();
    put("cpu.stat", format!("usage_usec {cpu}\n"));
    put("memory.current", format!("{memory}\n"));
    put("memory.stat", format!("pgfault {faults}\n"));
    put("cgroup.procs", format!("{}\n", std::process::id()));
}

fn pod(uid: &str, containers: &[&str]) -> PodSubject {
    let container = |id: &&str| ContainerSubject {
        id: Arc::from(*id),
        name: Arc::from(*id),
        image: "image".into(),
        created_at: 1,
    };
    PodSubject {
        uid: uid.into(),
        name: uid.into(),
        namespace: "default".into(),
        created_at: 1,
        sandbox: None,
        host_network: false,
        containers: containers.iter().map(container).collect(),
    }
}

fn faults(snapshot: &Snapshot) -> Option<u64> {
    let sample = snapshot.pods.first()?.containers.first()?.as_ref()?;
    Some(sample.usage.memory?.page_faults)
}

#[test]
fn only_cgroups_that_have_run_are_read_again() {
    let root = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
    let pods = || vec![pod("u", &["one"])];
    cgroup(root.path(), "/k8s.io/one", 5, 7, 1);
    assert_eq!(faults(&sampler.snapshot(pods(), &[], Depth::Full)), Some(1));
    // The second sample reads everything too: only then is it known that nothing changes.
    cgroup(root.path(), "/k8s.io/one", 5, 7, 2);
    assert_eq!(faults(&sampler.snapshot(pods(), &[], Depth::Full)), Some(2));
    cgroup(root.path(), "/k8s.io/one", 5, 7, 3);
    assert_eq!(faults(&sampler.snapshot(pods(), &[], Depth::Full)), Some(2));
    cgroup(root.path(), "/k8s.io/one", 5, 8, 4);
    assert_eq!(faults(&sampler.snapshot(pods(), &[], Depth::Full)), Some(4));
    cgroup(root.path(), "/k8s.io/one", 6, 8, 5);
    assert_eq!(faults(&sampler.snapshot(pods(), &[], Depth::Full)), Some(5));
}

#[test]
fn a_cgroup_that_goes_comes_back_elsewhere_or_never_is_no_error() {
    let root = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
    let pods = || vec![pod("u", &["one", "none"])];
    cgroup(root.path(), "/k8s.io/one", 5, 7, 1);
    let first = sampler.snapshot(pods(), &[], Depth::Full);
    assert_eq!(first.pods[0].containers[1], None);
    fs::remove_dir_all(root.path().join("k8s.io")).unwrap();
    assert_eq!(faults(&sampler.snapshot(pods(), &[], Depth::Full)), None);
    cgroup(root.path(), "/other/cri-containerd-one.scope", 5, 7, 9);
    let again = sampler.snapshot(pods(), &[], Depth::Full);
    assert_eq!(faults(&again), Some(9));
    assert_eq!(again.pods[0].containers[0].as_ref().unwrap().nano_cores, None);
    sampler.snapshot(Vec::new(), &[], Depth::Full);
    // The machine's own samples stay.
    assert!(sampler.len() <= 1, "{}", sampler.len());
}

#[test]
fn a_pod_in_a_cgroup_of_its_own_has_it_read_and_those_above_once() {
    let root = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
    for path in [
        "/kubepods",
        "/kubepods/poda",
        "/kubepods/poda/one",
        "/kubepods/podb",
        "/kubepods/podb/two",
    ] {
        cgroup(root.path(), path, 5, 7, 1);
    }
    let seen = sampler.snapshot(vec![pod("a", &["one"]), pod("b", &["two"])], &[], Depth::Full);
    let ancestors: Vec<&str> = seen.ancestors.iter().map(|sample| &*sample.path).collect();
    assert_eq!(ancestors, ["/kubepods"]);
    let paths: Vec<_> = seen.pods.iter().map(|p| p.pod_cgroup.as_ref().map(|s| &*s.path)).collect();
    assert_eq!(paths, [Some("/kubepods/poda"), Some("/kubepods/podb")]);
}

#[test]
fn this_machine_can_be_sampled() {
    let v2 = crate::host::HostMachine::read().unwrap().cgroup_v2;
    let mut sampler = Sampler::new(CgroupFs::new("/sys/fs/cgroup", v2));
    let seen = sampler.snapshot(
        Vec::new(),
        &[SystemSubject {
            name: "kubelet",
            location: CgroupLocation::Process(std::process::id()),
            may_be_root: true,
        }],
        Depth::Full,
    );
    let memory = seen.node.usage.memory.unwrap();
    assert!(memory.usage > 0 && memory.working_set() <= memory.usage, "{memory:?}");
    assert!(seen.node.limits.memory > Some(0));
    assert!(!seen.disks.is_empty() || !Path::new("/sys/block").exists());
}

#[test]
fn a_deeper_sample_reads_what_a_shallow_one_left_out() {
    let root = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
    let pods = || vec![pod("u", &["one"])];
    cgroup(root.path(), "/k8s.io/one", 5, 7, 1);
    let tasks = |snapshot: &Snapshot| {
        let sample = snapshot.pods[0].containers[0].clone().unwrap();
        (sample.usage.memory.unwrap().page_faults, sample.usage.tasks.is_some())
    };
    for (depth, expected) in [
        (Depth::Core, (1, false)),
        // Idle from here on, but a deeper sample is requested.
        (Depth::Core, (1, false)),
        (Depth::Core, (1, false)),
        (Depth::Common, (1, true)),
        // A shallower sample keeps the deeper values.
        (Depth::Core, (1, true)),
        (Depth::Full, (1, true)),
    ] {
        assert_eq!(tasks(&sampler.snapshot(pods(), &[], depth)), expected, "{depth:?}");
    }
    cgroup(root.path(), "/k8s.io/one", 6, 7, 2);
    let look = sampler.snapshot(pods(), &[], Depth::Core);
    assert_eq!(tasks(&look), (2, false), "half of it would be old");
    assert_eq!(look.pods[0].network, None);
}

#[test]
fn those_believed_longest_have_their_turn_and_not_all_at_once() {
    let root = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
    let ids: Vec<String> = (0..3 * MIN_FULL_READS).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    for id in &names {
        cgroup(root.path(), &format!("/{id}"), 5, 7, 1);
    }
    let pods = || vec![pod("u", &names)];
    for _ in 0..2 {
        sampler.snapshot(pods(), &[], Depth::Full);
    }
    for id in &names {
        cgroup(root.path(), &format!("/{id}"), 5, 7, 2);
    }
    let read_anew = |sampler: &mut Sampler| {
        let seen = sampler.snapshot(pods(), &[], Depth::Full);
        let faults = seen.pods[0].containers.iter().flatten();
        faults.filter(|sample| sample.usage.memory.unwrap().page_faults == 2).count()
    };
    assert_eq!(read_anew(&mut sampler), 0, "nothing is old enough");
    for cgroup in sampler.cgroups.values_mut() {
        cgroup.fully_read_at = cgroup.fully_read_at.checked_sub(FULL_READ_AGE).unwrap();
    }
    assert_eq!(read_anew(&mut sampler), MIN_FULL_READS);
    assert_eq!(read_anew(&mut sampler), 2 * MIN_FULL_READS);
    assert_eq!(read_anew(&mut sampler), 3 * MIN_FULL_READS);
}

#[test]
fn cgroups_of_the_machine_are_sampled_once_and_left_out_where_there_are_none() {
    let root = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
    for path in ["/", "/kubepods", "/kubepods/podu/one", "/system"] {
        cgroup(root.path(), path, 5, 7, 1);
    }
    let subject = |name, path: &str, may_be_root| SystemSubject {
        name,
        location: CgroupLocation::Cgroup(path.to_owned()),
        may_be_root,
    };
    let system = [
        subject("kubelet", "/", true),
        subject("runtime", "/", false),
        subject("misc", "/system", true),
        subject("gone", "/gone", true),
        subject("again", "/system", true),
        subject("pods", "/kubepods", true),
    ];
    let seen = sampler.snapshot(vec![pod("u", &["one"])], &system, Depth::Common);
    let names: Vec<_> = seen
        .system
        .iter()
        .map(|system| (system.name, &*system.sample.path, system.sample.created.is_some()))
        .collect();
    assert_eq!(
        names,
        [
            ("kubelet", "/", true),
            ("misc", "/system", true),
            ("again", "/system", true),
            ("pods", "/kubepods", true),
        ]
    );
    assert_eq!(seen.system[1].sample, seen.system[2].sample);
    // Without a pod the cgroup of all pods is read as well.
    let seen = sampler.snapshot(Vec::new(), &system, Depth::Common);
    assert_eq!(seen.ancestors, []);
    assert_eq!(seen.system[3].sample.usage.memory.unwrap().usage, 7);
    assert!(seen.system[3].sample.created > Some(1_000_000_000_000_000_000));
}
