//! Manifests of everything that the documentation of Kubernetes shows of pods, in `tests/manifests`.
//! The comments at the head of each have the expected outcome:
//!
//! * `# refused: FIELD: WHY` for each field that is refused, in order; without one the pod is good;
//! * `# warning: TEXT` for each warning about a good one;
//! * `# unreadable: TEXT` when it is not a pod, with a part of the reason;
//! * `# configMapsAndSecrets: files` when the node has config maps and secrets as files.

use super::*;
use crate::model::validation::LocalConfigMapsAndSecrets;
use crate::model::{NodeFacts, PodSource};
use crate::volumes::kinds::plan;
use std::fs;
use std::path::Path;

/// The outcome of a manifest, or the expected one at its head.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    refused: Vec<String>,
    warnings: Vec<String>,
    unreadable: Option<String>,
}

impl Outcome {
    fn of_head(text: &str) -> (Self, LocalConfigMapsAndSecrets) {
        let mut expected = Self::default();
        let mut config_maps_and_secrets = LocalConfigMapsAndSecrets::None;
        for line in text.lines().map_while(|line| line.strip_prefix("# ")) {
            match line.split_once(": ") {
                Some(("refused", what)) => expected.refused.push(what.into()),
                Some(("warning", what)) => expected.warnings.push(what.into()),
                Some(("unreadable", what)) => expected.unreadable = Some(what.into()),
                Some(("configMapsAndSecrets", "files")) => {
                    config_maps_and_secrets = LocalConfigMapsAndSecrets::Files
                }
                _ => {}
            }
        }
        (expected, config_maps_and_secrets)
    }

    fn of(text: &str, config_maps_and_secrets: LocalConfigMapsAndSecrets) -> Self {
        let origin = ManifestOrigin {
            node_name: "node1",
            source: PodSource::File,
            location: "/manifests/pod.yaml",
            config_maps_and_secrets,
        };
        let mut outcome = Self::default();
        match decode_file(text.as_bytes(), origin, Timestamp::UNIX_EPOCH) {
            Ok(manifest) => {
                outcome.warnings = manifest.warnings;
                for pod in &manifest.pods {
                    // The volumes of an accepted pod can be planned.
                    let volumes = plan::plan(pod, &NodeFacts::default(), false);
                    let volumes =
                        volumes.unwrap_or_else(|error| panic!("{}: {error:?}", pod.name()));
                    for volume in volumes {
                        let supported = volume.is_supported();
                        assert!(supported, "{}: {volume:?}", pod.name());
                    }
                }
            }
            Err(InvalidManifest::Decode(error)) => outcome.unreadable = Some(error.to_string()),
            Err(bad) => outcome.refused = bad.fields().iter().map(ToString::to_string).collect(),
        }
        outcome
    }
}

#[test]
fn each_documented_manifest_has_the_outcome_at_its_head() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
    let mut wrong = Vec::new();
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let (expected, config_maps_and_secrets) = Outcome::of_head(&text);
        let mut found = Outcome::of(&text, config_maps_and_secrets);
        if let (Some(part), Some(whole)) = (&expected.unreadable, &mut found.unreadable)
            && whole.contains(part.as_str())
        {
            whole.clone_from(part);
        }
        if found != expected {
            wrong.push(format!("{}\nexpected {expected:#?}\nfound {found:#?}", path.display()));
        }
        assert!(text.starts_with("# "), "{} has no comment", path.display());
        names.push(path);
    }
    assert!(names.len() >= 100, "{} manifests", names.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
