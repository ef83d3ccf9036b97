//! Reports of usage.

use super::driver::{Behaviour, Mounts};
use super::world::{LIMIT, VOLUME, World};
use crate::model::{PodUid, ReportedUsage};
use crate::volumes::csi::usage::usage;
use crate::volumes::csi::{UsageOfUnit, VolumeStats};
use serde_json::json;
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::timeout;

#[test]
fn what_a_driver_does_not_know_is_zero() {
    let stats = VolumeStats {
        bytes: Some(UsageOfUnit { available: 1, total: 3, used: 2 }),
        ..VolumeStats::default()
    };
    let expected = ReportedUsage {
        at: 5,
        capacity_bytes: 3,
        available_bytes: 1,
        used_bytes: 2,
        ..ReportedUsage::default()
    };
    assert_eq!(usage(&stats, UNIX_EPOCH + Duration::from_nanos(5)), expected);
}

#[tokio::test]
async fn a_driver_is_asked_once_in_a_period_and_one_that_hangs_is_not_waited_for() {
    let world = World::with(json!({"attachRequired": false}), Mounts::None).await;
    world.publish("a").await.unwrap();
    let (uid, hour) = (PodUid::from("a"), Duration::from_secs(3600));
    let calls = || world.driver.journal.of("NodeGetVolumeStats").len();
    let latest = || world.csi.usage(&uid, "data").unwrap();
    assert_eq!(world.csi.usage(&uid, "other"), None);
    assert_eq!(latest(), None);
    world.csi.measure(hour).await;
    world.csi.measure(hour).await;
    assert_eq!(calls(), 1);
    let first = latest().unwrap();
    assert!(first.capacity_bytes > 0 && first.at > 0, "{first:?}");
    // The last report stays while the driver does not answer, and it is not called again.
    world.driver.script.once("NodeGetVolumeStats", Behaviour::Hang);
    world.csi.measure(Duration::ZERO).await;
    world.csi.measure(Duration::ZERO).await;
    assert_eq!((calls(), latest()), (2, Some(first)));
    world.driver.script.release();
    let reported = async {
        while latest() == Some(first) {
            world.csi.measure(Duration::ZERO).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, reported).await.expect("a new report");
    // What is abnormal is reported, and shown as an event.
    assert_eq!(latest().unwrap().is_abnormal, Some(false));
    world.driver.volumes.change(VOLUME, |volume| volume.abnormal = Some("x".repeat(5000)));
    world.csi.measure(Duration::ZERO).await;
    assert_eq!(latest().unwrap().is_abnormal, Some(true));
    let events = world.csi.sources().events.recent();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(event.reason, "VolumeConditionAbnormal");
    assert_eq!(event.object.name, "pod-a");
    assert_eq!(event.message, format!("Volume data: {}", "x".repeat(1024)));
    // An error keeps it, too.
    let last = latest();
    let refused = Behaviour::fail(tonic::Code::Internal);
    world.driver.script.once("NodeGetVolumeStats", refused);
    world.csi.measure(Duration::ZERO).await;
    assert_eq!(latest(), last);
    world.unpublish("a").await.unwrap();
    assert_eq!(world.csi.usage(&uid, "data"), None);
    world.idle().await;
}
