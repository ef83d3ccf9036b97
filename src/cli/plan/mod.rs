//! `kubelet plan`: what the runtime would be asked for, without asking it.
//!
//! The configurations are made by the kubelet's own generators, and what would be done now is decided
//! by its own rules, from what the runtime has at this moment.

mod calls;
mod render;
mod shown;
mod steps;

use super::{
    args::{Output, Plan},
    term::{Term, json, print},
    validate::{self, ValidatedFile, Validator},
};
use crate::{
    app::look::{Look, Runtime, RuntimeReport},
    base::chain,
    config::{self, HostFacts, KubeletConfig},
    host::Machine,
    model::validation::LocalObjects,
    model::{Pod, PodExt, PodSource, PodStatus},
    runtime::kuberuntime::preview::{ContainerPreview, KnownImages, Preview},
};
use calls::Call;
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};
use steps::Step;

/// Everything that is shown.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    namespace: String,
    name: String,
    uid: String,
    /// Where the file counts as lying: its place is part of a static pod's identity.
    location: String,
    /// The runtime that was read; empty when none was.
    runtime: String,
    remarks: Vec<String>,
    /// What would be done at this moment; only where the runtime was read.
    now: Vec<Step>,
    /// The calls that change something, in order.
    calls: Vec<Call>,
    sandbox: Configured,
    containers: Vec<Configured>,
}

/// A configuration, in the form that `crictl` takes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Configured {
    name: String,
    kind: String,
    remarks: Vec<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    config: serde_json::Value,
}

pub(super) async fn run(asked: Plan) -> anyhow::Result<ExitCode> {
    let facts = HostFacts {
        hostname: Machine::read()?.hostname,
    };
    let term = Term::of_stdout();
    let flags = asked.flags.clone();
    let config = tokio::task::spawn_blocking(move || config::load(&flags, &facts)).await??;
    let location = location(&asked.file, config.static_pods.path.as_deref());
    let (file, node_name) = (asked.file.clone(), config.node_name.clone());
    let objects = LocalObjects::given(config.local_objects_dir.is_some());
    let judged = tokio::task::spawn_blocking(move || {
        let judge = Validator {
            node_name,
            source: PodSource::File,
            objects,
            now: Timestamp::now(),
        };
        validate::file_at(&file, &location, &judge).map(|judged| (judged, location))
    });
    let (ValidatedFile { report, pods }, location) = judged.await??;
    let Some(pod) = pods.into_iter().next() else {
        print(&validate::text_of(report, term.paint))?;
        return Ok(ExitCode::FAILURE);
    };
    let mut plan = plan(&config, &pod, asked.flags.name_a_runtime()).await?;
    plan.location = location.display().to_string();
    plan.remarks.splice(0..0, report.remarks());
    print(&match asked.output {
        Output::Json => json(&plan, true)?,
        Output::Text | Output::Wide => {
            render::text(&plan, term.paint, Timestamp::now(), &TimeZone::system())
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Where the kubelet would find the file: in its manifest directory, under the file's own name.
fn location(file: &Path, manifests: Option<&Path>) -> PathBuf {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
    match (manifests, file.file_name()) {
        (Some(place), _) if place.is_file() => place.to_path_buf(),
        (Some(place), Some(name)) => place.join(name),
        _ => absolute,
    }
}

async fn plan(
    config: &KubeletConfig,
    pod: &Arc<Pod>,
    read_runtime: bool,
) -> anyhow::Result<Report> {
    let looked_at = config.clone();
    let runtime = tokio::task::spawn_blocking(move || Runtime::of(&looked_at)).await??;
    let mut report = Report {
        namespace: pod.namespace().into(),
        name: pod.name().into(),
        uid: pod.uid().to_string(),
        ..Report::default()
    };
    let endpoint = &config.runtime.endpoint;
    let word = match read_runtime {
        true => runtime.ask().await,
        false => Err(anyhow::anyhow!("it is not named")),
    };
    let word = word.unwrap_or_else(|error| {
        let why = chain(error.as_ref());
        report.remarks.push(format!(
            "the runtime was not read ({why}): this is a start from nothing, with a runtime that can \
             do the usual"
        ));
        RuntimeReport::default()
    });
    let look = runtime.look(config, &word).await?;
    let mut seen = Seen::default();
    if !word.name.is_empty() {
        report.runtime = format!("{} at {endpoint}", word.name);
        seen = Seen::read(&look, pod).await?;
    }
    if let Some(refusal) = look.refusal(pod) {
        report
            .remarks
            .push(format!("this node refuses the pod: {refusal}"));
    }
    let preview = look.preview(pod, &seen.own, &seen.images).await;
    report.fill(pod, &look, &seen, preview);
    Ok(report)
}

/// What the runtime has.
#[derive(Default)]
struct Seen {
    read: bool,
    own: PodStatus,
    /// Pods of the same name with another UID that run.
    others: Vec<PodStatus>,
    images: KnownImages,
}

impl Seen {
    async fn read(look: &Look, pod: &Pod) -> anyhow::Result<Self> {
        let mut seen = Self {
            read: true,
            ..Self::default()
        };
        for status in look.pods(pod).await? {
            match status.uid == pod.uid() {
                true => seen.own = status,
                false if status.is_active() => seen.others.push(status),
                false => {}
            }
        }
        let containers = pod.init_containers().iter().chain(pod.containers());
        let mut images: Vec<&str> = containers.filter_map(|c| c.image.as_deref()).collect();
        let volumes = pod.spec().and_then(|spec| spec.volumes.as_deref());
        let volumes = volumes.unwrap_or_default().iter();
        images.extend(volumes.filter_map(|v| v.image.as_ref()?.reference.as_deref()));
        seen.images = look.images(&images).await?;
        Ok(seen)
    }
}

impl Report {
    fn fill(&mut self, pod: &Arc<Pod>, look: &Look, seen: &Seen, preview: Preview) {
        let now = Timestamp::now();
        let held = |name: &str| look.manager().restart_back_off(pod, name, &seen.own, now);
        let inputs = steps::Inputs {
            pod,
            status: &seen.own,
            others: &seen.others,
            actions: &preview.actions,
            held: &held,
        };
        if seen.read {
            self.now = steps::steps(&inputs);
        }
        self.calls = calls::calls(&inputs, &seen.images, seen.read);
        self.sandbox = match preview.sandbox {
            Ok((config, remarks)) => Configured {
                remarks,
                config: shown::json(&config),
                ..Configured::default()
            },
            Err(error) => Configured {
                error,
                ..Configured::default()
            },
        };
        self.sandbox.kind = "sandbox".into();
        let container = |preview: ContainerPreview| {
            let (config, error) = match preview.config {
                Ok(config) => (shown::json(&config), String::new()),
                Err(error) => (serde_json::Value::Null, error),
            };
            Configured {
                name: preview.name,
                kind: preview.kind.into(),
                remarks: preview.remarks,
                error,
                config,
            }
        };
        self.containers = preview.containers.into_iter().map(container).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_as_lying_in_the_manifest_directory_under_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("one.yaml");
        std::fs::write(&one, "").unwrap();
        let draft = Path::new("/tmp/draft.yaml");
        assert_eq!(
            location(draft, Some(dir.path())),
            dir.path().join("draft.yaml")
        );
        assert_eq!(location(draft, Some(&one)), one);
        assert_eq!(location(draft, None), draft);
    }
}
