//! The built program's subcommands, over the local socket of a running kubelet.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::Instant;

use crate::node::{Node, WAIT_LIMIT, backs_off_for, full};
use crate::pods::{container, exec_probe, pod, simple, with, with_metadata, with_spec};
use crate::support::fake_runtime::{
    Behaviour, ExecOutcome, FakeRuntime, Fault, Options, Pull, Rpc,
};
use crate::support::kubelet_process::{KubeletProcess, Settings, free_ports};
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

impl Node {
    fn verb(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubelet"));
        command
            .args(args)
            .arg("--root-dir")
            .arg(self.path("root"))
            .args(["--hostname-override", "node1"])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run_cli(&self, args: &[&str]) -> Output {
        self.verb(args).output().await.expect("run a verb")
    }

    /// What a verb prints, which must succeed.
    async fn report(&self, args: &[&str]) -> String {
        let output = self.run_cli(args).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        assert!(errors.is_empty(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    async fn report_json(&self, args: &[&str]) -> Value {
        let args = [args, &["-o", "json"]].concat();
        serde_json::from_str(&self.report(&args).await).expect("JSON")
    }

    /// The explanation of a pod, once `fact` holds of it.
    pub(crate) async fn explained(
        &self,
        name: &str,
        what: &str,
        fact: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_for(what, WAIT_LIMIT, async || {
            let output = self.run_cli(&["explain", name, "-o", "json"]).await;
            let errors = String::from_utf8_lossy(&output.stderr);
            let report: Value =
                serde_json::from_slice(&output.stdout).map_err(|_| errors.into_owned())?;
            if fact(&report) { Ok(report) } else { Err(format!("{report:#}")) }
        })
        .await
    }

    async fn shown_pods(&self) -> Vec<Value> {
        let report = self.report_json(&["pods"]).await;
        report["pods"].as_array().expect("pods").clone()
    }
}

fn time(value: &Value) -> Timestamp {
    value.as_str().expect("a time").parse().expect("a time")
}

/// How far an instant of this process is from a time of the wall clock, in seconds.
fn apart(at: Instant, wall: Timestamp) -> f64 {
    let (here, now) = (Instant::now(), Timestamp::now());
    let ago = here.duration_since(at).as_secs_f64();
    let wall_ago = (now.as_millisecond() - wall.as_millisecond()) as f64 / 1000.0;
    wall_ago - ago
}

#[tokio::test]
async fn pods_are_shown_over_a_socket_that_is_its_owners_alone() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.put(&with_metadata(simple("db"), json!({"namespace": "shop"})));
    node.wait_phase("web", "Running").await;
    let socket = std::fs::metadata(node.path("root/kubelet.sock")).unwrap();
    assert!(socket.file_type().is_socket());
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    let table = wait_for("both are ready", WAIT_LIMIT, async || {
        let table = node.report(&["pods"]).await;
        holds(table.matches("1/1     Running").count() == 2, table.clone()).map(|()| table)
    })
    .await;
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..4], ["NAMESPACE", "NAME", "READY", "STATUS"]);
    assert_eq!(lines[1][..2], ["default", "web-node1"]);
    assert_eq!(lines[2][..2], ["shop", "db-node1"]);
    assert!(!table.contains('\x1b'), "a pipe is no terminal");
    let only = node.report(&["pods", "-n", "shop"]).await;
    assert_eq!(only.lines().count(), 2, "{only}");
    let wide = node.report(&["pods", "-o", "wide"]).await;
    let uid = node.pod("web").await.unwrap().metadata.uid.unwrap();
    assert!(wide.contains(&uid), "{wide}");
    let shown = node.shown_pods().await;
    let shown_as_pods = node.pod("web").await.unwrap().status.unwrap();
    assert_eq!(shown[0]["ip"].as_str(), shown_as_pods.pod_ip.as_deref());
}

#[tokio::test]
async fn a_process_in_other_namespaces_is_refused_on_the_socket() {
    let node = Node::started().await;
    for namespace in [&["--mount"][..], &["--pid", "--fork"]] {
        let verb = node.verb(&["pods"]);
        let mut unshared = Command::new("unshare");
        unshared.args(namespace).arg(verb.as_std().get_program());
        let output = unshared.args(verb.as_std().get_args()).output().await;
        let output = output.expect("run unshare");
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("unshare") {
            assert!(std::env::var("CI").is_err(), "{errors}");
            eprintln!("NOT TESTED: a process in other namespaces: {errors}");
            return;
        }
        assert!(!output.status.success(), "{namespace:?}");
        assert!(errors.contains("mount and pid namespaces"), "{errors}");
    }
    node.report(&["pods"]).await;
}

#[tokio::test]
async fn the_socket_goes_with_the_kubelet_and_who_asks_then_is_told_so() {
    let mut node = Node::started().await;
    wait_for("there is no warning", WAIT_LIMIT, async || {
        let report = node.report(&["pods"]).await;
        holds(report == "No pods.\n", report)
    })
    .await;
    node.stop().await;
    assert!(!node.path("root/kubelet.sock").exists());
    let output = node.run_cli(&["pods"]).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.starts_with("kubelet: cannot reach a kubelet at "), "{errors}");
    // One that was killed leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(node.path("root/kubelet.sock")).unwrap());
    node.start().await;
    assert_eq!(node.report(&["pods"]).await.lines().last(), Some("No pods."));
}

