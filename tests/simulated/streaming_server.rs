//! A runtime's streaming server that treats all clients as scripted.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::raw::read_rest;

/// What it does with a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Manner {
    /// Switches to the requested protocol, greets, sends back what it gets, and says "bye" at its end.
    Echo,
    /// Switches, sends so many bytes, and closes.
    Pour(usize),
    /// 403 with a text.
    Refuse,
    /// Answers as if no upgrade had been requested.
    Ok,
    /// Sends the client elsewhere.
    Redirect,
    /// Never answers.
    Hang,
    /// Speaks something else.
    Garbage,
    /// Closes.
    Close,
}

/// It ends with this.
pub(crate) struct StreamingServer {
    address: String,
    heads: Arc<Mutex<Vec<String>>>,
    closed: Arc<Mutex<usize>>,
    poured: Arc<Mutex<Vec<usize>>>,
    task: JoinHandle<()>,
}

impl StreamingServer {
    /// On a port of loopback.
    pub(crate) async fn tcp(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        Self::new(address, move |seen| async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(stream, manner, seen.clone()));
            }
        })
    }

    /// On a socket in the file system.
    pub(crate) fn unix(path: PathBuf, manner: Manner) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let encoded = path.to_str().unwrap().replace('/', "%2F");
        Self::new(format!("unix://{encoded}"), move |seen| async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(stream, manner, seen.clone()));
            }
        })
    }

    fn new<F: Future<Output = ()> + Send + 'static>(
        address: String,
        run: impl FnOnce(Seen) -> F,
    ) -> Self {
        let seen = Seen::default();
        StreamingServer {
            address,
            heads: seen.heads.clone(),
            closed: seen.closed.clone(),
            poured: seen.poured.clone(),
            task: tokio::spawn(run(seen)),
        }
    }

    /// A URL as runtimes give them.
    pub(crate) fn url(&self) -> String {
        format!("{}/exec/t0k3n", self.address)
    }

    /// The requests that came, as text.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }

    /// How many have closed their side after the switch.
    pub(crate) fn closed(&self) -> usize {
        *self.closed.lock()
    }

    /// How much each of them was sent that is poured at.
    pub(crate) fn poured(&self) -> Vec<usize> {
        self.poured.lock().clone()
    }
}

impl Drop for StreamingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Default)]
struct Seen {
    heads: Arc<Mutex<Vec<String>>>,
    closed: Arc<Mutex<usize>>,
    poured: Arc<Mutex<Vec<usize>>>,
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, manner: Manner, seen: Seen) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let protocol = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("upgrade").then(|| value.to_owned())
    });
    seen.heads.lock().push(head);
    let switch = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {}\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n",
        protocol.unwrap_or_default()
    );
    let text = match manner {
        // The greeting comes with the head in one go.
        Manner::Echo => switch + "hello ",
        Manner::Pour(_) => switch,
        Manner::Refuse => {
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 20\r\n\r\nyou are not my type\n".to_owned()
        }
        Manner::Ok => "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n".to_owned(),
        Manner::Redirect => {
            "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n"
                .to_owned()
        }
        Manner::Hang => std::future::pending().await,
        Manner::Garbage => "SSH-2.0-OpenSSH_9.6\r\n\r\n".to_owned(),
        Manner::Close => return,
    };
    if stream.write_all(text.as_bytes()).await.is_err() {
        return;
    }
    match manner {
        Manner::Echo => echo(&mut stream, &seen).await,
        Manner::Pour(bytes) => {
            let piece = vec![b'x'; 64 * 1024];
            let own = {
                let mut poured = seen.poured.lock();
                poured.push(0);
                poured.len() - 1
            };
            let mut left = bytes;
            while left > 0 {
                let now = left.min(piece.len());
                if stream.write_all(&piece[..now]).await.is_err() {
                    break;
                }
                left -= now;
                seen.poured.lock()[own] += now;
            }
        }
        _ => {}
    }
    let _ = stream.shutdown().await;
}

async fn echo(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), seen: &Seen) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => {
                if stream.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
        }
    }
    *seen.closed.lock() += 1;
    let _ = stream.write_all(b"bye").await;
}

/// Sends so many bytes to an echo and ends; all of them come back, and its last word. They are to be far more
/// than all the buffers on the way, in both directions at once.
pub(crate) async fn comes_back<R, W>(from: &mut R, mut to: W, bytes: u32)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let sent: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
    let written = sent.clone();
    let sending = tokio::spawn(async move {
        to.write_all(&written).await.unwrap();
        // That this side has said all does not end the other one.
        to.shutdown().await.unwrap();
        to
    });
    let got = read_rest(from).await;
    sending.await.unwrap();
    assert_eq!(got.len(), sent.len() + 3);
    assert!(got.starts_with(&sent) && got.ends_with(b"bye"));
}
