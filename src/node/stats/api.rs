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

/// Declares types of the API. Fields of the section `optional` are left out while they are unknown.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }
        $(optional { $($(#[$of:meta])* $maybe:ident: $inner:ty,)* })?
    )*) => {$(
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
    )*};
}

messages! {
    /// Stats of the node and its pods.
    pub struct Summary {
        node: NodeStats,
        pods: Vec<PodStats>,
    }

    /// Stats of the node.
    pub struct NodeStats {
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

    /// Number and limit of threads on the machine.
    pub struct RlimitStats {
        time: Time,
    } optional {
        #[serde(rename = "maxpid")]
        max_pid: u64,
        #[serde(rename = "curproc")]
        running: u64,
    }

    /// File systems that the runtime uses.
    pub struct RuntimeStats {} optional {
        image_fs: FsStats,
        container_fs: FsStats,
    }

    /// Number of processes of a pod.
    pub struct ProcessStats {} optional {
        #[serde(rename = "process_count")]
        process_count: u64,
    }

    /// Stats of a pod.
    pub struct PodStats {
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

    /// Stats of a container.
    pub struct ContainerStats {
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

    /// Identifies a pod.
    pub struct PodReference {
        name: String,
        namespace: String,
        uid: String,
    }

    /// Counters of a network interface.
    pub struct InterfaceStats {
        name: String,
    } optional {
        rx_bytes: u64,
        rx_errors: u64,
        tx_bytes: u64,
        tx_errors: u64,
    }

    /// Network stats: the default interface, and all interfaces.
    pub struct NetworkStats {
        time: Time,
        #[serde(flatten)]
        default: InterfaceStats,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        interfaces: Vec<InterfaceStats>,
    }

    /// CPU usage.
    pub struct CpuStats {
        time: Time,
    } optional {
        usage_nano_cores: u64,
        usage_core_nano_seconds: u64,
        psi: PsiStats,
    }

    /// Memory usage.
    pub struct MemoryStats {
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

    /// I/O stats.
    pub struct IoStats {
        time: Time,
    } optional {
        psi: PsiStats,
    }

    /// Pressure stall information.
    pub struct PsiStats {
        full: PsiData,
        some: PsiData,
    }

    /// Total stall time in microseconds, and averages in percent.
    pub struct PsiData {
        total: u64,
        avg10: f64,
        avg60: f64,
        avg300: f64,
    }

    /// Swap usage.
    pub struct SwapStats {
        time: Time,
    } optional {
        swap_available_bytes: u64,
        swap_usage_bytes: u64,
    }

    /// Usage of a volume.
    pub struct VolumeStats {
        #[serde(flatten)]
        fs: FsStats,
        name: String,
    } optional {
        pvc_ref: PvcReference,
        volume_health_stats: VolumeHealthStats,
    }

    /// What the driver reports of the volume's health.
    pub struct VolumeHealthStats {
        abnormal: bool,
    }

    /// The PersistentVolumeClaim of a volume.
    pub struct PvcReference {
        name: String,
        namespace: String,
    }

    /// Usage of a file system, or of a directory on it.
    pub struct FsStats {
        time: Time,
        /// Not upstream's: whether more than this is used, because the directory was not read to the end.
        #[serde(skip)]
        is_partial: bool,
    } optional {
        available_bytes: u64,
        capacity_bytes: u64,
        used_bytes: u64,
        inodes_free: u64,
        inodes: u64,
        inodes_used: u64,
    }
}
