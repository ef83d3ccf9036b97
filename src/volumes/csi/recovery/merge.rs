//! Makes the volumes of an earlier kubelet from its records, its directories and the mounts. Pure.
//!
//! A record of this kubelet counts most, because it is written atomically and before each step. Upstream's files count
//! where no record names their directory. A stage counts without a pod. What is mounted and named by nothing is unknown:
//! it stays, and so do all volumes in use that it may be. What neither a record nor a valid file nor a mount speaks for is
//! a leftover.

use crate::model::PodUid;
use crate::volumes::csi::expansion::decision::NodeSize;
use crate::volumes::csi::identity::{Lifecycle, PLUGIN, VolumeIdentity, VolumeMode, sha256_hex};
use crate::volumes::csi::machine::NodeVolume;
use crate::volumes::csi::mount_table::MountTable;
use crate::volumes::csi::paths::{PublishDir, StageDir, stage_name};
use crate::volumes::csi::record::{Records, UnreadableRecord};
use crate::volumes::csi::vol_data::{PublishData, StageData, VolDataError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The directory of a volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPublish {
    /// The directory.
    pub directory: PublishDir,
    /// The pod.
    pub pod: PodUid,
    /// Name of the PersistentVolume, or of the inline volume.
    pub spec_name: String,
    /// Upstream's file in it, if it exists.
    pub data: Result<Option<PublishData>, VolDataError>,
}

/// The directory of a staged volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundStage {
    /// The directory.
    pub directory: StageDir,
    /// The driver.
    pub driver: String,
    /// The name of the directory, the digest of the volume's handle.
    pub name: String,
    /// Upstream's file in it, if it exists.
    pub data: Result<Option<StageData>, VolDataError>,
}

/// The directories of a block volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBlock {
    /// The directories of the staged volume.
    pub directory: StageDir,
    /// Name of the PersistentVolume.
    pub name: String,
    /// The pods of which something is there.
    pub pods: BTreeMap<PodUid, PublishDir>,
    /// The volume by upstream's file, if it exists.
    pub data: Result<Option<VolumeIdentity>, VolDataError>,
}

/// What is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDisk {
    /// This kubelet's records; `None` if they cannot be listed.
    pub records: Option<Records>,
    /// The directories of volumes of pods.
    pub published: Vec<FoundPublish>,
    /// The directories of staged volumes.
    pub staged: Vec<FoundStage>,
    /// The directories of block volumes.
    pub block: Vec<FoundBlock>,
    /// What cannot be read.
    pub unknown: Vec<UnknownVolume>,
}

/// A volume that may be staged or published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredVolume {
    /// The volume.
    pub identity: VolumeIdentity,
    /// Name of the PersistentVolume, or of the inline volume; `None` for a stage without a pod or a record.
    pub spec_name: Option<String>,
    /// Whether it had to be attached, if it has a record.
    pub attach_required: Option<bool>,
    /// It may be staged.
    pub is_staged: bool,
    /// The pods for which it may be published, with the name of their volume directory.
    pub pods: BTreeMap<PodUid, String>,
    /// It has a record.
    pub has_record: bool,
    /// The group that all of its files belong to, by its record.
    pub owner_group: Option<u32>,
    /// The size that the node has reached, by its record.
    pub size: Option<NodeSize>,
}

impl RecoveredVolume {
    /// The state of the volume, in which all of this is unknown.
    pub fn state(&self) -> NodeVolume {
        let pods = self.pods.keys().cloned();
        NodeVolume::recovered(self.identity.lifecycle(), self.is_staged, pods)
    }
}

/// Which volume something may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The volume of this unique name.
    UniqueName(String),
    /// The volume whose unique name has this digest.
    RecordDigest(String),
    /// The volume of this driver whose handle has this digest.
    Stage {
        /// The driver.
        driver: String,
        /// The digest.
        name: String,
    },
    /// Any.
    Nothing,
}

/// Something that this kubelet does not know how to undo. It is kept, and reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVolume {
    /// The file or directory.
    pub path: PathBuf,
    /// Why it is unknown.
    pub why: String,
    /// Which volume it may be.
    pub evidence: Evidence,
    /// The pod, if it is in the directory of one.
    pub pod: Option<PodUid>,
}

impl UnknownVolume {
    /// Something that may be any volume.
    pub fn any(path: &Path, why: impl Into<String>) -> Self {
        Self { path: path.to_path_buf(), why: why.into(), evidence: Evidence::Nothing, pod: None }
    }

    fn record(record: UnreadableRecord) -> Self {
        let digest = record.digest;
        let name = record.unique_name;
        Self {
            path: record.path,
            why: format!("the record {}", record.why),
            evidence: name.map_or(Evidence::RecordDigest(digest), Evidence::UniqueName),
            pod: None,
        }
    }

