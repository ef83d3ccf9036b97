//! Volumes of mode Block of a CSI driver, whose devices are loop devices.

use std::fs::File;
use std::io::Write as _;

use serde_json::{Value, json};

use crate::api_source::{bound, path, stays_untouched, wait_runs};
use crate::csi::driver::Behaviour;
use crate::csi::{
    VOLUME, all_undone, delete, gone, joined_and_mounting, put_claim, put_driver, start_driver,
    waits_for_driver,
};
use crate::node::WAIT_LIMIT;
use crate::support::fake_runtime::FakeRuntime;
use crate::virtual_time::real_time;

const VOLUME_PATH: &str = "/api/v1/persistentvolumes/pv1";

/// A pod whose sidecar and container have the device of the claim.
fn with_device(name: &str, read_only: bool) -> Value {
    let mut pod = bound(name);
    pod["spec"]["volumes"] = json!([{"name": "v",
        "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}]);
    let devices = json!([{"name": "v", "devicePath": "/dev/xvda"}]);
    let mut sidecar = pod["spec"]["containers"][0].clone();
    sidecar["name"] = json!("sidecar");
    sidecar["restartPolicy"] = json!("Always");
    sidecar["volumeDevices"] = devices.clone();
    pod["spec"]["initContainers"] = json!([sidecar]);
    pod["spec"]["containers"][0]["volumeDevices"] = devices;
    pod
}

#[tokio::test]
async fn containers_have_the_device_of_a_claim_until_nothing_of_it_is_left() {
    real_time("loop devices are made by processes");
    let Some((mut node, api)) = joined_and_mounting().await else {
        return;
    };
    put_driver(&api, json!({"attachRequired": false}));
    put_claim(&api);
    let mut volume = api.object(VOLUME_PATH).expect("the volume");
    volume["spec"]["volumeMode"] = json!("Block");
    api.put(VOLUME_PATH, volume);
    api.put(&path("web"), with_device("web", false));
    node.start().await;
    waits_for_driver(&node).await;
    let driver = start_driver(&node);
    let refused = Behaviour::fail(tonic::Code::Internal);
    driver.script.once("NodeStageVolume", refused);
    wait_runs(&node, "web").await;
    let both = |fake: &FakeRuntime| {
        let pod = fake.pod("web");
        pod.is_some_and(|pod| pod.containers.len() == 2)
    };
    let what = "the container runs beside its sidecar";
    node.fake.wait_until(what, WAIT_LIMIT, both).await;
    let running = node.fake.pod("web").expect("it runs");
    let of_pod = "pods/uid-of-web/volumeDevices/kubernetes.io~csi/pv1";
    for container in &running.containers {
        let [device] = container.config.devices.as_slice() else {
            panic!("{:?}", container.config.devices);
        };
        assert_eq!(device.container_path, "/dev/xvda");
        assert!(device.host_path.ends_with(of_pod), "{device:?}");
        assert_eq!(device.permissions, "mrw");
        // What a container writes is in the volume.
        let mut disk = File::options().write(true).open(&device.host_path);
        let disk = disk.as_mut().expect("a device");
        disk.write_all(b"kept").expect("it is written");
        disk.sync_all().expect("it is on the disk");
    }
    let events = node.events().await;
    for text in [
        "SuccessfulMountVolume",
        "MapVolume.MapPodDevice succeeded for volume",
        "globalMapPath",
        "volumeMapPath",
        "FailedMapVolume",
        "MapVolume.SetUpDevice failed for volume",
    ] {
        assert!(events.contains(text), "{text}: {events}");
    }

    node.stop().await;
    node.fake.clear_calls();
    node.start().await;
    driver.journal.called("NodePublishVolume", 2).await;
    stays_untouched(&node, "after a restart").await;
    delete(&api, "web");
    gone(&api, "web").await;
    all_undone(&node, &driver).await;

    // Another pod reads the data.
    api.put(&path("next"), with_device("next", true));
    let running = wait_runs(&node, "next").await;
    let device = &running.containers[0].config.devices[0];
    assert_eq!(device.permissions, "r");
    let disk = std::fs::read(driver.volumes.disk(VOLUME)).expect("the disk");
    assert!(disk.starts_with(b"kept"));
    let published = driver.journal.of("NodePublishVolume");
    let last = published.last().expect("a call");
    assert!(last.readonly && last.is_block);
    delete(&api, "next");
    gone(&api, "next").await;
    all_undone(&node, &driver).await;
}
