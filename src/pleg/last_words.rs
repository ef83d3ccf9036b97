//! Reads what an exited container wanted to be remembered by.

use crate::{
    cri::v1,
    host::files,
    kuberuntime::termination::{FileRead, LastWords, compose_message, last_words, needs_log},
    logs::tail,
};
use std::io;

/// Read more than a message may have, to know where the last 4096 bytes begin within a character.
const READ: usize = 4096 + 4;

/// The container's message; `None` when it has none to look for.
pub(super) async fn of(status: &v1::ContainerStatus) -> Option<String> {
    let words = last_words(status)?;
    let runtime_message = status.message.clone();
    let read = move || {
        let file = read_file(&words);
        let log_tail = match needs_log(&words, &file) {
            true => words.log.as_deref().and_then(|log| tail::of_log(log, tail::TERMINATION).ok()),
            false => None,
        };
        compose_message(&runtime_message, &words, &file, log_tail.as_deref())
    };
    tokio::task::spawn_blocking(read).await.ok()
}

fn read_file(words: &LastWords) -> FileRead {
    let Some(path) = &words.file else { return FileRead::Missing };
    match files::read_tail(path, READ) {
        Ok(bytes) => FileRead::Bytes(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => FileRead::Missing,
        Err(error) => FileRead::Failed(error.to_string()),
    }
}
