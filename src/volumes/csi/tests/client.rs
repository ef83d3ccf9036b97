//! Calls to a driver.

use super::*;
use crate::volumes::csi::{SERVICE_ACCOUNT_TOKENS, UsageOfUnit};
use driver::Mounts;
use tokio::time::{pause, resume, sleep};
use tonic::Code;

#[tokio::test]
async fn a_volume_is_staged_published_and_both_are_reverted() {
    let world = World::with(|config| {
        config.volume_stats = true;
        config.expand = true;
    });
    let client = &world.client;
    client.stage(world.stage()).await.unwrap();
    client.publish(world.publish("a")).await.unwrap();
    client.publish(world.publish("b")).await.unwrap();
    let stats = proto::NodeGetVolumeStatsRequest {
        volume_id: VOLUME.into(),
        volume_path: text(world.target_path("a")),
        staging_target_path: String::new(),
    };
    let stats = client.stats(stats).await.unwrap();
    let bytes = UsageOfUnit { available: 1 << 30, total: 1 << 30, used: 0 };
    assert_eq!(stats.bytes, Some(bytes));
    world.driver.volumes.change(VOLUME, |volume| volume.capacity = 1 << 31);
    let expand = proto::NodeExpandVolumeRequest {
        volume_id: VOLUME.into(),
        volume_path: text(world.target_path("a")),
        ..proto::NodeExpandVolumeRequest::default()
    };
    assert_eq!(client.expand(expand).await, Ok(1 << 31));
    client.unpublish(world.unpublish("b")).await.unwrap();
    client.unpublish(world.unpublish("a")).await.unwrap();
    client.unstage(world.unstage()).await.unwrap();
    let volume = world.driver.volumes.get(VOLUME).unwrap();
    assert!(volume.staged.is_none() && volume.published.is_empty());
    assert!(!world.target_path("a").exists());
    assert_eq!(world.driver.journal.violations(), <[&str; 0]>::default());
    let metrics = world.metrics.text();
    let labels = r#"{driver_name="csi.example.com",method_name="/csi.v1.Node/NodePublishVolume",grpc_status_code="OK",migrated="false"} 2"#;
    assert!(metrics.contains(&format!("csi_operations_seconds_count{labels}")), "{metrics}");
}

