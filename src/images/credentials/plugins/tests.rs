//! Providers as a whole, with real programs.

use super::*;
use crate::apiserver::tests::stored::Stored;
use crate::base::clock;
use serde_json::json;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(super) const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// Another process writes the file: were it open for writing here while another test forks, it could
/// not be run for a moment.
pub(super) fn script(dir: &Path, name: &str, body: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(dir.join(name))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let text = format!("#!/bin/sh\n{body}\n");
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

pub(super) fn provider(name: &str) -> Provider {
    Provider {
        name: name.into(),
        match_images: vec!["*.io".into()],
        api_version: V1.into(),
        ..Provider::default()
    }
}

/// Providers from files; each run of a program leaves a line in `runs`.
pub(in crate::images) struct World {
    dir: tempfile::TempDir,
    pub(in crate::images) api: Option<ApiServer>,
    metrics: Metrics,
    config: String,
}

impl World {
    pub(in crate::images) fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            api: None,
            metrics: Metrics::new(),
            config:
                "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
                    .into(),
        }
    }

    /// A program that answers with this, and its lines of configuration.
    pub(in crate::images) fn provider(mut self, name: &str, answer: &str, more: &str) -> World {
        let runs = self.dir.path().join("runs");
        let answer = answer.replace("V1", V1);
        let body = format!("echo {name} >> {}\ncat <<'E'\n{answer}\nE", runs.display());
        script(self.dir.path(), name, &body);
        self.config.push_str(&format!(
            "- {{ name: {name}, apiVersion: {V1}, defaultCacheDuration: 1h, matchImages: [\"*.io\"]{more} }}\n"
        ));
        self
    }

    pub(in crate::images) fn load(&self) -> anyhow::Result<CredentialPlugins> {
        let config = self.dir.path().join("config.yaml");
        fs::write(&config, &self.config).unwrap();
        CredentialPlugins::load(&config, self.dir.path(), true, self.api.clone(), &self.metrics)
    }

    fn runs(&self) -> usize {
        let runs = fs::read_to_string(self.dir.path().join("runs"));
        runs.unwrap_or_default().lines().count()
    }
}

pub(in crate::images) fn answer(scope: &str, user: &str, more: &str) -> String {
    format!(
        r#"{{"kind": "CredentialProviderResponse", "apiVersion": "V1", "cacheKeyType": "{scope}",
            "auth": {{"*.io": {{"username": "{user}", "password": "secret"}}}}{more}}}"#
    )
}

async fn users(plugins: &CredentialPlugins, image: &str) -> Vec<String> {
    users_of(plugins, image, &Pod::default()).await
}

async fn users_of(plugins: &CredentialPlugins, image: &str, pod: &Pod) -> Vec<String> {
    let found = plugins.auths(image, pod).await.lookup(image).into_iter();
    found.map(|login| login.username).collect()
}

#[tokio::test]
async fn all_providers_that_are_for_the_image_are_asked_and_tried_in_their_order() {
    let world = World::new()
        .provider("zeta", &answer("Image", "zeta", ""), "")
        .provider("alpha", &answer("Image", "alpha", ""), "")
        .provider("broken", "no answer", "")
        .provider("accounts", &answer("Image", "sa", ""), ", tokenAttributes: { serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true }");
    let plugins = world.load().unwrap();
    assert_eq!(users(&plugins, "r.io/x").await, ["zeta", "alpha"]);
    assert_eq!(world.runs(), 3, "the last needs a service account");
    assert!(users(&plugins, "registry.example/x").await.is_empty());
    assert_eq!(world.runs(), 3, "it is for none of them");
    let text = world.metrics.text();
    for sample in [
        "kubelet_credential_provider_plugin_duration_count{plugin_name=\"zeta\"} 1",
        "kubelet_credential_provider_config_info{hash=\"sha256:",
    ] {
        assert!(text.contains(sample), "{text}");
    }
}

