//! The kubelet is killed in every step of a CSI volume. The next one finishes what pods want, undoes the rest, and
//! leaves nothing.

use std::fs;
use std::path::Path;

use futures::future::join_all;
use tokio::sync::Mutex;
use tonic::Code;

use crate::api_source::path;
use crate::csi::delete;
use crate::csi::driver::{Behaviour, CsiDriver};
use crate::csi_node::{CsiNode, NodeDriver};
use crate::node::WAIT_LIMIT;
use crate::support::wait::{holds, wait_for};

/// Held by a test: each starts a kubelet per case, which are enough for a machine.
static KUBELETS: Mutex<()> = Mutex::const_new(());

/// A volume whose pod runs all the time.
const STEADY: &str = "steady";

/// The call that is in progress when the kubelet is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Stage,
    Publish,
    Unpublish,
    Unstage,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// None: as if the kubelet had been killed after it wrote the record and before it called.
    Never,
    /// After the kubelet's death.
    Later,
    /// Before: as if the kubelet had been killed after the call and before it acted on the answer.
    Before,
}

#[derive(Debug, Clone, Copy)]
struct Point(Call, Effect);

impl Point {
    /// The name of its volume, of the claim and of the first pod.
    fn volume(self) -> String {
        let Point(call, effect) = self;
        format!("{call:?}-{effect:?}").to_lowercase()
    }

    fn method(self) -> &'static str {
        match self.0 {
            Call::Stage => "NodeStageVolume",
            Call::Publish => "NodePublishVolume",
            Call::Unpublish => "NodeUnpublishVolume",
            Call::Unstage => "NodeUnstageVolume",
        }
    }

    fn behaviour(self) -> Behaviour {
        match self.1 {
            Effect::Never => Behaviour::hang_then_fail(Code::Internal),
            Effect::Later => Behaviour::Hang,
            Effect::Before => Behaviour::DoThenHang,
        }
    }

    fn sets_up(self) -> bool {
        matches!(self.0, Call::Stage | Call::Publish)
    }

    /// Whether the call is in progress.
    fn is_reached(self, driver: &CsiDriver) -> bool {
        let handle = self.volume();
        let calls = driver.journal.of(self.method());
        let mut calls = calls.iter().filter(|call| call.volume == handle);
        let volume = driver.volumes.get(&handle).expect("the volume");
        let is_done = match self.0 {
            Call::Stage => volume.staged.is_some(),
            Call::Publish => !volume.published.is_empty(),
            Call::Unpublish => volume.published.is_empty(),
            Call::Unstage => volume.staged.is_none(),
        };
        calls.any(|call| call.code.is_none()) && is_done == (self.1 == Effect::Before)
    }
}

/// What happens to upstream's files while no kubelet runs.
#[derive(Debug, Clone, Copy)]
enum Files {
    Kept,
    Emptied,
    CutShort,
    Removed,
}

impl Files {
    /// Changes all of a directory, except those below mounts.
    fn apply(self, directory: &Path) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_name().is_some_and(|name| name == "vol_data.json") {
                let text = fs::read_to_string(&path).expect("the file");
                match self {
                    Files::Kept => Ok(()),
                    Files::Emptied => fs::write(&path, ""),
                    Files::CutShort => fs::write(&path, &text[..text.len() / 2]),
                    Files::Removed => fs::remove_file(&path),
                }
                .expect("a change");
            } else if path.is_dir() && !["mount", "globalmount"].iter().any(|it| path.ends_with(it))
            {
                self.apply(&path);
            }
        }
    }
}

/// A node, killed once with each point in progress in a volume of its own.
#[derive(Debug, Clone, Copy)]
struct Case {
    attach: bool,
    stage: bool,
    /// The volumes are devices.
    block: bool,
    /// Pods want the volumes still, or again, when the next kubelet starts.
    wanted: bool,
    /// The calls end before the next kubelet starts; else after it has called the driver for each volume.
    end_before: bool,
    files: Files,
}

#[rustfmt::skip]
const CASES: [Case; 6] = [
    Case { attach: true, stage: true, block: false, wanted: true, end_before: false, files: Files::Kept },
    Case { attach: true, stage: true, block: false, wanted: false, end_before: true, files: Files::Emptied },
    Case { attach: false, stage: true, block: false, wanted: true, end_before: true, files: Files::CutShort },
    Case { attach: false, stage: true, block: false, wanted: false, end_before: false, files: Files::Removed },
    Case { attach: true, stage: false, block: false, wanted: false, end_before: false, files: Files::Kept },
    Case { attach: false, stage: false, block: false, wanted: true, end_before: true, files: Files::Kept },
];

#[rustfmt::skip]
const BLOCK_CASES: [Case; 4] = [
    Case { attach: true, stage: true, block: true, wanted: false, end_before: true, files: Files::Removed },
    Case { attach: false, stage: true, block: true, wanted: false, end_before: false, files: Files::Kept },
    Case { attach: false, stage: true, block: true, wanted: true, end_before: true, files: Files::CutShort },
    Case { attach: true, stage: false, block: true, wanted: false, end_before: true, files: Files::Emptied },
];

impl Case {
    fn points(self) -> Vec<Point> {
        let calls: &[Call] = if self.stage {
            &[Call::Stage, Call::Publish, Call::Unpublish, Call::Unstage]
        } else {
            &[Call::Publish, Call::Unpublish]
        };
        let effects = [Effect::Never, Effect::Later, Effect::Before];
        let points = calls.iter().flat_map(|call| effects.map(|effect| Point(*call, effect)));
        points.collect()
    }
}

