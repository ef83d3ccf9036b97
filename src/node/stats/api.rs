//! Types of the Summary API, `stats.k8s.io/v1alpha1`: fields are those of upstream's
//! `k8s.io/kubelet/pkg/apis/stats/v1alpha1`. Unknown values are left out, not zero.
#![allow(missing_docs, reason = "the fields are upstream's API")]

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// A time, nanoseconds since the epoch; serialized in whole seconds, and `null` when unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = Timestamp::from_second(self.0.div_euclid(1_000_000_000)).ok();
        match time.filter(|_| self.0 != 0) {
            Some(time) => serializer.collect_str(&time),
            None => serializer.serialize_none(),
        }
    }
}

/// Declares a type of the API. Fields of the section `optional` are left out while they are unknown.
macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }
        $(optional { $($(#[$of:meta])* $maybe:ident: $inner:ty,)* })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $($(#[$attr])* pub $field: $kind,)*
            $($(
                $(#[$of])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $maybe: Option<$inner>,
            )*)?
        }
    };
}

message! {
    /// Stats of the node and its pods.
    Summary {
        node: NodeStats,
        pods: Vec<PodStats>,
    }
}
message! {
    /// Stats of the node.
    NodeStats {
        node_name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        system_containers: Vec<ContainerStats>,
        start_time: Time,
    } optional {
        cpu: CpuStats,
        memory: MemoryStats,
        io: IoStats,
        network: NetworkStats,
        fs: FsStats,
        runtime: RuntimeStats,
        rlimit: RlimitStats,
        swap: SwapStats,
    }
}
message! {
    /// Number and limit of threads on the machine.
    RlimitStats {
        time: Time,
    } optional {
        #[serde(rename = "maxpid")]
        max_pid: u64,
        #[serde(rename = "curproc")]
        running: u64,
    }
}
message! {
    /// File systems that the runtime uses.
    RuntimeStats {} optional {
        image_fs: FsStats,
        container_fs: FsStats,
    }
}
message! {
    /// Number of processes of a pod.
    ProcessStats {} optional {
        #[serde(rename = "process_count")]
        process_count: u64,
    }
}
message! {
    /// Stats of a pod.
    PodStats {
        pod_ref: PodReference,
        start_time: Time,
        containers: Vec<ContainerStats>,
        #[serde(skip_serializing_if = "Vec::is_empty", rename = "volume")]
        volumes: Vec<VolumeStats>,
    } optional {
        cpu: CpuStats,
        memory: MemoryStats,
        io: IoStats,
        network: NetworkStats,
        #[serde(rename = "ephemeral-storage")]
        ephemeral_storage: FsStats,
        #[serde(rename = "process_stats")]
        process_stats: ProcessStats,
        swap: SwapStats,
    }
}
message! {
    /// Stats of a container.
    ContainerStats {
        name: String,
        start_time: Time,
    } optional {
        cpu: CpuStats,
        memory: MemoryStats,
        io: IoStats,
        rootfs: FsStats,
        logs: FsStats,
        swap: SwapStats,
    }
}
message! {
    /// Identifies a pod.
    PodReference {
        name: String,
        namespace: String,
        uid: String,
    }
}
message! {
    /// Counters of a network interface.
    InterfaceStats {
        name: String,
    } optional {
        rx_bytes: u64,
        rx_errors: u64,
        tx_bytes: u64,
        tx_errors: u64,
    }
}
message! {
    /// Network stats: the default interface, and all interfaces.
    NetworkStats {
        time: Time,
        #[serde(flatten)]
        default: InterfaceStats,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        interfaces: Vec<InterfaceStats>,
    }
}
message! {
    /// CPU usage.
    CpuStats {
        time: Time,
    } optional {
        usage_nano_cores: u64,
        usage_core_nano_seconds: u64,
        psi: PsiStats,
    }
}
message! {
    /// Memory usage.
    MemoryStats {
        time: Time,
    } optional {
        available_bytes: u64,
        usage_bytes: u64,
        working_set_bytes: u64,
        rss_bytes: u64,
        page_faults: u64,
        major_page_faults: u64,
        psi: PsiStats,
    }
}
message! {
    /// I/O stats.
    IoStats {
        time: Time,
    } optional {
        psi: PsiStats,
    }
}
message! {
    /// Pressure stall information.
    PsiStats {
        full: PsiData,
        some: PsiData,
    }
}
message! {
    /// Total stall time in microseconds, and averages in percent.
    PsiData {
        total: u64,
        avg10: f64,
        avg60: f64,
        avg300: f64,
    }
}
message! {
    /// Swap usage.
    SwapStats {
        time: Time,
    } optional {
        swap_available_bytes: u64,
        swap_usage_bytes: u64,
    }
}
message! {
    /// Usage of a volume.
    VolumeStats {
        #[serde(flatten)]
        fs: FsStats,
        name: String,
    } optional {
        pvc_ref: PvcReference,
    }
}
message! {
    /// The PersistentVolumeClaim of a volume.
    PvcReference {
        name: String,
        namespace: String,
    }
}
message! {
    /// Usage of a file system, or of a directory on it.
    FsStats {
        time: Time,
    } optional {
        available_bytes: u64,
        capacity_bytes: u64,
        used_bytes: u64,
        inodes_free: u64,
        inodes: u64,
        inodes_used: u64,
    }
}