#[tokio::test]
async fn before_the_runtime_answers_the_kubelet_says_what_it_waits_for() {
    let mut node = Node::new().await;
    node.fake.vanish();
    node.start().await;
    let report = node.report(&["pods"]).await;
    assert!(report.starts_with("! waiting for the container runtime at unix://"), "{report}");
    node.fake.come_back();
    wait_for("the warning is gone", WAIT_LIMIT, async || {
        let report = node.report(&["pods"]).await;
        holds(!report.contains('!'), report)
    })
    .await;
}

#[tokio::test]
async fn a_crash_loop_is_explained_with_the_instant_of_the_next_start() {
    real_time("the command is a process");
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 3));
    node.put(&simple("web"));
    // That it waits is known before the one who decided it has noted that.
    let held = |report: &Value| {
        let noted = report["history"].as_array().and_then(|all| all.last());
        let noted = noted.is_some_and(|last| last["action"] == "Wait");
        noted && report["waits"][0]["what"] == "its restart back-off of 10s"
    };
    let report = node.explained("web", "it is held back", held).await;
    assert_eq!(report["waits"][0]["container"], "main");
    assert_eq!(report["pod"]["status"], "CrashLoopBackOff");
    assert_eq!(report["pod"]["restarts"], 1);
    assert_eq!(report["pod"]["lastReason"], "Error (3)");
    let summary = "CrashLoopBackOff: main waits for its restart back-off of 10s";
    assert_eq!(report["summary"], summary);
    let until = time(&report["waits"][0]["until"]);
    assert_eq!(report["next"][0]["what"], "main may be restarted");
    assert_eq!(time(&report["next"][0]["at"]), until);
    let pod_history = report["history"].as_array().unwrap();
    let actions: Vec<_> = pod_history.iter().map(|one| &one["action"]).collect();
    assert_eq!(
        actions,
        ["CreateSandbox", "StartContainer", "StartContainer", "Wait"],
        "{pod_history:#?}"
    );
    assert_eq!(pod_history[2]["why"], "exited with code 3");
    let third = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) >= 3;
    node.fake.wait_until("the third start", WAIT_LIMIT, third).await;
    let started = node.calls("web", Rpc::StartContainer)[2].at;
    let off = apart(started, until);
    // A busy machine may be late, but not by another back-off.
    assert!((-0.5..10.0).contains(&off), "it started {off} s after the instant that was reported");
    let page = node.report(&["explain", "default/web-node1"]).await;
    assert!(page.contains("\nHistory\n") && page.contains("start main"), "{page}");
}

