//! Debian's registry on loopback, with or without a login, and a door in front of it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::runtime::Runtime;
use crate::support::http;
use crate::support::kubelet_process::free_ports;
use crate::support::wait::wait_for;

/// The one who may pull from a registry with a login.
pub const USER: &str = "puller";
pub const PASSWORD: &str = "open-sesame";
/// That password, as bcrypt keeps it.
const HASH: &str = "$2b$04$CQ/gCMOfVI5G/hgPC9pi4.UBEn.F0lE3JdgXUey91q185yIvoJG6O";

/// A registry that ends with this value.
pub struct Registry {
    child: Child,
    port: u16,
    private: bool,
}

impl Registry {
    /// One that anybody may use.
    pub async fn public(dir: &Path) -> Registry {
        Self::start(dir, false).await
    }

    /// One that only [`USER`] may use.
    pub async fn private(dir: &Path) -> Registry {
        Self::start(dir, true).await
    }

    async fn start(dir: &Path, private: bool) -> Registry {
        let dir = dir.join("registry");
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let [port] = free_ports();
        let shown = dir.display();
        let mut config = format!(
            "version: 0.1\nlog: {{ level: warn, accesslog: {{ disabled: true }} }}\n\
             storage: {{ filesystem: {{ rootdirectory: {shown}/data }} }}\n\
             http: {{ addr: \"127.0.0.1:{port}\" }}\n"
        );
        if private {
            std::fs::write(dir.join("htpasswd"), format!("{USER}:{HASH}\n")).unwrap();
            config +=
                &format!("auth: {{ htpasswd: {{ realm: tests, path: {shown}/htpasswd }} }}\n");
        }
        std::fs::write(dir.join("config.yml"), config).unwrap();
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "docker-registry", "serve"])
            .arg(dir.join("config.yml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("docker-registry");
        let registry = Registry { child, port, private };
        let expected = if private { 401 } else { 200 };
        wait_for("the registry answers", Duration::from_secs(60), || async {
            match http::get(port, "/v2/").await {
                Ok((status, _)) if status == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        registry
    }

    /// `127.0.0.1:PORT`, the first part of its images' names.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Puts an image of the runtime into the registry under another name; the name to pull it by.
    pub fn push(&self, runtime: &Runtime, image: &str, name: &str) -> String {
        let remote = format!("{}/{name}", self.host());
        let login = format!("{USER}:{PASSWORD}");
        runtime.push(image, &remote, self.private.then_some(&login));
        remote
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended already, which is just as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A door to a registry that opens for good once so many connections wait before it.
pub struct Door {
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Door {
    pub async fn before(registry: &Registry, waiting: usize) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let inside = registry.host();
        let task = tokio::spawn(async move {
            let open = Arc::new(Semaphore::new(0));
            let mut came = 0;
            while let Ok((mut outer, _)) = listener.accept().await {
                came += 1;
                if came == waiting {
                    open.add_permits(Semaphore::MAX_PERMITS / 2);
                }
                let (open, inside) = (open.clone(), inside.clone());
                tokio::spawn(async move {
                    let _through = open.acquire().await;
                    if let Ok(mut inner) = TcpStream::connect(inside).await {
                        // Either side may hang up as it likes.
                        let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
                    }
                });
            }
        });
        Door { port, task }
    }

    /// The name of one of the registry's images through the door.
    pub fn image(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What docker's configuration file says for these logins.
pub fn docker_config(host: &str, user: &str, password: &str) -> String {
    format!(r#"{{"auths": {{"{host}": {{"username": "{user}", "password": "{password}"}}}}}}"#)
}

/// A directory of one program that knows the login to `host`; it leaves a line in `runs` per run.
pub fn credential_provider(dir: &Path, host: &str) -> Provider {
    use std::os::unix::fs::PermissionsExt as _;
    let programs = dir.join("providers");
    std::fs::create_dir_all(&programs).unwrap();
    let (program, config, runs) =
        (programs.join("test-provider"), dir.join("providers.yaml"), dir.join("provider-runs"));
    let answer = format!(
        r#"{{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
 "cacheKeyType": "Registry", "auth": {{"{host}": {{"username": "{USER}", "password": "{PASSWORD}"}}}}}}"#
    );
    let script =
        format!("#!/bin/sh\ncat >> {}\ncat <<'ANSWER'\n{answer}\nANSWER\n", runs.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
         - name: test-provider\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  \
         matchImages: [\"{host}\"]\n  defaultCacheDuration: 1h\n"
    );
    std::fs::write(&config, text).unwrap();
    Provider { programs, config, runs }
}

/// See [`credential_provider`].
pub struct Provider {
    pub programs: PathBuf,
    pub config: PathBuf,
    /// The requests that it received.
    pub runs: PathBuf,
}
