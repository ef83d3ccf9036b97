//! What a service manager hears of the built kubelet.

use std::time::Duration;

use tokio::net::UnixDatagram;

use crate::node::WAIT_LIMIT;
use crate::support::fake_runtime::{FakeRuntime, Options};
use crate::support::kubelet_process::{KubeletProcess, Settings};

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
    assert_eq!(
        received.iter().filter(|word| *word == "READY=1").count(),
        1,
        "{received:?}"
    );
    let last = async {
        loop {
            let word = next(&socket).await;
            if word != "WATCHDOG=1" {
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
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = files.unwrap().split_whitespace().nth(3);
    assert_eq!(soft, Some("2345"), "{limits}");
}