    /// Whether it may be the volume of this unique name.
    pub fn may_be(&self, unique_name: &str) -> bool {
        match &self.evidence {
            Evidence::UniqueName(name) => name == unique_name,
            Evidence::RecordDigest(digest) => sha256_hex(&[unique_name]) == *digest,
            Evidence::Stage { driver, name } => {
                let prefix = format!("{PLUGIN}/{driver}^");
                let handle = unique_name.strip_prefix(&prefix);
                handle.is_some_and(|handle| stage_name(handle) == *name)
            }
            Evidence::Nothing => unique_name.starts_with(PLUGIN),
        }
    }
}

/// A directory without a volume. It is removed if it has nothing but what the kubelet itself creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// The directory of a staged volume.
    Stage(StageDir),
    /// The directory of a volume of this pod.
    Publish(PodUid, PublishDir),
    /// The directories of a block volume, and of its pods.
    Block(StageDir, Vec<PublishDir>),
}

impl Leftover {
    /// The directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Stage(directory) | Self::Block(directory, _) => directory.path(),
            Self::Publish(_, directory) => directory.path(),
        }
    }
}

/// What an earlier kubelet has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Volumes that may have to be undone.
    pub volumes: Vec<RecoveredVolume>,
    /// What cannot be undone, and stays.
    pub unknown: Vec<UnknownVolume>,
    /// What can be removed.
    pub leftovers: Vec<Leftover>,
}

impl Recovered {
    /// Whether a volume that an earlier kubelet reported as in use has to stay in the Node's `volumesInUse`, whatever
    /// becomes of the recovered volumes.
    pub fn keeps_in_use(&self, unique_name: &str) -> bool {
        self.unknown.iter().any(|unknown| unknown.may_be(unique_name))
    }
}

/// Merges everything that was found.
pub fn merge(found: OnDisk, mounts: &MountTable) -> Recovered {
    let mut merged = Merge {
        volumes: BTreeMap::new(),
        recovered: Recovered { unknown: found.unknown, ..Recovered::default() },
        // An unreadable record may speak for any directory.
        may_remove: found.records.as_ref().is_some_and(|records| {
            let mut unreadable = records.unreadable.iter();
            unreadable.all(|record| record.unique_name.is_some())
        }),
        mounts,
    };
    merged.add_records(found.records.unwrap_or_default());
    merged.add_published(found.published);
    merged.add_staged(found.staged);
    merged.add_block(found.block);
    let volumes = merged.volumes.into_values().collect();
    Recovered { volumes, ..merged.recovered }
}

struct Merge<'a> {
    volumes: BTreeMap<VolumeIdentity, RecoveredVolume>,
    recovered: Recovered,
    may_remove: bool,
    mounts: &'a MountTable,
}

