//! Builds a client from a kubeconfig file, and again when the file, or one that it refers to, changes.

use super::transport::{Transport, place};
use super::{ApiError, ClientIdentity};
use crate::base::proxy::{Proxy, ProxyEnvironment};
use crate::base::{
    FileVersion, Reloaded, SecretUrl, atomic_file, clock, error_chain, spawn_blocking, x509,
};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use kube::config::{
    AuthInfo, Cluster, Config, Context, KubeConfigOptions, Kubeconfig, KubeconfigError,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret as _;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// The connections with one set of credentials, and the files that these come from.
pub(super) struct ApiConnection {
    /// `None` while the kubelet has no credentials.
    pub(super) transport: Option<Transport>,
    /// The URL of the API server.
    pub(super) url: SecretUrl,
    /// The kubeconfig.
    pub(super) kubeconfig: PathBuf,
    /// What the kubelet presents to the API server, without secrets.
    pub(super) credentials: String,
    /// The proxy on the way there.
    pub(super) proxy: Option<String>,
    /// Host and port, as in metric labels.
    pub(super) host: Arc<str>,
    /// The files that the kubeconfig names: certificate, key, token and certificate authorities.
    named: Vec<(PathBuf, FileVersion)>,
    /// Whether an exec credential plugin provides the credentials.
    has_program: bool,
    /// Whether the plugin has not run yet.
    is_pending: bool,
}

impl ApiConnection {
    fn awaited(kubeconfig: PathBuf, named: Vec<(PathBuf, FileVersion)>) -> Self {
        Self {
            transport: None,
            url: SecretUrl::from(String::new()),
            kubeconfig,
            credentials: "nothing".to_owned(),
            proxy: None,
            host: "".into(),
            named,
            has_program: false,
            is_pending: false,
        }
    }

    /// The connections.
    ///
    /// # Errors
    /// The kubelet has no credentials yet.
    pub(super) fn transport(&self) -> Result<&Transport, ApiError> {
        let transport = self.transport.as_ref();
        transport.ok_or_else(|| ApiError::Unreachable("no credentials".into()))
    }

    /// The paths of the files that the kubeconfig names.
    pub(super) fn file_names(&self) -> String {
        let names = self.named.iter().map(|(path, _)| path.to_string_lossy());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Whether the plugin has to run or a file has changed. Blocking.
    fn is_stale(&self) -> bool {
        let mut named = self.named.iter();
        let program = self.transport.as_ref().filter(|_| self.has_program);
        self.is_pending
            || named.any(|(path, version)| FileVersion::of(path) != *version)
            || program.is_some_and(Transport::credentials_are_stale)
    }
}

/// Reads the kubeconfig and the files that it names, relative to its directory. A new version of any of them builds a
/// new client, so that no connection keeps the old credentials.
///
/// # Errors
/// A file cannot be read or used. The error has the path of the kubeconfig.
pub(super) async fn open(identity: ClientIdentity) -> anyhow::Result<Reloaded<ApiConnection>> {
    let files: Vec<_> = [Some(identity.kubeconfig.clone()), identity.certificate.clone()]
        .into_iter()
        .flatten()
        .collect();
    let is_known = AtomicBool::new(false);
    let is_first = AtomicBool::new(true);
    let read = move || {
        let mut named = Vec::new();
        let path = identity.kubeconfig.display();
        // The first read runs no plugin: the start must not depend on a program that may hang or fail.
        let runs_programs = !is_first.swap(false, Ordering::Relaxed);
        let read = read(&identity, &mut named, runs_programs);
        match read {
            Ok(connection) => {
                is_known.store(true, Ordering::Relaxed);
                Ok(connection)
            }
            // Until a bootstrap has written a usable kubeconfig. A usable one stays in use when a later version is not.
            Err(error) if identity.is_awaited && !is_known.load(Ordering::Relaxed) => {
                if identity.kubeconfig.exists() {
                    tracing::warn!(
                        %path,
                        err = error_chain(error.as_ref()),
                        "Using the kubeconfig failed; waiting for the one of the bootstrap"
                    );
                }
                Ok(ApiConnection::awaited(identity.kubeconfig.clone(), named))
            }
            Err(error) => Err(error.context(format!("cannot use kubeconfig {path}"))),
        }
    };
    let open = move || Reloaded::open("the kubeconfig", files, read, ApiConnection::is_stale);
    spawn_blocking(open).await?
}

/// Builds the connection from the current files; without a transport if that needs a plugin and none may run. Blocking.
pub(super) fn read(
    identity: &ClientIdentity,
    named_files: &mut Vec<(PathBuf, FileVersion)>,
    runs_programs: bool,
) -> anyhow::Result<ApiConnection> {
    let mut file = parsed(&identity.kubeconfig)?;
    let (cluster, user) = current(&file);
    let proxy = cluster.and_then(|cluster| cluster.proxy_url.as_deref());
    let proxy = proxy.filter(|url| !url.is_empty()).map(Proxy::at);
    let proxy = proxy.transpose().context("proxy-url of the cluster")?;
    // Recorded before the files are read, so that a change during the read causes another one.
    *named_files = named(cluster, user);
    let own = match user {
        Some(user) => own_certificate(identity, user)?,
        None => None,
    };
    let needs_program = own.is_none()
        && user.is_some_and(|user| user.exec.is_some() || user.auth_provider.is_some());
    if let Some(own) = own {
        let name = user_name(&file);
        let mut users = file.auth_infos.iter_mut();
        if let Some(user) = users.find(|one| Some(&one.name) == name.as_ref()) {
            user.auth_info = Some(own);
        }
    }
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options).now_or_never();
    let mut config = config.context("the kubeconfig is not read at once")??;
    without_unused_roots(&mut config);
    let proxy = match proxy {
        Some(proxy) => Some(proxy),
        None => {
            let environment = identity.proxies.clone();
            let environment = environment.unwrap_or_else(ProxyEnvironment::read);
            environment.proxy_of(&config.cluster_url)?
        }
    };
    let url = SecretUrl::from(config.cluster_url.to_string());
    let host = config.cluster_url.authority().map_or("", |at| at.as_str());
    let host = host.rsplit('@').next().unwrap_or_default().into();
    let is_pending = needs_program && !runs_programs;
    let transport = if is_pending { None } else { Some(Transport::new(&config, proxy.clone())?) };
    Ok(ApiConnection {
        transport,
        url,
        kubeconfig: identity.kubeconfig.clone(),
        credentials: presented(&config.auth_info),
        proxy: proxy.as_ref().map(Proxy::to_string),
        host,
        named: named_files.clone(),
        has_program: needs_program,
        is_pending,
    })
}

/// What a user presents, for messages. Blocking.
fn presented(user: &AuthInfo) -> String {
    let certificate = client_certificate(user);
    if let Some(certificate) = certificate {
        let first = x509::certificates(&certificate).ok();
        let first = first.as_ref().and_then(|chain| chain.first());
        return match first.and_then(|der| x509::parse(der)) {
            Some(facts) => format!(
                "the client certificate of {}, valid until {}",
                facts.common_name, facts.not_after
            ),
            None => "a client certificate that cannot be read".to_owned(),
        };
    }
    match user {
        AuthInfo { exec: Some(exec), .. } => {
            let command = exec.command.as_deref().unwrap_or_default();
            format!("what the credential plugin {command} returned")
        }
        AuthInfo { token_file: Some(path), .. } => format!("the token in {path}"),
        AuthInfo { token: Some(_), .. } => "the token in the kubeconfig".to_owned(),
        AuthInfo { username: Some(name), .. } => format!("a password of user {name}"),
        _ => "no credentials".to_owned(),
    }
}

/// The client certificate of a user, as PEM. Blocking.
fn client_certificate(user: &AuthInfo) -> Option<Vec<u8>> {
    data_or_file(user.client_certificate_data.as_deref(), user.client_certificate.as_ref())
}

fn data_or_file(data: Option<&str>, path: Option<&String>) -> Option<Vec<u8>> {
    match data {
        Some(data) => STANDARD.decode(data).ok(),
        None => path.and_then(|path| fs::read(path).ok()),
    }
}

/// Removes the system's root certificates from a client that does not verify the server: the machine may have none.
pub(super) fn without_unused_roots(config: &mut Config) {
    if config.accept_invalid_certs {
        config.root_cert = Some(Vec::new());
    }
}

/// Parses a kubeconfig file. Blocking.
///
/// # Errors
/// It cannot be read or decoded. The parser's text quotes lines, which may hold credentials, so only the position is
/// kept.
fn parsed(path: &Path) -> anyhow::Result<Kubeconfig> {
    match Kubeconfig::read_from(path) {
        Err(KubeconfigError::Parse(error)) => {
            anyhow::bail!("invalid YAML or kubeconfig{}", place(&error))
        }
        // The library's text repeats the path, which is in the context of every caller.
        Err(KubeconfigError::ReadConfig(error, _)) => Err(error.into()),
        read => Ok(read?),
    }
}

/// The client certificate that replaces the credentials of the kubeconfig: the rotated certificate, if it is valid. If
/// certificate and key are in one file, they are split, because the certificate would be sent twice otherwise.
fn own_certificate(identity: &ClientIdentity, user: &AuthInfo) -> anyhow::Result<Option<AuthInfo>> {
    let renewed = identity.certificate.as_deref();
    let renewed = renewed.filter(|path| certificate_is_valid(path, clock::system_time()));
    let same = user.client_certificate.as_ref().filter(|path| {
        user.client_certificate_data.is_none()
            && user.client_key_data.is_none()
            && user.client_key.as_ref() == Some(path)
    });
    let Some(path) = renewed.or(same.map(Path::new)) else {
        return Ok(None);
    };
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (certificates, key) = split(&text);
    Ok(Some(AuthInfo {
        client_certificate_data: Some(STANDARD.encode(certificates)),
        client_key_data: Some(STANDARD.encode(key).into()),
        ..AuthInfo::default()
    }))
}

/// Splits a PEM file into its certificates and the rest.
fn split(pem: &str) -> (String, String) {
    let (mut certificates, mut rest) = (String::new(), String::new());
    let mut in_certificate = false;
    for line in pem.lines() {
        in_certificate |= line == "-----BEGIN CERTIFICATE-----";
        let part = if in_certificate { &mut certificates } else { &mut rest };
        part.push_str(line);
        part.push('\n');
        in_certificate &= line != "-----END CERTIFICATE-----";
    }
    (certificates, rest)
}

/// Whether a file has certificates, none of which has expired, and a key. Blocking.
pub fn certificate_is_valid(path: &Path, now: SystemTime) -> bool {
    fs::read(path).is_ok_and(|pem| {
        let is_key = PrivateKeyDer::from_pem_slice(&pem).is_ok();
        is_key && certificates_are_valid(&pem, now)
    })
}

fn certificates_are_valid(pem: &[u8], now: SystemTime) -> bool {
    let is_valid = |der: &CertificateDer<'_>| {
        let facts = x509::parse(der);
        facts.is_some_and(|facts| now < SystemTime::from(facts.not_after))
    };
    x509::certificates(pem).is_ok_and(|certificates| certificates.iter().all(is_valid))
}

