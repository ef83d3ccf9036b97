//! Devices of plugins, as admission and housekeeping see them.

use super::{
    SyncLoop,
    admission::{AdmissionRefusal, Rejection},
};
use crate::{
    model::{Pod, PodUid},
    resources::devices::{DeviceAllocationError, DeviceManager, Unallocated},
};
use std::collections::HashSet;

impl SyncLoop {
    pub(super) fn devices(&self) -> &DeviceManager {
        &self.pod_sync.runtime.devices().plugins
    }

    /// Has devices allocated for a pod, unless it runs: what it has then, it keeps.
    pub(super) fn allocate_devices(&self, pod: &Pod, runs: bool) -> Result<(), AdmissionRefusal> {
        if runs {
            self.devices().mark_running(pod);
            return Ok(());
        }
        let hints = |nodes| self.devices().hints(pod, nodes);
        let align = || self.admission.resources.align(pod, hints);
        match self.devices().allocate(pod, align) {
            Ok(()) => Ok(()),
            Err(Unallocated::InProgress) => Err(AdmissionRefusal::NotYet {
                why: "device plugins are preparing its devices".into(),
                rejection: Some(rejection("the device plugins did not respond in time")),
                brief: true,
            }),
            Err(Unallocated::Failed(error)) => Err(self.refusal(&error)),
            Err(Unallocated::Misaligned(error)) => Err(AdmissionRefusal::Rejected(Rejection::new(
                error.reason,
                error.message,
            ))),
        }
    }

    fn refusal(&self, error: &DeviceAllocationError) -> AdmissionRefusal {
        let text = error.to_string();
        let waits = error.may_pass()
            || error.short_of().is_some_and(|resource| {
                let holders = self.devices().holders(resource);
                holders.iter().any(|uid| self.gives_back(uid))
            });
        if waits {
            AdmissionRefusal::NotYet {
                why: format!("waiting for devices: {text}"),
                rejection: Some(rejection(&text)),
                brief: false,
            }
        } else {
            AdmissionRefusal::Rejected(rejection(&text))
        }
    }

    /// Whether a pod that has devices is ending, or gone.
    fn gives_back(&self, uid: &PodUid) -> bool {
        let wanted = self.manager.reader().get(uid);
        wanted.is_none_or(|pod| self.is_ending(&pod))
    }

    /// All that runs on the node is known, and so are the pods that should.
    pub(super) fn check_devices(&self, claimed: &HashSet<PodUid>) {
        let runs = |uid: &PodUid| self.cache.latest(uid).is_active();
        let is_here = |uid: &PodUid| claimed.contains(uid) || runs(uid);
        let devices = self.pod_sync.runtime.devices();
        devices.plugins.retain(is_here);
        devices.dra.retain(is_here);
        let pods = self.cache.pods();
        let mut orphans = pods.iter().filter(|pod| !claimed.contains(&pod.uid));
        if !orphans.any(|pod| pod.is_active()) {
            self.devices().inventory_complete();
        }
    }
}

fn rejection(error: &str) -> Rejection {
    Rejection::new(
        "UnexpectedAdmissionError",
        format!("Allocate failed due to {error}, which is unexpected"),
    )
}
