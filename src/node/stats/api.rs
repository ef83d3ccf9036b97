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

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$attr])* pub $field: $kind,)* }
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
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        runtime: Option<RuntimeStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rlimit: Option<RlimitStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
}
message! {
    /// Number and limit of threads on the machine.
    RlimitStats {
        time: Time,
        #[serde(skip_serializing_if = "Option::is_none", rename = "maxpid")]
        max_pid: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none", rename = "curproc")]
        running: Option<u64>,
    }
}
message! {
    /// File systems that the runtime uses.
    RuntimeStats {
        #[serde(skip_serializing_if = "Option::is_none")]
        image_fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        container_fs: Option<FsStats>,
    }
}
message! {
    /// Number of processes of a pod.
    ProcessStats {
        #[serde(skip_serializing_if = "Option::is_none", rename = "process_count")]
        process_count: Option<u64>,
    }
}
message! {
    /// Stats of a pod.
    PodStats {
        pod_ref: PodReference,
        start_time: Time,
        containers: Vec<ContainerStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Vec::is_empty", rename = "volume")]
        volumes: Vec<VolumeStats>,
        #[serde(skip_serializing_if = "Option::is_none", rename = "ephemeral-storage")]
        ephemeral_storage: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none", rename = "process_stats")]
        process_stats: Option<ProcessStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
}
message! {
    /// Stats of a container.
    ContainerStats {
        name: String,
        start_time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rootfs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
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
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_errors: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_errors: Option<u64>,
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
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_nano_cores: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_core_nano_seconds: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
}
message! {
    /// Memory usage.
    MemoryStats {
        time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        working_set_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rss_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        page_faults: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        major_page_faults: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
}
message! {
    /// I/O stats.
    IoStats {
        time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
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
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_usage_bytes: Option<u64>,
    }
}
message! {
    /// Usage of a volume.
    VolumeStats {
        #[serde(flatten)]
        fs: FsStats,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pvc_ref: Option<PvcReference>,
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
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        used_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_free: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_used: Option<u64>,
    }
}
