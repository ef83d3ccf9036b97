//! The driver of these tests, as upstream judges drivers.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::csi_objects::check_programs;
use crate::csi_driver::{self, Mounts};
use crate::support::scripts::{self, run};

/// Capabilities that the driver does not have; the specs of each skip themselves.
const LEFT_OUT: &[&str] = &[
    "ControllerGetVolumeHealth",
    "ControllerListVolumeHealth",
    "ControllerModifyVolume",
    "ControllerPublishVolume.readonly",
    "CreateSnapshot",
    "DeleteSnapshot",
    "GetCapacity",
    "GetSnapshot",
    "ListSnapshots",
    "ListVolumes",
    "Modify Volume",
    "Modify volume",
    "NodeGetStorageHealth",
    "NodeGetVolumeHealth",
    "Snapshot",
    "Volume Cloning",
    "GroupController",
];

pub async fn the_driver_of_these_tests_is_one_by_upstreams_judgement() {
    check_programs().unwrap();
    for backend in [Mounts::Bind, Mounts::Tmpfs] {
        judge(backend);
    }
}

/// Runs the driver and csi-sanity in namespaces of their own, which end with csi-sanity.
fn judge(backend: Mounts) {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("driver");
    let socket = csi_driver::socket(&base).display().to_string();
    let report = dir.path().join("report.json").display().to_string();
    let sanity = scripts::target().join("tools/kubernetes/csi-sanity");
    let below = |name: &str| dir.path().join(name).display().to_string();
    let driver = csi_driver::command("node-1", &base, None, backend).join(" ");
    let sanity = [
        sanity.display().to_string(),
        format!("--csi.endpoint={socket}"),
        format!("--csi.mountdir={}", below("target")),
        format!("--csi.stagingdir={}", below("staging")),
        "--csi.testnodevolumeattachlimit".to_owned(),
        format!("--ginkgo.json-report={report}"),
    ];
    let script =
        format!("{driver} & until [ -S {socket} ]; do sleep 0.05; done; exec {}", sanity.join(" "));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]);
    let output = run(command.args(["timeout", "300", "sh", "-c", &script]));
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{backend:?}: {printed}\n{errors}");

    let report = std::fs::read(&report).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let specs = report[0]["SpecReports"].as_array().unwrap();
    let in_state =
        |state: &str| specs.iter().filter(|spec| spec["State"] == state).collect::<Vec<_>>();
    let skipped = in_state("skipped");
    let reasons: BTreeSet<_> =
        skipped.iter().map(|spec| spec["Failure"]["Message"].as_str().unwrap()).collect();
    println!(
        "csi-sanity with {backend:?}: {} specs passed, {} skipped: {reasons:#?}",
        in_state("passed").len(),
        skipped.len()
    );
    for reason in reasons {
        let is_known = LEFT_OUT.iter().any(|known| reason.starts_with(known));
        assert!(is_known, "skipped: {reason}");
    }
    assert!(in_state("passed").len() >= 40, "{printed}");
    let left = std::fs::read_dir(base.join("volumes")).unwrap().count();
    assert_eq!(left, 0, "volumes are left");
}
