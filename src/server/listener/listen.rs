//! Listeners and connections.

use crate::base::panics::{self, catch_panic};
use crate::base::{ObservedStream, error_chain, spawn_blocking};
use crate::host::shares_namespaces;
use crate::host::unix_socket::{self, SocketFile};
use crate::server::auth::Peer;
use crate::server::connections::{
    ConnectionLimits, ConnectionProgress, ConnectionSlot, ConnectionSource, Connections,
};
use crate::server::http::response::{LongRunning, until_sent};
use crate::server::router::port_handler::PortHandler;
use crate::server::tls::Tls;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

/// Pause after a failed accept, which is mostly caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// TCP keep-alive: idle time before the first probe, interval, and number of probes before the connection is closed.
const TCP_KEEPALIVE: (Duration, Duration, u32) =
    (Duration::from_secs(60), Duration::from_secs(15), 4);

/// A port or socket that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {name}")]
pub struct BindError {
    /// The purpose of the port.
    pub name: &'static str,
    /// The address or the path.
    pub address: String,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// A bound port or local socket that is not served yet.
#[derive(Debug)]
pub struct Listener {
    name: &'static str,
    socket: ListenSocket,
    tls: Option<Arc<Tls>>,
    limits: ConnectionLimits,
}

#[derive(Debug)]
enum ListenSocket {
    Tcp(TcpListener, SocketAddr),
    Local(UnixListener, SocketFile),
}

impl fmt::Display for ListenSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, address) => address.fmt(f),
            Self::Local(_, local) => local.path().display().fmt(f),
        }
    }
}

impl Listener {
    /// Binds the port. Called before anything is started, so that a port in use prevents the start.
    ///
    /// # Errors
    /// The port is in use, or the address does not exist on this machine.
    pub async fn bind(name: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        let failed = |source| BindError { name, address: address.to_string(), source };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self {
            name,
            socket: ListenSocket::Tcp(socket, address),
            tls: None,
            limits: ConnectionLimits::default(),
        })
    }

    /// Creates a local socket of mode 0600, replacing a stale one. It is removed when the listener is dropped. Must
    /// be called within a tokio runtime.
    ///
    /// # Errors
    /// Another file exists at that path, or the socket cannot be bound.
    pub fn bind_local(name: &'static str, path: &Path) -> Result<Self, BindError> {
        let bound = unix_socket::listen_at(path).and_then(|(socket, local)| {
            Ok(ListenSocket::Local(UnixListener::from_std(socket)?, local))
        });
        let socket = bound.map_err(|source| BindError {
            name,
            address: path.display().to_string(),
            source,
        })?;
        Ok(Self { name, socket, tls: None, limits: ConnectionLimits::default() })
    }

    /// Sets the limits of connections.
    #[must_use]
    pub fn limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Enables TLS.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(Arc::new(tls));
        self
    }

    /// The bound address; `None` for a local socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListenSocket::Tcp(_, address) => Some(*address),
            ListenSocket::Local(..) => None,
        }
    }

    /// Serves until shutdown, then drains the connections. An error of one connection does not end the others.
    pub async fn serve(
        self,
        handler: PortHandler,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let connections = Connections::new(self.limits);
        let mut open = JoinSet::new();
        tracing::info!(name = self.name, address = %self.socket, "Started listening");
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_ended) = open.join_next() => {}
                accepted = accept(&self.socket) => match accepted {
                    Ok((stream, source)) => {
                        let Ok(slot) = connections.open(source) else {
                            tracing::warn!(name = self.name, "Too many connections, closing a new one: every connection has a request in progress");
                            continue;
                        };
                        let context = ConnectionContext {
                            slot: Arc::new(slot),
                            handler: handler.clone(),
                            limits: self.limits,
                            shutdown: shutdown.clone(),
                        };
                        let served = context.serve(stream, self.tls.clone());
                        open.spawn(catch_panic(panics::PanicScope::Connection, served));
                    }
                    Err(error) => {
                        tracing::warn!(name = self.name, err = %error, "Accepting a connection failed");
                        tokio::select! {
                            () = shutdown.cancelled() => break,
                            () = sleep(ACCEPT_PAUSE) => {}
                        }
                    }
                },
            }
        }
        drop(self.socket);
        while open.join_next().await.is_some() {}
        Ok(())
    }
}

/// The next connection. Safe to cancel.
async fn accept(
    socket: &ListenSocket,
) -> io::Result<(Either<TcpStream, UnixStream>, ConnectionSource)> {
    Ok(match socket {
        ListenSocket::Tcp(socket, _) => {
            let (stream, client) = socket.accept().await?;
            let _ = stream.set_nodelay(true);
            keep_alive(&stream);
            (Either::Left(stream), client.ip().into())
        }
        ListenSocket::Local(socket, _) => {
            (Either::Right(socket.accept().await?.0), ConnectionSource::Local)
        }
    })
}

