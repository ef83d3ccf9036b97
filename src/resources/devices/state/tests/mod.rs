mod histories;
mod numa;

use super::*;
use crate::base::clock;
use crate::resources::devices::error::DeviceAllocationError;
use crate::resources::devices::proto::ContainerAllocateResponse;
use crate::resources::devices::request::{DeviceRequest, DeviceUse, PodRequest};

const GPU: &str = "example.com/gpu";

fn request(uid: &str, containers: &[(&str, DeviceUse, u64)]) -> PodRequest {
    let containers = containers.iter().map(|(name, kind, amount)| DeviceRequest {
        affinity: None,
        name: (*name).into(),
        kind: *kind,
        amounts: [(GPU.to_owned(), *amount)].into(),
    });
    PodRequest { uid: uid.into(), containers: containers.collect() }
}

fn one(uid: &str, amount: u64) -> PodRequest {
    request(uid, &[("main", DeviceUse::Kept, amount)])
}

fn devices(list: &[(&str, bool)]) -> DeviceMap {
    let device = |healthy| PluginDevice { healthy, numa_nodes: Vec::new() };
    let devices = list.iter();
    devices.map(|(id, healthy)| ((*id).to_owned(), device(*healthy))).collect()
}

fn options(pre_start: bool, preferred: bool) -> DevicePluginOptions {
    DevicePluginOptions {
        pre_start_required: pre_start,
        get_preferred_allocation_available: preferred,
    }
}

fn connect(
    state: &mut DeviceManagerCache,
    resource: &str,
    options: DevicePluginOptions,
) -> PluginId {
    let id = state.next_plugin_id();
    assert!(state.set_connected(resource, id, options));
    id
}

/// A plugin with these devices has registered.
fn with(list: &[(&str, bool)]) -> (DeviceManagerCache, PluginId) {
    let mut state = DeviceManagerCache::default();
    let id = connect(&mut state, GPU, options(false, false));
    state.set_devices(GPU, id, devices(list)).unwrap();
    (state, id)
}

/// Takes all steps; the plugin prepares everything.
fn allocate(
    state: &mut DeviceManagerCache,
    request: &PodRequest,
) -> Result<(), DeviceAllocationError> {
    loop {
        match state.next(request, None, None)? {
            AllocationStep::Done => return Ok(()),
            AllocationStep::Allocate(of) => assert!(state.allocate(&of, response(&of.devices))),
            AllocationStep::GetPreferred(wanted) => panic!("{wanted:?}"),
        }
    }
}

fn response(devices: &[String]) -> ContainerAllocateResponse {
    ContainerAllocateResponse {
        envs: [("DEVICES".to_owned(), devices.join(","))].into(),
        ..ContainerAllocateResponse::default()
    }
}

fn of(state: &DeviceManagerCache, uid: &str, container: &str) -> String {
    let own = state.allocation(&uid.into(), container, GPU);
    let ids = own.map(Allocation::ids).unwrap_or_default();
    ids.into_iter().cloned().collect::<Vec<_>>().join(" ")
}

fn amounts(state: &DeviceManagerCache) -> Vec<(String, usize, usize)> {
    let all = state.capacities().into_iter();
    all.map(|(name, c)| (name, c.capacity, c.allocatable)).collect()
}

