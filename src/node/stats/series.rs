//! Writes the samples of one metric family. Pure.

use super::sampler::{CgroupSample, Snapshot};
use super::text::{MetricKind, MetricValue, Text};
use crate::host::FilesystemUsage;
use crate::host::proc::NetworkInterface;
use std::sync::Arc;

/// An entity with metrics: a container, a sandbox, a pod's cgroup or an ancestor of one.
#[derive(Debug, Default)]
pub(super) struct MetricSubject {
    pub(super) labels: String,
    pub(super) sample: CgroupSample,
    /// Start time, nanoseconds since the epoch.
    pub(super) started: Option<i64>,
    pub(super) network: Arc<[NetworkInterface]>,
    /// File systems, with their devices.
    pub(super) filesystems: Vec<(String, FilesystemUsage)>,
}

pub(super) struct SeriesFamily {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricKind,
    pub(super) write: WriteSamples,
}

/// Writes the samples of an entity.
type WriteSamples = fn(&MetricSubject, &mut Samples<'_>);

pub(super) const fn counter(
    name: &'static str,
    help: &'static str,
    write: WriteSamples,
) -> SeriesFamily {
    SeriesFamily { name, help, kind: MetricKind::Counter, write }
}

pub(super) const fn gauge(
    name: &'static str,
    help: &'static str,
    write: WriteSamples,
) -> SeriesFamily {
    SeriesFamily { name, help, kind: MetricKind::Gauge, write }
}

/// Writes the samples of one family and entity.
pub(super) struct Samples<'a> {
    pub(super) text: &'a mut Text,
    pub(super) family: &'static SeriesFamily,
    pub(super) header_written: &'a mut bool,
    pub(super) labels: &'a str,
    /// Time of the sample, nanoseconds since the epoch.
    pub(super) at: i64,
    pub(super) snapshot: &'a Snapshot,
}

impl Samples<'_> {
    /// Writes a sample with its timestamp; `more` are additional labels.
    pub(super) fn put(&mut self, more: &[(&str, &str)], value: MetricValue) {
        self.write(more, value, Some(self.at));
    }

    /// Writes a sample without a timestamp, for a constant value.
    pub(super) fn put_without_timestamp(&mut self, value: MetricValue) {
        self.write(&[], value, None);
    }

    fn write(&mut self, more: &[(&str, &str)], value: MetricValue, at: Option<i64>) {
        let SeriesFamily { name, help, kind, .. } = self.family;
        if !std::mem::replace(self.header_written, true) {
            self.text.head(name, help, *kind);
        }
        self.text.sample(name, self.labels, more, value, at);
    }
}