async fn wait_runs(case: Case, node: &CsiNode, name: &str) {
    let what = format!("{case:?}: {name} runs with its data");
    wait_for(&what, WAIT_LIMIT, async || {
        let running = node.running(&format!("uid-of-{name}"));
        let running = running.ok_or_else(|| "it does not run".to_owned())?;
        let lacks = node.lacks(&running);
        holds(lacks.is_empty(), format!("{lacks:?}"))
    })
    .await;
}

async fn survives(case: Case) {
    let dir = tempfile::Builder::new().prefix("kills").tempdir().unwrap();
    let points = case.points();
    let volumes = points.iter().map(|point| point.volume());
    let driver = NodeDriver {
        name: "csi.example.com",
        attach: case.attach,
        stage: case.stage,
        block: case.block,
        volumes: volumes.chain([STEADY.to_owned()]).collect(),
    };
    let Some(mut node) = CsiNode::start(dir.path(), &[driver], 1).await else {
        return;
    };
    // Up to the calls.
    node.put(STEADY, STEADY);
    wait_runs(case, &node, STEADY).await;
    let undone: Vec<_> = points.iter().filter(|point| !point.sets_up()).collect();
    for point in &undone {
        node.put(&point.volume(), &point.volume());
    }
    for point in &undone {
        wait_runs(case, &node, &point.volume()).await;
    }
    for point in &points {
        let (volume, once) = (Some(point.volume()), Some(1));
        let script = &node.drivers[0].script;
        script.add(point.method(), volume, once, point.behaviour());
        if point.sets_up() {
            node.put(&point.volume(), &point.volume());
        } else {
            delete(&node.api, &point.volume());
        }
    }
    let what = format!("{case:?}: all calls are in progress");
    wait_for(&what, WAIT_LIMIT, async || {
        let is_missing = |point: &&Point| !point.is_reached(&node.drivers[0]);
        let missing: Vec<_> = points.iter().filter(is_missing).collect();
        holds(missing.is_empty(), format!("{missing:?}"))
    })
    .await;
    let ids = |node: &CsiNode| {
        let steady = node.running("uid-of-steady").expect("it runs");
        let ids = steady.containers.iter().map(|one| one.id.clone());
        ids.collect::<Vec<_>>()
    };
    let before = ids(&node);
    node.kubelet.kill();
    // While no kubelet runs.
    let mut wants = vec![STEADY.to_owned()];
    for point in &points {
        let volume = point.volume();
        match (case.wanted, point.sets_up()) {
            (true, true) => wants.push(volume),
            (true, false) => {
                let next = format!("next-{volume}");
                node.put(&next, &volume);
                wants.push(next);
            }
            (false, true) => node.api.remove(&path(&volume)),
            (false, false) => {}
        }
    }
    for directory in ["plugins", "pods"] {
        case.files.apply(&node.root().join(directory));
    }
    let driver = &node.drivers[0];
    let calls = |handle: &str| {
        let mut calls = driver.journal.entries();
        calls.retain(|call| call.volume == handle);
        calls
    };
    if case.end_before {
        driver.script.release();
        let what = format!("{case:?}: the calls have ended");
        wait_for(&what, WAIT_LIMIT, async || {
            let mut entries = driver.journal.entries().into_iter();
            let open = entries.find(|call| call.code.is_none());
            holds(open.is_none(), format!("{open:?}"))
        })
        .await;
    }
    let counts: Vec<_> = points.iter().map(|point| calls(&point.volume()).len()).collect();
    node.kubelet.respawn();
    if !case.end_before {
        let what = format!("{case:?}: each is called again");
        wait_for(&what, WAIT_LIMIT, async || {
            let all = points.iter().zip(&counts);
            let mut missing = all.filter(|(point, count)| calls(&point.volume()).len() == **count);
            let missing = missing.next();
            holds(missing.is_none(), format!("{missing:?}"))
        })
        .await;
        driver.script.release();
    }
    for name in &wants {
        wait_runs(case, &node, name).await;
    }
    if !case.wanted {
        let what = format!("{case:?}: what nobody wants is undone");
        wait_for(&what, WAIT_LIMIT, async || {
            let mut left = node.left();
            left.retain(|text| points.iter().any(|point| text.contains(&point.volume())));
            holds(left.is_empty(), format!("{left:?}"))
        })
        .await;
    }
    assert_eq!(ids(&node), before, "{case:?}: the pod that ran");
    for name in &wants {
        delete(&node.api, name);
    }
    let what = format!("{case:?}: nothing is left");
    wait_for(&what, WAIT_LIMIT, async || {
        let left = node.left();
        holds(left.is_empty(), format!("{left:#?}"))
    })
    .await;
    assert_eq!(node.violations(), [""; 0], "{case:?}");
    assert_eq!(node.not_in_use(), [""; 0], "{case:?}");
}

#[tokio::test]
async fn a_kubelet_that_is_killed_in_any_step_of_a_volume_leaves_what_pods_want_and_nothing_else() {
    let _alone = KUBELETS.lock().await;
    join_all(CASES.map(survives)).await;
}

#[tokio::test]
async fn a_kubelet_that_is_killed_in_any_step_of_a_device_leaves_what_pods_want_and_nothing_else() {
    let _alone = KUBELETS.lock().await;
    join_all(BLOCK_CASES.map(survives)).await;
}
