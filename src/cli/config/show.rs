//! `kubelet config show` and `default`.

use super::yaml::{Comments, yaml};
use crate::config::{FieldSpec, Flags, KubeletConfig, Origins, default_configuration, given_flags};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The effective configuration, without secrets.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownConfig {
    configuration: Value,
    /// Where each value that is no default was given, by its path as a JSON pointer.
    origins: Map<String, Value>,
    /// The flags that are no fields.
    flags: Map<String, Value>,
    warnings: Vec<String>,
    without_effect: Vec<String>,
}

impl ShownConfig {
    pub(super) fn new(config: KubeletConfig, origins: &Origins, flags: &Flags) -> Self {
        let mut known = Map::new();
        collect_origins(&mut Vec::new(), &config.redacted, origins, &mut known);
        let flags = given_flags(flags).into_iter();
        Self {
            configuration: config.redacted,
            origins: known,
            flags: flags.map(|(name, value)| (name, Value::from(value))).collect(),
            warnings: config.warnings,
            without_effect: config.unsupported,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for warning in &self.warnings {
            out += &format!("# Warning: {}\n", one_line(warning));
        }
        for name in &self.without_effect {
            out += &format!("# {name} has no effect in this kubelet.\n");
        }
        for (name, value) in &self.flags {
            let value = value.as_str().unwrap_or_default();
            out += &format!("# --{name}={}\n", one_line(value));
        }
        out + &yaml(&self.configuration, self)
    }
}

impl Comments for ShownConfig {
    fn above(&self, _: &FieldSpec) -> &'static [&'static str] {
        &[]
    }

    fn beside(&self, path: &[&str]) -> Option<String> {
        let origin = self.origins.get(&pointer(path))?.as_str()?;
        Some(one_line(origin))
    }

    fn shows_absent(&self) -> bool {
        false
    }
}

/// The configuration file with all defaults.
pub(super) fn default_text() -> String {
    struct Reference;

    impl Comments for Reference {
        fn above(&self, field: &FieldSpec) -> &'static [&'static str] {
            field.lines
        }

        fn beside(&self, _: &[&str]) -> Option<String> {
            None
        }

        fn shows_absent(&self) -> bool {
            true
        }
    }

    yaml(&default_value(), &Reference)
}

/// All defaults as JSON.
pub(super) fn default_value() -> Value {
    serde_json::to_value(default_configuration()).unwrap_or_else(|_| json!({}))
}

fn collect_origins<'a>(
    path: &mut Vec<&'a str>,
    value: &'a Value,
    origins: &Origins,
    known: &mut Map<String, Value>,
) {
    if let Value::Object(fields) = value {
        for (key, value) in fields {
            path.push(key);
            collect_origins(path, value, origins, known);
            path.pop();
        }
    } else if let Some(origin) = origins.of(path) {
        known.insert(pointer(path), Value::from(origin.to_string()));
    }
}

/// A JSON pointer (RFC 6901).
fn pointer(path: &[&str]) -> String {
    let escaped = path.iter().map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1")));
    escaped.collect()
}

/// In a comment a line break would begin a value.
fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostFacts, Invocation, load_with_origins, parse_args};
    use std::fs;

    fn shown(file: &str, drop_in: &str, flags: &[&str]) -> ShownConfig {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        let drop_ins = directory.path().join("drop-ins");
        fs::create_dir(&drop_ins).unwrap();
        fs::write(drop_ins.join("50.conf"), drop_in).unwrap();
        fs::write(&path, file).unwrap();
        let own = [
            format!("--config={}", path.display()),
            format!("--config-dir={}", drop_ins.display()),
        ];
        let args = own.iter().map(String::as_str).chain(flags.iter().copied());
        let Ok(Invocation::Run(flags)) = parse_args(args.map(Into::into)) else {
            panic!("flags");
        };
        let facts = HostFacts { hostname: "node1".into() };
        let (config, origins) = load_with_origins(&flags, &facts).unwrap();
        ShownConfig::new(config, &origins, &flags)
    }

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    #[test]
    fn each_value_has_the_place_where_it_was_given_and_defaults_have_none() {
        let file = format!(
            "{HEAD}maxPods: 9\nevictionHard:\n  memory.available: 1%\nstaticPodURL: http://u:secret@h/\n"
        );
        let shown = shown(&file, &format!("{HEAD}maxPods: 10\n"), &["--v=3", "--node-ip=10.0.0.1"]);
        let text = shown.text();
        let line = |key: &str| {
            let mut lines = text.lines().map(str::trim);
            let found = lines.find(|line| line.starts_with(&format!("{key}:")));
            found.unwrap_or_else(|| panic!("{key}: {text}")).to_owned()
        };
        assert!(line("maxPods").contains("maxPods: 10  # "), "{}", line("maxPods"));
        assert!(line("maxPods").ends_with("drop-ins/50.conf:3:10"));
        assert!(line("memory.available").ends_with("config.yaml:5:21"));
        assert_eq!(line("verbosity"), "verbosity: 3  # --v");
        assert_eq!(line("port"), "port: 10250");
        assert!(text.contains("\n# --node-ip=10.0.0.1\n"), "{text}");
        assert!(!text.contains("secret"), "{text}");
        let origins = &shown.origins;
        assert!(origins.contains_key("/evictionHard/memory.available"));
        assert!(!origins.contains_key("/port"));
        // Thresholds that are set because the file has none are defaults, too.
        let text = self::shown(HEAD, HEAD, &[]).text();
        assert!(text.contains("  nodefs.available: \"10%\"\n"), "{text}");
    }

    #[test]
    fn what_is_shown_and_the_defaults_are_configurations_with_the_same_effect() {
        let facts = HostFacts { hostname: "node1".into() };
        let effective = |text: &str| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("config.yaml");
            fs::write(&path, text).unwrap();
            let mut flags = Flags::default();
            (flags.config, flags.strict) = (Some(path), true);
            let loaded = load_with_origins(&flags, &facts);
            loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).0
        };
        let default = effective(HEAD);
        let written = effective(&default_text());
        assert_eq!(written.effective, default.effective);
        assert_eq!(written.unsupported, default.unsupported);
        let changed = effective(&format!(
            "{HEAD}maxPods: 7\nregisterWithTaints: [{{key: a, effect: NoSchedule}}]\n\
             systemReserved: {{cpu: \"1\"}}\nfeatureGates: {{PodsAPI: true}}\nclusterDNS: [10.0.0.1]\n"
        ));
        let shown = shown(&format!("{HEAD}maxPods: 7\n"), HEAD, &[]);
        assert_eq!(effective(&shown.text()).effective.max_pods, Some(7));
        let yaml = yaml(&changed.redacted, &shown);
        assert_eq!(effective(&yaml).effective, changed.effective);
    }

    #[test]
    fn the_defaults_document_every_field() {
        let text = default_text();
        let mut last = "";
        for line in text.lines() {
            let is_field = !line.starts_with([' ', '-']) && !line.starts_with("# ");
            assert!(!is_field || last.starts_with("# "), "{line}");
            last = line;
        }
        assert!(text.contains("\n#registerWithTaints:\n"), "{text}");
    }
}
