//! What each combination of records, directories and mounts means.

use super::*;
use crate::host::parse_mountinfo;
use crate::volumes::csi::identity::VolumeIdentity;
use crate::volumes::csi::machine::Known;
use crate::volumes::csi::record::{Records, UnreadableRecord, VolumeRecord};
use crate::volumes::csi::vol_data::{PublishData, StageData};

struct Case {
    _base: tempfile::TempDir,
    root: KubeletRoot,
    found: OnDisk,
    mounts: String,
}

fn volume() -> VolumeIdentity {
    VolumeIdentity::persistent("d", "h1").unwrap()
}

fn case() -> Case {
    let base = tempfile::tempdir().unwrap();
    let root = KubeletRoot::create(base.path()).unwrap();
    Case {
        _base: base,
        root,
        found: OnDisk { records: Some(Records::default()), ..OnDisk::default() },
        mounts: String::new(),
    }
}

fn damaged() -> VolDataError {
    VolDataError::Damaged("is empty".to_owned())
}

impl Case {
    fn record(mut self, is_staged: bool, pods: &[&str]) -> Self {
        let pods = pods.iter().map(|uid| ((*uid).into(), "pv1".to_owned()));
        let record = VolumeRecord {
            identity: volume(),
            spec_name: "pv1".into(),
            attach_required: true,
            is_staged,
            pods: pods.collect(),
            owner_group: None,
            size: None,
        };
        self.found.records.as_mut().unwrap().readable.push(record);
        self
    }

    fn unreadable(mut self, unique_name: Option<String>) -> Self {
        let record = UnreadableRecord {
            path: "/r".into(),
            digest: crate::volumes::csi::identity::sha256_hex(&[&volume().unique_name()]),
            unique_name,
            why: "has version 2".into(),
        };
        self.found.records.as_mut().unwrap().unreadable.push(record);
        self
    }

    fn publish_dir(&self, uid: &str) -> PublishDir {
        PublishDir::new(&self.root.pod(&uid.into()).unwrap(), "pv1").unwrap()
    }

    fn published(mut self, uid: &str, data: Result<Option<VolumeIdentity>, VolDataError>) -> Self {
        let directory = self.publish_dir(uid);
        let data = data.map(|data| {
            data.map(|identity| PublishData {
                identity,
                spec_name: "pv1".into(),
                node: "n".into(),
                selinux: None,
            })
        });
        self.found.published.push(FoundPublish {
            directory,
            pod: uid.into(),
            spec_name: "pv1".into(),
            data,
        });
        self
    }

    fn staged(mut self, data: Result<Option<VolumeIdentity>, VolDataError>) -> Self {
        let data = data.map(|data| data.map(|identity| StageData { identity, selinux: None }));
        self.found.staged.push(FoundStage {
            directory: StageDir::new(&self.root, &volume()),
            driver: "d".into(),
            name: paths::stage_name("h1"),
            data,
        });
        self
    }

    fn mounted(mut self, path: &Path) -> Self {
        self.mounts += &format!("1 2 8:1 / {} rw - ext4 /dev/x rw\n", path.display());
        self
    }

    fn stage_mounted(self) -> Self {
        let path = StageDir::new(&self.root, &volume()).target();
        self.mounted(&path)
    }

    fn publish_mounted(self, uid: &str) -> Self {
        let path = self.publish_dir(uid).target();
        self.mounted(&path)
    }

    fn merge(self) -> Recovered {
        let mounts = MountTable::new(Ok(parse_mountinfo(self.mounts.as_bytes())));
        merge(self.found, &mounts)
    }

    /// `handle[+staged] pods | unknown n | leftover n`
    fn outcome(self) -> String {
        let merged = self.merge();
        let volumes = merged.volumes.iter().map(|volume| {
            let staged = if volume.is_staged { "+staged" } else { "" };
            let pods: Vec<_> = volume.pods.keys().map(PodUid::as_str).collect();
            format!("{}{staged} {}", volume.identity.handle(), pods.join(","))
        });
        let volumes: Vec<_> = volumes.collect();
        let (unknown, leftovers) = (merged.unknown.len(), merged.leftovers.len());
        format!("{} | {unknown} | {leftovers}", volumes.join("; "))
    }
}

