//! Merges plugin responses into the configuration of a container. Pure.

use super::allocation::ContainerAllocations;
use super::proto::ContainerAllocateResponse;
use crate::cri::v1;
use std::collections::{BTreeMap, BTreeSet};

/// What device plugins add to the configuration of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOptions {
    /// Environment variables; those of the pod override them.
    pub envs: BTreeMap<String, String>,
    /// Mounts; those of the pod come after them.
    pub mounts: Vec<v1::Mount>,
    /// Device nodes.
    pub devices: Vec<v1::Device>,
    /// Annotations; those of the kubelet replace them.
    pub annotations: BTreeMap<String, String>,
    /// CDI device names.
    pub cdi_devices: Vec<v1::CdiDevice>,
}

/// Merges the responses of all plugins of a container. Of conflicting settings the first one wins, in the order of
/// resource names; the second result lists the others.
pub(super) fn run_options(all: &ContainerAllocations) -> (RunOptions, Vec<String>) {
    let (mut options, mut conflicts) = (RunOptions::default(), Vec::new());
    let mut seen = SeenPaths::default();
    for response in all.values().filter_map(|own| own.response.as_deref()) {
        let mut merge =
            |kind: &str, into: &mut BTreeMap<String, String>, from: &BTreeMap<String, String>| {
                for (name, value) in from {
                    let known = into.entry(name.clone()).or_insert_with(|| value.clone());
                    if known != value {
                        conflicts.push(format!("{kind} {name}"));
                    }
                }
            };
        merge("environment variable", &mut options.envs, &response.envs);
        merge("annotation", &mut options.annotations, &response.annotations);
        seen.add(response, &mut options, &mut conflicts);
    }
    (options, conflicts)
}

/// Host paths by container path.
#[derive(Default)]
struct SeenPaths {
    mounts: BTreeMap<String, String>,
    devices: BTreeMap<String, String>,
    cdi: BTreeSet<String>,
}

impl SeenPaths {
    fn add(
        &mut self,
        response: &ContainerAllocateResponse,
        options: &mut RunOptions,
        conflicts: &mut Vec<String>,
    ) {
        let mut is_new =
            |kind: &str, known: &mut BTreeMap<String, String>, inside: &str, outside: &str| {
                match known.get(inside) {
                    None => {
                        known.insert(inside.to_owned(), outside.to_owned());
                        return true;
                    }
                    Some(before) if before != outside => conflicts.push(format!("{kind} {inside}")),
                    Some(_) => {}
                }
                false
            };
        for mount in &response.mounts {
            if is_new("mount", &mut self.mounts, &mount.container_path, &mount.host_path) {
                options.mounts.push(v1::Mount {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    readonly: mount.read_only,
                    ..v1::Mount::default()
                });
            }
        }
        for device in &response.devices {
            if is_new("device", &mut self.devices, &device.container_path, &device.host_path) {
                options.devices.push(v1::Device {
                    container_path: device.container_path.clone(),
                    host_path: device.host_path.clone(),
                    permissions: device.permissions.clone(),
                });
            }
        }
        for device in &response.cdi_devices {
            if self.cdi.insert(device.name.clone()) {
                let name = device.name.clone();
                options.cdi_devices.push(v1::CdiDevice { name });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::devices::allocation::Allocation;
    use crate::resources::devices::proto::{CdiDevice, DeviceSpec, Mount};
    use std::sync::Arc;

    fn of_host(host: &str) -> ContainerAllocateResponse {
        ContainerAllocateResponse {
            envs: [("A".into(), host.into()), (format!("OF_{host}"), "1".into())].into(),
            mounts: vec![Mount {
                container_path: "/lib".into(),
                host_path: host.into(),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/x".into(),
                host_path: host.into(),
                permissions: "rw".into(),
            }],
            annotations: [("a".into(), host.into())].into(),
            cdi_devices: ["v/c=0", host].map(|name| CdiDevice { name: name.into() }).to_vec(),
        }
    }

    fn allocation(response: Option<ContainerAllocateResponse>) -> Allocation {
        Allocation {
            devices: BTreeMap::new(),
            response: response.map(Arc::new),
            undecodable: None,
            ticket: 0,
        }
    }

    #[test]
    fn the_first_resource_wins_where_two_say_different_things() {
        let all = BTreeMap::from([
            ("b.example/x".to_owned(), allocation(Some(of_host("b")))),
            ("a.example/x".to_owned(), allocation(Some(of_host("a")))),
            ("c.example/x".to_owned(), allocation(None)),
        ]);
        let (options, conflicts) = run_options(&all);
        let envs: Vec<_> = options.envs.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(envs, ["A=a", "OF_a=1", "OF_b=1"]);
        let [mount] = options.mounts.as_slice() else {
            panic!("{options:?}");
        };
        assert_eq!((mount.host_path.as_str(), mount.readonly), ("a", true));
        let [device] = options.devices.as_slice() else {
            panic!("{options:?}");
        };
        assert_eq!((device.host_path.as_str(), device.permissions.as_str()), ("a", "rw"));
        assert_eq!(options.annotations["a"], "a");
        let names: Vec<_> = options.cdi_devices.iter().map(|cdi| cdi.name.as_str()).collect();
        assert_eq!(names, ["v/c=0", "a", "b"]);
        assert_eq!(
            conflicts,
            ["environment variable A", "annotation a", "mount /lib", "device /dev/x"]
        );
    }

    #[test]
    fn equal_settings_are_there_once_and_are_no_conflict() {
        let all = BTreeMap::from([
            ("a.example/x".to_owned(), allocation(Some(of_host("a")))),
            ("b.example/x".to_owned(), allocation(Some(of_host("a")))),
        ]);
        let (options, conflicts) = run_options(&all);
        assert_eq!((options.mounts.len(), options.devices.len()), (1, 1));
        assert_eq!(conflicts, Vec::<String>::new());
    }
}
