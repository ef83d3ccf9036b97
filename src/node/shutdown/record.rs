//! The times of the last graceful shutdown, in upstream's file `graceful_node_shutdown_state`.

use crate::base::{GO_ZERO_TIME, atomic_file, if_exists};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

const FILE: &str = "graceful_node_shutdown_state";

/// When the last shutdown began, and when all pods had terminated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ShutdownRecord {
    #[serde(serialize_with = "serialize_go_time", deserialize_with = "deserialize_go_time")]
    pub(super) start_time: Option<Timestamp>,
    #[serde(serialize_with = "serialize_go_time", deserialize_with = "deserialize_go_time")]
    pub(super) end_time: Option<Timestamp>,
}

impl ShutdownRecord {
    /// Reads the file; empty if it does not exist. Blocking.
    ///
    /// # Errors
    /// The file exists but cannot be read.
    pub(super) fn load(root: &Path) -> io::Result<Self> {
        let Some(bytes) = if_exists(std::fs::read(root.join(FILE)))? else {
            return Ok(Self::default());
        };
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Writes the file durably, because the machine may be switched off at any moment. Blocking.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn store(&self, root: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec(self)?;
        atomic_file::write_durable(&root.join(FILE), &bytes)
    }
}

fn serialize_go_time<S: serde::Serializer>(
    time: &Option<Timestamp>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => time.serialize(to),
        None => to.serialize_str(GO_ZERO_TIME),
    }
}

fn deserialize_go_time<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Timestamp>, D::Error> {
    let text = String::deserialize(from)?;
    if text == GO_ZERO_TIME {
        return Ok(None);
    }
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_upstreams_and_is_read_again() {
        let root = tempfile::tempdir().unwrap();
        let nothing = ShutdownRecord::default();
        assert_eq!(ShutdownRecord::load(root.path()).unwrap(), nothing);
        let begun = ShutdownRecord {
            start_time: Some("2026-01-02T03:04:05.5Z".parse().unwrap()),
            end_time: None,
        };
        begun.store(root.path()).unwrap();
        let file = root.path().join(FILE);
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            r#"{"startTime":"2026-01-02T03:04:05.5Z","endTime":"0001-01-01T00:00:00Z"}"#
        );
        assert_eq!(ShutdownRecord::load(root.path()).unwrap(), begun);
        let with_zone = r#"{"startTime":"2026-01-02T03:04:05.123456789+01:00","endTime":"0001-01-01T00:00:00Z"}"#;
        std::fs::write(&file, with_zone).unwrap();
        assert!(ShutdownRecord::load(root.path()).unwrap().start_time.is_some());
        std::fs::write(&file, "{\"startTime\": 7").unwrap();
        assert!(ShutdownRecord::load(root.path()).is_err());
    }
}