#[tokio::test]
async fn an_answer_is_used_as_widely_and_as_long_as_it_says() {
    let table = [
        ("Image", "", ["r.io/a", "r.io/a", "r.io/b"], 2),
        ("Registry", "", ["r.io/a", "r.io/b", "q.io/b"], 2),
        ("Global", "", ["r.io/a", "r.io/b", "q.io/b"], 1),
        ("Global", r#", "cacheDuration": "0s""#, ["r.io/a", "r.io/a", "r.io/a"], 3),
        ("Global", r#", "cacheDuration": "1h""#, ["r.io/a", "r.io/a", "r.io/a"], 1),
    ];
    for (scope, more, images, runs) in table {
        let world = World::new().provider("p", &answer(scope, "u", more), "");
        let plugins = world.load().unwrap();
        for image in images {
            assert_eq!(users(&plugins, image).await, ["u"], "{scope} {image}");
        }
        assert_eq!(world.runs(), runs, "{scope} {more}");
    }
}

#[tokio::test]
async fn pulls_at_the_same_time_share_one_run() {
    let world = World::new().provider("p", &answer("Image", "u", r#", "cacheDuration": "0s""#), "");
    let plugins = world.load().unwrap();
    let requested = (0..20).map(|_| users(&plugins, "r.io/x"));
    for found in join_all(requested).await {
        assert_eq!(found, ["u"]);
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_provider_that_hangs_holds_up_no_other() {
    let mut world = World::new().provider("fine", &answer("Image", "fine", ""), "");
    let (go, dir) = (world.dir.path().join("go"), world.dir.path());
    let body = format!("while [ ! -e {} ]; do sleep 0.1; done", go.display());
    script(dir, "hangs", &body);
    world.config.push_str(&format!(
        "- {{ name: hangs, apiVersion: {V1}, defaultCacheDuration: 1h, matchImages: [\"*.test\"] }}\n"
    ));
    let plugins = Arc::new(world.load().unwrap());
    let hung: Vec<_> = (0..2 * MAX_CONCURRENT)
        .map(|number| {
            let plugins = plugins.clone();
            let image = format!("r{number}.test/x");
            tokio::spawn(async move { users(&plugins, &image).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let found = users(&plugins, "r.io/x");
    let found = tokio::time::timeout(Duration::from_secs(40), found).await;
    fs::write(go, "").unwrap();
    assert_eq!(found.unwrap(), ["fine"]);
    drop(hung);
}

#[tokio::test]
async fn a_failed_run_is_counted_and_tried_again_with_the_next_pull() {
    let world = World::new().provider("p", "", "");
    script(world.dir.path(), "p", "exit 1");
    let plugins = world.load().unwrap();
    for runs in 1..3 {
        assert!(users(&plugins, "r.io/x").await.is_empty());
        let sample = format!(
            "kubelet_credential_provider_plugin_errors_total{{plugin_name=\"p\"}} {runs}\n"
        );
        assert!(world.metrics.text().contains(&sample), "{}", world.metrics.text());
    }
}

#[test]
fn a_provider_without_a_program_keeps_the_kubelet_from_starting() {
    let mut world = World::new().provider("p", "", "");
    world.config = world.config.replace("name: p,", "name: q,");
    let error = format!("{:#}", world.load().err().unwrap());
    assert!(error.starts_with("plugin binary executable "), "{error}");
    let nowhere = CredentialPlugins::load(
        Path::new("/x"),
        Path::new("/does/not/exist"),
        true,
        None,
        &Metrics::new(),
    );
    let error = format!("{:#}", nowhere.err().unwrap());
    assert!(error.contains("/does/not/exist is not a directory"), "{error}");
}

/// A pod of the API server, with this service account.
pub(in crate::images) fn pod_with_account(name: &str, account: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": name,
            "annotations": {"kubernetes.io/config.source": "api"},
        },
        "spec": {"containers": [], "serviceAccountName": account},
    }))
    .unwrap()
}

/// Issues tokens `token-1`, `token-2` and so on.
pub(in crate::images) async fn issuer() -> Stored {
    let server = Stored::start().await;
    for account in ["puller", "plain"] {
        let annotations = match account {
            "puller" => json!({"r": "required", "o": "optional", "x": "secret"}),
            _ => json!({}),
        };
        let metadata = json!({"uid": format!("uid-of-{account}"), "annotations": annotations});
        server.put("serviceaccounts", "ns", account, json!({"metadata": metadata}));
    }
    let issued = AtomicUsize::new(0);
    server.on_post(move |_, body| {
        let number = issued.fetch_add(1, Ordering::SeqCst) + 1;
        let expires = clock::timestamp() + jiff::SignedDuration::from_hours(1);
        let status =
            json!({"token": format!("token-{number}"), "expirationTimestamp": expires.to_string()});
        (201, json!({"spec": body["spec"], "status": status}))
    });
    server
}

pub(in crate::images) fn with_account(cache: &str, more: &str) -> String {
    format!(
        ", tokenAttributes: {{ serviceAccountTokenAudience: registry, cacheType: {cache}{more} }}"
    )
}

#[tokio::test]
async fn a_provider_is_given_a_token_and_annotations_of_the_service_account() {
    let server = issuer().await;
    let more = with_account(
        "Token",
        ", requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [r], \
         optionalServiceAccountAnnotationKeys: [o, p]",
    );
    let mut world = World::new().provider("p", "", &more);
    world.api = Some(server.client().await);
    let (answer, seen) =
        (answer("Image", "u", "").replace("V1", V1), world.dir.path().join("seen"));
    let body = format!("cat >> {}\ncat <<'E'\n{answer}\nE", seen.display());
    script(world.dir.path(), "p", &body);
    let plugins = world.load().unwrap();
    let pod = pod_with_account("web", "puller");
    assert_eq!(users_of(&plugins, "r.io/x", &pod).await, ["u"]);
    let login = &plugins.auths("r.io/x", &pod).await.lookup("r.io/x")[0];
    let account = login.account.as_ref().unwrap();
    assert_eq!(
        [&*account.namespace, &*account.name, &*account.uid],
        ["ns", "puller", "uid-of-puller"]
    );
    let request: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&seen).unwrap()).unwrap();
    assert_eq!(
        request,
        json!({
            "kind": "CredentialProviderRequest", "apiVersion": V1, "image": "r.io/x",
            "serviceAccountToken": "token-1",
            "serviceAccountAnnotations": {"r": "required", "o": "optional"},
        })
    );
    let posts = server.posts();
    let (path, body) = &posts[0];
    assert!(path.ends_with("/namespaces/ns/serviceaccounts/puller/token"), "{path}");
    assert_eq!(body["spec"]["audiences"], json!(["registry"]));
    assert_eq!(body["spec"]["boundObjectRef"]["uid"], "web");
    // Neither a pod without the annotation nor one without an account is served.
    for other in ["plain", ""] {
        let pod = pod_with_account("other", other);
        assert!(users_of(&plugins, "r.io/x", &pod).await.is_empty(), "{other}");
    }
    assert_eq!(fs::read_to_string(&seen).unwrap().lines().count(), 1);
}

#[tokio::test]
async fn an_answer_serves_a_token_or_all_tokens_of_a_service_account() {
    for (cache, runs) in [("Token", 3), ("ServiceAccount", 2)] {
        let server = issuer().await;
        let more = with_account(cache, ", requireServiceAccount: false");
        let mut world = World::new().provider("p", &answer("Global", "u", ""), &more);
        world.api = Some(server.client().await);
        let plugins = world.load().unwrap();
        for (pod, account) in
            [("one", "puller"), ("one", "puller"), ("two", "puller"), ("three", "")]
        {
            let pod = pod_with_account(pod, account);
            assert_eq!(users_of(&plugins, "r.io/x", &pod).await, ["u"], "{cache}");
        }
        assert_eq!(world.runs(), runs, "{cache}");
        assert_eq!(server.posts().len(), 2, "a token for each pod");
    }
}
