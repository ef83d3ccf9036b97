use super::*;
use crate::base::clock;
use crate::cli::term::Paint;
use crate::config::{Invocation, parse_args};
use jiff::Timestamp;
use std::fs;

fn validated(source: PodSource, text: &str) -> (FileReport, String) {
    let validator = Validator {
        node_name: "n1".into(),
        source,
        config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        now: Timestamp::UNIX_EPOCH,
    };
    let report = validator.validate("web.yaml", text.as_bytes()).report;
    let again = validator.validate("web.yaml", text.as_bytes()).report;
    let mut all = ValidationReport { files: vec![again], ..ValidationReport::default() };
    all.count();
    (report, render::text(&all, Paint(false)))
}

fn file(text: &str) -> String {
    validated(PodSource::File, text).1
}

#[test]
fn a_valid_file_lists_the_pods_that_would_run() {
    let text = file(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: i}\n",
    );
    assert_eq!(text, "web.yaml: runs as default/web-n1\n1 file, 0 errors, 0 warnings\n");
}

#[test]
fn every_broken_rule_has_its_line_and_column() {
    let text = file(
        "apiVersion: v1\n\
         kind: Pod\n\
         metadata:\n\
         \x20 name: web\n\
         \x20 labels: {a.b/c: \"not good!\"}\n\
         spec:\n\
         \x20 restartPolicy: Sometimes\n\
         \x20 containers:\n\
         \x20 - name: UPPER\n\
         \x20 - name: c\n\
         \x20   image: i\n\
         \x20   ports:\n\
         \x20   - containerPort: 99999\n",
    );
    let lines: Vec<&str> = text.lines().collect();
    let starts = [
        "web.yaml:5:19: error: metadata.labels[a.b/c]: Invalid value",
        "web.yaml:9:11: error: spec.containers[0].name: Invalid value: \"UPPER\"",
        "web.yaml:9:5: error: spec.containers[0].image: Required value",
        "web.yaml:13:22: error: spec.containers[1].ports[0].containerPort: Invalid value: 99999",
        "web.yaml:7:18: error: spec.restartPolicy: Unsupported value: \"Sometimes\"",
    ];
    for start in starts {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{start}\n{text}");
    }
    assert_eq!(lines.len(), starts.len() + 2, "{text}");
    assert!(text.contains("web.yaml: not started; a running earlier version"));
    assert!(text.ends_with("1 file, 5 errors, 0 warnings\n"), "{text}");
}

#[test]
fn errors_after_a_value_of_the_wrong_form_are_found_too() {
    let text = file(
        "apiVersion: v1\n\
         kind: Pod\n\
         metadata: {name: web}\n\
         spec:\n\
         \x20 hostNetwork: perhaps\n\
         \x20 terminationGracePeriodSeconds: [1]\n\
         \x20 nosuch: 1\n\
         \x20 containers:\n\
         \x20 - justtext\n\
         \x20 - {name: c, image: i, imagePullPolicy: Maybe, command: [a, [b], c]}\n",
    );
    for expected in [
        "web.yaml:5:16: error: spec.hostNetwork: ",
        "web.yaml:6:34: error: spec.terminationGracePeriodSeconds: ",
        "web.yaml:9:5: error: spec.containers[0]: ",
        "web.yaml:10:62: error: spec.containers[1].command[1]: ",
        "web.yaml:10:42: error: spec.containers[1].imagePullPolicy: Unsupported value: \"Maybe\"",
        "web.yaml:7:11: error: unknown field \"spec.nosuch\"",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(text.ends_with("1 file, 6 errors, 0 warnings\n"), "{text}");
}

#[test]
fn the_first_error_is_the_one_that_the_source_gives() {
    for text in [
        "",
        "just text",
        "apiVersion: v1\nkind: Deployment\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: [}\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: w, name: v}\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: w}\nspec: {hostPID: 3}\n",
        "a: 1\n---\nb: 2\n",
        "apiVersion: v1\nkind: PodList\nitems: []\n",
    ] {
        let origin = crate::pods::pod_config::ManifestOrigin {
            node_name: "n1",
            source: PodSource::File,
            location: "web.yaml",
            config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        };
        let theirs =
            crate::pods::pod_config::decode_file(text.as_bytes(), origin, Timestamp::UNIX_EPOCH);
        let theirs = theirs.unwrap_err().to_string();
        let first = &validated(PodSource::File, text).0.problems[0];
        assert_eq!(first.severity, Severity::Error);
        assert!(theirs.ends_with(&first.message), "{theirs}\n{first:?}");
    }
}

#[test]
fn unknown_fields_are_errors_with_their_place() {
    let (report, text) = validated(
        PodSource::File,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  contaners: []\n  containers:\n  - {name: c, image: i, comand: [a]}\n",
    );
    assert_eq!(
        text,
        "web.yaml:5:14: error: unknown field \"spec.contaners\"\n\
         web.yaml:7:33: error: unknown field \"spec.containers[0].comand\"\n\
         web.yaml: runs as default/web-n1\n1 file, 2 errors, 0 warnings\n"
    );
    assert_eq!(report.problems[0].field, "spec.contaners");
}

#[test]
fn a_key_that_is_there_twice_is_named() {
    let text = file("apiVersion: v1\nkind: Pod\nmetadata: {name: w, name: v}\n");
    assert!(text.starts_with("web.yaml:3:21: error: metadata: duplicate key \"name\"\n"), "{text}");
}

const LIST: &str = "apiVersion: v1\nkind: PodList\nitems:\n\
    - metadata: {name: a}\n  spec:\n    containers:\n    - {name: c, image: i}\n\
    - metadata: {name: b}\n  spec:\n    containers:\n    - {name: C, image: i}\n";

#[test]
fn a_list_is_refused_in_a_file_and_still_validated() {
    let text = file(LIST);
    assert!(
        text.contains(
            "web.yaml:2:7: error: kind: a static pod must be a Pod (v1), and this is a PodList (v1)"
        ),
        "{text}"
    );
    assert!(text.contains("web.yaml:11:14: error: items[1].spec.containers[0].name: "), "{text}");
    let good = LIST.replace("name: C", "name: c");
    let text = file(&good);
    assert!(
        text.contains("the file is refused; served by a manifest URL it would be 2 pods"),
        "{text}"
    );
    assert!(text.ends_with("1 file, 1 error, 0 warnings\n"), "{text}");
}

#[test]
fn a_url_may_serve_a_list_or_nothing() {
    let good = LIST.replace("name: C", "name: c");
    let (report, text) = validated(PodSource::Http, &good);
    assert!(text.contains("runs as default/a-n1, default/b-n1"), "{text}");
    assert_eq!(report.pods.len(), 2);
    let (_, text) = validated(PodSource::Http, LIST);
    assert!(text.contains("the whole response is refused; the previous pods are kept"), "{text}");
    assert!(validated(PodSource::Http, "").0.problems.is_empty());
}

#[test]
fn a_second_document_is_refused_with_its_line() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n";
    let text = file(&format!("{pod}---\n{pod}"));
    assert!(text.contains("more than one document: a manifest must have exactly one"), "{text}");
    assert!(text.starts_with("web.yaml:"), "{text}");
}