/// Whether a kubeconfig has a client certificate that has not expired; upstream's `isClientConfigStillValid`.
/// Blocking.
pub fn kubeconfig_is_valid(path: &Path, now: SystemTime) -> bool {
    let pair = kubeconfig_certificate(path);
    pair.is_some_and(|(certificate, _)| certificates_are_valid(&certificate, now))
}

/// The client certificate and key of a kubeconfig that names a server, as PEM. Blocking.
pub fn kubeconfig_certificate(path: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
    let file = parsed(path).ok()?;
    let (Some(cluster), Some(user)) = current(&file) else {
        return None;
    };
    cluster.server.as_ref()?;
    let certificate = client_certificate(user)?;
    let data = user.client_key_data.as_ref();
    let key = data_or_file(data.map(|data| data.expose_secret()), user.client_key.as_ref())?;
    Some((certificate, key))
}

/// Writes a kubeconfig with the API server of another kubeconfig, and with the certificate and key in a file. Blocking.
///
/// # Errors
/// The kubeconfig cannot be read, or the new one cannot be written.
pub fn write_for_certificate(
    bootstrap: &Path,
    to: &Path,
    certificate: &Path,
) -> anyhow::Result<()> {
    let file = parsed(bootstrap).with_context(|| format!("cannot use {}", bootstrap.display()))?;
    let (cluster, _) = current(&file);
    let cluster = cluster.context("the bootstrap kubeconfig has no current cluster")?;
    let mut own = json!({ "server": cluster.server });
    let fields = [
        ("certificate-authority", &cluster.certificate_authority),
        ("certificate-authority-data", &cluster.certificate_authority_data),
        ("tls-server-name", &cluster.tls_server_name),
    ];
    for (name, value) in fields {
        if let Some((value, fields)) = value.as_ref().zip(own.as_object_mut()) {
            fields.insert(name.to_owned(), json!(value));
        }
    }
    if let Some((true, fields)) = cluster.insecure_skip_tls_verify.zip(own.as_object_mut()) {
        fields.insert("insecure-skip-tls-verify".to_owned(), json!(true));
    }
    let context =
        json!({"cluster": "default-cluster", "user": "default-auth", "namespace": "default"});
    let user = json!({"client-certificate": certificate, "client-key": certificate});
    // JSON is YAML.
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": own}],
        "contexts": [{"name": "default-context", "context": context}],
        "current-context": "default-context",
        "users": [{"name": "default-auth", "user": user}],
    });
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let text = format!("{text:#}\n");
    atomic_file::write_durable(to, text.as_bytes())
        .with_context(|| format!("cannot write {}", to.display()))
}

