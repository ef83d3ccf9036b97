//! Reads the termination message of an exited container, from its file or the end of its log.

use crate::base::spawn_blocking;
use crate::cri::v1;
use crate::runtime::kuberuntime::generate::container_files::read_termination_message;
use crate::runtime::kuberuntime::termination::{
    compose_message, needs_log, termination_message_source,
};
use crate::runtime::logs::tail;

/// The message of an exited container, possibly empty; `None` unless it has exited, or if reading it panicked.
pub(super) async fn of(status: &v1::ContainerStatus) -> Option<String> {
    let source = termination_message_source(status)?;
    let runtime_message = status.message.clone();
    let read = move || {
        let file = read_termination_message(&source);
        let log_tail = if needs_log(&source, &file) {
            source.log.as_deref().and_then(|log| tail::of_log(log, tail::TERMINATION).ok())
        } else {
            None
        };
        compose_message(&runtime_message, &source, &file, log_tail.as_deref())
    };
    spawn_blocking(read).await.ok()
}
