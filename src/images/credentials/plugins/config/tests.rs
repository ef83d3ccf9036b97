use super::*;
use std::fs;

const GOOD: &str = r#"
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: one
  matchImages: ["*.registry.io", "registry.io:8080/path"]
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get, --verbose]
  env: [{ name: PROFILE, value: node }]
- name: two
  matchImages: [other.io]
  defaultCacheDuration: "0s"
  apiVersion: credentialprovider.kubelet.k8s.io/v1beta1
"#;

fn read_text(text: &str) -> anyhow::Result<(Vec<Provider>, String)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("providers.conf");
    fs::write(&path, text).unwrap();
    read(&path, true)
}

#[test]
fn a_file_is_read_in_the_order_of_its_providers() {
    let (providers, hash) = read_text(GOOD).unwrap();
    let one = Provider {
        name: "one".into(),
        match_images: vec!["*.registry.io".into(), "registry.io:8080/path".into()],
        default_cache_duration: Some("12h".parse().unwrap()),
        api_version: "credentialprovider.kubelet.k8s.io/v1".into(),
        args: vec!["get".into(), "--verbose".into()],
        env: vec![EnvVar { name: "PROFILE".into(), value: "node".into() }],
        token_attributes: None,
    };
    assert_eq!(providers[0], one);
    assert_eq!(providers[1].name, "two");
    assert_eq!(providers[1].default_cache_duration, Some(GoDuration::default()));
    // The length in eight bytes, then the content.
    let mut sum = Sha256::new();
    sum.update((GOOD.len() as u64).to_be_bytes());
    sum.update(GOOD);
    assert_eq!(hash.len(), "sha256:".len() + 64);
    assert!(hash.ends_with(&format!("{:02x}", sum.finalize()[31])));
}

#[test]
fn a_directory_is_read_in_the_order_of_names_and_names_of_providers_are_unique_in_all() {
    let dir = tempfile::tempdir().unwrap();
    let none = read(dir.path(), true).unwrap_err().to_string();
    assert!(none.starts_with("no configuration files found in directory"), "{none}");
    let renamed = |from: &str, to: &str| GOOD.replace(from, to);
    fs::write(dir.path().join("b.yml"), GOOD).unwrap();
    let first = renamed("name: one", "name: three").replace("name: two", "name: four");
    fs::write(dir.path().join("a.yaml"), first).unwrap();
    fs::write(dir.path().join("ignored.txt"), "no yaml: [").unwrap();
    fs::create_dir(dir.path().join("dir.json")).unwrap();
    let (providers, _) = read(dir.path(), true).unwrap();
    let names: Vec<_> = providers.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["three", "four", "one", "two"]);
    fs::write(dir.path().join("c.json"), GOOD).unwrap();
    let error = read(dir.path(), true).unwrap_err().to_string();
    assert!(error.contains("c.json: providers[4].name: Duplicate value: \"one\""), "{error}");
}

#[test]
fn what_is_wrong_is_told_by_file_and_field() {
    let change = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        GOOD.replacen(from, to, 1)
    };
    let v1 = "apiVersion: credentialprovider.kubelet.k8s.io/v1\n";
    let token = |more: &str| change(v1, &format!("{v1}  tokenAttributes: {{ {more} }}\n"));
    let table = [
        (
            change("name: one", "name: a/b"),
            "providers[0].name: Invalid value: \"a/b\": provider name cannot contain '/'",
        ),
        (change("name: one", "name: \"a b\""), "provider name cannot contain spaces"),
        (change("name: one", "name: .."), "provider name cannot be '..'"),
        (change("name: one", "name: two"), "providers[1].name: Duplicate value: \"two\""),
        (
            change("matchImages: [other.io]", "matchImages: []"),
            "providers[1].matchImages: Required value",
        ),
        (
            change("other.io", "\"other.io:x\""),
            "providers[1].matchImages: Invalid value: \"other.io:x\"",
        ),
        (
            change("  defaultCacheDuration: 12h\n", ""),
            "providers[0].defaultCacheDuration: Required value",
        ),
        (change("12h", "-1s"), "must be greater than or equal to 0"),
        (change(v1, "apiVersion: v1\n"), "providers[0].apiVersion: Unsupported value: \"v1\""),
        (change(&format!("  {v1}"), ""), "providers[0].apiVersion: Required value"),
        (change("name: PROFILE", "name: A=B"), "providers[0].env[0].name: Invalid value"),
        (change("  args:", "  arguments:"), "unknown field \"arguments\""),
        (
            change("kind: CredentialProviderConfig", "kind: Pod"),
            "kind: \"Pod\" is not CredentialProviderConfig",
        ),
        (
            change("kubelet.config.k8s.io/v1", "v1"),
            "apiVersion: \"v1\" is not kubelet.config.k8s.io/v1",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n".into(),
            "at least 1 item",
        ),
        (String::new(), "providers.conf"),
        (token("cacheType: Token"), "tokenAttributes.serviceAccountTokenAudience: Required value"),
        (
            token("serviceAccountTokenAudience: a, requireServiceAccount: true"),
            "tokenAttributes.cacheType: Required value",
        ),
        (
            token("serviceAccountTokenAudience: a, requireServiceAccount: true, cacheType: Pod"),
            "cacheType: Unsupported value: \"Pod\"",
        ),
        (
            token(
                "requireServiceAccount: false, requiredServiceAccountAnnotationKeys: [a, a], optionalServiceAccountAnnotationKeys: [a]",
            ),
            "annotation keys cannot be both",
        ),
    ];
    for (text, expected) in table {
        let error = format!("{:#}", read_text(&text).unwrap_err());
        assert!(error.contains(expected), "{error}\n{text}");
    }
    let missing = read(Path::new("/does/not/exist"), true).unwrap_err();
    assert!(format!("{missing:#}").contains("unable to access path /does/not/exist"));
}

