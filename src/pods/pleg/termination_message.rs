//! Reads the termination message of an exited container, from its file or the end of its log.

use crate::{
    cri::v1,
    runtime::kuberuntime::{
        generate::container_files::read_termination_message,
        termination::{compose_message, needs_log, termination_message},
    },
    runtime::logs::tail,
};

/// The container's message; `None` when it has none.
pub(super) async fn of(status: &v1::ContainerStatus) -> Option<String> {
    let message_config = termination_message(status)?;
    let runtime_message = status.message.clone();
    let read = move || {
        let file = read_termination_message(&message_config);
        let log_tail = if needs_log(&message_config, &file) {
            message_config
                .log
                .as_deref()
                .and_then(|log| tail::of_log(log, tail::TERMINATION).ok())
        } else {
            None
        };
        compose_message(
            &runtime_message,
            &message_config,
            &file,
            log_tail.as_deref(),
        )
    };
    tokio::task::spawn_blocking(read).await.ok()
}
