//! The table of drivers.

use super::*;
use crate::resources::plugin_manager;

fn table() -> CsiDrivers {
    CsiDrivers::new(CsiMetrics::register(&Metrics::new()))
}

fn plugin(name: &str, socket: &str, version: &str) -> RegisteredPlugin {
    RegisteredPlugin { name: name.into(), endpoint: socket.into(), versions: vec![version.into()] }
}

fn endpoint(drivers: &CsiDrivers) -> Option<String> {
    let client = drivers.get(DRIVER)?;
    Some(text(client.endpoint().to_owned()))
}

#[tokio::test]
async fn a_second_socket_replaces_the_first_without_a_gap() {
    let drivers = table();
    let mut changes = drivers.changes();
    let first = drivers.register(&plugin(DRIVER, "/a.sock", "1.0.0")).unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    let second = plugin(DRIVER, "/b.sock", "1.0.0");
    drivers.validate(&second).unwrap();
    drivers.register(&second).unwrap();
    assert_eq!(endpoint(&drivers).as_deref(), Some("/b.sock"));
    assert!(changes.has_changed().unwrap());
    assert!(!drivers.deregister(DRIVER, first));
    assert_eq!(endpoint(&drivers).as_deref(), Some("/b.sock"));
    assert_eq!(drivers.names(), [DRIVER]);
    drivers.register(&plugin(DRIVER, "/c.sock", "1.1.0")).unwrap();
    assert_eq!(endpoint(&drivers).as_deref(), Some("/c.sock"));
}

#[tokio::test]
async fn a_lower_version_is_refused() {
    let drivers = table();
    drivers.register(&plugin(DRIVER, "/a.sock", "1.1.0")).unwrap();
    let lower = plugin(DRIVER, "/b.sock", "1.0.0");
    for (refused, caller) in [
        (drivers.validate(&lower), "ValidatePlugin"),
        (drivers.register(&lower).map(drop), "RegisterPlugin"),
    ] {
        assert_eq!(
            refused.unwrap_err(),
            format!(
                "kubernetes.io/csi: {caller} for CSI driver \"csi.example.com\" failed. Another driver with the same name is already registered with a higher supported version: \"1.1.0\""
            )
        );
    }
    assert_eq!(endpoint(&drivers).as_deref(), Some("/a.sock"));
}

#[tokio::test]
async fn a_stale_deregistration_is_ignored_and_the_current_one_uncovers_the_socket_before_it() {
    let drivers = table();
    let first = drivers.register(&plugin(DRIVER, "/a.sock", "1.0.0")).unwrap();
    let second = drivers.register(&plugin(DRIVER, "/b.sock", "1.0.0")).unwrap();
    assert!(!drivers.deregister("other", second));
    assert!(!drivers.deregister(DRIVER, second));
    assert_eq!(endpoint(&drivers).as_deref(), Some("/a.sock"));
    let changes = drivers.changes();
    assert!(!drivers.deregister(DRIVER, second));
    assert!(!changes.has_changed().unwrap());
    assert!(drivers.deregister(DRIVER, first));
    assert!(changes.has_changed().unwrap());
    assert_eq!(endpoint(&drivers), None);
    assert_eq!(
        drivers.require(DRIVER).unwrap_err().to_string(),
        "driver name csi.example.com not found in the list of registered CSI drivers"
    );
    let third = drivers.register(&plugin(DRIVER, "/a.sock", "0.3.0")).unwrap();
    assert!(third != first && !drivers.deregister(DRIVER, first));
    assert_eq!(endpoint(&drivers).as_deref(), Some("/a.sock"));
}

#[tokio::test]
async fn the_number_of_drivers_and_of_their_sockets_is_limited() {
    let drivers = table();
    for number in 0..256 {
        let name = format!("d{number}");
        drivers.register(&plugin(&name, "/a.sock", "1.0.0")).unwrap();
    }
    let error = drivers.validate(&plugin("other", "/a.sock", "1.0.0"));
    assert_eq!(error.unwrap_err(), "too many CSI drivers have been registered");
    for number in 1..16 {
        let socket = format!("/{number}.sock");
        drivers.register(&plugin("d0", &socket, "1.0.0")).unwrap();
    }
    let error = drivers.register(&plugin("d0", "/16.sock", "1.0.0"));
    assert_eq!(error.unwrap_err(), "too many sockets of CSI driver d0");
}

#[tokio::test]
async fn a_registration_after_a_restart_has_a_new_connection_and_new_capabilities() {
    let mut world = World::start();
    let drivers = table();
    let socket = text(world.driver.config().socket());
    drivers.register(&plugin(DRIVER, &socket, "1.0.0")).unwrap();
    let client = drivers.require(DRIVER).unwrap();
    assert!(!client.capabilities().await.unwrap().volume_mount_group);
    world.driver.restart(|config| config.volume_mount_group = true);
    drivers.register(&plugin(DRIVER, &socket, "1.0.0")).unwrap();
    let client = drivers.require(DRIVER).unwrap();
    assert!(client.capabilities().await.unwrap().volume_mount_group);
}

#[tokio::test]
async fn the_registrar_describes_the_driver() {
    use registration_proto::InfoRequest;
    use registration_proto::registration_client::RegistrationClient;
    for is_one_socket in [false, true] {
        let registry = tempfile::tempdir().unwrap();
        let world = World::with(|config| {
            config.registry = Some(registry.path().into());
            config.is_one_socket = is_one_socket;
        });
        let socket = registry.path().join(format!("{DRIVER}-reg.sock"));
        let channel = plugin_manager::connection::dial(&socket).await.unwrap();
        let mut registrar = RegistrationClient::new(channel);
        let info = registrar.get_info(InfoRequest {}).await;
        let info = info.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", DRIVER));
        let endpoint = match info.endpoint.as_str() {
            "" => text(socket),
            own => own.to_owned(),
        };
        assert_eq!(endpoint.ends_with("-reg.sock"), is_one_socket);
        let drivers = table();
        let plugin = RegisteredPlugin {
            name: info.name,
            endpoint: endpoint.into(),
            versions: info.supported_versions,
        };
        drivers.register(&plugin).unwrap();
        let client = drivers.require(DRIVER).unwrap();
        assert_eq!(client.info().await.unwrap().node_id, "node-1");
        drop(world);
    }
}
