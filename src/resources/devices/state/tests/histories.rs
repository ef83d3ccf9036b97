//! What holds in every history.

use super::*;
use crate::base::clock;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Connect {
        preferred: bool,
    },
    List(Vec<(u8, bool)>),
    Disconnect,
    /// A pod takes one step; the plugin does what it wants.
    Advance {
        pod: u8,
        prefers: Vec<u8>,
        prepares: Option<bool>,
    },
    /// A response comes late.
    Respond {
        index: usize,
    },
    Abandon(u8),
    Release(u8),
    Restart,
    Expire,
}

fn event() -> impl Strategy<Value = Event> {
    let ids = || proptest::collection::vec(0_u8..6, 0..6);
    prop_oneof![
        2 => any::<bool>().prop_map(|preferred| Event::Connect { preferred }),
        4 => proptest::collection::vec((0_u8..6, any::<bool>()), 0..8).prop_map(Event::List),
        1 => Just(Event::Disconnect),
        12 => (0_u8..5, ids(), proptest::option::of(any::<bool>()))
            .prop_map(|(pod, prefers, prepares)| Event::Advance { pod, prefers, prepares }),
        2 => any::<usize>().prop_map(|index| Event::Respond { index }),
        1 => (0_u8..5).prop_map(Event::Abandon),
        2 => (0_u8..5).prop_map(Event::Release),
        1 => Just(Event::Restart),
        1 => Just(Event::Expire),
    ]
}

/// Pods of different shapes.
fn shape(pod: u8) -> PodRequest {
    use DeviceUse::{Kept, UntilExit};
    let uid = format!("u{pod}");
    match pod {
        0 => one(&uid, 1),
        1 => one(&uid, 2),
        2 => request(&uid, &[("i", UntilExit, 2), ("m", Kept, 1)]),
        3 => request(
            &uid,
            &[("i", UntilExit, 1), ("s", Kept, 1), ("j", UntilExit, 2), ("m", Kept, 1)],
        ),
        _ => request(&uid, &[("a", Kept, 1), ("b", Kept, 1)]),
    }
}

/// No device has two pods, and in a pod no two containers that last.
fn check(state: &DeviceManagerCache) -> Result<(), TestCaseError> {
    let mut by_pod = BTreeMap::<String, BTreeSet<PodUid>>::new();
    for uid in state.pods() {
        let mut kept = BTreeSet::new();
        for (container, all) in state.of_pod(&uid).unwrap() {
            let own = all.get(GPU).unwrap();
            for id in own.ids() {
                by_pod.entry(id.clone()).or_default().insert(uid.clone());
                let lasting = !matches!(container.as_str(), "i" | "j");
                prop_assert!(!lasting || kept.insert(id.clone()), "{uid} has {id} twice");
            }
        }
    }
    for (id, pods) in by_pod {
        prop_assert!(pods.len() == 1, "{id} has {pods:?}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_device_is_given_twice_and_what_was_prepared_stays(events in proptest::collection::vec(event(), 0..80)) {
        let (mut state, mut plugin) = (DeviceManagerCache::default(), 0);
        let mut late = Vec::new();
        let now = clock::instant();
        for event in events {
            let before: Vec<_> = prepared(&state);
            let mut released = None;
            match event {
                Event::Connect { preferred } => plugin = connect(&mut state, GPU, options(false, preferred)),
                Event::List(list) => {
                    let names: Vec<_> = list.iter().map(|(n, healthy)| (format!("d{n}"), *healthy)).collect();
                    let names: Vec<_> = names.iter().map(|(n, healthy)| (n.as_str(), *healthy)).collect();
                    let _ = state.set_devices(GPU, plugin, devices(&names));
                }
                Event::Disconnect => { state.set_disconnected(GPU, plugin, now); }
                Event::Advance { pod, prefers, prepares } => {
                    let prefers: Vec<_> = prefers.iter().map(|n| format!("d{n}")).collect();
                    let mut step = state.next(&shape(pod), None, None);
                    if let Ok(AllocationStep::GetPreferred(_)) = step {
                        step = state.next(&shape(pod), None, Some(&prefers));
                    }
                    if let Ok(AllocationStep::Allocate(of)) = step {
                        match prepares {
                            Some(true) => { state.allocate(&of, response(&of.devices)); }
                            Some(false) => state.fail_allocation(&of),
                            None => late.push(of),
                        }
                    }
                }
                Event::Respond { index } => if !late.is_empty() {
                    let of = late.swap_remove(index % late.len());
                    if state.allocate(&of, response(&of.devices)) {
                        let own = state.allocation(&of.pod, &of.container, GPU).unwrap();
                        prop_assert_eq!(own.ids().into_iter().cloned().collect::<Vec<_>>(), sorted(&of.devices));
                    }
                },
                Event::Abandon(pod) => state.release_unprepared(&shape(pod).uid),
                Event::Release(pod) => {
                    released = Some(shape(pod).uid);
                    state.release(&shape(pod).uid);
                }
                Event::Restart => {
                    let data = state.to_checkpoint();
                    let text = crate::resources::devices::checkpoint::encode(data.clone()).unwrap();
                    prop_assert_eq!(crate::resources::devices::checkpoint::decode(&text), Ok(data.clone()));
                    state = DeviceManagerCache::restore(&data, now);
                    late.clear();
                }
                Event::Expire => { state.expire(now + ENDPOINT_STOP_GRACE_PERIOD * 2); }
            }
            check(&state)?;
            for (uid, container, devices) in before {
                let gone = released.as_ref() == Some(&uid);
                let own = state.allocation(&uid, &container, GPU).map(|own| own.devices.clone());
                prop_assert!(gone || own == Some(devices), "{uid} {container} lost its devices");
            }
        }
    }
}

fn prepared(
    state: &DeviceManagerCache,
) -> Vec<(PodUid, String, crate::resources::devices::checkpoint::DevicesPerNuma)> {
    let mut all = Vec::new();
    for uid in state.pods() {
        for (container, resources) in state.of_pod(&uid).unwrap() {
            let own = resources.get(GPU).unwrap();
            if own.response.is_some() {
                all.push((uid.clone(), container.clone(), own.devices.clone()));
            }
        }
    }
    all
}

fn sorted(devices: &[String]) -> Vec<String> {
    let set: BTreeSet<_> = devices.iter().cloned().collect();
    set.into_iter().collect()
}