#[tokio::test]
async fn a_pod_may_shorten_its_back_off_by_an_annotation() {
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 1));
    let annotations = json!({"annotations": {"kubelet.rs/max-container-restart-period": "1s"}});
    node.put(&with_metadata(simple("quick"), annotations));
    node.put(&simple("usual"));
    let fifth = |fake: &FakeRuntime| {
        let starts = fake.calls_of(Rpc::StartContainer);
        starts.iter().filter(|call| call.subject.pod == full("quick")).count() >= 5
    };
    node.fake.wait_until("the fifth start", WAIT_LIMIT, fifth).await;
    let starts = node.calls("quick", Rpc::StartContainer);
    let gaps: Vec<f64> =
        starts.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
    // As a rule it would be ten seconds.
    let short = |pod: &_| backs_off_for(pod, "main", "1s");
    node.wait_pod("quick", "backs off shortly", WAIT_LIMIT, short).await;
    assert!(gaps[1..].iter().all(|gap| *gap >= 1.0), "{gaps:?}");
    let usual = node.calls("usual", Rpc::StartContainer);
    assert!(usual.len() < starts.len(), "{usual:?}");
    for pair in usual.windows(2).skip(1) {
        assert!(pair[1].at - pair[0].at >= Duration::from_secs(10));
    }
    let shown = node.pod("quick").await.unwrap();
    let status = crate::node::status_of(&shown, "main").unwrap();
    assert!(status.restart_count >= 3);
}

#[tokio::test]
async fn a_wrong_restart_period_is_refused_by_the_kubelet_and_by_validate_alike() {
    let node = Node::started().await;
    let annotations = json!({"annotations": {"kubelet.rs/max-container-restart-period": "10ms"}});
    node.put(&with_metadata(simple("web"), annotations));
    let field = "metadata.annotations[kubelet.rs/max-container-restart-period]: Invalid value: \
                 \"10ms\": must be a duration from 1s to 5m0s";
    // An event is JSON, where quotes are escaped.
    let escaped = field.replace('"', "\\\"");
    wait_for("it is refused", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains(&escaped), events)
    })
    .await;
    let file = node.path("manifests/web.yaml");
    let output = node.run_cli(&["validate", file.to_str().unwrap()]).await;
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    assert!(report.contains(field), "{report}");
}

#[tokio::test]
async fn a_pull_that_fails_is_explained_with_its_next_try() {
    real_time("the command is a process");
    let node = Node::started().await;
    let missing = "localhost/missing:1";
    let error = Some((tonic::Code::NotFound, "no such image".to_string()));
    let pull = Pull { error, ..Pull::default() };
    node.fake.on_pull(missing, pull);
    node.put(&pod("web", &[with(container("main"), json!({"image": missing}))]));
    let held = |report: &Value| report["pod"]["status"] == "ImagePullBackOff";
    let report = node.explained("web", "the pull is held back", held).await;
    let wait = &report["waits"][0];
    let what = wait["what"].as_str().unwrap();
    assert!(what.starts_with("a retry (ImagePullBackOff: Back-off pulling image"), "{what}");
    let until = time(&wait["until"]);
    let second = |fake: &FakeRuntime| fake.count(Rpc::PullImage) >= 2;
    node.fake.wait_until("the next pull", WAIT_LIMIT, second).await;
    let pulls = node.fake.calls_of(Rpc::PullImage);
    let off = apart(pulls[1].at, until);
    // A busy machine may be late, but not by another back-off.
    assert!(
        (-0.7..10.0).contains(&off),
        "it was pulled {off} s after the instant that was reported"
    );
}

#[tokio::test]
async fn a_pull_that_takes_long_is_what_the_kubelet_is_doing() {
    let node = Node::started().await;
    let slow = "localhost/slow:1";
    node.fake.inject(Fault::hang(Rpc::PullImage));
    node.put(&pod("web", &[with(container("main"), json!({"image": slow}))]));
    let doing = |report: &Value| {
        let step = report["doing"]["step"].as_str().unwrap_or_default();
        step == format!("getting image {slow} for main")
    };
    let report = node.explained("web", "it is being pulled", doing).await;
    assert_eq!(report["pod"]["status"], "ContainerCreating");
    node.fake.release(Rpc::PullImage);
}

#[tokio::test]
async fn probes_are_shown_with_their_last_results_and_their_next_run() {
    let node = Node::started().await;
    let ready = Arc::new(AtomicBool::new(false));
    let seen = ready.clone();
    node.fake.on_exec(move |_| ExecOutcome::code(i32::from(!seen.load(Ordering::SeqCst))));
    let probe = json!({"readinessProbe": exec_probe("is-ready")});
    node.put(&pod("web", &[with(container("main"), probe)]));
    let failed = |report: &Value| report["probes"][0]["inARow"].as_u64().unwrap_or(0) >= 2;
    let report = node.explained("web", "it failed more than once", failed).await;
    let probe = &report["probes"][0];
    assert_eq!(
        (&probe["kind"], &probe["result"], &probe["lastResult"]),
        (&json!("Readiness"), &json!("failure"), &json!("failure"))
    );
    let away = time(&probe["next"]).as_millisecond() - time(&report["now"]).as_millisecond();
    assert!(away <= 1000, "{away} ms");
    let what = report["waits"][0]["what"].as_str().unwrap();
    assert!(what.starts_with("its readiness probe (failure "), "{what}");
    assert_eq!(report["conditions"][0]["type"], "Ready");
    ready.store(true, Ordering::SeqCst);
    let well = |report: &Value| report["summary"] == "Running: every container is ready";
    let report = node.explained("web", "it is well", well).await;
    assert_eq!(report["probes"][0]["result"], "success");
    assert_eq!(report["waits"], json!([]));
}

