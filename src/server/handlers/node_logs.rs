//! `/logs/`: files in the node's log directory and, if the configuration enables it, logs of its services.

use super::files;
use super::node_log_query::{LogSelection, NodeLogQuery, files_of};
use crate::base::clock::{self, Instant};
use crate::base::spawn_blocking;
use crate::host::{ConfinedFile, open_confined};
use crate::server::http::params::RouteError;
use crate::server::http::query::BadQuery;
use crate::server::http::response::{Body, respond, text};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response, StatusCode};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain;charset=UTF-8");
/// Timeout of a response from the journal.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent responses from the journal.
const MAX_CONCURRENT: usize = 4;
/// Number of bytes that are read and sent at a time.
const CHUNK: usize = 64 * 1024;
/// Maximum size of the list of the journal's units, in bytes.
const MAX_UNITS: u64 = 1 << 20;

/// The sources of `/logs/`.
#[derive(Clone)]
pub struct NodeLogs {
    root: PathBuf,
    /// Reads the journal; `None` if logs of services are disabled.
    journal: Option<Journal>,
}

#[derive(Clone)]
struct Journal {
    program: PathBuf,
    permits: Arc<Semaphore>,
}

impl NodeLogs {
    /// Serves the files of a directory.
    pub fn of(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), journal: None }
    }

    /// Also serves logs of services, which `program` (journalctl) prints.
    #[must_use]
    pub fn with_journal(self, program: impl Into<PathBuf>) -> Self {
        let journal =
            Journal { program: program.into(), permits: Arc::new(Semaphore::new(MAX_CONCURRENT)) };
        Self { journal: Some(journal), ..self }
    }

    /// Serves a request. `path` is the decoded path after `/logs/`.
    pub(in crate::server) async fn serve(
        &self,
        path: String,
        query: Result<Option<NodeLogQuery>, BadQuery>,
        headers: &HeaderMap,
    ) -> Response<Body> {
        let Some(journal) = &self.journal else {
            return files::serve(self.root.clone(), path, headers).await;
        };
        let query = match query {
            Ok(Some(query)) => query,
            Ok(None) => return files::serve(self.root.clone(), path, headers).await,
            Err(bad) => return RouteError::BadQuery(bad).response(),
        };
        let refused = |why: String| text(StatusCode::NOT_ACCEPTABLE, why);
        if !path.is_empty() {
            return refused("path not allowed in query mode\n".into());
        }
        match query.selection() {
            Err(bad) => refused(format!("{}: {}\n", bad.parameter, bad.detail)),
            Ok(LogSelection::File(file)) => {
                let file = file.trim_start_matches('/').to_owned();
                files::serve(self.root.clone(), file, headers).await
            }
            Ok(LogSelection::Services(services)) => self.services(journal, &query, services).await,
        }
    }

    async fn services(
        &self,
        journal: &Journal,
        query: &NodeLogQuery,
        services: Vec<String>,
    ) -> Response<Body> {
        let Ok(permit) = journal.permits.clone().acquire_owned().await else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the kubelet is stopping\n".into());
        };
        let deadline = clock::instant() + JOURNAL_TIMEOUT;
        let units = timeout_at(deadline, journal.units()).await.unwrap_or_default();
        let is_native = |service: &String| units.contains(&format!("{service}.service"));
        let (native, others): (Vec<_>, Vec<_>) = services.into_iter().partition(is_native);
        let mut parts: Vec<LogSegment> = Vec::new();
        if !native.is_empty() {
            parts.push(match journal.run(&query.journal_arguments(&native)) {
                Ok(child) => LogSegment::Journal(Box::new(child)),
                Err(_) => LogSegment::Text("\nerror: journal output not available\n".into()),
            });
        }
        if !others.is_empty() && query.has_options() {
            let names = others.join(" ");
            parts.push(LogSegment::Text(format!(
                "\noptions present and query resolved to log files for [{names}]\ntry without specifying options\n"
            )));
        } else {
            for service in others {
                parts.push(self.file_of(service).await);
            }
        }
        respond(StatusCode::OK, TEXT_TYPE, stream_of(parts, deadline, permit))
    }

    /// The log file of a service without journal entries.
    async fn file_of(&self, service: String) -> LogSegment {
        for name in files_of(&service) {
            let root = self.root.clone();
            let open = move || open_confined(&root, name.as_ref(), 0);
            let opened = spawn_blocking(open).await.map_err(io::Error::other);
            match opened.and_then(|opened| opened) {
                Ok(ConfinedFile::File(file, _)) => {
                    return LogSegment::File(tokio::fs::File::from_std(file));
                }
                Ok(ConfinedFile::Directory(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return LogSegment::Text(format!(
                        "\nerror getting log for {service}: {error}\n"
                    ));
                }
            }
        }
        LogSegment::Text(format!("\nlog not found for {service}\n"))
    }
}

impl Journal {
    /// The names of all units in the journal; empty if it cannot be read.
    async fn units(&self) -> String {
        let mut units = Vec::new();
        if let Ok(mut child) = self.run(&["--field".into(), "_SYSTEMD_UNIT".into()])
            && let Some(output) = child.stdout.take()
            && output.take(MAX_UNITS).read_to_end(&mut units).await.is_err()
        {
            units.clear();
        }
        String::from_utf8_lossy(&units).into_owned()
    }

    fn run(&self, arguments: &[String]) -> io::Result<Child> {
        Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
    }
}

/// A part of a response: a file or the output of journalctl.
enum LogSegment {
    Text(String),
    File(tokio::fs::File),
    Journal(Box<Child>),
}

impl LogSegment {
    /// The next bytes; empty at the end.
    async fn next(&mut self) -> io::Result<Bytes> {
        match self {
            Self::Text(text) => Ok(std::mem::take(text).into()),
            Self::File(file) => read(file).await,
            Self::Journal(child) => match &mut child.stdout {
                Some(output) => read(output).await,
                None => Ok(Bytes::new()),
            },
        }
    }
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let mut part = Vec::with_capacity(CHUNK);
    from.read_buf(&mut part).await?;
    Ok(part.into())
}

/// The parts one after another; truncated at the deadline.
fn stream_of(parts: Vec<LogSegment>, deadline: Instant, permit: OwnedSemaphorePermit) -> Body {
    let parts = parts.into_iter();
    let start = (parts, None::<LogSegment>, permit);
    let chunks = stream::unfold(start, move |(mut parts, mut current, permit)| async move {
        loop {
            let mut part = match current.take() {
                Some(part) => part,
                None => parts.next()?,
            };
            let read = timeout_at(deadline, part.next()).await;
            let bytes = read.ok()?.unwrap_or_default();
            if !bytes.is_empty() {
                return Some((bytes, (parts, Some(part), permit)));
            }
        }
    });
    StreamBody::new(chunks.map(|bytes| Ok(Frame::data(bytes)))).boxed_unsync()
}
