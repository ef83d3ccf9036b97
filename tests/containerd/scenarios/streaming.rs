//! Commands, terminals, ports and logs, as real clients request them: kube's for kubelets over
//! WebSocket, and client-go's over SPDY.

use std::process::Stdio;
use std::time::Duration;

use kube::Client;
use kube::api::{AttachParams, AttachedProcess, LogParams, TerminalSize};
use kube::core::kubelet_debug::KubeletDebugParams;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::node::{Node, manifest};
use crate::support::bridge::Bridge;
use crate::support::kubelet_process::free_ports;
use crate::support::scripts;

/// Longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(60);

const WEB: KubeletDebugParams<'static> =
    KubeletDebugParams { name: "web-node1", namespace: "default", pod_uid: None };

/// A pod that repeats its input, and a port that echoes.
const TALKER: &str = r#"
containers:
- name: main
  image: "localhost/busybox:dev"
  stdin: true
  command: [sh, -c, "echo begun; while read x; do echo heard $x; done; sleep 1000"]
- name: echo
  image: "localhost/busybox:dev"
  command: [nc, -ll, -p, "9000", -e, cat]
"#;

const ANYBODY: &str = "authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\n\
                       authorization: {mode: AlwaysAllow}\n";

async fn node_with_web() -> (Node, Bridge) {
    let node = Node::start().await;
    node.put("web", &manifest("web", TALKER));
    node.ready("web").await;
    let bridge = Bridge::to(node.root().join("kubelet.sock")).await;
    (node, bridge)
}

fn client(bridge: &Bridge) -> Client {
    let url = format!("http://127.0.0.1:{}", bridge.port);
    Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = timeout(TIMEOUT, work).await;
    done.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn read_all(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut text = String::new();
    if let Some(mut stream) = stream {
        let read = stream.read_to_string(&mut text);
        soon("reading", read).await.unwrap();
    }
    text
}

/// The code of a command that has ended.
async fn exit_code(process: &mut AttachedProcess) -> i32 {
    let status = process.take_status().unwrap();
    let status = soon("ending", status).await.expect("a status");
    if status.status.as_deref() == Some("Success") {
        return 0;
    }
    let causes = status.details.and_then(|details| details.causes);
    let mut causes = causes.into_iter().flatten();
    let code = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message).expect("a code");
    code.parse().unwrap()
}

pub async fn a_kube_client_runs_commands_attaches_and_reads_logs() {
    let (node, bridge) = node_with_web().await;
    let client = client(&bridge);
    let params = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let script = "read x; echo got $x; echo oops >&2; exit 7";
    let run = client.kubelet_node_exec(&WEB, "main", ["sh", "-c", script], &params);
    let mut process = soon("exec", run).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    stdin.write_all("a  b é\n".as_bytes()).await.unwrap();
    assert_eq!(read_all(process.stdout()).await, "got a b é\n");
    assert_eq!(read_all(process.stderr()).await, "oops\n");
    assert_eq!(exit_code(&mut process).await, 7);

    // By its UID, and without input: a command that succeeds.
    let pod = node.ready("web").await;
    let with_uid = KubeletDebugParams { pod_uid: pod.metadata.uid.as_deref(), ..WEB };
    let only_stdout = AttachParams::default().stderr(false);
    let run = client.kubelet_node_exec(&with_uid, "main", ["echo", "x+y%20z"], &only_stdout);
    let mut process = soon("exec", run).await.unwrap();
    assert_eq!(read_all(process.stdout()).await, "x+y%20z\n");
    assert_eq!(exit_code(&mut process).await, 0);

    // A terminal, and its size. CRI-O drops what it has not read of a terminal when the command ends.
    let script = r#"until [ "$(stty size 2>/dev/null)" = "33 77" ]; do usleep 20000; done
        tty; echo sized; usleep 500000"#;
    let terminal = AttachParams::interactive_tty();
    let run = client.kubelet_node_exec(&WEB, "main", ["sh", "-c", script], &terminal);
    let mut process = soon("exec", run).await.unwrap();
    let size = TerminalSize { width: 77, height: 33 };
    process.terminal_size().unwrap().try_send(size).unwrap();
    let shown = read_all(process.stdout()).await;
    assert!(shown.starts_with("/dev/pts/") && shown.ends_with("\r\nsized\r\n"), "{shown:?}");
    assert_eq!(exit_code(&mut process).await, 0);

    // The container's own process.
    let attach = client.kubelet_node_attach(&WEB, "main", &params);
    let mut process = soon("attach", attach).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    stdin.write_all(b"this\n").await.unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(process.stdout().unwrap());
    soon("the answer", stdout.read_line(&mut line)).await.unwrap();
    assert_eq!(line, "heard this\n");
    process.abort();

    let follow = LogParams { follow: true, ..LogParams::default() };
    let logs = client.kubelet_node_logs(&WEB, "main", &follow);
    let mut lines = futures::AsyncBufReadExt::lines(soon("logs", logs).await.unwrap());
    for expected in ["begun", "heard this"] {
        let line = soon("a line", futures::StreamExt::next(&mut lines)).await;
        assert_eq!(line.unwrap().unwrap(), expected);
    }
    let missing = client.kubelet_node_exec(&WEB, "other", ["ls"], &only_stdout);
    assert!(soon("a refusal", missing).await.is_err());
}