#[tokio::test]
async fn a_pod_that_is_being_stopped_is_terminating_until_a_known_instant() {
    real_time("the command is a process");
    let node = Node::started().await;
    node.fake.behave("main", Behaviour::ignores_term());
    let grace = json!({"terminationGracePeriodSeconds": 10});
    node.put(&with_spec(simple("web"), grace));
    node.wait_runs("web").await;
    let begun = Timestamp::now();
    node.remove("web");
    // It is known that it ends before its grace has begun.
    let ending = |report: &Value| {
        report["pod"]["status"] == "Terminating" && report["waits"][0]["until"].is_string()
    };
    let report = node.explained("web", "it is being stopped", ending).await;
    let summary = "Terminating: the pod is being stopped: removed from its source";
    assert_eq!(report["summary"], summary);
    let until = time(&report["waits"][0]["until"]);
    let after = |begun: Timestamp| (until.as_millisecond() - begun.as_millisecond()) as f64 / 1e3;
    assert!(after(begun) >= 9.5, "{} s", after(begun));
    assert!(after(Timestamp::now()) <= 10.5, "{until}");
    let shown = node.shown_pods().await;
    assert_eq!(shown[0]["status"], "Terminating");
    node.wait_gone("web").await;
    let output = node.run_cli(&["explain", "web"]).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(errors, "kubelet: no pod \"web\"; there are no pods on this node\n");
}

#[tokio::test]
async fn what_fails_for_the_whole_pod_is_told_as_long_as_it_does() {
    let node = Node::started().await;
    let fault = Fault::fail(Rpc::RunPodSandbox, tonic::Code::Unknown, "no CNI here");
    node.fake.inject(fault);
    node.put(&simple("web"));
    let failed = |report: &Value| report["summary"].as_str().unwrap().contains("no CNI here");
    let report = node.explained("web", "it failed", failed).await;
    let next = report["next"][0]["what"].as_str().unwrap();
    assert_eq!(next, "next periodic sync");
    let away = time(&report["next"][0]["at"]).as_second() - time(&report["now"]).as_second();
    assert!((1..=15).contains(&away), "{away} s");
    node.fake.clear_faults();
    node.wait_runs("web").await;
    let well = |report: &Value| report["summary"] == "Running: every container is ready";
    node.explained("web", "it is well", well).await;
}

#[tokio::test]
async fn a_pod_that_the_node_refuses_is_explained() {
    let node = Node::started().await;
    let sysctls =
        json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}});
    node.put(&with_spec(simple("web"), sysctls));
    let refused = |report: &Value| report["pod"]["phase"] == "Failed";
    let report = node.explained("web", "it is refused", refused).await;
    assert_eq!(report["pod"]["status"], "SysctlForbidden");
    let summary = report["summary"].as_str().unwrap();
    assert!(summary.starts_with("SysctlForbidden: "), "{summary}");
}

struct Watching {
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Watching {
    fn of(node: &Node, args: &[&str]) -> Watching {
        let mut child = node.verb(args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watching { lines, _child: child }
    }

    /// The next line that has all of these words.
    async fn line(&mut self, words: &[&str]) -> String {
        let found = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("it goes on");
                if words.iter().all(|word| line.contains(word)) {
                    return line;
                }
            }
        };
        tokio::time::timeout(WAIT_LIMIT, found)
            .await
            .unwrap_or_else(|_| panic!("no line with {words:?}"))
    }
}