#[tokio::test]
async fn a_strict_driver_refuses_what_comes_in_a_wrong_order() {
    let world = World::start();
    let client = &world.client;
    let code = |error: CsiError| (error.code(), error.outcome());
    let refused = (Some(Code::FailedPrecondition), CallOutcome::Failed);
    let published = client.publish(world.publish("a")).await;
    assert_eq!(code(published.unwrap_err()), refused);
    client.stage(world.stage()).await.unwrap();
    client.stage(world.stage()).await.unwrap();
    client.publish(world.publish("a")).await.unwrap();
    let unstaged = client.unstage(world.unstage()).await;
    assert_eq!(code(unstaged.unwrap_err()), refused);
    assert_eq!(world.driver.journal.violations().len(), 2);
    world.driver.script.once("NodePublishVolume", Behaviour::Hang);
    let (other, request) = (client.clone(), world.publish("b"));
    let hanging = tokio::spawn(async move { other.publish(request).await });
    world.driver.journal.called("NodePublishVolume", 3).await;
    let second = client.unpublish(world.unpublish("a")).await.unwrap_err();
    assert_eq!(code(second), (Some(Code::Aborted), CallOutcome::Unknown));
    world.driver.script.release();
    assert_eq!(hanging.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn the_code_of_a_driver_decides_whether_the_outcome_is_known() {
    let world = World::start();
    let unknown = [
        Code::Cancelled,
        Code::DeadlineExceeded,
        Code::Unavailable,
        Code::ResourceExhausted,
        Code::Aborted,
    ];
    for number in 1..=16 {
        let code = Code::from_i32(number);
        let behaviour = Behaviour::fail(code);
        world.driver.script.once("NodeStageVolume", behaviour);
        let error = world.client.stage(world.stage()).await.unwrap_err();
        let expected =
            if unknown.contains(&code) { CallOutcome::Unknown } else { CallOutcome::Failed };
        assert_eq!((error.code(), error.outcome()), (Some(code), expected));
        assert!(!error.is_unsent(), "{error}");
    }
    let behaviour = Behaviour::fail(Code::Cancelled);
    world.driver.script.once("NodeStageVolume", behaviour);
    let error = world.client.stage(world.stage()).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = Canceled desc = as scripted");
    world.client.stage(world.stage()).await.unwrap();
}

#[tokio::test]
async fn a_call_that_hangs_ends_at_the_deadline_and_other_volumes_go_on() {
    let world = World::start();
    world.driver.script.of_volume("NodeStageVolume", VOLUME, Behaviour::Hang);
    let socket = world.driver.config().socket();
    let metrics = CsiMetrics::register(&Metrics::new());
    let impatient = NodeClient::with_timeout(DRIVER, &socket, metrics, Duration::from_secs(1));
    let request = world.stage();
    let hanging = tokio::spawn(async move { impatient.stage(request).await });
    world.driver.journal.called("NodeStageVolume", 1).await;
    let other = proto::NodeUnstageVolumeRequest { volume_id: "vol-b".into(), ..world.unstage() };
    let error = world.client.unstage(other).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NotFound));
    let error = hanging.await.unwrap().unwrap_err();
    assert_eq!(
        (error.code(), error.outcome(), error.is_unsent()),
        (Some(Code::DeadlineExceeded), CallOutcome::Unknown, false)
    );
    assert_eq!(
        error.to_string(),
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    // The driver still works on it.
    let error = world.client.unstage(world.unstage()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Aborted));
}

#[tokio::test]
async fn volumes_that_hang_block_others_only_for_a_while() {
    let world = World::start();
    world.driver.script.always("NodeStageVolume", Behaviour::Hang);
    let mut hanging = Vec::new();
    for number in 0..20 {
        let request =
            proto::NodeStageVolumeRequest { volume_id: format!("vol-{number}"), ..world.stage() };
        let client = world.client.clone();
        hanging.push(tokio::spawn(async move { client.stage(request).await }));
    }
    world.driver.journal.called("NodeStageVolume", 16).await;
    sleep(Duration::from_millis(50)).await;
    assert_eq!(world.driver.journal.of("NodeStageVolume").len(), 16);
    let client = world.client.clone();
    let waiting = tokio::spawn(async move { client.info().await });
    tokio::task::yield_now().await;
    pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    resume();
    assert_eq!(waiting.await.unwrap().unwrap().node_id, "node-1");
    assert_eq!(world.driver.journal.of("NodeStageVolume").len(), 20);
    hanging.iter().for_each(|call| call.abort());
}