impl Merge<'_> {
    fn volume(&mut self, identity: &VolumeIdentity) -> &mut RecoveredVolume {
        let new = || RecoveredVolume {
            identity: identity.clone(),
            spec_name: None,
            attach_required: None,
            is_staged: false,
            pods: BTreeMap::new(),
            has_record: false,
            owner_group: None,
            size: None,
        };
        self.volumes.entry(identity.clone()).or_insert_with(new)
    }

    fn add_records(&mut self, records: Records) {
        for record in records.readable {
            let volume = self.volume(&record.identity);
            volume.has_record = true;
            volume.spec_name = Some(record.spec_name).filter(|name| !name.is_empty());
            volume.attach_required = Some(record.attach_required);
            volume.is_staged = record.is_staged;
            volume.pods = record.pods;
            volume.owner_group = record.owner_group;
            volume.size = record.size;
        }
        let unreadable = records.unreadable.into_iter();
        self.recovered.unknown.extend(unreadable.map(UnknownVolume::record));
    }

    fn add_published(&mut self, published: Vec<FoundPublish>) {
        let recorded = self.volumes.values().flat_map(|volume| {
            let pods = volume.pods.iter();
            pods.map(|(uid, name)| ((uid.clone(), name.clone()), volume.identity.clone()))
        });
        let recorded: BTreeMap<_, _> = recorded.collect();
        for found in published {
            let key = (found.pod.clone(), found.spec_name.clone());
            match (&found.data, recorded.get(&key)) {
                (Ok(Some(data)), Some(volume)) if data.identity != *volume => {
                    let name = data.identity.unique_name();
                    self.recovered.unknown.push(UnknownVolume {
                        path: found.directory.vol_data(),
                        why: "vol_data.json contradicts the record of the volume".to_owned(),
                        evidence: Evidence::UniqueName(name),
                        pod: Some(found.pod),
                    });
                }
                (_, Some(_)) => {}
                (Ok(Some(data)), None) => {
                    let volume = self.volume(&data.identity);
                    volume.pods.insert(found.pod, found.spec_name.clone());
                    volume.spec_name.get_or_insert(found.spec_name);
                    // A Go kubelet stages before it publishes, and unstaging what is not staged is harmless.
                    volume.is_staged |= data.identity.lifecycle() == Lifecycle::Persistent;
                }
                (Ok(None) | Err(_), None) => self.add_unnamed_publish(found),
            }
        }
    }

    fn add_unnamed_publish(&mut self, found: FoundPublish) {
        let why = described(&found.data);
        if self.must_stay(found.directory.path(), &found.data) {
            self.recovered.unknown.push(UnknownVolume {
                path: found.directory.path().to_path_buf(),
                why,
                evidence: Evidence::Nothing,
                pod: Some(found.pod),
            });
        } else {
            let leftover = Leftover::Publish(found.pod, found.directory);
            self.recovered.leftovers.push(leftover);
        }
    }

    fn add_staged(&mut self, staged: Vec<FoundStage>) {
        let persistent = self.volumes.keys().filter_map(|volume| match volume {
            VolumeIdentity::Persistent { driver, handle, mode: VolumeMode::Filesystem } => {
                Some(((driver.clone(), stage_name(handle)), volume.clone()))
            }
            _ => None,
        });
        let by_directory: BTreeMap<_, _> = persistent.collect();
        for found in staged {
            if let Ok(Some(data)) = &found.data {
                self.volume(&data.identity).is_staged = true;
                continue;
            }
            let is_mounted = self.mounts.is_mounted(found.directory.path());
            let key = (found.driver.clone(), found.name.clone());
            if let Some(identity) = by_directory.get(&key) {
                // An empty directory is no stage: kubelets create it also for drivers that do not stage.
                self.volume(identity).is_staged |= is_mounted || found.data.is_err();
            } else if self.must_stay(found.directory.path(), &found.data) {
                self.recovered.unknown.push(UnknownVolume {
                    path: found.directory.path().to_path_buf(),
                    why: described(&found.data),
                    evidence: Evidence::Stage { driver: found.driver, name: found.name },
                    pod: None,
                });
            } else {
                let leftover = Leftover::Stage(found.directory);
                self.recovered.leftovers.push(leftover);
            }
        }
    }

    fn add_block(&mut self, block: Vec<FoundBlock>) {
        let recorded = self.volumes.keys().filter_map(|known| match known.mode() {
            VolumeMode::Block { volume } => Some((volume.clone(), known.clone())),
            VolumeMode::Filesystem => None,
        });
        let recorded: BTreeMap<_, _> = recorded.collect();
        for found in block {
            let (identity, why) = match (&found.data, recorded.get(&found.name)) {
                (Ok(Some(data)), Some(volume)) if data != volume => {
                    let why = "vol_data.json contradicts the record of the volume";
                    (data.clone(), Some(why))
                }
                (_, Some(volume)) => (volume.clone(), None),
                (Ok(Some(data)), None) => {
                    let name = data.unique_name();
                    let mut known = self.volumes.keys();
                    let is_other = known.any(|it| it.unique_name() == name);
                    let why = "its handle is the handle of another volume";
                    (data.clone(), is_other.then_some(why))
                }
                (Ok(None) | Err(_), None) => {
                    self.add_unnamed_block(found);
                    continue;
                }
            };
            if let Some(why) = why {
                self.recovered.unknown.push(UnknownVolume {
                    path: found.directory.vol_data(),
                    why: why.to_owned(),
                    evidence: Evidence::UniqueName(identity.unique_name()),
                    pod: None,
                });
                continue;
            }
            let volume = self.volume(&identity);
            // A Go kubelet writes the file before it stages, and removes it afterwards.
            volume.is_staged |= matches!(found.data, Ok(Some(_)));
            volume.spec_name.get_or_insert_with(|| found.name.clone());
            for uid in found.pods.into_keys() {
                let name = found.name.clone();
                volume.pods.entry(uid).or_insert(name);
            }
        }
    }

    fn add_unnamed_block(&mut self, found: FoundBlock) {
        let directory = &found.directory;
        let mut elsewhere = vec![directory.target()];
        elsewhere.extend(directory.devices().map(|devices| devices.published.clone()));
        let is_mounted = elsewhere.iter().any(|path| self.mounts.is_mounted(path));
        if is_mounted || self.must_stay(directory.path(), &found.data) {
            self.recovered.unknown.push(UnknownVolume {
                path: directory.path().to_path_buf(),
                why: described(&found.data),
                evidence: Evidence::Nothing,
                pod: None,
            });
        } else {
            let published = found.pods.into_values().collect();
            let leftover = Leftover::Block(found.directory, published);
            self.recovered.leftovers.push(leftover);
        }
    }

    /// Whether a directory that nothing names may be more than a leftover.
    fn must_stay<T>(&self, directory: &Path, data: &Result<Option<T>, VolDataError>) -> bool {
        let is_unread = matches!(data, Err(VolDataError::Unreadable(_)));
        // A valid file of another volume says that someone wrote it on purpose.
        let contradicts = matches!(data, Err(VolDataError::Contradicts(_)));
        !self.may_remove || is_unread || contradicts || self.mounts.is_mounted(directory)
    }
}

fn described<T>(data: &Result<Option<T>, VolDataError>) -> String {
    match data {
        Err(error) => error.to_string(),
        Ok(_) => "there is no vol_data.json".to_owned(),
    }
}