#[test]
fn the_sources_are_merged() {
    let own = || Ok(Some(volume()));
    let other = || Ok(Some(VolumeIdentity::persistent("e", "h2").unwrap()));
    let io = || Err(VolDataError::Unreadable("i/o error".to_owned()));
    let contradicts = || Err(VolDataError::Contradicts("driver"));
    for (what, case, expected) in [
        ("nothing", case(), " | 0 | 0"),
        ("a record only", case().record(true, &["u1"]), "h1+staged u1 | 0 | 0"),
        (
            "a record of a driver without staging",
            case().record(false, &["u1"]).staged(Ok(None)),
            "h1 u1 | 0 | 0",
        ),
        ("a record before its stage", case().record(true, &[]), "h1+staged  | 0 | 0"),
        (
            "a record and a mount that it does not have",
            case().record(false, &["u1"]).staged(Ok(None)).stage_mounted(),
            "h1+staged u1 | 0 | 0",
        ),
        (
            "a record and a damaged file of the stage",
            case().record(false, &["u1"]).staged(Err(damaged())),
            "h1+staged u1 | 0 | 0",
        ),
        (
            "a record and a pod that it does not have",
            case().record(true, &["u1"]).published("u2", own()),
            "h1+staged u1,u2 | 0 | 0",
        ),
        (
            "a record and an empty file of the pod",
            case().record(true, &["u1"]).published("u1", Err(damaged())).publish_mounted("u1"),
            "h1+staged u1 | 0 | 0",
        ),
        (
            "a record and a file of another driver",
            case().record(true, &["u1"]).published("u1", other()),
            "h1+staged u1 | 1 | 0",
        ),
        ("a pod without a stage", case().published("u1", own()), "h1+staged u1 | 0 | 0"),
        (
            "a pod with its stage",
            case().published("u1", own()).staged(own()).stage_mounted(),
            "h1+staged u1 | 0 | 0",
        ),
        (
            "two pods",
            case().published("u1", own()).published("u2", own()),
            "h1+staged u1,u2 | 0 | 0",
        ),
        ("a stage without a pod", case().staged(own()).stage_mounted(), "h1+staged  | 0 | 0"),
        ("a stage without a pod, not mounted", case().staged(own()), "h1+staged  | 0 | 0"),
        (
            "an empty file with a mount",
            case().published("u1", Err(damaged())).publish_mounted("u1"),
            " | 1 | 0",
        ),
        (
            "no file with a mount",
            case().published("u1", Ok(None)).publish_mounted("u1"),
            " | 1 | 0",
        ),
        ("an empty file without a mount", case().published("u1", Err(damaged())), " | 0 | 1"),
        ("no file without a mount", case().published("u1", Ok(None)), " | 0 | 1"),
        ("an unreadable file", case().published("u1", io()), " | 1 | 0"),
        ("a file of another volume", case().published("u1", contradicts()), " | 1 | 0"),
        (
            "an empty file of a mounted stage",
            case().staged(Err(damaged())).stage_mounted(),
            " | 1 | 0",
        ),
        ("an empty file of a stage without a mount", case().staged(Err(damaged())), " | 0 | 1"),
        ("an empty stage, of a driver without staging", case().staged(Ok(None)), " | 0 | 1"),
        ("a stage of another driver", case().staged(contradicts()), " | 1 | 0"),
        ("a newer record", case().unreadable(Some(volume().unique_name())), " | 1 | 0"),
        (
            "a newer record of a volume with directories",
            case().unreadable(Some(volume().unique_name())).staged(own()),
            "h1+staged  | 1 | 0",
        ),
        (
            "a damaged record, which may be of the directory",
            case().unreadable(None).published("u1", Ok(None)).staged(Ok(None)),
            " | 3 | 0",
        ),
    ] {
        assert_eq!(case.outcome(), expected, "{what}");
    }
}

#[test]
fn nothing_is_removed_while_mounts_or_records_are_unknown() {
    let found = || case().published("u1", Err(damaged())).staged(Ok(None));
    let unreadable = MountTable::new(Err(io::ErrorKind::Other.into()));
    let merged = merge(found().found, &unreadable);
    assert_eq!((merged.leftovers.len(), merged.unknown.len()), (0, 2));
    let mut unlisted = found();
    unlisted.found.records = None;
    let merged = unlisted.merge();
    assert_eq!((merged.leftovers.len(), merged.unknown.len()), (0, 2));
    // An empty stage of a volume with a record counts as staged then.
    let known = case().record(false, &["u1"]).staged(Ok(None));
    assert!(merge(known.found, &unreadable).volumes[0].is_staged);
}

#[test]
fn what_is_unknown_stays_in_use() {
    let (own, other) = (volume().unique_name(), "kubernetes.io/csi/d^h2");
    for (what, case, expected) in [
        ("a newer record", case().unreadable(Some(own.clone())), (true, false)),
        ("a damaged record", case().unreadable(None), (true, false)),
        ("a stage", case().staged(Err(damaged())).stage_mounted(), (true, false)),
        ("a mount", case().published("u1", Ok(None)).publish_mounted("u1"), (true, true)),
        ("nothing", case(), (false, false)),
    ] {
        let merged = case.merge();
        let kept = (merged.keeps_in_use(&own), merged.keeps_in_use(other));
        assert_eq!(kept, expected, "{what}");
    }
}

#[test]
fn a_recovered_volume_is_unknown_and_in_use() {
    let merged = case().record(true, &["u1"]).merge();
    let volume = &merged.volumes[0];
    assert_eq!(volume.attach_required, Some(true));
    let state = volume.state();
    assert!(state.is_in_use() && !state.is_ready(&"u1".into()));
    assert_eq!(state.staged(), Known::Unknown);
    assert_eq!(state.pods()[&PodUid::from("u1")].published, Known::Unknown);
    let inline = VolumeIdentity::inline("d", &"u1".into(), "pv1").unwrap();
    let merged = case().published("u1", Ok(Some(inline))).merge();
    assert_eq!(merged.volumes[0].state().staged(), Known::No);
}
