//! What a service manager and the log say of the built kubelet.

use std::time::Duration;

use serde_json::Value;
use tokio::net::UnixDatagram;

use crate::node::WAIT_LIMIT;
use crate::support::api_server::{FakeApiServer, Mode};
use crate::support::fake_runtime::{FakeRuntime, Options};
use crate::support::kubelet_process::{KubeletProcess, Settings};
use crate::support::wait::{holds, wait_for};

async fn next(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 256];
    let read = tokio::time::timeout(WAIT_LIMIT, socket.recv(&mut buffer));
    let read = read.await.expect("a word in time").unwrap();
    String::from_utf8_lossy(&buffer[..read]).into_owned()
}

#[tokio::test]
async fn the_service_manager_is_told_of_start_life_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::start(Options::default()).await;
    let address = dir.path().join("notify");
    let socket = UnixDatagram::bind(&address).unwrap();
    let mut settings = Settings::new(&dir.path().join("kubelet"), &fake.endpoint());
    std::fs::create_dir(&settings.dir).unwrap();
    settings.environment = vec![
        ("NOTIFY_SOCKET".to_owned(), address.display().to_string()),
        ("WATCHDOG_USEC".to_owned(), "100000".to_owned()),
    ];
    let mut kubelet = KubeletProcess::start(settings).await;
    let mut received = Vec::new();
    while received.iter().filter(|word| *word == "WATCHDOG=1").count() < 3 {
        received.push(next(&socket).await);
    }
    assert_eq!(received.iter().filter(|word| *word == "READY=1").count(), 1, "{received:?}");
    let waits = "STATUS=waiting for the container runtime";
    let at = |word: &str| received.iter().position(|one| one == word);
    assert!(at(waits).is_some() && at(waits) < at("READY=1"), "{received:?}");
    while !received.iter().any(|word| word == "STATUS=0 pods") {
        received.push(next(&socket).await);
    }
    let last = async {
        loop {
            let word = next(&socket).await;
            if word != "WATCHDOG=1" && !word.starts_with("STATUS=") {
                return word;
            }
        }
    };
    let (status, word) = tokio::join!(kubelet.terminate(Duration::from_secs(60)), last);
    assert!(status.success(), "{status}");
    assert_eq!(word, "STOPPING=1");
}

#[tokio::test]
async fn as_many_files_may_be_open_as_the_configuration_says() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::start(Options::default()).await;
    let mut settings = Settings::new(&dir.path().join("kubelet"), &fake.endpoint());
    std::fs::create_dir(&settings.dir).unwrap();
    settings.config = "maxOpenFiles: 2345\n".to_owned();
    let kubelet = KubeletProcess::start(settings).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", kubelet.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let soft = files.unwrap().split_whitespace().nth(3);
    assert_eq!(soft, Some("2345"), "{limits}");
}

/// The complete lines of a log in JSON.
fn messages(log: &str) -> Vec<Value> {
    let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let lines = lines.map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect(log)
}

#[tokio::test]
async fn an_outage_of_the_api_server_is_logged_once_with_its_address_and_once_when_it_is_over() {
    let over = "The API server responds again";
    is_logged_once(503, "The API server does not respond", over).await;
}

#[tokio::test]
async fn rejected_credentials_are_logged_once_with_what_was_sent_and_once_when_they_are_accepted() {
    let over = "The API server accepts the credentials again";
    let line = is_logged_once(401, "The API server rejects the credentials", over).await;
    assert_eq!(line["sent"], "the token in the kubeconfig");
}

/// While the API server responds with `status`, the log has one error, which begins with `begin`, and afterwards one line
/// that begins with `over`. Returns the error.
async fn is_logged_once(status: u16, begin: &str, over: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::start(Options::default()).await;
    let api = FakeApiServer::start().await;
    api.answer(Mode::Status(status));
    let mut settings = Settings::new(&dir.path().join("kubelet"), &fake.endpoint());
    std::fs::create_dir(&settings.dir).unwrap();
    let kubeconfig = api.kubeconfig(dir.path()).display().to_string();
    settings.args = vec![format!("--kubeconfig={kubeconfig}"), "--logging-format=json".to_owned()];
    let kubelet = KubeletProcess::spawn(settings);
    let says = |text: &str| {
        let log = messages(&kubelet.log());
        log.into_iter()
            .filter(|line| line["msg"].as_str().is_some_and(|msg| msg.starts_with(text)))
            .collect::<Vec<_>>()
    };
    // Longer than the back-off of the first few requests.
    wait_for("requests have failed again and again", WAIT_LIMIT, async || {
        let seen = api.seen().len();
        holds(seen >= 12 && !says(begin).is_empty(), format!("{seen} requests: {}", kubelet.log()))
    })
    .await;
    let outage = says(begin);
    assert_eq!(outage.len(), 1, "{outage:?}");
    assert_eq!(outage[0]["kubeconfig"], kubeconfig);
    let server = outage[0]["server"].as_str().unwrap();
    assert!(server.starts_with("http://127.0.0.1:"), "{server}");
    // Only errors have no verbosity.
    let is_error = |line: &&Value| line["v"].is_null();
    let errors = messages(&kubelet.log()).iter().filter(is_error).count();
    assert_eq!(errors, 1, "{}", kubelet.log());
    api.answer(Mode::Well);
    wait_for("it is over", WAIT_LIMIT, async || holds(says(over).len() == 1, kubelet.log())).await;
    outage[0].clone()
}

#[tokio::test]
async fn an_error_that_ends_the_kubelet_is_a_line_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut settings = Settings::new(&dir.path().join("kubelet"), "unix:///nonexistent");
    std::fs::create_dir(&settings.dir).unwrap();
    settings.args = vec![format!("--healthz-port={port}"), "--logging-format=json".to_owned()];
    let mut kubelet = KubeletProcess::spawn(settings);
    wait_for("it has ended", WAIT_LIMIT, || {
        let ended = kubelet.ended();
        let failed = ended.is_some_and(|status| !status.success());
        async move { holds(failed, format!("{ended:?}")) }
    })
    .await;
    let log = messages(&kubelet.log());
    let last = log.last().unwrap();
    assert_eq!(last["msg"], "command failed");
    let why = last["err"].as_str().unwrap();
    assert!(why.contains(&port.to_string()), "{why}");
}
