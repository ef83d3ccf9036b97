//! Sessions with iSCSI targets: `iscsiadm` logs in and out.

use super::disk::{self, DISCOVERY_KEYS, IscsiDisk, IscsiLogin, SESSION_KEYS};
use crate::base::spawn_blocking;
use crate::host::program::Program;
use crate::volumes::VolumeManagerInner;
use crate::volumes::disk_dirs::{self, DiskDir, DiskPlugin, IscsiName};
use crate::volumes::kinds::programs;
use crate::volumes::kinds::scsi::{ScsiDisks, disks_of, preferred};
use anyhow::{Context as _, anyhow};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Timeout of calls that only change the database of `iscsiadm`.
const SHORT_LIMIT: Duration = Duration::from_secs(60);
/// Timeout of calls that wait for a target, which `iscsiadm` does for two minutes itself.
const LONG_LIMIT: Duration = Duration::from_secs(5 * 60);
/// How long the link to a disk may take to appear, as upstream.
const LINK_TIME: Duration = Duration::from_secs(30);
/// How long the multipath device of a disk with several portals may take.
const MULTIPATH_TIME: Duration = Duration::from_secs(10);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often all portals are tried.
const MAX_ROUNDS: usize = 5;
/// After so many rounds so many paths are enough.
const ENOUGH_ROUNDS: usize = 2;
const ENOUGH_PATHS: usize = 2;
/// Exit codes of `iscsiadm`: no such session; the session exists; no such record.
const NO_SESSION: i32 = 2;
const EXISTS: i32 = 15;
const NO_RECORD: i32 = 21;

const ENDED: &str = "the pod has ended";

/// A call of `iscsiadm` that failed.
struct CallFailed {
    code: Option<i32>,
    why: String,
    output: String,
}

/// The initiator of one disk.
pub(super) struct Initiator {
    pub(super) manager: Arc<VolumeManagerInner>,
    /// The values for authentication.
    pub(super) secret: BTreeMap<String, String>,
    pub(super) ended: CancellationToken,
}

