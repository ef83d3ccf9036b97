use super::*;
use crate::model::fixture;
use k8s_openapi::api::core::v1::PodStatus;
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn pod(name: &str, uid: &str, hostname: &str) -> Arc<Pod> {
    let spec = serde_json::json!({"hostname": hostname});
    Arc::new(fixture::pod(&format!("ns/{name}/{uid}"), spec))
}

fn changed(pod: &Arc<Pod>, change: impl Fn(&mut Pod)) -> Arc<Pod> {
    let mut pod = Pod::clone(pod);
    change(&mut pod);
    Arc::new(pod)
}

fn updates(merged: &Merged) -> Vec<(PodOp, Vec<&str>)> {
    let update = |u: &'_ PodUpdate| u.op;
    merged.updates.iter().map(|u| (update(u), u.pods.iter().map(|p| p.name()).collect())).collect()
}

#[test]
fn the_first_list_is_delivered_even_when_empty_and_later_empty_ones_are_not() {
    let mut source = SourcePods::new(PodSource::File);
    assert_eq!(updates(&source.merge(vec![], NOW)), [(PodOp::Add, vec![])]);
    assert_eq!(updates(&source.merge(vec![], NOW)), []);
}

#[test]
fn removals_come_first() {
    let mut source = SourcePods::new(PodSource::Http);
    let list = vec![pod("b", "1", ""), pod("a", "2", ""), pod("k", "3", "")];
    let names = vec!["b", "a", "k"];
    assert_eq!(updates(&source.merge(list, NOW)), [(PodOp::Add, names)]);
    let list = vec![pod("n", "4", ""), pod("k", "3", "x")];
    assert_eq!(
        updates(&source.merge(list, NOW)),
        [(PodOp::Remove, vec!["a", "b"]), (PodOp::Add, vec!["n"]), (PodOp::Update, vec!["k"])]
    );
}

#[test]
fn an_edit_with_a_generated_uid_is_a_removal_and_an_addition() {
    let mut source = SourcePods::new(PodSource::File);
    source.merge(vec![pod("a", "1", "")], NOW);
    assert_eq!(
        updates(&source.merge(vec![pod("a", "2", "x")], NOW)),
        [(PodOp::Remove, vec!["a"]), (PodOp::Add, vec!["a"])]
    );
}

#[test]
fn a_given_uid_under_another_name_is_another_pod() {
    let mut source = SourcePods::new(PodSource::File);
    source.merge(vec![pod("a", "1", "")], NOW);
    assert_eq!(
        updates(&source.merge(vec![pod("b", "1", "")], NOW)),
        [(PodOp::Remove, vec!["a"]), (PodOp::Add, vec!["b"])]
    );
}

#[test]
fn an_edit_under_a_given_uid_is_another_pod_unless_it_is_of_an_api_server() {
    let with = |digest: &str| {
        changed(&pod("a", "1", digest), |p| {
            p.metadata.annotations = Some([(keys::MANIFEST_DIGEST.into(), digest.into())].into());
        })
    };
    for (kind, expected) in [
        (PodSource::File, vec![PodOp::Remove, PodOp::Add]),
        (PodSource::Http, vec![PodOp::Remove, PodOp::Add]),
        (PodSource::Api, vec![PodOp::Update]),
    ] {
        let mut source = SourcePods::new(kind);
        source.merge(vec![with("v1:a")], NOW);
        let merged = source.merge(vec![with("v1:b")], NOW);
        let ops: Vec<_> = merged.updates.iter().map(|u| u.op).collect();
        assert_eq!(ops, expected, "{kind}");
    }
}

#[test]
fn only_what_the_user_wants_makes_an_update() {
    let base = pod("a", "1", "");
    let cases: [(&str, Arc<Pod>, Option<PodOp>); 7] = [
        ("nothing", changed(&base, |_| {}), None),
        (
            "label",
            changed(&base, |p| p.metadata.labels = Some([("a".into(), "b".into())].into())),
            Some(PodOp::Update),
        ),
        (
            "annotation",
            changed(&base, |p| p.metadata.annotations = Some([("a".into(), "b".into())].into())),
            Some(PodOp::Update),
        ),
        (
            "local annotation",
            changed(&base, |p| {
                p.metadata.annotations = Some([(keys::CONFIG_SEEN.into(), "x".into())].into());
            }),
            None,
        ),
        (
            "deletion",
            changed(&base, |p| p.metadata.deletion_timestamp = Some(NOW.into())),
            Some(PodOp::Delete),
        ),
        (
            "status",
            changed(&base, |p| p.status = Some(PodStatus::default())),
            Some(PodOp::Reconcile),
        ),
        (
            "resource version",
            changed(&base, |p| p.metadata.resource_version = Some("7".into())),
            None,
        ),
    ];
    for (what, new, expected) in cases {
        let mut source = SourcePods::new(PodSource::Api);
        source.merge(vec![base.clone()], NOW);
        let updates: Vec<_> = source.merge(vec![new], NOW).updates.iter().map(|u| u.op).collect();
        assert_eq!(updates, Vec::from_iter(expected), "{what}");
    }
}

