//! What errors must not say.

use super::renewed::write_kubeconfig;
use super::scripted::{Reply, TOKEN};
use super::*;
use crate::base::{clock, error_chain};
use k8s_openapi::api::core::v1::Node;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const SECRET: &str = "s3cret";

/// All forms in which an error may come into a log.
fn forms(error: &anyhow::Error) -> String {
    let all = error.chain().map(|one| format!("{one} {one:?} {one:#?}"));
    let all: String = all.collect();
    let chained = error_chain(error.as_ref());
    format!("{error} {error:#} {error:?} {error:#?} {chained} {all}")
}

#[tokio::test]
async fn no_reader_of_a_kubeconfig_repeats_its_text_in_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (path, to) = (dir.path().join("broken"), dir.path().join("kubeconfig"));
    let head = "apiVersion: v1\nkind: Config\ncurrent-context: c\nusers:\n- name: u\n  user:\n";
    for (rest, line) in [
        (format!("    token: {SECRET}\n   x: y\n"), Some(8)),
        (format!("    token: \"{SECRET}\n"), None),
        (format!("    token: {SECRET}: {SECRET}\n"), Some(7)),
        (format!("    token: [{SECRET}]\n"), None),
        (format!("    token: {SECRET}\n    token: {SECRET}\n"), None),
        (format!("    client-certificate-data: {{{SECRET}: 1}}\n"), None),
        (format!("    {SECRET}\n"), None),
        (format!("    token: {SECRET}\n    exec: {SECRET}\n"), None),
        (format!("    token: *{SECRET}\n"), None),
    ] {
        fs::write(&path, format!("{head}{rest}")).unwrap();
        let opened = ApiServer::of_kubeconfig(&path).await.unwrap_err();
        let written = write_for_certificate(&path, &to, Path::new("/c.pem")).unwrap_err();
        for error in [opened, written] {
            let forms = forms(&error);
            assert!(!forms.contains(SECRET), "{rest}: {forms}");
            let text = error_chain(error.as_ref());
            assert!(text.contains(path.to_str().unwrap()), "{rest}: {text}");
            let line =
                line.map_or("at line ".to_owned(), |line| format!("at line {line}, column "));
            assert!(text.contains(&line), "{rest}: {text}");
        }
        assert_eq!(kubeconfig_certificate(&path), None);
    }
}

/// A kubeconfig whose credentials are the output of a script.
fn with_plugin(server: &Scripted, dir: &Path, script: &str) -> std::path::PathBuf {
    fs::write(dir.join("cluster.crt"), server.authority()).unwrap();
    let plugin = dir.join("plugin");
    fs::write(&plugin, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": plugin,
        "env": [{"name": "KEY", "value": SECRET}],
        "interactiveMode": "Never",
    });
    write_kubeconfig(dir, server.port, json!({ "exec": exec }))
}

#[tokio::test]
async fn what_a_credential_plugin_prints_is_in_no_error() {
    let server = Scripted::serve(|_| Reply::Json(200, json!({"metadata": {"name": "n1"}}))).await;
    let soon = clock::timestamp() + std::time::Duration::from_secs(30);
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": TOKEN, "expirationTimestamp": soon},
    });
    for failure in [
        format!("echo '{{\"status\": {{\"token\": \"{SECRET}'"),
        format!("echo '{{\"status\": \"{SECRET}\"}}'"),
        format!("echo {SECRET}; echo {SECRET} >&2; exit 1"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = with_plugin(&server, dir.path(), &failure);
        let identity = ClientIdentity {
            kubeconfig: path,
            certificate: None,
            is_awaited: false,
            proxies: None,
        };
        let read = crate::apiserver::kubeconfig::read(&identity, &mut Vec::new(), true);
        let shown = forms(&read.err().unwrap());
        assert!(!shown.contains(SECRET), "{failure}: {shown}");
        assert!(shown.contains("credential plugin"), "{failure}: {shown}");
        // When its credentials have expired it runs again, before a request.
        let failing = dir.path().join("failing");
        let script = format!(
            "if [ -e {} ]; then {failure}; else echo '{credential}'; fi",
            failing.display()
        );
        let path = with_plugin(&server, dir.path(), &script);
        let api = ApiServer::of_kubeconfig(&path).await.unwrap();
        api.get::<Node>(ResourcePath::cluster("n1")).await.unwrap();
        fs::write(&failing, "").unwrap();
        let error = api.get::<Node>(ResourcePath::cluster("n1")).await.unwrap_err();
        let shown = forms(&error.into());
        assert!(!shown.contains(SECRET), "{failure}: {shown}");
        assert!(shown.contains("credential plugin"), "{failure}: {shown}");
    }
}
