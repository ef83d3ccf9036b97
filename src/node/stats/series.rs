//! One family of series, and one entity with its samples. Pure.

use super::{
    sampler::{Sample, Snapshot},
    text::{Kind, Text, Value},
};
use crate::host::{FilesystemUsage, proc::NetworkInterface};
use std::sync::Arc;

/// An entity with series: a container, a sandbox, a pod's cgroup or one above.
#[derive(Debug, Default)]
pub(super) struct Entity {
    pub(super) labels: String,
    pub(super) sample: Sample,
    /// Nanoseconds since the epoch.
    pub(super) started: Option<i64>,
    pub(super) network: Arc<[NetworkInterface]>,
    /// File systems by device.
    pub(super) filesystems: Vec<(String, FilesystemUsage)>,
}

/// A family of series.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) write: fn(&Entity, &mut Samples<'_>),
}

/// Where a family writes its samples of one entity.
pub(super) struct Samples<'a> {
    pub(super) text: &'a mut Text,
    pub(super) family: &'static Family,
    pub(super) headed: &'a mut bool,
    pub(super) labels: &'a str,
    pub(super) at: i64,
    pub(super) snapshot: &'a Snapshot,
}

impl Samples<'_> {
    /// A sample with its time.
    pub(super) fn put(&mut self, more: &[(&str, &str)], value: Value) {
        self.write(more, value, Some(self.at));
    }

    /// A sample that holds for the whole life of a container.
    pub(super) fn put_timeless(&mut self, value: Value) {
        self.write(&[], value, None);
    }

    fn write(&mut self, more: &[(&str, &str)], value: Value, at: Option<i64>) {
        let Family {
            name, help, kind, ..
        } = self.family;
        if !std::mem::replace(self.headed, true) {
            self.text.head(name, help, *kind);
        }
        self.text.sample(name, self.labels, more, value, at);
    }

    /// When the sample was taken, nanoseconds since the epoch.
    pub(super) fn at(&self) -> i64 {
        self.at
    }
}
