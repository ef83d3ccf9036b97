//! Connections through a proxy, well behaved and otherwise.

use super::scripted::Reply;
use super::*;
use crate::base::error_chain;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use std::path::Path;
use tokio::io::{
    AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How a proxy responds.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// It connects to the port, on this machine whatever the host.
    Tunnel,
    /// It closes the connection.
    Close,
    /// It sends this status.
    Refuse(&'static str),
}

/// An HTTP proxy; it ends with the test.
struct HttpProxy {
    port: u16,
    /// The request lines and headers that it was sent.
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HttpProxy {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, manner, lines.clone()));
            }
        });
        Self { port, seen, task }
    }
}

async fn serve(stream: TcpStream, manner: Manner, seen: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let port = head[0].split([':', ' ']).nth(2).unwrap().parse::<u16>();
    seen.lock().extend(head);
    match manner {
        Manner::Close => {}
        Manner::Refuse(status) => {
            let response = format!("HTTP/1.1 {status}\r\n\r\n");
            stream.write_all(response.as_bytes()).await.unwrap();
            // The client ends the connection.
            let _ = stream.read(&mut [0]).await;
        }
        Manner::Tunnel => {
            let mut server = TcpStream::connect(("127.0.0.1", port.unwrap())).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let _ = copy_bidirectional(&mut stream, &mut server).await;
        }
    }
}

/// A kubeconfig of this server with a proxy; the server has a name that only the proxy finds.
fn through(server: &Scripted, directory: &Path, proxy: &str) -> std::path::PathBuf {
    let path = server.kubeconfig(directory);
    let text = fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let cluster = &mut config["clusters"][0]["cluster"];
    cluster["proxy-url"] = json!(proxy);
    cluster["server"] = json!(format!("https://kubernetes:{}", server.port));
    fs::write(&path, config.to_string()).unwrap();
    path
}

async fn node_through(proxy: &str) -> (Scripted, Result<Node, ApiError>) {
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}});
    let server = Scripted::serve(move |_| Reply::Json(200, node.clone())).await;
    let directory = tempfile::tempdir().unwrap();
    let path = through(&server, directory.path(), proxy);
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    let node = api.get::<Node>(ResourcePath::cluster("n")).await;
    (server, node)
}

#[tokio::test]
async fn requests_go_through_the_proxy_of_the_kubeconfig_with_its_credentials() {
    let proxy = HttpProxy::start(Manner::Tunnel).await;
    let url = format!("http://user:s3cret@127.0.0.1:{}", proxy.port);
    let (server, node) = node_through(&url).await;
    assert_eq!(node.unwrap().metadata.name.as_deref(), Some("n"));
    let seen = proxy.seen.lock().clone();
    let connect = format!("CONNECT kubernetes:{} HTTP/1.1", server.port);
    assert_eq!(seen[0], connect);
    // "user:s3cret".
    let credentials = "Proxy-Authorization: Basic dXNlcjpzM2NyZXQ=";
    assert!(seen.iter().any(|line| line == credentials), "{seen:?}");
}

/// tinyproxy; killed with the test.
struct Tinyproxy {
    process: std::process::Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Drop for Tinyproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Tinyproxy {
    /// `None` where it is not installed, which `CI=true` makes a failure.
    async fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let config = directory.path().join("tinyproxy.conf");
        let log = directory.path().join("log");
        let text = format!(
            "Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\nBasicAuth user s3cret\nLogFile \"{}\"\n\
             LogLevel Connect\nTimeout 600\n",
            log.display()
        );
        fs::write(&config, text).unwrap();
        let started =
            std::process::Command::new("tinyproxy").args(["-d", "-c"]).arg(&config).spawn();
        let process = match started {
            Ok(process) => process,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "tinyproxy: {error}");
                eprintln!("SKIPPED: tinyproxy: {error}; hack/install-deps.sh installs it");
                return None;
            }
        };
        let proxy = Self { process, port, directory };
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        Some(proxy)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

#[tokio::test]
async fn requests_and_watches_go_through_a_real_proxy() {
    let Some(proxy) = Tinyproxy::start().await else {
        return;
    };
    let server = Scripted::serve(|request| {
        if request.parameter("watch").is_some() {
            let (pushed, reply) = Reply::stream();
            tokio::spawn(async move {
                let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "2"}});
                pushed.line(&json!({"type": "ADDED", "object": pod})).await;
                pushed.closed().await;
            });
            return reply;
        }
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        Reply::Json(200, list)
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let path = server.kubeconfig(directory.path());
    let mut config: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let url = |password| json!(format!("http://user:{password}@127.0.0.1:{}", proxy.port));
    config["clusters"][0]["cluster"]["proxy-url"] = url("s3cret");
    fs::write(&path, config.to_string()).unwrap();
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    let mut watch = api.list_watch::<Pod>(Selection::default());
    assert!(matches!(watch.next().await, WatchEvent::Listed(_)));
    let event = watch.next().await;
    assert!(matches!(event, WatchEvent::Applied(_)), "{event:?}");
    let connect = format!("CONNECT 127.0.0.1:{}", server.port);
    assert!(proxy.log().contains(&connect), "{}", proxy.log());
    config["clusters"][0]["cluster"]["proxy-url"] = url("wrong");
    fs::write(&path, config.to_string()).unwrap();
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    let error = api.get::<Node>(ResourcePath::cluster("n")).await;
    let text = error_chain(&error.unwrap_err());
    assert!(text.contains("proxy http://127.0.0.1"), "{text}");
}

#[tokio::test]
async fn an_error_of_the_proxy_names_it_without_its_credentials() {
    for (manner, reason) in [
        (Manner::Close, "unexpected end of file"),
        (Manner::Refuse("407 Proxy Authentication Required"), "authorization required"),
        (Manner::Refuse("502 Bad Gateway"), "unsuccessful"),
        (Manner::Refuse("nonsense"), "unsuccessful"),
    ] {
        let proxy = HttpProxy::start(manner).await;
        let url = format!("http://user:s3cret@127.0.0.1:{}", proxy.port);
        let (server, node) = node_through(&url).await;
        let text = error_chain(&node.unwrap_err());
        let named = format!("proxy http://127.0.0.1:{}", proxy.port);
        assert!(text.contains(&named) && text.contains(reason), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
        assert!(server.received().is_empty());
    }
    // One that is not there.
    let (_, node) = node_through("socks5://127.0.0.1:1").await;
    let text = error_chain(&node.unwrap_err());
    assert!(text.contains("proxy socks5://127.0.0.1:1"), "{text}");
}