/// Enables TCP keep-alive, so that dead clients are detected. A failure is ignored.
fn keep_alive(stream: &TcpStream) {
    let (idle, between, times) = TCP_KEEPALIVE;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, between);
    let _ = sockopt::set_tcp_keepcnt(stream, times);
}

/// The context of one connection.
struct ConnectionContext {
    slot: Arc<ConnectionSlot>,
    handler: PortHandler,
    limits: ConnectionLimits,
    shutdown: CancellationToken,
}

/// A request in progress, until its response has been sent or dropped.
struct RequestGuard {
    slot: Arc<ConnectionSlot>,
    progress: ConnectionProgress,
}

impl RequestGuard {
    fn begin(slot: &Arc<ConnectionSlot>, progress: &ConnectionProgress) -> Self {
        slot.begin_request();
        progress.begin_request();
        Self { slot: slot.clone(), progress: progress.clone() }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.progress.end_request();
        self.slot.end_request();
    }
}

impl ConnectionContext {
    /// Serves one client, after the TLS handshake if there is one.
    async fn serve(self, stream: Either<TcpStream, UnixStream>, tls: Option<Arc<Tls>>) {
        let stream = match stream {
            Either::Left(stream) => stream,
            Either::Right(stream) => return self.serve_local(stream).await,
        };
        let Some(tls) = tls else {
            return self.serve_http(stream, None).await;
        };
        let handshake_result = tokio::select! {
            handshake_result = timeout(self.limits.head_timeout, handshake(&tls, stream)) => handshake_result,
            () = self.slot.evicted() => return,
            () = self.shutdown.cancelled() => return,
        };
        match handshake_result {
            Ok(Ok((stream, peer))) => self.serve_http(stream, peer).await,
            Ok(Err(error)) => tracing::debug!(err = error_chain(&error), "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        }
    }

    /// Serves a client of the local socket. The socket's mode excludes all users except root. The check of namespaces
    /// also rejects root in a container that mounts the kubelet's root directory.
    async fn serve_local(mut self, stream: UnixStream) {
        let checked = spawn_blocking(move || {
            let shares = shares_namespaces(&stream);
            (stream, shares)
        });
        let (stream, shares) = match checked.await {
            Ok(checked) => checked,
            Err(error) => {
                return tracing::error!(err = %error, "Checking the namespaces of a local client failed");
            }
        };
        if !matches!(shares, Ok(true)) {
            let err = shares.err().map(|error| error_chain(&error));
            tracing::warn!(err, "Refusing a process in other namespaces on the local socket");
            self.handler = self.handler.refusing();
        }
        self.serve_http(stream, None).await;
    }

    /// Serves one connection until it ends or is upgraded.
    async fn serve_http(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Option<Arc<Peer>>,
    ) {
        let progress = ConnectionProgress::new(self.limits);
        let (shutdown, slot) = (&self.shutdown, &self.slot);
        let service = self.handler.service(shutdown);
        let service = service_fn(|mut request: hyper::Request<hyper::body::Incoming>| {
            let in_progress = RequestGuard::begin(slot, &progress);
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
            }
            request.extensions_mut().insert(slot.clone());
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let response = service.call(request);
            async move {
                let response = response.await?;
                if let Some(LongRunning { write_timeout }) = response.extensions().get() {
                    in_progress.progress.set_write_timeout(*write_timeout);
                    in_progress.slot.untrack();
                }
                let resp = response.status().as_u16();
                // Upstream's message and keys, without the query of the URI: that of `exec` and `run` is the command,
                // which may contain a secret.
                tracing::debug!(verb = %method, URI = path, resp, "HTTP");
                Ok::<_, Infallible>(until_sent(response, in_progress))
            }
        });
        let stream = TokioIo::new(ObservedStream::new(stream, progress.clone()));
        let served = http1::Builder::new()
            // hyper's timeout is disabled, because `ConnectionProgress` enforces the timeouts of idle clients and of
            // heads.
            .header_read_timeout(None)
            .max_buf_size(self.handler.max_head_size())
            .serve_connection(stream, service)
            .with_upgrades();
        let mut served = pin!(served);
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            () = slot.evicted() => return tracing::debug!("Connection closed to make room for another one"),
            () = progress.timed_out() => return tracing::debug!("Connection closed: the client timed out"),
            () = shutdown.cancelled() => {
                served.as_mut().graceful_shutdown();
                match timeout(self.limits.shutdown_timeout, served).await {
                    Ok(ended) => ended,
                    Err(_) => return tracing::debug!("Connection closed at shutdown before its response was sent"),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(err = error_chain(&error), "Connection failed");
        }
    }
}

async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &Tls,
    stream: S,
) -> io::Result<(TlsStream<S>, Option<Arc<Peer>>)> {
    let acceptor = TlsAcceptor::from(tls.config().await);
    let stream = acceptor.accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates();
    let peer = Peer::new(certificates.unwrap_or_default()).map(Arc::new);
    Ok((stream, peer))
}