#[test]
fn seen_and_source_are_stamped_once_and_kept_over_updates() {
    let mut source = SourcePods::new(PodSource::Http);
    let first = source.merge(vec![pod("a", "1", "")], NOW);
    let seen = |m: &Merged| m.updates[0].pods[0].annotation(keys::CONFIG_SEEN).unwrap().to_string();
    assert_eq!(seen(&first), "1970-01-01T00:00:00Z");
    let later = NOW + std::time::Duration::from_secs(5);
    let second = source.merge(vec![pod("a", "1", "x")], later);
    assert_eq!(seen(&second), "1970-01-01T00:00:00Z");
    assert_eq!(PodSource::of(&second.updates[0].pods[0]), Some(PodSource::Http));
}

#[test]
fn later_pods_with_a_taken_name_or_uid_are_left_out() {
    let mut source = SourcePods::new(PodSource::File);
    let list = vec![pod("a", "1", ""), pod("a", "2", ""), pod("b", "1", ""), pod("b", "2", "")];
    let merged = source.merge(list, NOW);
    assert_eq!(updates(&merged), [(PodOp::Add, vec!["a", "b"])]);
    let uids: Vec<_> = merged.duplicates.iter().map(|p| p.uid().to_string()).collect();
    assert_eq!(uids, ["2", "1"]);
}

fn lists() -> impl Strategy<Value = Vec<Vec<Arc<Pod>>>> {
    let pod = (0..4_u8, 0..5_u8, 0..3_u8, any::<bool>(), 0..2_u8).prop_map(
        |(name, uid, content, deleting, status)| {
            changed(&pod(&name.to_string(), &uid.to_string(), &content.to_string()), |p| {
                p.metadata.deletion_timestamp = deleting.then(|| NOW.into());
                p.status =
                    Some(PodStatus { message: Some(status.to_string()), ..PodStatus::default() });
            })
        },
    );
    prop::collection::vec(prop::collection::vec(pod, 0..6), 1..8)
}

proptest! {
    #[test]
    fn replaying_the_messages_reproduces_the_list(lists in lists()) {
        let mut source = SourcePods::new(PodSource::Api);
        let mut replayed: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
        let mut first = true;
        for list in lists {
            let merged = source.merge(list.clone(), NOW);
            prop_assert!(!first || !merged.updates.is_empty());
            first = false;
            let ops: Vec<_> = merged.updates.iter().map(|u| u.op as u8).collect();
            prop_assert!(ops.is_sorted_by(|a, b| a < b), "one message per kind, in order");
            for update in &merged.updates {
                for pod in &update.pods {
                    let known = replayed.contains_key(pod.uid().as_str());
                    prop_assert_eq!(known, update.op != PodOp::Add);
                    match update.op {
                        PodOp::Remove => replayed.remove(pod.uid().as_str()),
                        _ => replayed.insert(pod.uid().to_string(), pod.clone()),
                    };
                }
            }
            let mut wanted = list;
            wanted.retain(|p| !merged.duplicates.iter().any(|d| Arc::ptr_eq(d, p)));
            prop_assert_eq!(wanted.len(), replayed.len());
            for pod in wanted {
                let have = &replayed[pod.uid().as_str()];
                prop_assert_eq!(&have.spec, &pod.spec);
                prop_assert_eq!(&have.status, &pod.status);
                prop_assert_eq!(have.name(), pod.name());
            }
        }
    }

    #[test]
    fn an_unchanged_list_causes_no_updates(list in lists()) {
        let mut source = SourcePods::new(PodSource::File);
        let list = list.into_iter().next().unwrap_or_default();
        source.merge(list.clone(), NOW);
        prop_assert_eq!(source.merge(list, NOW).updates, vec![]);
    }
}
