//! Providers as a whole, with real programs.

use super::*;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
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
    writer
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    assert!(writer.wait().unwrap().success());
}

pub(super) fn settings(name: &str) -> ProviderSettings {
    ProviderSettings {
        name: name.into(),
        match_images: vec!["*.io".into()],
        default_lifetime: Duration::ZERO,
        api_version: V1.into(),
        args: Vec::new(),
        env: Vec::new(),
        needs_service_account: false,
    }
}

/// Providers from files; each run of a program leaves a line in `runs`.
struct World {
    dir: tempfile::TempDir,
    metrics: Metrics,
    config: String,
}

impl World {
    fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            metrics: Metrics::new(),
            config:
                "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
                    .into(),
        }
    }

    /// A program that answers with this, and its lines of configuration.
    fn provider(mut self, name: &str, answer: &str, more: &str) -> World {
        let runs = self.dir.path().join("runs");
        let answer = answer.replace("V1", V1);
        let body = format!("echo {name} >> {}\ncat <<'E'\n{answer}\nE", runs.display());
        script(self.dir.path(), name, &body);
        self.config.push_str(&format!(
            "- {{ name: {name}, apiVersion: {V1}, defaultCacheDuration: 1h, matchImages: [\"*.io\"]{more} }}\n"
        ));
        self
    }

    fn load(&self) -> anyhow::Result<Plugins> {
        let config = self.dir.path().join("config.yaml");
        fs::write(&config, &self.config).unwrap();
        Plugins::load(&config, self.dir.path(), &self.metrics)
    }

    fn runs(&self) -> usize {
        let runs = fs::read_to_string(self.dir.path().join("runs"));
        runs.unwrap_or_default().lines().count()
    }
}

fn answer(scope: &str, user: &str, more: &str) -> String {
    format!(
        r#"{{"kind": "CredentialProviderResponse", "apiVersion": "V1", "cacheKeyType": "{scope}",
            "auth": {{"*.io": {{"username": "{user}", "password": "secret"}}}}{more}}}"#
    )
}

async fn users(plugins: &Plugins, image: &str) -> Vec<String> {
    let found = plugins.auths(image).await.lookup(image).into_iter();
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
        (
            "Global",
            r#", "cacheDuration": "0s""#,
            ["r.io/a", "r.io/a", "r.io/a"],
            3,
        ),
        (
            "Global",
            r#", "cacheDuration": "1h""#,
            ["r.io/a", "r.io/a", "r.io/a"],
            1,
        ),
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
    let asked = (0..20).map(|_| users(&plugins, "r.io/x"));
    for found in join_all(asked).await {
        assert_eq!(found, ["u"]);
    }
    assert_eq!(world.runs(), 1);
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
        assert!(
            world.metrics.text().contains(&sample),
            "{}",
            world.metrics.text()
        );
    }
}

#[test]
fn a_provider_without_a_program_keeps_the_kubelet_from_starting() {
    let mut world = World::new().provider("p", "", "");
    world.config = world.config.replace("name: p,", "name: q,");
    let error = format!("{:#}", world.load().err().unwrap());
    assert!(error.starts_with("plugin binary executable "), "{error}");
    let nowhere = Plugins::load(
        Path::new("/x"),
        Path::new("/does/not/exist"),
        &Metrics::new(),
    );
    let error = format!("{:#}", nowhere.err().unwrap());
    assert!(error.contains("/does/not/exist is no directory"), "{error}");
}