#[tokio::test]
async fn capabilities_are_read_once_per_connection() {
    let mut world = World::start();
    let client = world.client.clone();
    let asked = |world: &World| world.driver.journal.of("NodeGetCapabilities").len();
    for _ in 0..3 {
        let capabilities = client.capabilities().await.unwrap();
        assert!(capabilities.stage_unstage && !capabilities.volume_mount_group);
    }
    client.info().await.unwrap();
    assert_eq!(asked(&world), 1);
    world.driver.restart(|config| {
        config.stage_unstage = false;
        config.volume_mount_group = true;
        config.single_node_multi_writer = true;
    });
    let refreshed = async {
        loop {
            match client.capabilities().await {
                Ok(capabilities) if !capabilities.stage_unstage => return capabilities,
                // The loss of the connection is not known yet, or the call was lost with it.
                _ => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let refreshed = tokio::time::timeout(Duration::from_secs(30), refreshed).await;
    let refreshed = refreshed.expect("new capabilities");
    assert!(refreshed.volume_mount_group && refreshed.single_node_multi_writer);
    client.capabilities().await.unwrap();
    assert_eq!(asked(&world), 2);
}

#[tokio::test]
async fn a_driver_that_is_away_has_not_received_the_request() {
    let mut world = World::start();
    world.client.info().await.unwrap();
    world.driver.kill();
    let away = async {
        loop {
            // The process may still respond while it is being killed.
            let Err(error) = world.client.stage(world.stage()).await else {
                continue;
            };
            assert_eq!(
                (error.code(), error.outcome()),
                (Some(Code::Unavailable), CallOutcome::Unknown)
            );
            if error.is_unsent() {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(30), away).await.unwrap();
    let socket = world.driver.config().socket();
    let expected = format!(
        "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {}: connect: ",
        socket.display()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    world.driver.restart(|_| {});
    world.client.stage(world.stage()).await.unwrap();
}

#[tokio::test]
async fn a_driver_that_dies_during_a_call_leaves_the_outcome_unknown() {
    let mut world = World::start();
    world.driver.script.once("NodeStageVolume", Behaviour::DoThenHang);
    let (client, request) = (world.client.clone(), world.stage());
    let lost = tokio::spawn(async move { client.stage(request).await });
    world.driver.journal.called("NodeStageVolume", 1).await;
    world.driver.kill();
    let error = lost.await.unwrap().unwrap_err();
    assert_eq!(
        (error.code(), error.outcome(), error.is_unsent()),
        (Some(Code::Unavailable), CallOutcome::Unknown, false)
    );
}

#[tokio::test]
async fn secrets_are_neither_in_the_debug_form_of_a_request_nor_in_an_error() {
    let world = World::start();
    let secrets = map(&[("password", "open-sesame")]);
    let tokens = r#"{"":{"token":"ey.token","expirationTimestamp":"2030-01-01T00:00:00Z"}}"#;
    let context = map(&[(SERVICE_ACCOUNT_TOKENS, tokens), ("share", "context-value")]);
    let publish = proto::NodePublishVolumeRequest {
        secrets: secrets.clone(),
        volume_context: context.clone(),
        publish_context: map(&[("lun", "publish-value")]),
        ..world.publish("a")
    };
    let stage = proto::NodeStageVolumeRequest {
        secrets: secrets.clone(),
        volume_context: context,
        ..world.stage()
    };
    let expand = proto::NodeExpandVolumeRequest {
        volume_id: VOLUME.into(),
        secrets,
        volume_capability: Some(capability()),
        ..proto::NodeExpandVolumeRequest::default()
    };
    let shown = format!("{publish:?} {stage:?} {expand:?} {:?}", capability());
    for hidden in ["open-sesame", "ey.token", "context-value", "publish-value", "flag-secret"] {
        assert!(!shown.contains(hidden), "{shown}");
    }
    assert!(shown.contains("password") && shown.contains(VOLUME) && shown.contains("ext4"));
    let quoted = "rejected open-sesame and ey.token";
    for method in ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"] {
        let behaviour = Behaviour::Fail(Code::Internal, quoted.into());
        world.driver.script.always(method, behaviour);
    }
    let errors = [
        world.client.stage(stage).await.unwrap_err(),
        world.client.publish(publish).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            error.to_string(),
            "rpc error: code = Internal desc = rejected ***stripped*** and ***stripped***"
        );
        assert!(!format!("{error:?}").contains("sesame"));
    }
    let error = world.client.expand(expand).await.unwrap_err();
    assert!(!error.to_string().contains("sesame"), "{error}");
    let entry = &world.driver.journal.of("NodePublishVolume")[0];
    assert_eq!(entry.secrets, ["password"]);
    assert_eq!(entry.publish_context, ["lun"]);
    assert_eq!(entry.volume_context, [SERVICE_ACCOUNT_TOKENS, "share"]);
}

#[tokio::test]
async fn a_long_message_is_cut() {
    let world = World::start();
    let text = "x".repeat(10_000);
    let behaviour = Behaviour::Fail(Code::Internal, text);
    world.driver.script.once("NodeGetInfo", behaviour);
    let error = world.client.info().await.unwrap_err();
    let prefix = "rpc error: code = Internal desc = ";
    assert_eq!(error.to_string().len(), prefix.len() + 1024);
}

#[tokio::test]
async fn a_response_that_is_too_large_leaves_the_outcome_unknown() {
    let world = World::with(|config| {
        config.node_id = "n".repeat(2 << 20);
    });
    let error = world.client.info().await.unwrap_err();
    assert_eq!(
        (error.code(), error.outcome(), error.is_unsent()),
        (None, CallOutcome::Unknown, false)
    );
    assert!(error.to_string().contains("larger than"), "{error}");
    let labels = r#"grpc_status_code="unknown-non-grpc""#;
    assert!(world.metrics.text().contains(labels));
}

#[tokio::test]
async fn a_driver_that_lies_does_not_do_it_or_does_it_and_fails() {
    let world = World::start();
    let staged = || world.driver.volumes.get(VOLUME).unwrap().staged.is_some();
    world.driver.script.once("NodeStageVolume", Behaviour::Skip);
    world.client.stage(world.stage()).await.unwrap();
    assert!(!staged());
    let behaviour = Behaviour::do_then_fail(Code::Internal);
    world.driver.script.once("NodeStageVolume", behaviour);
    let error = world.client.stage(world.stage()).await.unwrap_err();
    assert_eq!(error.outcome(), CallOutcome::Failed);
    assert!(staged());
    let delay = Behaviour::Delay(Duration::from_millis(20));
    world.driver.script.once("NodeUnstageVolume", delay);
    world.client.unstage(world.unstage()).await.unwrap();
    assert!(!staged());
}

#[tokio::test]
async fn an_inline_volume_lives_from_publish_to_unpublish() {
    let world = World::start();
    let publish = proto::NodePublishVolumeRequest {
        volume_id: "csi-0123".into(),
        staging_target_path: String::new(),
        volume_context: map(&[("csi.storage.k8s.io/ephemeral", "true")]),
        ..world.publish("a")
    };
    world.client.publish(publish).await.unwrap();
    assert!(world.driver.volumes.get("csi-0123").is_some());
    let entry = &world.driver.journal.of("NodePublishVolume")[0];
    assert_eq!(entry.pod_info["csi.storage.k8s.io/ephemeral"], "true");
    let unpublish =
        proto::NodeUnpublishVolumeRequest { volume_id: "csi-0123".into(), ..world.unpublish("a") };
    for _ in 0..2 {
        world.client.unpublish(unpublish.clone()).await.unwrap();
    }
    assert!(world.driver.volumes.get("csi-0123").is_none());
}

#[tokio::test]
async fn with_mounts_the_data_of_a_volume_is_at_its_target() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let world = World::with(|config| config.mounts = Mounts::Bind);
    std::fs::write(world.driver.volumes.data(VOLUME).join("file"), "data").unwrap();
    let staged = world.client.stage(world.stage()).await;
    if staged.as_ref().is_err_and(|error| error.to_string().contains("Operation not permitted")) {
        return;
    }
    let publish = proto::NodePublishVolumeRequest { readonly: true, ..world.publish("a") };
    let published = world.client.publish(publish).await;
    let target = world.target_path("a");
    let read = std::fs::read_to_string(target.join("file"));
    let written = std::fs::write(target.join("other"), "");
    let unpublished = world.client.unpublish(world.unpublish("a")).await;
    let unstaged = world.client.unstage(world.unstage()).await;
    assert_eq!((staged, published, unpublished, unstaged), (Ok(()), Ok(()), Ok(()), Ok(())));
    assert_eq!(read.unwrap(), "data");
    assert!(written.is_err(), "the mount is read-only");
    assert!(!target.exists() && !world.staging_path().join("file").exists());
}