/// What is sent to the pod's port and comes back from it.
async fn echoed(stream: impl AsyncRead + AsyncWrite, bytes: usize) {
    let sent: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(bytes).collect();
    let (mut from, mut to) = tokio::io::split(stream);
    let mut got = vec![0; bytes];
    let both = async {
        tokio::try_join!(
            async {
                to.write_all(&sent).await?;
                to.flush().await
            },
            from.read_exact(&mut got)
        )
    };
    soon("the echo", both).await.unwrap();
    assert!(got == sent, "it comes back as it was");
}

pub async fn a_kube_client_reaches_ports() {
    let (_node, bridge) = node_with_web().await;
    let client = client(&bridge);
    let forward = client.kubelet_node_portforward(&WEB, &[9000, 9]);
    let mut ports = soon("port-forward", forward).await.unwrap();
    echoed(ports.take_stream(9000).unwrap(), 1 << 20).await;
    // The port has no listener.
    let error = soon("the refusal", ports.take_error(9).unwrap()).await;
    assert!(error.unwrap().contains("refused"));
}

/// The SPDY client with these arguments.
fn spdy(args: &[&str]) -> Child {
    let built = scripts::build("build-spdy.sh");
    assert!(built.is_ok(), "{built:?}");
    Command::new(scripts::target().join("tools/spdy"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// What it printed on both outputs, and its code.
async fn ran(args: &[&str], input: &[u8]) -> (String, String, i32) {
    let mut child = spdy(args);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).await.unwrap();
    drop(stdin);
    let output = soon("the command", child.wait_with_output()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (text(output.stdout), text(output.stderr), code)
}

pub async fn a_client_of_spdy_runs_commands_and_reaches_ports() {
    // On the kubelet's port, which allows anonymous clients here.
    let [port] = free_ports();
    let config = format!("enableServer: true\nport: {port}\n{ANYBODY}");
    let node = Node::start_with(&config).await;
    node.put("web", &manifest("web", TALKER));
    node.ready("web").await;
    let server = format!("https://127.0.0.1:{port}");
    let pod = "default/web-node1";
    // Its input ends, which only SPDY and the newest WebSocket protocol can say.
    let url = format!(
        "{server}/exec/{pod}/main?input=1&output=1&error=1&command=sh&command=-c&command=cat;%20echo%20oops%20%3E%262;%20exit%205"
    );
    let (out, err, code) = ran(&["exec", "-i", &url], b"one\ntwo\n").await;
    assert_eq!((&*out, &*err, code), ("one\ntwo\n", "oops\n", 5));
    let large: Vec<u8> = (0..2_000_000).map(|n| b'a' + (n % 23) as u8).collect();
    let url = format!("{server}/exec/{pod}/main?input=1&output=1&error=1&command=cat");
    let (out, _, code) = ran(&["exec", "-i", &url], &large).await;
    assert!(out.as_bytes() == large && code == 0, "{} bytes, {code}", out.len());

    // The end of its input would hang up the terminal.
    let script = "until%20%5B%20%22$(stty%20size%202%3E/dev/null)%22%20=%20%2233%2077%22%20%5D;%20do%20usleep%2020000;%20done;%20echo%20sized;%20usleep%20500000";
    let url =
        format!("{server}/exec/{pod}/main?output=1&tty=1&command=sh&command=-c&command={script}");
    let (out, err, code) = ran(&["exec", "-t", "-size", "77x33", &url], b"").await;
    assert_eq!((&*out, code), ("sized\r\n", 0), "{err}");

    let url = format!("{server}/exec/{pod}/nobody?output=1&command=ls");
    let (_, err, code) = ran(&["exec", &url], b"").await;
    assert_eq!(code, 99);
    assert!(err.contains("container not found (\"nobody\")"), "{err}");

    let mut forward = spdy(&["forward", &format!("{server}/portForward/{pod}"), "9000"]);
    let mut line = String::new();
    let mut stdout = BufReader::new(forward.stdout.take().unwrap());
    soon("the port", stdout.read_line(&mut line)).await.unwrap();
    let port: u16 = line.trim().parse().unwrap();
    for _ in 0..2 {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        echoed(stream, 10 << 20).await;
    }
    drop(forward.stdin.take());
    soon("its end", forward.wait()).await.unwrap();
}
