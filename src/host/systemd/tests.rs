use super::fake::FakeSystemd;
use super::*;
use crate::base::spawn_blocking;

const SLICE: &str = "kubepods-burstable.slice";

/// Calls of slices block.
async fn blocking<T: Send + 'static>(
    fake: &FakeSystemd,
    work: impl FnOnce(&Slices) -> T + Send + 'static,
) -> T {
    let slices = Slices::new(Arc::new(SystemBus::at(fake.address.clone())));
    spawn_blocking(move || work(&slices)).await.unwrap()
}

fn memory(bytes: u64) -> Vec<UnitProperty> {
    vec![UnitProperty("MemoryMax", PropertyValue::Number(bytes))]
}

#[tokio::test]
async fn a_slice_is_created_limited_and_stopped() {
    let fake = FakeSystemd::start().await;
    blocking(&fake, |slices| {
        assert_eq!(slices.version().unwrap(), 252);
        slices.create(SLICE, "kubepods.slice", true).unwrap();
        // It is there, and stays as it is.
        slices.create(SLICE, "kubepods.slice", true).unwrap();
        slices.set(SLICE, memory(1 << 20)).unwrap();
        slices.set(SLICE, memory(1 << 20)).unwrap();
        slices.set(SLICE, memory(1 << 21)).unwrap();
    })
    .await;
    {
        let state = fake.state.lock();
        let unit = &state.units[SLICE];
        for (name, value) in [
            ("Wants", "kubepods.slice"),
            ("IOAccounting", "true"),
            ("DefaultDependencies", "false"),
            ("MemoryMax", "2097152"),
        ] {
            assert!(unit[name].contains(value), "{name}: {unit:?}");
        }
        let sets = state.calls.iter().filter(|call| call.starts_with("set"));
        assert_eq!(sets.count(), 2, "the same is not set twice: {:?}", state.calls);
    }
    blocking(&fake, |slices| {
        slices.stop(SLICE).unwrap();
        slices.stop(SLICE).unwrap();
        let refused = slices.set(SLICE, memory(1)).unwrap_err();
        assert!(refused.is("NoSuchUnit"), "{refused}");
    })
    .await;
    assert!(fake.state.lock().units.is_empty());
}

#[tokio::test]
async fn a_slice_that_systemd_cannot_create_is_an_error_that_says_so() {
    let fake = FakeSystemd::start().await;
    fake.state.lock().result = Some("dependency");
    let error = blocking(&fake, |slices| slices.create(SLICE, "-.slice", true)).await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains(SLICE) && text.contains("dependency"), "{text}");
}

#[tokio::test]
async fn a_broken_connection_is_made_again() {
    let fake = FakeSystemd::start().await;
    let slices = Slices::new(Arc::new(SystemBus::at(fake.address.clone())));
    for round in 0..3 {
        let slices = slices.clone();
        let name = format!("a{round}.slice");
        let made = spawn_blocking(move || slices.create(&name, "-.slice", true));
        made.await.unwrap().unwrap();
        fake.disconnect().await;
    }
    assert_eq!(fake.state.lock().units.len(), 3);
}

#[tokio::test]
async fn without_a_bus_the_error_says_so() {
    let bus = Arc::new(SystemBus::at("unix:path=/nonexistent/bus".to_owned()));
    let slices = Slices::new(bus);
    let error = spawn_blocking(move || slices.version()).await.unwrap();
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("failed to connect to dbus: "), "{text}");
}

#[test]
fn versions_are_read_from_what_systemd_says() {
    for (text, version) in [
        ("252.39-1~deb12u1", 252),
        ("v245.4-1.fc32", 245),
        ("\"v257\"", 257),
        ("", 0),
        ("unknown", 0),
    ] {
        assert_eq!(parse_version(text), version, "{text}");
    }
}
