//! What a running pod offers, and how it ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::flavour::Flavour;
use crate::node::{Node, WAIT_LIMIT, condition, manifest};
use crate::support::kubelet_process::free_ports;
use crate::support::wait::{holds, wait_for};

fn http_get(address: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let limit = Some(WAIT_LIMIT);
    stream.set_read_timeout(limit).map_err(|error| error.to_string())?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    Ok(answer)
}

pub async fn a_web_server_becomes_ready_and_answers_on_its_pod_ip() {
    let node = Node::start().await;
    let [port] = free_ports();
    let shared = node.shared();
    node.put("web", &manifest("web", &format!(r#"
containers:
- name: httpd
  image: localhost/busybox:dev
  command: [sh, -c, "mkdir /www; httpd -p 8080 -h /www; until [ -e /shared/go ]; do sleep 0.1; done; echo hello from $NAME > /www/index.html; exec sleep 1000"]
  env: [{{ name: NAME, valueFrom: {{ fieldRef: {{ fieldPath: metadata.name }} }} }}]
  ports: [{{ name: http, containerPort: 8080, hostPort: {port}, hostIP: 127.0.0.1 }}]
  readinessProbe: {{ httpGet: {{ path: /index.html, port: http }}, periodSeconds: 1, timeoutSeconds: 30 }}
  livenessProbe: {{ tcpSocket: {{ port: http }}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 30 }}
  volumeMounts: [{{ name: shared, mountPath: /shared, readOnly: true }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#, shared.display())));
    let running = node
        .containers_when("web", "it runs", WAIT_LIMIT, |found| found.iter().any(|c| c.running))
        .await;
    // It was signalled, and ignores the signal.
    node.says("Readiness probe failed: HTTP probe failed with statuscode: 404").await;
    node.pod_when("web", "is not ready", |pod| condition(pod, "Ready") == Some(false)).await;
    std::fs::write(shared.join("go"), "").unwrap();
    let pod = node.ready("web").await;
    let ip = pod.status.as_ref().unwrap().pod_ip.clone().expect("a pod IP");
    let mut addresses = vec![format!("{ip}:8080")];
    // hack/crio.sh says why a private CRI-O has no host ports.
    if !Flavour::current().is_crio() {
        addresses.push(format!("127.0.0.1:{port}"));
    }
    for address in addresses {
        let answer = http_get(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
        assert!(answer.ends_with("hello from web-node1\n"), "{answer}");
    }
    assert_eq!(node.runtime.containers_of("web-node1").len(), running.len());
}

pub async fn volumes_are_shared_between_containers_and_with_the_host() {
    let node = Node::start().await;
    let shared = node.shared();
    node.put("volumes", &manifest("volumes", &format!(r#"
containers:
- name: writer
  image: localhost/busybox:dev
  command: [sh, -c, "echo from the writer > /scratch/note; sleep 1000"]
  volumeMounts: [{{ name: scratch, mountPath: /scratch }}]
- name: copier
  image: localhost/busybox:dev
  command: [sh, -c, "until [ -s /in/note ]; do sleep 0.1; done; cat /in/note > /out/note; sleep 1000"]
  volumeMounts: [{{ name: scratch, mountPath: /in, readOnly: true }}, {{ name: host, mountPath: /out }}]
volumes:
- {{ name: scratch, emptyDir: {{ medium: Memory }} }}
- {{ name: host, hostPath: {{ path: "{}", type: Directory }} }}
"#, shared.display())));
    wait_for("the note reaches the host", WAIT_LIMIT, || async {
        let note = node.shared_file("note");
        holds(note == "from the writer\n", format!("{note:?}"))
    })
    .await;
    node.remove("volumes");
    node.gone("volumes", WAIT_LIMIT).await;
    // A tmpfs that stays mounted would stay for ever.
    wait_for("the emptyDir is unmounted", WAIT_LIMIT, || async {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let pods = node.kubelet.settings().dir.join("root/pods");
        let pods = pods.display().to_string();
        let left = mounts.lines().filter(|line| line.contains(&pods)).collect::<Vec<_>>();
        holds(left.is_empty(), left.join("\n"))
    })
    .await;
}

pub async fn a_host_network_pod_has_the_hosts_network() {
    let node = Node::start().await;
    let [port] = free_ports();
    node.put("hostnet", &manifest("hostnet", &format!(r#"
hostNetwork: true
containers:
- name: httpd
  image: localhost/busybox:dev
  command: [sh, -c, "mkdir /www; echo host > /www/index.html; exec httpd -f -p 127.0.0.1:{port} -h /www"]
  readinessProbe: {{ httpGet: {{ host: 127.0.0.1, path: /index.html, port: {port} }}, periodSeconds: 1, timeoutSeconds: 30 }}
"#)));
    let pod = node.ready("hostnet").await;
    let status = pod.status.unwrap();
    assert_eq!(status.pod_ip, status.host_ip);
    assert!(http_get(&format!("127.0.0.1:{port}")).unwrap().ends_with("host\n"));
}

pub async fn logs_are_where_they_belong_and_crictl_reads_them() {
    let node = Node::start().await;
    let spec = r#"
containers:
- { name: talker, image: "localhost/busybox:dev", command: [sh, -c, "echo out; echo err >&2; sleep 1000"] }
"#;
    node.put("talk", &manifest("talk", spec));
    let pod = node.ready("talk").await;
    let uid = pod.metadata.uid.unwrap();
    let logs = node.kubelet.settings().dir.join("logs");
    let path = logs.join(format!("default_talk-node1_{uid}/talker/0.log"));
    let text = wait_for("the log is written", WAIT_LIMIT, || async {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if text.lines().count() == 2 {
            Ok(text)
        } else {
            Err(format!("{}: {text:?}", path.display()))
        }
    })
    .await;
    assert!(text.contains(" stdout F out\n") && text.contains(" stderr F err\n"), "{text}");
    let id = &node.runtime.containers_of("talk-node1")[0].id;
    assert_eq!(node.runtime.crictl(&["logs", id]), "out\n");
}

pub async fn a_removed_pod_runs_its_pre_stop_hook_and_gets_its_grace() {
    let node = Node::start().await;
    let shared = node.shared();
    let text = manifest(
        "hooks",
        &format!(
            r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "trap 'echo term >> /shared/story; sleep 1; echo bye >> /shared/story; exit 0' TERM; echo up >> /shared/story; while true; do sleep 0.05; done"]
  lifecycle:
    postStart: {{ exec: {{ command: [sh, -c, "echo post-start >> /shared/hooks"] }} }}
    preStop: {{ exec: {{ command: [sh, -c, "sleep 1; echo pre-stop >> /shared/story"] }} }}
  volumeMounts: [{{ name: shared, mountPath: /shared }}]
volumes: [{{ name: shared, hostPath: {{ path: "{}" }} }}]
"#,
            shared.display()
        ),
    );
    node.put(
        "hooks",
        &text.replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 20"),
    );
    node.ready("hooks").await;
    wait_for("it is up", WAIT_LIMIT, || async { holds(node.shared_file("story") == "up\n", "no") })
        .await;
    assert_eq!(node.shared_file("hooks"), "post-start\n");
    node.remove("hooks");
    node.gone("hooks", WAIT_LIMIT).await;
    let story = node.shared_file("story");
    assert_eq!(story.lines().collect::<Vec<_>>(), ["up", "pre-stop", "term", "bye"]);
    assert!(node.runtime.running().is_empty());
}

pub async fn a_container_that_ignores_sigterm_is_killed_after_its_grace() {
    let node = Node::start().await;
    let text = manifest(
        "deaf",
        r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "trap '' TERM; touch /deaf; while true; do sleep 0.05; done"]
  # Before it is deaf it would hear the signal.
  readinessProbe: { exec: { command: [test, -e, /deaf] }, periodSeconds: 1 }
"#,
    );
    node.put(
        "deaf",
        &text.replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 4"),
    );
    node.ready("deaf").await;
    let removed = Instant::now();
    node.remove("deaf");
    node.containers_when("deaf", "it is dead", WAIT_LIMIT, |found| {
        found.iter().all(|c| !c.running)
    })
    .await;
    let took = removed.elapsed();
    assert!(
        took >= Duration::from_secs(4),
        "it was killed after {took:?}, before its grace was over"
    );
    // Its own grace, and not that of a pod that names none.
    assert!(took < Duration::from_secs(30), "it was killed only after {took:?}");
    node.gone("deaf", WAIT_LIMIT).await;
}
