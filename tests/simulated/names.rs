//! The node's resolver, which may be dead, and what depends on it: nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::UdpSocket;

use crate::node::{full, phase, put, wait_runs};
use crate::pods::simple;
use crate::support::fake_runtime::{FakeRuntime, Options};
use crate::support::kubelet_process::{KubeletProcess, Settings};
use crate::support::wait::{holds, wait_for};

/// An address of this machine that is not used otherwise.
const RESOLVER: &str = "127.77.43.53";

/// A resolver that hears and never answers.
struct DeadResolver {
    requested: Arc<AtomicUsize>,
}

impl DeadResolver {
    async fn start() -> std::io::Result<DeadResolver> {
        let socket = UdpSocket::bind((RESOLVER, 53)).await?;
        let requested = Arc::<AtomicUsize>::default();
        let counter = requested.clone();
        tokio::spawn(async move {
            while socket.recv(&mut [0; 512]).await.is_ok() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        Ok(DeadResolver { requested })
    }

    fn requested(&self) -> usize {
        self.requested.load(Ordering::SeqCst)
    }
}

/// A program that sees this resolver, and no names in `/etc/hosts`, where other programs see what
/// the machine has.
fn under_the_dead_resolver(dir: &Path, program: &Path) -> PathBuf {
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let options = "options timeout:1 attempts:1";
    let resolv_conf = file("resolv.conf", &format!("nameserver {RESOLVER}\n{options}\n"));
    let hosts = file("hosts", "127.0.0.1 localhost\n");
    let mount = |from: &Path, to: &str| format!("mount --bind {} {to}", from.display());
    let inside = format!(
        "{} && {} && exec {} \"$@\"",
        mount(&resolv_conf, "/etc/resolv.conf"),
        mount(&hosts, "/etc/hosts"),
        program.display()
    );
    let name = program.file_name().unwrap().to_string_lossy();
    let script = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c '{inside}' {name} \"$@\"\n"
    );
    let path = file(&format!("{name}-elsewhere"), &script);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn a_resolver_that_never_answers_is_never_asked() {
    let resolver = match DeadResolver::start().await {
        Ok(resolver) => resolver,
        Err(error) => {
            let why = format!("cannot listen on {RESOLVER}:53: {error}");
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
            eprintln!("SKIPPED, it needs root: {why}");
            return;
        }
    };
    let dir = tempfile::tempdir().unwrap();
    // A look-up there is counted.
    let getent = under_the_dead_resolver(dir.path(), Path::new("getent"));
    let looked = tokio::process::Command::from(Command::new(getent))
        .args(["ahostsv4", "node1.example"])
        .status();
    assert!(!looked.await.unwrap().success());
    wait_for("it is counted", crate::node::WAIT_LIMIT, async || {
        holds(resolver.requested() > 0, "it is not")
    })
    .await;
    let before = resolver.requested();

    let fake = FakeRuntime::start(Options::default()).await;
    let mut settings = Settings::new(dir.path(), &fake.endpoint());
    settings.program = under_the_dead_resolver(dir.path(), &settings.program);
    let kubelet = KubeletProcess::start(settings).await;
    for name in ["one", "two"] {
        put(&kubelet.manifests, &simple(name));
        wait_runs(&fake, name).await;
        wait_for(name, crate::node::WAIT_LIMIT, async || {
            let pod = kubelet.pod("default", &full(name)).await;
            holds(pod.is_some_and(|pod| phase(&pod) == "Running"), "it does not run")
        })
        .await;
    }
    assert_eq!(resolver.requested(), before, "a name was looked up");
}
