//! What must hold, seen from the world's side alone: the container runtime, the API server, the directories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use kubelet::base::clock;
use parking_lot::Mutex;
use serde_json::Value;

use crate::machine::{DIRECTORY, Machine, NODE};
use crate::pods::{Kind, path};
use crate::support::fake_runtime::{FakeRuntime, PodView};

/// A pod that its user made.
#[derive(Debug, Clone)]
pub struct Known {
    pub name: String,
    pub kind: Kind,
    pub is_static: bool,
    pub is_wanted: bool,
    /// It was edited, deleted, made sick, or lost something: its containers may end.
    pub is_disturbed: bool,
    pub version: u32,
}

impl Known {
    /// As the runtime and the API server have it.
    pub fn full_name(&self) -> String {
        if self.is_static { format!("{}-{NODE}", self.name) } else { self.name.clone() }
    }
}

/// What went wrong, once each, in order.
#[derive(Default)]
pub struct Findings(Mutex<Vec<String>>);

impl Findings {
    pub fn add(&self, finding: String) {
        let mut all = self.0.lock();
        if !all.contains(&finding) && all.len() < 20 {
            all.push(finding);
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// The status of a pod that was written last.
#[derive(Default)]
struct Written {
    phase: String,
    restarts: BTreeMap<String, u64>,
}

fn rank(phase: &str) -> u8 {
    match phase {
        "Running" => 1,
        "Succeeded" | "Failed" => 2,
        _ => 0,
    }
}

pub struct Checks {
    pub findings: Arc<Findings>,
    ends: std::cell::Cell<usize>,
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn is_mirror(object: &Value) -> bool {
    !object["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null()
}

/// All container statuses of a pod.
fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let of = |field: &str| pod["status"][field].as_array().into_iter().flatten();
    of("initContainerStatuses").chain(of("containerStatuses"))
}

fn container_id(status: &Value) -> &str {
    let id = status["containerID"].as_str().unwrap_or_default();
    id.rsplit('/').next().unwrap_or_default()
}

impl Checks {
    /// Watches what the kubelet writes. `probed` has the ids of containers whose readiness probe has succeeded.
    pub fn new(machine: &Machine, probed: Arc<Mutex<BTreeSet<String>>>) -> Self {
        let findings = Arc::<Findings>::default();
        let written = Mutex::new(BTreeMap::<String, Written>::new());
        let found = findings.clone();
        machine.api.observe(move |resource, object| {
            if resource != "pods" {
                return;
            }
            let (name, uid) = (&object["metadata"]["name"], uid(object));
            let mut written = written.lock();
            let written = written.entry(uid).or_default();
            let phase = object["status"]["phase"].as_str().unwrap_or_default();
            if rank(phase) < rank(&written.phase) {
                found.add(format!(
                    "the phase of {name} goes back from {} to {phase}",
                    written.phase
                ));
            }
            written.phase = phase.to_owned();
            for status in statuses(object) {
                let container = status["name"].as_str().unwrap_or_default();
                let count = status["restartCount"].as_u64().unwrap_or_default();
                let before = written.restarts.entry(container.to_owned()).or_default();
                if count < *before {
                    found
                        .add(format!("the restart count of {name} falls from {before} to {count}"));
                }
                *before = count;
                let has_probe = object["spec"]["containers"][0]["readinessProbe"].is_object();
                let is_ready = status["ready"] == true;
                if has_probe && is_ready && !probed.lock().contains(container_id(status)) {
                    found.add(format!("{name} is ready before its probe has said so"));
                }
            }
        });
        let (found, fake) = (findings.clone(), machine.fake.clone());
        machine.api.observe_deletions(move |resource, object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if resource != "pods" || is_mirror(object) {
                return;
            }
            if object["metadata"]["deletionTimestamp"].is_null() {
                found.add(format!("{name} is deleted although nobody wants that"));
            }
            if runs(&fake, &uid(object)) {
                found.add(format!("{name} is deleted while its containers run"));
            }
        });
        Self { findings, ends: std::cell::Cell::default() }
    }

    /// What must hold at any time.
    pub fn always(&self, machine: &Machine, pods: &BTreeMap<String, Known>) {
        let ends = machine.fake.ends();
        for end in ends.iter().skip(self.ends.get()) {
            let pod = pods.values().find(|pod| pod.full_name() == end.subject.pod);
            let is_healthy = pod.is_some_and(|pod| pod.is_wanted && !pod.is_disturbed);
            let lasts =
                pod.is_some_and(|pod| pod.kind.lasting().contains(&&*end.subject.container));
            if end.was_asked && is_healthy && lasts {
                let (pod, container) = (&end.subject.pod, &end.subject.container);
                self.findings.add(format!("the healthy container {pod}/{container} was ended"));
            }
        }
        self.ends.set(ends.len());
        for overlap in machine.fake.overlaps() {
            self.findings.add(format!("two pods of a name at once: {overlap}"));
        }
        for pod in machine.fake.pods() {
            let mut running = BTreeSet::new();
            for container in pod.containers.iter().filter(|one| one.is_running()) {
                if !running.insert(&container.name) {
                    let name = format!("{}/{}", pod.name, container.name);
                    self.findings.add(format!("{name} runs twice"));
                }
            }
        }
    }

    /// Containers that must run once.
    pub fn starts(&self, machine: &Machine, pods: &BTreeMap<String, Known>) {
        let mut starts = BTreeMap::<_, usize>::new();
        for start in machine.fake.starts() {
            *starts.entry((start.subject.pod, start.subject.container)).or_default() += 1;
        }
        for pod in pods.values().filter(|pod| !pod.is_disturbed) {
            for container in pod.kind.once() {
                let name = (pod.full_name(), (*container).to_owned());
                let count = starts.get(&name).copied().unwrap_or_default();
                if count > 1 {
                    self.findings.add(format!("{}/{container} ran {count} times", name.0));
                }
            }
        }
    }

    /// What is not yet as the users want it.
    pub fn unsettled(&self, machine: &Machine, pods: &BTreeMap<String, Known>) -> Vec<String> {
        let mut problems = Vec::new();
        let views = machine.fake.pods();
        for pod in pods.values() {
            let name = pod.full_name();
            let object = machine.api.object(&path(&name)).unwrap_or_default();
            let views: Vec<_> = views.iter().filter(|view| view.name == name).collect();
            let problem = match pod.is_wanted {
                true => unsettled(pod, &object, &views),
                false if !object.is_null() => Some("it is in the API server".to_owned()),
                false if !views.is_empty() => Some("it is in the runtime".to_owned()),
                false => None,
            };
            problems.extend(problem.map(|problem| format!("{name}: {problem}")));
        }
        for view in &views {
            if !pods.values().any(|pod| pod.full_name() == view.name) {
                problems.push(format!("{} was never wanted", view.name));
            }
        }
        let wanted = pods.values().filter(|pod| pod.is_wanted).count();
        for directory in ["root/pods", "logs"] {
            let entries = std::fs::read_dir(Path::new(DIRECTORY).join(directory));
            let entries = entries.into_iter().flatten().count();
            if entries > wanted {
                problems.push(format!("{entries} directories in {directory} for {wanted} pods"));
            }
        }
        problems
    }
}

/// Whether a container of a pod runs.
fn runs(fake: &FakeRuntime, uid: &str) -> bool {
    let mut pods = fake.pods().into_iter().filter(|pod| pod.uid == uid);
    pods.any(|pod| pod.containers.iter().any(|container| container.is_running()))
}

/// What is wrong with a pod that is wanted.
fn unsettled(pod: &Known, object: &Value, views: &[&PodView]) -> Option<String> {
    let status = &object["status"];
    if pod.kind == Kind::Job {
        let is_done = status["phase"] == "Succeeded";
        return (!is_done).then(|| format!("it has not succeeded: {status}"));
    }
    let up: Vec<_> = views.iter().filter(|view| view.ready).collect();
    let [view] = up[..] else {
        return Some(format!("it has {} sandboxes", up.len()));
    };
    if status["phase"] != "Running" {
        return Some(format!("it is not shown as running: {status}"));
    }
    for container in pod.kind.lasting() {
        let mut running = view.containers.iter().filter(|one| one.name == *container);
        let Some(running) = running.find(|one| one.is_running()) else {
            return Some(format!("{container} does not run"));
        };
        let wanted = pod.version.to_string();
        if running.config.args != [wanted] {
            return Some(format!("{container} runs in an old version"));
        }
        let shown = statuses(object).find(|status| status["name"] == **container);
        let Some(shown) = shown else {
            return Some(format!("{container} has no status"));
        };
        if shown["ready"] != true || container_id(shown) != running.id {
            return Some(format!("{container} is shown as {shown}"));
        }
    }
    // The newest instance and the one before it.
    let mut instances = BTreeMap::<_, usize>::new();
    for container in &view.containers {
        *instances.entry(&container.name).or_default() += 1;
    }
    if instances.values().any(|count| *count > 2) {
        return Some(format!("too many instances are left: {instances:?}"));
    }
    None
}

/// Everything that was said and done, for a comparison.
pub fn trace(machine: &Rc<Machine>) -> String {
    let mut text = String::new();
    for call in machine.fake.calls() {
        let (rpc, subject) = (call.rpc, &call.subject);
        text += &format!("{rpc} {subject:?} {} {:?} {:?}\n", call.detail, call.took, call.code);
    }
    for seen in machine.api.seen() {
        text += &format!("{} {} {}\n", seen.method, seen.path, seen.body);
    }
    text += &format!("{}\n", clock::timestamp());
    text
}
