//! The cgroups of QoS classes (upstream's `QOSContainerManager`).

use super::{ContainerManagerInner, QOS_CLASSES};
use crate::host::cgroup::CgroupSettings;
use crate::resources::QosClass;
use crate::resources::cm::resource_config::{self, limited_to_usage};
use std::io;
use std::sync::atomic::Ordering;

impl ContainerManagerInner {
    /// Creates missing cgroups of all pods and of QoS classes, and sets the limits of the classes: those that changed,
    /// or `all`, because others may have changed them.
    ///
    /// # Errors
    /// The first one; the other classes are updated all the same.
    pub(super) fn update_qos_cgroups(&self, all: bool) -> io::Result<()> {
        let mut written = self.written_classes.lock();
        let mut before = written.take().filter(|_| !all);
        if !self.manager.exists(&self.all_pods) {
            before = None;
            self.manager.create(&self.all_pods)?;
            if let Err(error) = self.manager.update(&self.all_pods, &self.node_settings()) {
                tracing::error!(err = %error, "cgroup manager.Set failed");
            }
        }
        let (pods, node) = ((self.active_pods)(), &self.node);
        let settings = resource_config::of_classes(
            pods.iter().map(|pod| &**pod),
            &node.rules,
            node.memory_qos,
            node.qos_reserved,
        );
        let mut updated = Ok(());
        for class in QOS_CLASSES {
            let before = before.as_ref().map(|before| before.of(class));
            let class = self.update_class(class, settings.of(class), before);
            updated = updated.and(class);
        }
        if updated.is_ok() {
            *written = Some(settings);
        }
        updated
    }

    fn update_class(
        &self,
        class: QosClass,
        settings: &CgroupSettings,
        before: Option<&CgroupSettings>,
    ) -> io::Result<()> {
        let name = self.qos_cgroup(class);
        let is_new = !self.manager.exists(&name);
        if is_new {
            self.manager.create(&name)?;
        }
        let is_wanted =
            before != Some(settings) && !self.keeps_earlier_limits.load(Ordering::Relaxed);
        if !is_new && !is_wanted {
            return Ok(());
        }
        let Err(error) = self.manager.update(&name, settings) else {
            return Ok(());
        };
        // With cgroup v1 the kernel rejects a memory limit below the usage. Then the usage is the limit, so that the class
        // does not grow on, until the next update.
        let usage = self.manager.memory_usage(&name).ok();
        match usage.and_then(|usage| limited_to_usage(settings, usage)) {
            Some(limited) => self.manager.update(&name, &limited),
            None => Err(error),
        }
    }
}