#[tokio::test]
async fn watching_appends_a_line_when_something_changed_also_over_a_restart() {
    real_time("the command is a process");
    let mut node = Node::started().await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    let mut watching = Watching::of(&node, &["pods", "--watch"]);
    watching.line(&["NAMESPACE", "STATUS"]).await;
    watching.line(&["web-node1", "1/1"]).await;
    let slow = Behaviour::ends_slowly(Duration::from_secs(3), 0);
    node.fake.behave(&full("late"), slow);
    node.put(&simple("late"));
    watching.line(&["late-node1", "1/1", "Running"]).await;
    node.fake.exit(&format!("{}/main", full("web")), 2);
    watching.line(&["web-node1", "1/1", "Running", "1 (", "Error (2)"]).await;
    // The kubelet goes and comes; who watches goes on watching.
    node.stop().await;
    watching.line(&["! cannot reach a kubelet"]).await;
    node.start().await;
    node.put(&simple("later"));
    watching.line(&["later-node1", "1/1", "Running"]).await;
    node.remove("late");
    watching.line(&["late-node1", "Terminating"]).await;
    watching.line(&["late-node1", "Removed"]).await;
}

#[tokio::test]
async fn watching_as_json_gives_a_document_a_line() {
    real_time("the command is a process");
    let node = Node::started().await;
    let mut watching = Watching::of(&node, &["pods", "-w", "-o", "json"]);
    let first: Value = serde_json::from_str(&watching.line(&["version"]).await).unwrap();
    assert_eq!(first["node"], "node1");
    node.put(&simple("web"));
    let ready = watching.line(&["web-node1", "\"status\":\"Running\",", "\"ready\":1"]).await;
    let ready: Value = serde_json::from_str(&ready).unwrap();
    assert_ne!(ready["version"], first["version"]);
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let node = Node::started().await;
    let verb = format!(
        "'{}' help | true; '{}' pods --root-dir '{}' | true; '{}' pods -w --root-dir '{}' | head -n 1",
        env!("CARGO_BIN_EXE_kubelet"),
        env!("CARGO_BIN_EXE_kubelet"),
        node.path("root").display(),
        env!("CARGO_BIN_EXE_kubelet"),
        node.path("root").display(),
    );
    let mut shell = Command::new("bash");
    shell.args(["-o", "pipefail", "-c", &verb]).kill_on_drop(true);
    let running = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let done = tokio::spawn(running.wait_with_output());
    // What changes makes the one that watches write into the broken pipe, whenever it began.
    let changes = async {
        for n in 0.. {
            let name = format!("p{n}");
            node.put(&simple(&name));
            node.wait_phase(&name, "Running").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let ended = async {
        tokio::select! {
            output = done => output.unwrap().unwrap(),
            () = changes => unreachable!("there is always another pod"),
        }
    };
    let output = tokio::time::timeout(WAIT_LIMIT, ended).await.expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{}", output.status);
}

#[tokio::test]
async fn the_read_only_port_explains_as_the_socket_does() {
    let node = Node::started().await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    let (code, body) = node.get("/explain/default/web-node1").await;
    assert_eq!(code, 200, "{body}");
    let report: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(report["pod"]["name"], "web-node1");
    let (code, body) = node.get("/explain/default/other").await;
    assert_eq!((code, body.as_str()), (404, "404 pod default/other not found\n"));
}

#[tokio::test]
async fn validate_judges_a_directory_as_the_kubelet_that_reads_it() {
    let node = Node::started().await;
    node.put(&simple("good"));
    let mut bad = simple("bad");
    bad["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes".into();
    node.put(&bad);
    node.wait_phase("good", "Running").await;
    wait_for("the other is refused", WAIT_LIMIT, async || {
        let events = node.events().await;
        holds(events.contains("FailedValidation"), events)
    })
    .await;
    let events = node.events().await;
    let output =
        node.run_cli(&["validate", node.path("manifests").to_str().unwrap(), "-o", "json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for file in report["files"].as_array().unwrap() {
        let name = file["pods"][0]["name"].as_str();
        for problem in file["problems"].as_array().unwrap() {
            let message = problem["message"].as_str().unwrap().replace('"', "\\\"");
            assert!(events.contains(&message), "{message}");
        }
        match name {
            Some(name) => {
                let uid = node.pod("good").await.unwrap().metadata.uid;
                assert_eq!(name, "good-node1");
                assert_eq!(file["pods"][0]["uid"].as_str(), uid.as_deref());
            }
            None => assert!(file["file"].as_str().unwrap().ends_with("bad.yaml")),
        }
    }
    assert_eq!(report["errors"], 1);
}

/// Findings of a check, each as level, subject and message.
fn findings(report: &Value) -> Vec<(String, String, String)> {
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|one| (text(one, "level"), text(one, "subject"), text(one, "message"))).collect()
}

#[tokio::test]
async fn a_check_finds_everything_that_a_start_would_meet_and_changes_nothing() {
    let node = Node::new().await;
    let config = node.path("config.yaml");
    let check = async |text: &str, more: &[&str]| {
        std::fs::write(&config, text).unwrap();
        let path = config.to_str().unwrap();
        let args = [&["config", "check", "--config", path, "-o", "json"], more].concat();
        let output = node.run_cli(&args).await;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), findings(&report))
    };
    std::fs::create_dir_all(node.path("root")).unwrap();
    let [healthz] = free_ports();
    let good = node.config_file();
    let good = good.replace("healthzPort: 0", &format!("healthzPort: {healthz}"));
    let before = node.entries("");
    let (code, found) = check(&good, &[]).await;
    assert_eq!(code, Some(0), "{found:?}");
    let has = |found: &[(String, String, String)], level: &str, subject: &str, part: &str| {
        let fits = |one: &&(String, String, String)| {
            one.0 == level && one.1 == subject && one.2.contains(part)
        };
        assert!(found.iter().any(|one| fits(&one)), "{level} {subject} {part}: {found:?}");
    };
    has(&found, "ok", "runtime", "fake 1.0.0");
    has(&found, "ok", "ports", "healthzPort");
    let mut after = node.entries("");
    after.retain(|name| name != "config.yaml");
    assert_eq!(after, before);

    // What is wrong is said at once, and a stranger on a port is named.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let file = node.path("file");
    std::fs::write(&file, "").unwrap();
    let bad = good
        .lines()
        .map(|line| match line.split_once(':') {
            Some(("containerRuntimeEndpoint", _)) => {
                format!("containerRuntimeEndpoint: unix://{}", file.display())
            }
            Some(("healthzPort", _)) => format!("healthzPort: {port}"),
            Some(("staticPodPath", _)) => "staticPodPath: /does/not/exist".to_owned(),
            _ => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n");
    let bad = format!("{bad}\nmemoryManagerPolicy: Static\nnewField: 1\n");
    let (code, found) = check(&bad, &[]).await;
    assert_eq!(code, Some(1));
    has(&found, "error", "resources", "reservedMemory");
    has(&found, "error", "runtime", "not a socket");
    has(&found, "error", "ports", &format!("process {}", std::process::id()));
    has(&found, "warning", "files", "/does/not/exist");
    has(&found, "warning", "configuration", "newField: unknown field");

    // Warnings fail only a strict check.
    let warned = good.replace("manifests\n", "no-manifests\n");
    assert_eq!(check(&warned, &[]).await.0, Some(0));
    assert_eq!(check(&warned, &["--strict"]).await.0, Some(1));
}

#[tokio::test]
async fn a_check_beside_the_running_kubelet_finds_nothing_wrong() {
    real_time("the command is a process");
    let node = Node::new().await;
    let dir = node.path("process");
    std::fs::create_dir(&dir).unwrap();
    let kubelet = Node::process(&node.fake, &dir).await;
    let mut check = Command::new(&kubelet.settings().program);
    check.args(["config", "check", "--config"]);
    check.arg(dir.join("config.yaml")).arg("--root-dir").arg(dir.join("root"));
    let output = check.output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("belongs to the kubelet that runs"), "{text}");
}

#[tokio::test]
async fn the_first_line_of_the_log_says_what_was_started_and_how() {
    let fake = FakeRuntime::start(Options::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(dir.path(), &fake.endpoint());
    settings.args = vec!["--v=2".to_owned(), "--manifest-url=http://u:secret@h/".to_owned()];
    let kubelet = KubeletProcess::start(settings).await;
    let log = kubelet.log();
    let first = log.lines().next().unwrap_or_default();
    let version = format!("kubeletVersion=\"{}\"", kubelet::config::NODE_VERSION);
    let config = dir.path().join("config.yaml");
    for part in [r#""Kubelet version""#, &version, config.to_str().unwrap(), "--v=2"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(!log.contains("secret"), "{log}");
}