#[test]
fn tokens_of_service_accounts_may_be_switched_off() {
    let v1 = "apiVersion: credentialprovider.kubelet.k8s.io/v1\n";
    let token = "{ serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true }";
    let text = GOOD.replacen(v1, &format!("{v1}  tokenAttributes: {token}\n"), 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("providers.yaml");
    std::fs::write(&path, text).unwrap();
    assert!(read(&path, true).is_ok());
    let error = format!("{:#}", read(&path, false).unwrap_err());
    let expected = "providers[0].tokenAttributes: Forbidden: tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled";
    assert!(error.contains(expected), "{error}");
    std::fs::write(&path, GOOD).unwrap();
    assert!(read(&path, false).is_ok(), "without such attributes");
}

#[test]
fn an_error_names_file_line_and_field_and_never_a_value() {
    const SECRET: &str = "hunter2";
    let change = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        GOOD.replacen(from, &to.replace("SECRET", SECRET), 1)
    };
    let args = "args: [get, --verbose]";
    let env = "env: [{ name: PROFILE, value: node }]";
    let table = [
        (change(args, "args: SECRET"), "line 9", "providers[0].args"),
        (change(args, "args: [get, { token: SECRET }]"), "line 9", "providers[0].args[1]"),
        (change(env, "env: SECRET"), "line 10", "providers[0].env"),
        (
            change(env, "env: [{ name: TOKEN, value: [SECRET] }]"),
            "line 10",
            "providers[0].env[0].value",
        ),
        (change(env, "env: [TOKEN=SECRET]"), "line 10", "providers[0].env[0]"),
        (change(env, "env: [{ name: TOKEN=SECRET }]"), "", "providers[0].env[0].name"),
        (change("12h", "SECRET"), "line 7", "providers[0].defaultCacheDuration"),
        (change(env, "env: *SECRET"), "line 10", ""),
        (change(env, "env: !SECRET []"), "", ""),
        (change(env, "env: [{ name: TOKEN, value: \"SECRET }]"), "line", ""),
    ];
    for (text, line, field) in table {
        let Err(error) = read_text(&text) else {
            assert!(text.contains('!'), "{text}");
            continue;
        };
        for shown in [format!("{error:#}"), format!("{error:?}")] {
            assert!(!shown.contains(SECRET), "{shown}");
            for part in ["providers.conf", line, field] {
                assert!(shown.contains(part), "{shown}: {part}");
            }
        }
    }
}

#[test]
fn a_provider_may_insist_on_service_accounts() {
    let v1 = "apiVersion: credentialprovider.kubelet.k8s.io/v1\n";
    for (required, expected) in [("true", true), ("false", false)] {
        let token = format!(
            "{v1}  tokenAttributes: {{ serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: {required} }}\n"
        );
        let (providers, _) = read_text(&GOOD.replacen(v1, &token, 1)).unwrap();
        let attributes = providers[0].token_attributes.as_ref().unwrap();
        assert_eq!(
            (attributes.require_service_account, &*attributes.service_account_token_audience),
            (Some(expected), "a")
        );
        assert!(attributes.is_cached_by_token());
    }
}
