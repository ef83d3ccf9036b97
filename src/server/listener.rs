//! Sockets and connections.

use super::{
    auth::Peer,
    handlers::Handlers,
    lasting::Lasting,
    local::{self, LocalPath},
    tls::Tls,
};
use crate::base::{
    chain,
    panics::{Place, contain},
};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustix::net::sockopt;
use std::{
    convert::Infallible, fmt, io, net::SocketAddr, path::Path, pin::pin, sync::Arc, time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{either::Either, sync::CancellationToken};

/// How long nothing is accepted after an accept failed (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// A client that has said nothing for so long is asked whether it is still there; how often, and how many
/// times before its connection is given up.
const ALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);

/// A port or a socket that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {name}")]
pub struct BindError {
    /// What the port is for.
    pub name: &'static str,
    /// The address or the path asked for.
    pub address: String,
    /// The system's answer.
    #[source]
    pub source: io::Error,
}

/// What one client, and all together, may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections open at once; further ones wait in the system's queue.
    pub connections: usize,
    /// From the opening of a connection, or the end of a request, to the end of the next one's head; also for
    /// a TLS handshake.
    pub head: Duration,
    /// Age at which a connection is asked to close, whatever it does.
    pub age: Duration,
    /// Time left to finish an answer, once asked to close.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            head: Duration::from_secs(10),
            age: Duration::from_secs(120),
            drain: Duration::from_secs(5),
        }
    }
}

/// A bound port or local socket that does not serve yet.
#[derive(Debug)]
pub struct Listener {
    name: &'static str,
    socket: Socket,
    tls: Option<Arc<Tls>>,
    limits: Limits,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener, SocketAddr),
    Local(UnixListener, LocalPath),
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, address) => address.fmt(f),
            Self::Local(_, place) => place.path().display().fmt(f),
        }
    }
}

impl Listener {
    /// Takes the port, so that one already taken is a clean error before anything runs.
    pub async fn bind(name: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        let failed = |source| BindError {
            name,
            address: address.to_string(),
            source,
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self {
            name,
            socket: Socket::Tcp(socket, address),
            tls: None,
            limits: Limits::default(),
        })
    }

    /// Makes a local socket of mode 0600 in place of one that is there. It is removed when this ends.
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Something else is at that path, or it cannot be had.
    pub fn bind_local(name: &'static str, path: &Path) -> Result<Self, BindError> {
        let bound = local::listen_at(path)
            .and_then(|(socket, place)| Ok(Socket::Local(UnixListener::from_std(socket)?, place)));
        let socket = bound.map_err(|source| BindError {
            name,
            address: path.display().to_string(),
            source,
        })?;
        Ok(Self {
            name,
            socket,
            tls: None,
            limits: Limits::default(),
        })
    }

    /// With other limits than the default ones.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Behind TLS.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(Arc::new(tls));
        self
    }

    /// The address with the port that was really taken; `None` of a local socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(_, address) => Some(*address),
            Socket::Local(..) => None,
        }
    }

    /// Serves until shutdown, then lets running answers end. An error of one connection is that
    /// connection's; this returns only at shutdown.
    pub async fn serve(
        self,
        handlers: Handlers,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let mut open = JoinSet::new();
        tracing::info!(name = self.name, address = %self.socket, "serving");
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_ended) = open.join_next() => {}
                accepted = accept(&self.socket, &slots) => match accepted {
                    Ok((stream, slot)) => {
                        let slot = Slot::new(Mutex::new(Some(slot)));
                        let served = served(stream, slot.clone(), self.tls.clone(), handlers.clone(), self.limits, shutdown.clone());
                        open.spawn(async move {
                            let _ = contain(Place::Connection, served).await;
                            drop(slot);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(name = self.name, %error, "cannot accept a connection");
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

/// The next connection, once there is room for it. Safe to cancel.
async fn accept(
    socket: &Socket,
    slots: &Arc<Semaphore>,
) -> io::Result<(Either<TcpStream, UnixStream>, OwnedSemaphorePermit)> {
    let slot = slots
        .clone()
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let stream = match socket {
        Socket::Tcp(socket, _) => {
            let (stream, _) = socket.accept().await?;
            let _ = stream.set_nodelay(true);
            keep_alive(&stream);
            Either::Left(stream)
        }
        Socket::Local(socket, _) => Either::Right(socket.accept().await?.0),
    };
    Ok((stream, slot))
}

/// The place of a connection among those that may be open.
type Slot = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

/// Lets the kernel notice clients that are gone. A connection where that cannot be had is served all the same.
fn keep_alive(stream: &TcpStream) {
    let (idle, between, times) = ALIVE;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, between);
    let _ = sockopt::set_tcp_keepcnt(stream, times);
}

/// Serves one client, once hands have been shaken where that is to be done.
async fn served(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    slot: Slot,
    tls: Option<Arc<Tls>>,
    handlers: Handlers,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let Some(tls) = tls else {
        return connection(stream, slot, None, handlers, limits, shutdown).await;
    };
    let shaken = tokio::select! {
        shaken = timeout(limits.head, handshake(&tls, stream)) => shaken,
        () = shutdown.cancelled() => return,
    };
    match shaken {
        Ok(Ok((stream, peer))) => connection(stream, slot, peer, handlers, limits, shutdown).await,
        Ok(Err(error)) => tracing::debug!(error = chain(&error), "TLS handshake failed"),
        Err(_) => tracing::debug!("connection cut: the TLS handshake took too long"),
    }
}

async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &Tls,
    stream: S,
) -> io::Result<(TlsStream<S>, Option<Arc<Peer>>)> {
    let acceptor = TlsAcceptor::from(tls.config().await);
    let stream = acceptor.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates();
    let peer = Peer::new(shown.unwrap_or_default()).map(Arc::new);
    Ok((stream, peer))
}

/// Serves one connection to its end, which comes at the latest `age` and `drain` after its start, unless an
/// answer goes on for longer: that one has a place of another kind. So has what the connection is upgraded to,
/// which is not this one's any more.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    slot: Slot,
    peer: Option<Arc<Peer>>,
    handlers: Handlers,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let stopping = shutdown.clone();
    let longest_head = handlers.longest_head();
    let lasting = Arc::new(Mutex::new(None::<Lasting>));
    let (busy, mut answered) = watch::channel(false);
    let answer = lasting.clone();
    let old = async {
        sleep(limits.age).await;
        // Answers are made in bounded time, but for one that waits for a command to end.
        let _ = answered.wait_for(|busy| !busy).await;
        let answer = answer.lock().take();
        if let Some(answer) = answer {
            answer.over().await;
        }
    };
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        let (handlers, stopping) = (handlers.clone(), stopping.clone());
        let (slot, lasting, busy) = (slot.clone(), lasting.clone(), busy.clone());
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            busy.send_replace(true);
            let mut response = handlers.answer(request, &stopping).await;
            if let Some(answer) = response.extensions_mut().remove::<Lasting>() {
                *lasting.lock() = Some(answer);
                slot.lock().take();
            }
            busy.send_replace(false);
            let status = response.status().as_u16();
            tracing::debug!(%method, path, status, "answered");
            Ok::<_, Infallible>(response)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(longest_head)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => Some(ended),
        () = shutdown.cancelled() => None,
        () = old => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            served.as_mut().graceful_shutdown();
            match timeout(limits.drain, served).await {
                Ok(ended) => ended,
                Err(_) => return tracing::debug!("connection cut: the client took too long"),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = chain(&error), "connection ended early");
    }
}