impl Initiator {
    async fn call(&self, args: &[&str], limit: Duration) -> Result<String, CallFailed> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let program =
            Program { ended: self.ended.clone(), ..Program::new("iscsiadm", &args, limit) };
        let hide = |text| disk::redacted(text, &self.secret);
        match self.manager.mounter.execute(program).await {
            Ok(end) if end.code == Some(0) => Ok(programs::output(&end)),
            Ok(end) => Err(CallFailed {
                code: end.code,
                why: programs::status(&end),
                output: hide(programs::output(&end)),
            }),
            Err(error) => Err(CallFailed {
                code: None,
                why: programs::not_run("iscsiadm", &error),
                output: String::new(),
            }),
        }
    }

    async fn short(&self, args: &[&str]) -> Result<String, CallFailed> {
        self.call(args, SHORT_LIMIT).await
    }

    /// What the kernel is asked may take long when a target is silent, so nothing waits for it once the pod has ended.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let done = self.ended.run_until_cancelled(spawn_blocking(work)).await;
        done.ok_or(ENDED)?.map_err(|error| error.to_string())
    }

    /// Logs in to the target, unless that is done, and returns the device of the disk.
    ///
    /// # Errors
    /// The last failure; it has no value of a secret.
    pub(super) async fn attach(&self, disk: &IscsiDisk) -> Result<PathBuf, String> {
        let show = ["-m", "iface", "-I", &disk.init_iface, "-o", "show"];
        let shown = self.short(&show).await.map_err(|error| {
            let (iface, output) = (&disk.init_iface, &error.output);
            format!("iscsi: could not read iface {iface} error: {output} ({})", error.why)
        })?;
        let transport = disk::transport(&shown);
        let transport =
            transport.ok_or_else(|| format!("could not parse iface file for {}", disk.iface))?;
        if let Some(name) = &disk.initiator_name {
            self.clone_iface(disk, &shown, name).await?;
        }
        // Volumes of one target log in and out one after another.
        let lock = self.manager.locks.lock(&disk.iqn);
        let lock = self.ended.run_until_cancelled(lock).await;
        let _lock = lock.ok_or(ENDED)?;
        let mut links = BTreeMap::new();
        let mut last = String::new();
        for round in 1..=MAX_ROUNDS {
            for (order, portal) in disk.portals.iter().enumerate() {
                if links.contains_key(&order) {
                    continue;
                }
                match self.path_by(disk, portal, &transport).await {
                    Ok(link) => drop(links.insert(order, link)),
                    Err(error) => last = error,
                }
                if self.ended.is_cancelled() {
                    return Err(ENDED.to_owned());
                }
            }
            if links.is_empty() {
                if disk.initiator_name.is_some() {
                    let _ = self.short(&["-m", "iface", "-I", &disk.iface, "-o", "delete"]).await;
                }
                return Err(format!(
                    "failed to get any path for iscsi disk, last err seen:\n{last}"
                ));
            }
            let is_enough = links.len() >= ENOUGH_PATHS && round >= ENOUGH_ROUNDS;
            if links.len() == disk.portals.len() || is_enough {
                break;
            }
        }
        if !last.is_empty() {
            let (iqn, paths) = (&disk.iqn, links.len());
            tracing::warn!(
                iqn,
                paths,
                err = last,
                "Not all portals of an iSCSI target could be used"
            );
        }
        let links: Vec<PathBuf> = links.into_values().collect();
        // A multipath device never comes for one portal, unless it is there.
        let checks = match disk.portals.len() {
            1 => 0,
            _ => MULTIPATH_TIME.as_secs(),
        };
        let of_links = links.clone();
        let multipath = self.wait(checks, move |disks| preferred(disks, &of_links)).await;
        let device = multipath.or_else(|| links.first().cloned());
        device.ok_or_else(|| "no portal is given".to_owned())
    }

    /// Checks the disks of the machine every second until something is found, so many times after the first one.
    async fn wait<T: Send + 'static>(
        &self,
        times: u64,
        check: impl Fn(&ScsiDisks) -> Option<T> + Clone + Send + 'static,
    ) -> Option<T> {
        for time in 0..=times {
            if time > 0 {
                let pause = tokio::time::sleep(CHECK_INTERVAL);
                self.ended.run_until_cancelled(pause).await?;
            }
            let (check, disks) = (check.clone(), disks_of(self.manager.mounter.as_ref()));
            if let Ok(Some(found)) = self.blocking(move || check(&disks)).await {
                return Some(found);
            }
        }
        None
    }

    /// The SCSI hosts of the target, by portal.
    async fn hosts(&self, iqn: &str) -> Result<BTreeMap<String, u32>, String> {
        let (disks, iqn) = (disks_of(self.manager.mounter.as_ref()), iqn.to_owned());
        let sessions = self.blocking(move || disks.sessions(&iqn)).await?;
        let sessions = sessions.map_err(|error| format!("cannot list iSCSI sessions: {error}"))?;
        let hosts = sessions.into_iter().flat_map(|session| {
            let host = session.host;
            session.portals.into_iter().map(move |portal| (portal, host))
        });
        Ok(hosts.collect())
    }

    /// The link to the disk by one portal.
    async fn path_by(
        &self,
        disk: &IscsiDisk,
        portal: &str,
        transport: &str,
    ) -> Result<PathBuf, String> {
        let mut host = self.hosts(&disk.iqn).await?.get(portal).copied();
        if host.is_none() {
            self.log_in(disk, portal).await?;
            host = self.hosts(&disk.iqn).await?.get(portal).copied();
        }
        let host = host.ok_or_else(|| {
            format!("Could not get SCSI host number for portal {portal} after logging in")
        })?;
        // Only this logical unit: others are not this node's to know.
        let (disks, what) = (disks_of(self.manager.mounter.as_ref()), format!("0 0 {}", disk.lun));
        let scanned = self.blocking(move || disks.scan(host, &what)).await?;
        scanned.map_err(|error| format!("cannot scan SCSI host {host}: {error}"))?;
        let (of, by, over) = (disk.clone(), portal.to_owned(), transport.to_owned());
        let find = move |disks: &ScsiDisks| {
            let name = of.link(&by, &over, &disks.links("by-path"))?;
            let link = disks.link("by-path", &name);
            link.exists().then_some(link)
        };
        let found = self.wait(LINK_TIME.as_secs(), find).await;
        found.ok_or_else(|| {
            let (iqn, lun, seconds) = (&disk.iqn, disk.lun, LINK_TIME.as_secs());
            format!(
                "Timed out waiting for device at path /dev/disk/by-path/ip-{portal}-iscsi-{iqn}-lun-{lun} after {seconds}s"
            )
        })
    }

    /// Copies the configured interface to one with another name of the initiator.
    async fn clone_iface(&self, disk: &IscsiDisk, shown: &str, name: &str) -> Result<(), String> {
        let settings = disk::iface_settings(shown, name);
        let settings = settings
            .map_err(|why| format!("iscsi: failed to parse iface records: {shown} ({why})"))?;
        let iface = &disk.iface;
        match self.short(&["-m", "iface", "-I", iface, "-o", "new"]).await {
            Ok(_) => {}
            // A session uses it.
            Err(error) if error.code == Some(EXISTS) => {}
            Err(error) => {
                let (output, why) = (error.output, error.why);
                return Err(format!("iscsi: failed to create new iface: {output} ({why})"));
            }
        }
        for (key, value) in &settings {
            let update = ["-m", "iface", "-I", iface, "-o", "update", "-n", key, "-v", value];
            if let Err(error) = self.short(&update).await {
                let _ = self.short(&["-m", "iface", "-I", iface, "-o", "delete"]).await;
                let (output, why) = (error.output, error.why);
                return Err(format!("iscsi: failed to update iface records: {output} ({why})"));
            }
        }
        Ok(())
    }

    /// Logs in by one portal.
    async fn log_in(&self, disk: &IscsiDisk, portal: &str) -> Result<(), String> {
        let (iface, iqn) = (disk.iface.as_str(), disk.iqn.as_str());
        let database = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", iface];
        let with = |more: &[&'static str]| -> Vec<&str> {
            database.into_iter().chain(more.iter().copied()).collect()
        };
        // It may be there.
        let _ = self.short(&with(&["-o", "new"])).await;
        if disk.chap_discovery {
            self.authenticate(&database, "discovery.sendtargets.auth.authmethod", &DISCOVERY_KEYS)
                .await
                .map_err(|why| {
                    format!("iscsi: failed to update discoverydb to portal {portal} error: {why}")
                })?;
        }
        if let Err(error) = self.call(&with(&["--discover"]), LONG_LIMIT).await {
            let _ = self.short(&with(&["-o", "delete"])).await;
            let (output, why) = (error.output, error.why);
            return Err(format!(
                "iscsi: failed to sendtargets to portal {portal} output: {output}, err {why}"
            ));
        }
        let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", iface];
        let with = |more: &[&'static str]| -> Vec<&str> {
            node.into_iter().chain(more.iter().copied()).collect()
        };
        let manual = ["-o", "update", "-n", "node.session.scan", "-v", "manual"];
        if let Err(error) = self.short(&with(&manual)).await {
            let err = error.output;
            tracing::warn!(
                iqn,
                portal,
                err,
                "All logical units of an iSCSI target will be scanned"
            );
        }
        if disk.chap_session {
            self.authenticate(&node, "node.session.auth.authmethod", &SESSION_KEYS).await.map_err(
                |why| format!("iscsi: failed to update iscsi node to portal {portal} error: {why}"),
            )?;
        }
        match self.call(&with(&["--login"]), LONG_LIMIT).await {
            Ok(_) => {}
            // An earlier attempt was cut short, or is at it.
            Err(error) if error.code == Some(EXISTS) => {}
            Err(error) => {
                let _ = self.short(&with(&["-o", "delete"])).await;
                let (output, why) = (error.output, error.why);
                return Err(format!("iscsi: failed to attach disk: Error: {output} ({why})"));
            }
        }
        let startup = [
            "-m",
            "node",
            "-p",
            portal,
            "-T",
            iqn,
            "-o",
            "update",
            "-n",
            "node.startup",
            "-v",
            "manual",
        ];
        if let Err(error) = self.short(&startup).await {
            let err = error.output;
            tracing::warn!(iqn, portal, err, "The node logs in to an iSCSI target when it boots");
        }
        Ok(())
    }

    /// Sets the values for authentication in a record.
    async fn authenticate(
        &self,
        record: &[&str],
        method: &str,
        keys: &[&str],
    ) -> Result<(), String> {
        let given = keys.iter().filter_map(|key| Some((*key, self.secret.get(*key)?.as_str())));
        let given = given.filter(|(_, value)| !value.is_empty());
        for (key, value) in std::iter::once((method, "CHAP")).chain(given) {
            let update = ["-o", "update", "-n", key, "-v", value];
            let args: Vec<_> = record.iter().copied().chain(update).collect();
            let updated = self.short(&args).await;
            updated.map_err(|CallFailed { why, output, .. }| {
                format!("key {key:?}: {output} ({why})")
            })?;
        }
        Ok(())
    }

    /// Logs out of a target, unless another disk of it is in use.
    pub(super) async fn log_out(&self, dir: &DiskDir, login: &IscsiLogin) -> anyhow::Result<()> {
        let _lock = self.manager.locks.lock(&login.iqn).await;
        let (root, of, iqn) = (self.manager.root.clone(), dir.clone(), login.iqn.clone());
        let is_used = move || {
            let disks = disk_dirs::list(&root, DiskPlugin::Iscsi)?;
            let mut others = disks.iter().filter(|disk| **disk != of);
            let is_of_target = |name: IscsiName| name.iqn == iqn;
            io::Result::Ok(
                others.any(|disk| IscsiName::parse(&disk.name).is_some_and(is_of_target)),
            )
        };
        if spawn_blocking(is_used).await?.context("cannot list the disks")? {
            return Ok(());
        }
        let (iqn, iface) = (&*login.iqn, &*login.iface);
        let portals: BTreeSet<&str> = login.portals.iter().map(String::as_str).collect();
        for portal in portals {
            let node = ["-m", "node", "-p", portal, "-T", iqn];
            for end in [&["--logout"][..], &["-o", "delete"]] {
                let of_iface = ["-I", iface];
                let args = node.iter().chain(end).chain(&of_iface).copied();
                self.end(&args.collect::<Vec<_>>()).await?;
            }
        }
        if login.is_own_iface {
            self.end(&["-m", "iface", "-I", iface, "-o", "delete"]).await?;
        }
        Ok(())
    }

    /// A call that ends something, which may not be there.
    async fn end(&self, args: &[&str]) -> anyhow::Result<()> {
        match self.call(args, LONG_LIMIT).await {
            Err(CallFailed { code, why, output })
                if !matches!(code, Some(NO_SESSION | NO_RECORD)) =>
            {
                Err(anyhow!("iscsiadm {} failed: {output} ({why})", args.join(" ")))
            }
            _ => Ok(()),
        }
    }
}