#[test]
fn a_container_gets_healthy_devices_that_no_other_has() {
    let (mut state, _) = with(&[("a", true), ("b", false), ("c", true)]);
    assert_eq!(allocate(&mut state, &one("u1", 1)), Ok(()));
    assert_eq!(allocate(&mut state, &one("u2", 1)), Ok(()));
    assert_eq!((of(&state, "u1", "main"), of(&state, "u2", "main")), ("a".into(), "c".into()));
    let error = allocate(&mut state, &one("u3", 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0"
    );
    assert_eq!(error.exhausted_resource(), Some(GPU));
    assert_eq!(state.pods_using(GPU).len(), 2);
    assert_eq!(state.allocated(), [(GPU.to_owned(), 2)].into());
    assert!(state.release(&"u1".into()));
    assert!(!state.release(&"u1".into()));
    assert_eq!(allocate(&mut state, &one("u3", 1)), Ok(()));
}

#[test]
fn what_a_container_has_is_checked_again_and_stays() {
    let (mut state, id) = with(&[("a", true), ("b", true)]);
    allocate(&mut state, &one("u", 1)).unwrap();
    assert_eq!(state.next(&one("u", 1), None, None), Ok(AllocationStep::Done));
    let error = state.next(&one("u", 2), None, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"pod "u" container "main" changed request for resource "example.com/gpu" from 1 to 2"#
    );
    state.set_devices(GPU, id, devices(&[("a", false), ("b", true)])).unwrap();
    assert_eq!(
        state.next(&one("u", 1), None, None).unwrap_err().to_string(),
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu"
    );
    assert_eq!(of(&state, "u", "main"), "a");
}

#[test]
fn a_resource_without_usable_devices_says_why_and_whether_that_may_pass() {
    let no_healthy =
        "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
    let refused = |state: &mut DeviceManagerCache| {
        let error = state.next(&one("u", 1), None, None).unwrap_err();
        (error.to_string(), error.is_transient())
    };
    let mut state = DeviceManagerCache::default();
    assert_eq!(state.next(&one("u", 1), None, None), Ok(AllocationStep::Done), "nobody's resource");
    let id = connect(&mut state, GPU, options(false, false));
    assert_eq!(refused(&mut state), (no_healthy.into(), true), "not listed yet");
    state.set_devices(GPU, id, devices(&[("a", false)])).unwrap();
    assert_eq!(refused(&mut state), (no_healthy.into(), false));
    state.set_devices(GPU, id, devices(&[("a", true)])).unwrap();
    allocate(&mut state, &one("u", 1)).unwrap();
    let now = clock::instant();
    assert!(state.set_disconnected(GPU, id, now));
    assert_eq!(refused(&mut state), (no_healthy.into(), true), "the plugin is away");
    assert!(state.expire(now + ENDPOINT_STOP_GRACE_PERIOD * 2));
    assert_eq!(
        refused(&mut state),
        ("cannot allocate unregistered device example.com/gpu".into(), false)
    );
}

#[test]
fn containers_after_an_init_container_use_its_devices_and_sidecars_keep_theirs() {
    use DeviceUse::{Kept, UntilExit};
    for (kinds, free, expected) in [
        // Two init containers one after the other, then the container: one device is enough.
        (&[("i1", UntilExit), ("i2", UntilExit), ("main", Kept)][..], 1, Ok("a a a")),
        (&[("side", Kept), ("main", Kept)], 2, Ok("a b")),
        (&[("side", Kept), ("main", Kept)], 1, Err(0)),
        // A sidecar takes over what an init container had before it.
        (&[("i1", UntilExit), ("side", Kept), ("main", Kept)], 2, Ok("a a b")),
        (&[("i1", UntilExit), ("side", Kept), ("i2", UntilExit), ("main", Kept)], 2, Ok("a a b b")),
        (&[("i1", UntilExit), ("m1", Kept), ("m2", Kept)], 2, Ok("a a b")),
    ] {
        let list = [("a", true), ("b", true), ("c", true)];
        let (mut state, _) = with(list.get(..free).unwrap());
        let containers: Vec<_> = kinds.iter().map(|(name, kind)| (*name, *kind, 1)).collect();
        let done = allocate(&mut state, &request("u", &containers));
        match expected {
            Ok(expected) => {
                assert_eq!(done, Ok(()), "{kinds:?}");
                let found: Vec<_> = kinds.iter().map(|(name, _)| of(&state, "u", name)).collect();
                assert_eq!(found.join(" "), expected, "{kinds:?}");
            }
            Err(available) => assert_eq!(
                done,
                Err(DeviceAllocationError::Unavailable {
                    resource: GPU.into(),
                    requested: 1,
                    available,
                })
            ),
        }
    }
}

#[test]
fn a_plugin_may_prefer_devices_and_nothing_else() {
    let mut state = DeviceManagerCache::default();
    let id = connect(&mut state, GPU, options(false, true));
    let list = ["a", "b", "c", "d"].map(|name| (name, true));
    state.set_devices(GPU, id, devices(&list)).unwrap();
    let wanted = one("u", 2);
    let Ok(AllocationStep::GetPreferred(preference)) = state.next(&wanted, None, None) else {
        panic!("the plugin is not called");
    };
    assert_eq!(preference.available, ["a", "b", "c", "d"]);
    assert_eq!((preference.plugin, preference.size), (id, 2));
    for (preferred, expected) in [
        (&["d", "c"][..], "c d"),
        (&["d"], "a d"),
        (&["x", "y", "d", "d"], "a d"),
        (&["a", "b", "c", "d"], "a b"),
        (&[], "a b"),
    ] {
        let mut state = state.clone();
        let preferred: Vec<_> = preferred.iter().map(ToString::to_string).collect();
        let Ok(AllocationStep::Allocate(of)) = state.next(&wanted, None, Some(&preferred)) else {
            panic!("no devices are reserved");
        };
        let chosen: BTreeSet<_> = of.devices.iter().map(String::as_str).collect();
        assert_eq!(Vec::from_iter(chosen).join(" "), expected);
        // Somebody else took them meanwhile.
        let rest = state.next(&one("u2", 3), None, Some(&preferred));
        assert!(matches!(rest, Err(DeviceAllocationError::Unavailable { available: 2, .. })));
    }
}

#[test]
fn devices_are_taken_while_the_plugin_prepares_them_and_free_again_if_it_fails() {
    let (mut state, _) = with(&[("a", true)]);
    let Ok(AllocationStep::Allocate(first)) = state.next(&one("u1", 1), None, None) else {
        panic!("no devices are reserved");
    };
    assert!(state.next(&one("u2", 1), None, None).is_err());
    assert_eq!(state.to_checkpoint().pod_device_entries, None);
    state.fail_allocation(&first);
    let Ok(AllocationStep::Allocate(second)) = state.next(&one("u2", 1), None, None) else {
        panic!("no devices are reserved");
    };
    // The late response to the first call is about devices that another pod has.
    assert!(!state.allocate(&first, response(&first.devices)));
    state.fail_allocation(&first);
    assert!(state.allocate(&second, response(&second.devices)));
    assert!(state.next(&one("u1", 1), None, None).is_err());
    // Neither does it count for a later allocation of the same container.
    let Ok(AllocationStep::Allocate(old)) = with(&[("a", true)]).0.next(&one("u2", 1), None, None)
    else {
        panic!("no devices are reserved");
    };
    state.fail_allocation(&DeviceReservation { ticket: 77, ..old });
    assert_eq!(of(&state, "u2", "main"), "a");
}

#[test]
fn what_was_not_prepared_is_abandoned_and_the_rest_kept() {
    use DeviceUse::Kept;
    let (mut state, _) = with(&[("a", true), ("b", true)]);
    let wanted = request("u", &[("m1", Kept, 1), ("m2", Kept, 1)]);
    let Ok(AllocationStep::Allocate(first)) = state.next(&wanted, None, None) else {
        panic!("no devices are reserved");
    };
    assert!(state.allocate(&first, response(&first.devices)));
    assert!(matches!(state.next(&wanted, None, None), Ok(AllocationStep::Allocate(_))));
    state.release_unprepared(&"u".into());
    assert_eq!((of(&state, "u", "m1"), of(&state, "u", "m2")), ("a".into(), String::new()));
    let Ok(AllocationStep::Allocate(only)) = state.next(&wanted, Some("m2"), None) else {
        panic!("no devices are reserved");
    };
    assert_eq!(only.container, "m2");
}

#[test]
fn the_node_has_what_plugins_report_and_for_a_while_what_they_reported() {
    let (mut state, first) = with(&[("a", true), ("b", false)]);
    assert_eq!(amounts(&state), [(GPU.to_owned(), 2, 1)]);
    let now = clock::instant();
    let second = connect(&mut state, GPU, options(false, false));
    assert_eq!(
        amounts(&state),
        [(GPU.to_owned(), 2, 1)],
        "what the plugin before reported, until there is a list"
    );
    let waits = state.next(&one("u", 1), None, None).unwrap_err();
    assert!(waits.is_transient(), "no device is allocated before that");
    assert!(!state.set_disconnected(GPU, first, now), "the one before does not count");
    assert_eq!(state.set_devices(GPU, first, devices(&[("x", true)])), Err(ListError::Replaced));
    let list = devices(&[("a", true), ("b", true), ("c", true)]);
    state.set_devices(GPU, second, list).unwrap();
    assert_eq!(amounts(&state), [(GPU.to_owned(), 3, 3)]);
    assert_eq!(state.next_expiry(), None);
    assert!(state.set_disconnected(GPU, second, now));
    assert_eq!(amounts(&state), [(GPU.to_owned(), 3, 0)]);
    let expiry = state.next_expiry().unwrap();
    assert!(!state.expire(now + ENDPOINT_STOP_GRACE_PERIOD));
    assert!(state.expire(expiry));
    assert_eq!(amounts(&state), [(GPU.to_owned(), 0, 0)]);
    let forgotten = state.next_expiry().unwrap();
    assert!(forgotten > expiry);
    let third = connect(&mut state, GPU, options(false, false));
    state.set_devices(GPU, third, devices(&[("a", true)])).unwrap();
    assert_eq!(amounts(&state), [(GPU.to_owned(), 1, 1)]);
    assert_eq!(state.next_expiry(), None);
    assert_eq!(state.allocatable()[GPU].len(), 1);
}

#[test]
fn pods_are_checked_when_the_health_of_their_devices_changes() {
    let (mut state, id) = with(&[("a", true), ("b", true)]);
    allocate(&mut state, &one("u", 1)).unwrap();
    for (list, changed) in [
        (&[("a", true), ("b", false)][..], false),
        (&[("a", false), ("b", false)], true),
        (&[("a", false), ("b", true)], false),
        (&[("b", true)], false),
        (&[("a", false), ("b", true)], true),
        (&[("a", true), ("b", true)], true),
    ] {
        let pods = state.set_devices(GPU, id, devices(list)).unwrap();
        assert_eq!(!pods.is_empty(), changed, "{list:?}");
    }
    assert!(state.is_healthy(GPU, "a") && state.is_healthy(GPU, "unknown"));
    state.set_devices(GPU, id, devices(&[("a", false)])).unwrap();
    assert!(!state.is_healthy(GPU, "a"));
}

#[test]
fn a_later_kubelet_knows_what_containers_have_and_waits_for_the_plugin() {
    let (mut state, _) = with(&[("a", true), ("b", true)]);
    allocate(&mut state, &one("u", 1)).unwrap();
    let now = clock::instant();
    let mut later = DeviceManagerCache::restore(&state.to_checkpoint(), now);
    assert_eq!(of(&later, "u", "main"), "a");
    let own = later.allocation(&"u".into(), "main", GPU).unwrap();
    assert_eq!(own.response.as_deref(), Some(&response(&["a".into()])));
    assert_eq!(amounts(&later), [(GPU.to_owned(), 0, 0)]);
    assert!(later.next(&one("u2", 1), None, None).unwrap_err().is_transient());
    let id = connect(&mut later, GPU, options(false, false));
    later.set_devices(GPU, id, devices(&[("a", true), ("b", true)])).unwrap();
    allocate(&mut later, &one("u2", 1)).unwrap();
    assert_eq!(of(&later, "u2", "main"), "b");
    assert_eq!(later.next(&one("u", 1), None, None), Ok(AllocationStep::Done));
}

#[test]
fn a_response_that_cannot_be_decoded_is_requested_again_for_the_same_devices() {
    let (mut state, _) = with(&[("a", true), ("b", true)]);
    allocate(&mut state, &one("u", 1)).unwrap();
    let mut data = state.to_checkpoint();
    for entry in data.pod_device_entries.iter_mut().flatten() {
        entry.alloc_resp = Some(k8s_openapi::ByteString(vec![0xff; 3]));
    }
    let mut later = DeviceManagerCache::restore(&data, clock::instant());
    let id = connect(&mut later, GPU, options(false, false));
    later.set_devices(GPU, id, devices(&[("b", true), ("a", true)])).unwrap();
    let Ok(AllocationStep::Allocate(again)) = later.next(&one("u", 1), None, None) else {
        panic!("nothing is requested");
    };
    assert_eq!(again.devices, ["a"]);
    let later = DeviceManagerCache::restore(&data, clock::instant());
    assert_eq!(
        later.to_checkpoint().pod_device_entries,
        data.pod_device_entries,
        "it stays in the checkpoint until the plugin has responded"
    );
}

#[test]
fn devices_are_kept_by_the_numa_nodes_that_they_are_near_to() {
    let mut state = DeviceManagerCache::default();
    let id = connect(&mut state, GPU, options(false, false));
    let near = |nodes: &[i64]| PluginDevice { healthy: true, numa_nodes: nodes.to_vec() };
    let list = [("a", &[0][..]), ("b", &[0, 1]), ("c", &[])];
    let list = list.map(|(name, nodes)| (name.to_owned(), near(nodes)));
    state.set_devices(GPU, id, list.into()).unwrap();
    allocate(&mut state, &one("u", 3)).unwrap();
    let own = state.allocation(&"u".into(), "main", GPU).unwrap();
    let shown: Vec<_> =
        own.devices.iter().map(|(node, ids)| (*node, ids.clone().unwrap().join(" "))).collect();
    assert_eq!(shown, [(-1, "c".into()), (0, "a b".into()), (1, "b".into())]);
}

#[test]
fn after_a_damaged_checkpoint_no_device_is_allocated_that_a_container_may_have() {
    let (mut state, _) = with(&[("a", true), ("b", true)]);
    state.mark_damaged();
    let refused = |state: &mut DeviceManagerCache, uid: &str| {
        let error = state.next(&one(uid, 1), None, None).unwrap_err();
        assert!(error.is_transient());
        assert!(matches!(error, DeviceAllocationError::UnknownDevices(_)), "{error}");
    };
    refused(&mut state, "new");
    state.mark_running(&one("old", 1));
    assert!(!state.inventory_complete());
    refused(&mut state, "new");
    // Of another resource, none can be in use.
    let mut other = one("new", 1);
    other.containers[0].amounts = [("example.com/nic".to_owned(), 1)].into();
    assert_eq!(state.next(&other, None, None), Ok(AllocationStep::Done));
    // It starts again, and so has none.
    state.mark_starting(&"old".into(), "main");
    assert_eq!(allocate(&mut state, &one("old", 1)), Ok(()));
    assert!(state.inventory_complete() && !state.is_damaged());
    assert_eq!(allocate(&mut state, &one("new", 1)), Ok(()));
    assert!(state.next(&one("third", 1), None, None).is_err());
}

#[test]
fn pods_that_are_gone_have_no_unknown_devices() {
    let (mut state, _) = with(&[("a", true)]);
    state.mark_damaged();
    state.mark_running(&one("old", 1));
    assert!(state.release(&"old".into()));
    assert!(state.inventory_complete());
    assert_eq!(allocate(&mut state, &one("new", 1)), Ok(()));
}

#[test]
fn there_is_a_limit_to_resources() {
    let mut state = DeviceManagerCache::default();
    for n in 0..MAX_RESOURCES {
        assert!(state.has_room_for(GPU));
        connect(&mut state, &format!("example.com/r{n}"), options(false, false));
    }
    assert!(!state.has_room_for(GPU));
    assert!(state.has_room_for("example.com/r0"));
}