#[test]
fn the_files_of_a_directory_are_those_a_kubelet_reads_and_clash_as_there() {
    let dir = tempfile::tempdir().unwrap();
    let pod = |name: &str, uid: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {uid}}}\n\
             spec: {{containers: [{{name: c, image: i}}]}}\n"
        )
    };
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("a.yaml", &pod("web", "u1"));
    write("b.yaml", &pod("web", "u2"));
    write("c.yaml", &pod("db", "u1"));
    write(".hidden", "nonsense");
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let validator = Validator {
        node_name: "n1".into(),
        source: PodSource::File,
        config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
        now: clock::timestamp(),
    };
    let reports = directory(dir.path(), &validator);
    let reported: Vec<(String, String)> = reports
        .iter()
        .map(|report| {
            let name = Path::new(&report.file).file_name().unwrap();
            let problems = report.problems.iter().map(|p| p.message.clone());
            (name.to_string_lossy().into(), problems.collect::<Vec<_>>().join("; "))
        })
        .collect();
    assert_eq!(reported.len(), 4, "{reported:?}");
    assert_eq!(reported[0], ("a.yaml".into(), String::new()));
    assert!(reported[1].1.starts_with("pod default/web-n1 is already in "), "{reported:?}");
    assert!(reported[2].1.contains("same UID"), "{reported:?}");
    assert!(reported[3].1.contains("one level only"), "{reported:?}");
    assert_eq!(reports[3].problems[0].severity, Severity::Warning);
}

#[test]
fn a_report_is_json_for_programs() {
    let (report, _) =
        validated(PodSource::File, "apiVersion: v1\nkind: Pod\nmetadata: {name: w}\n");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["problems"][0]["severity"], "error");
    assert_eq!(json["problems"][0]["field"], "spec.containers");
}

#[test]
fn warnings_of_the_configuration_are_those_of_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let (config, pod) = (directory.path().join("config.yaml"), directory.path().join("web.yaml"));
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    fs::write(&config, format!("{head}maxPodz: 3\nhairpinMode: none\n")).unwrap();
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: i}\n";
    fs::write(&pod, text).unwrap();
    let flags = || match parse_args([format!("--config={}", config.display()).into()]) {
        Ok(Invocation::Run(flags)) => flags,
        other => panic!("{other:?}"),
    };
    let args =
        |flags| Validate { files: vec![pod.clone()], url: false, output: Output::Text, flags };
    let report = report(&args(flags())).unwrap();
    let text = render::text(&report, Paint(false));
    for (line, warning) in text.lines().zip([
        "maxPodz: unknown field is ignored; did you mean \"maxPods\"?",
        "accepted and without effect in this kubelet: hairpinMode",
    ]) {
        assert!(line.starts_with("configuration: warning: ") && line.ends_with(warning), "{text}");
    }
    assert!(text.ends_with("\n1 file, 0 errors, 2 warnings\n"), "{text}");
    fs::write(&config, format!("{head}maxPods: -1\n")).unwrap();
    let refusal = super::report(&args(flags())).unwrap_err().to_string();
    assert!(
        refusal.ends_with("config.yaml:3:10: maxPods: must be 0 or greater, got -1"),
        "{refusal}"
    );
}
