//! What users do with a running pod: logs, commands, files, ports, debugging.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use crate::cluster::{Cluster, DEADLINE};
use crate::support::wait::{holds, wait_for};

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'echo one; echo two; exec httpd -f -p 8080 -h /etc']
";

/// Its only input ends it.
fn listener(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: localhost/busybox:dev
    stdin: true
    stdinOnce: true
    command: [sh, -c, 'read line; echo received $line']
"
    )
}

/// How kubectl streams.
#[derive(Clone, Copy)]
enum Protocol {
    WebSockets,
    Spdy,
}

struct Client<'c> {
    cluster: &'c Cluster,
    protocol: Protocol,
}

impl Client<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.kubectl_command(args);
        let web_sockets = match self.protocol {
            Protocol::WebSockets => "true",
            Protocol::Spdy => "false",
        };
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", web_sockets);
        command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", web_sockets);
        command
    }

    /// Exit code and standard output.
    fn run(&self, args: &[&str], input: &str) -> (Option<i32>, String) {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    }

    fn exec(&self) {
        let cat = ["exec", "-i", "web", "--", "sh", "-c", "cat; exit 3"];
        assert_eq!(self.run(&cat, "input\n"), (Some(3), "input\n".into()));
        let many = "1234567\n".repeat(100_000);
        let count = self.run(&["exec", "-i", "web", "--", "wc", "-c"], &many);
        assert_eq!(count, (Some(0), "800000\n".into()));
        let read = ["exec", "web", "--", "head", "-c", "800000", "/dev/zero"];
        let (code, text) = self.run(&read, "");
        assert_eq!((code, text.len()), (Some(0), 800_000));
    }

    /// There and back.
    fn copy(&self) {
        let dir = self.cluster.dir();
        let (from, to) = (dir.join("sent"), dir.join("received"));
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&from, &bytes).unwrap();
        for [a, b] in
            [[from.to_str().unwrap(), "web:/tmp/copy"], ["web:/tmp/copy", to.to_str().unwrap()]]
        {
            let (code, text) = self.run(&["cp", a, b], "");
            assert_eq!(code, Some(0), "{text}");
        }
        assert!(std::fs::read(&to).unwrap() == bytes, "the copy differs");
        std::fs::remove_file(to).unwrap();
    }

    fn attach(&self, pod: &str) {
        let (code, text) = self.run(&["attach", "-i", "-q", pod], "hello\n");
        assert_eq!((code, text.as_str()), (Some(0), "received hello\n"));
        let done = "jsonpath={.status.phase}=Succeeded";
        self.cluster.wait(done, &format!("pod/{pod}"));
    }

    fn forward(&self) {
        let mut command = self.command(&["port-forward", "pod/web", ":8080"]);
        let mut forward = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        let mut output = BufReader::new(forward.0.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let port = line.strip_prefix("Forwarding from 127.0.0.1:");
        let port = port.unwrap_or_else(|| panic!("{line}"));
        let url = format!("http://127.0.0.1:{}/passwd", port.split(' ').next().unwrap());
        for _ in 0..3 {
            let page = self.cluster.inside(&["busybox", "wget", "-qO-", &url]);
            assert!(page.starts_with("root:"), "{page}");
        }
    }
}

/// A child that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub async fn logs_commands_files_and_ports_of_a_pod_are_within_reach() {
    let cluster = Cluster::start();
    cluster.create(WEB);
    let listeners = ["listener-web-sockets", "listener-spdy"];
    for name in listeners {
        cluster.create(&listener(name));
    }
    for pod in [&["web"][..], &listeners].concat() {
        cluster.wait("condition=Ready", &format!("pod/{pod}"));
    }
    assert_eq!(cluster.kubectl(&["logs", "web"]), "one\ntwo\n");
    let last = cluster.kubectl(&["logs", "web", "--tail=1", "--timestamps"]);
    assert!(last.ends_with("Z two\n"), "{last}");
    for (protocol, listener) in [Protocol::WebSockets, Protocol::Spdy].into_iter().zip(listeners) {
        let cluster = &cluster;
        let client = Client { cluster, protocol };
        client.exec();
        client.copy();
        client.attach(listener);
        client.forward();
    }
    a_pod_is_debugged(&cluster).await;
    let write = "echo of a service >/var/log/some.log";
    cluster.inside(&["sh", "-c", write]);
    let query = "/api/v1/nodes/node1/proxy/logs/?query=some";
    assert_eq!(cluster.kubectl(&["get", "--raw", query]), "of a service\n");
}

/// With a container in the process namespace of another one.
async fn a_pod_is_debugged(cluster: &Cluster) {
    let before = cluster.get(&["pod", "web"])["status"]["containerStatuses"].clone();
    let debug = ["debug", "web", "--image=localhost/busybox:dev"];
    let target = ["--target=main", "-c", "debugger", "--", "cat", "/proc/1/cmdline"];
    cluster.kubectl(&[&debug[..], &target].concat());
    let path = "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}=0";
    cluster.wait(path, "pod/web");
    wait_for("it has seen its target", DEADLINE, || async {
        let seen = cluster.kubectl(&["logs", "web", "-c", "debugger"]);
        holds(seen.starts_with("httpd\0-f"), seen)
    })
    .await;
    let after = cluster.get(&["pod", "web"])["status"]["containerStatuses"].clone();
    assert_eq!(after, before);
}