fn user_name(file: &Kubeconfig) -> Option<String> {
    current_context(file)?.user.clone()
}

fn current_context(file: &Kubeconfig) -> Option<&Context> {
    let name = file.current_context.as_ref();
    let context = file.contexts.iter().find(|one| Some(&one.name) == name)?;
    context.context.as_ref()
}

/// The cluster and the user of the current context.
fn current(file: &Kubeconfig) -> (Option<&Cluster>, Option<&AuthInfo>) {
    let Some(context) = current_context(file) else {
        return (None, None);
    };
    let mut clusters = file.clusters.iter();
    let cluster = clusters.find(|one| one.name == context.cluster);
    let mut users = file.auth_infos.iter();
    let user = users.find(|one| Some(&one.name) == context.user.as_ref());
    (cluster.and_then(|one| one.cluster.as_ref()), user.and_then(|one| one.auth_info.as_ref()))
}

fn named(cluster: Option<&Cluster>, user: Option<&AuthInfo>) -> Vec<(PathBuf, FileVersion)> {
    let authorities = cluster.map(|cluster| &cluster.certificate_authority);
    let user = user.map(|user| [&user.client_certificate, &user.client_key, &user.token_file]);
    let paths = authorities.into_iter().chain(user.into_iter().flatten());
    paths.flatten().map(PathBuf::from).map(|path| (path.clone(), FileVersion::of(&path))).collect()
}
