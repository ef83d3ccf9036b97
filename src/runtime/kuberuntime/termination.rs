//! Termination messages of containers: where they are and how they are composed. Pure.

use super::translate::{MAX_MESSAGE, truncate};
use crate::cri::v1;
use crate::model::keys;
use crate::runtime::logs::tail::lossy_end;
use std::path::PathBuf;

/// What to read once a container has exited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminationMessageSource {
    /// The file on the node, if the container has one.
    pub file: Option<PathBuf>,
    /// The log whose end is used if the file is empty or missing (`FallbackToLogsOnError`).
    pub log: Option<PathBuf>,
}

/// The result of reading the termination message file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRead {
    /// Its last bytes.
    Bytes(Vec<u8>),
    /// It is not there, or there never was one.
    Missing,
    /// It could not be read: text of the error.
    Failed(String),
}

/// Where the termination message of an exited container is; `None` unless it has exited. The log is the fallback only if
/// the container ran and failed.
pub fn termination_message_source(
    status: &v1::ContainerStatus,
) -> Option<TerminationMessageSource> {
    if status.state() != v1::ContainerState::ContainerExited {
        return None;
    }
    let annotation = |key: &str| status.annotations.get(key).map(String::as_str);
    let path = annotation(keys::TERMINATION_MESSAGE_PATH).unwrap_or_default();
    let mount = status.mounts.iter().find(|mount| !path.is_empty() && mount.container_path == path);
    let falls_back = annotation(keys::TERMINATION_MESSAGE_POLICY) == Some("FallbackToLogsOnError")
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun";
    Some(TerminationMessageSource {
        file: mount.map(|mount| PathBuf::from(&mount.host_path)),
        log: (falls_back && !status.log_path.is_empty()).then(|| PathBuf::from(&status.log_path)),
    })
}

/// Whether the log has to be read too.
pub fn needs_log(source: &TerminationMessageSource, file: &FileRead) -> bool {
    source.log.is_some()
        && match file {
            FileRead::Bytes(bytes) => bytes.is_empty(),
            FileRead::Missing => true,
            FileRead::Failed(_) => false,
        }
}

/// The message of the container's status: the runtime's own, then the container's.
pub fn compose_message(
    runtime_message: &str,
    source: &TerminationMessageSource,
    file: &FileRead,
    log_tail: Option<&str>,
) -> String {
    let message = match file {
        FileRead::Bytes(bytes) if !bytes.is_empty() => {
            // Replacements of invalid bytes are longer than the bytes.
            truncate(&lossy_end(bytes, MAX_MESSAGE), MAX_MESSAGE).to_owned()
        }
        FileRead::Failed(error) => {
            let path = source.file.as_deref().unwrap_or_else(|| "".as_ref());
            format!("Error on reading termination log {}: {error}", path.display())
        }
        _ if needs_log(source, file) => log_tail.unwrap_or_default().to_string(),
        _ => String::new(),
    };
    match (runtime_message.is_empty(), message.is_empty()) {
        (_, true) => runtime_message.to_string(),
        (true, false) => message,
        (false, false) => format!("{runtime_message}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(policy: &str, exit_code: i32) -> v1::ContainerStatus {
        v1::ContainerStatus {
            state: v1::ContainerState::ContainerExited.into(),
            exit_code,
            annotations: [
                (keys::TERMINATION_MESSAGE_PATH.into(), "/dev/log".into()),
                (keys::TERMINATION_MESSAGE_POLICY.into(), policy.into()),
            ]
            .into(),
            mounts: vec![v1::Mount {
                container_path: "/dev/log".into(),
                host_path: "/k/message".into(),
                ..Default::default()
            }],
            log_path: "/logs/0.log".into(),
            ..Default::default()
        }
    }

    #[test]
    fn termination_message_is_read_only_after_exit() {
        let source = termination_message_source(&status("File", 1)).unwrap();
        assert_eq!(source.file, Some("/k/message".into()));
        assert_eq!(source.log, None);
        let running = v1::ContainerStatus {
            state: v1::ContainerState::ContainerRunning.into(),
            ..status("File", 0)
        };
        assert_eq!(termination_message_source(&running), None);
        let pathless = v1::ContainerStatus { annotations: Default::default(), ..status("File", 0) };
        assert_eq!(
            termination_message_source(&pathless),
            Some(TerminationMessageSource::default())
        );
    }

    #[test]
    fn the_log_stands_in_only_after_an_error_and_only_if_asked() {
        let log = |status| termination_message_source(&status).unwrap().log;
        assert!(log(status("FallbackToLogsOnError", 1)).is_some());
        assert!(log(status("FallbackToLogsOnError", 0)).is_none());
        let never_ran = v1::ContainerStatus {
            reason: "ContainerCannotRun".into(),
            ..status("FallbackToLogsOnError", 128)
        };
        assert!(log(never_ran).is_none());
    }

    #[test]
    fn the_message_is_the_runtimes_then_the_containers() {
        let source = termination_message_source(&status("FallbackToLogsOnError", 1)).unwrap();
        let said = FileRead::Bytes(b"goodbye".to_vec());
        let silent = FileRead::Bytes(Vec::new());
        let failed = FileRead::Failed("denied".into());
        for (runtime, file, log, message) in [
            ("", &said, Some("log"), "goodbye"),
            ("oom", &said, None, "oom: goodbye"),
            ("oom", &silent, Some("log"), "oom: log"),
            ("", &FileRead::Missing, Some("log"), "log"),
            ("", &FileRead::Missing, None, ""),
            ("oom", &FileRead::Missing, None, "oom"),
            ("", &failed, Some("log"), "Error on reading termination log /k/message: denied"),
        ] {
            assert_eq!(compose_message(runtime, &source, file, log), message);
        }
        assert!(needs_log(&source, &silent) && needs_log(&source, &FileRead::Missing));
        assert!(!needs_log(&source, &said) && !needs_log(&source, &failed));
        let file_only = termination_message_source(&status("File", 1)).unwrap();
        assert!(!needs_log(&file_only, &FileRead::Missing));
        assert_eq!(compose_message("", &file_only, &FileRead::Missing, Some("log")), "");
    }

    #[test]
    fn a_long_message_is_cut_at_its_start_between_characters() {
        let compose = |bytes: Vec<u8>| {
            compose_message("", &TerminationMessageSource::default(), &FileRead::Bytes(bytes), None)
        };
        let long = compose([vec![b'a'; 5000], b"end".to_vec()].concat());
        assert_eq!(long.len(), MAX_MESSAGE);
        assert!(long.ends_with("aend"));
        let torn = compose("é".repeat(3000).into_bytes().split_off(1));
        assert!(torn.len() <= MAX_MESSAGE && torn.chars().all(|c| c == 'é'));
        let binary = compose(vec![0xff; 5000]);
        assert!(binary.len() <= MAX_MESSAGE);
    }
}
