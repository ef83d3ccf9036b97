//! SCSI disks and iSCSI sessions, as the kernel and udev show them. Blocking.
//!
//! Upstream: `pkg/volume/util/device_util_linux.go`.

use crate::base::if_exists;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// What the UUID of a multipath device begins with: other devices are made from disks as well.
const MULTIPATH: &str = "mpath-";

/// The disks of the machine.
#[derive(Clone, Debug)]
pub(in crate::volumes::kinds) struct ScsiDisks {
    /// The directory with `dev` and `sys`.
    root: PathBuf,
}

/// A session with an iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::volumes::kinds) struct IscsiSession {
    /// The number of its SCSI host.
    pub(in crate::volumes::kinds) host: u32,
    /// The portals of its connections: those that are used, and those that were asked for.
    pub(in crate::volumes::kinds) portals: BTreeSet<String>,
    path: PathBuf,
}

impl ScsiDisks {
    pub(in crate::volumes::kinds) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The names in a directory of links to devices, such as `by-path`, sorted.
    pub(in crate::volumes::kinds) fn links(&self, directory: &str) -> Vec<String> {
        names(&self.link_directory(directory))
    }

    /// The path of a link.
    pub(in crate::volumes::kinds) fn link(&self, directory: &str, name: &str) -> PathBuf {
        self.link_directory(directory).join(name)
    }

    fn link_directory(&self, directory: &str) -> PathBuf {
        self.root.join("dev/disk").join(directory)
    }

    /// The path of a device.
    pub(in crate::volumes::kinds) fn path(&self, device: &str) -> PathBuf {
        self.root.join("dev").join(device)
    }

    /// The name of the device that a link leads to.
    pub(in crate::volumes::kinds) fn device(&self, link: &Path) -> Option<String> {
        let path = fs::canonicalize(link).ok()?;
        let is_device = path.parent() == Some(&self.root.join("dev"));
        let name = path.file_name()?.to_str()?;
        is_device.then(|| name.to_owned())
    }

    fn block(&self, device: &str) -> PathBuf {
        self.root.join("sys/block").join(device)
    }

    /// The multipath device that has this device as a path.
    pub(in crate::volumes::kinds) fn multipath(&self, device: &str) -> Option<String> {
        let devices = names(&self.root.join("sys/block")).into_iter();
        let mut devices = devices.filter(|name| name.starts_with("dm-"));
        devices.find(|name| {
            let path = self.block(name);
            let uuid = read(&path.join("dm/uuid"));
            uuid.is_some_and(|uuid| uuid.starts_with(MULTIPATH))
                && path.join("slaves").join(device).symlink_metadata().is_ok()
        })
    }

    /// The paths of a multipath device.
    pub(in crate::volumes::kinds) fn paths_of(&self, multipath: &str) -> Vec<String> {
        names(&self.block(multipath).join("slaves"))
    }

    /// The numbers of a device, such as `8:16`.
    pub(in crate::volumes::kinds) fn numbers(&self, device: &str) -> Option<String> {
        read(&self.block(device).join("dev"))
    }

    /// Removes a disk from the machine. One that is gone is no error.
    pub(in crate::volumes::kinds) fn delete(&self, device: &str) -> io::Result<()> {
        let written = write(&self.block(device).join("device/delete"), "1");
        if_exists(written).map(drop)
    }

    /// Has one SCSI host look for logical units.
    pub(in crate::volumes::kinds) fn scan(&self, host: u32, what: &str) -> io::Result<()> {
        let hosts = self.root.join("sys/class/scsi_host");
        write(&hosts.join(format!("host{host}/scan")), what)
    }

    /// Has all SCSI hosts look for logical units.
    pub(in crate::volumes::kinds) fn scan_all(&self) {
        let hosts = self.root.join("sys/class/scsi_host");
        for host in names(&hosts) {
            if let Err(error) = write(&hosts.join(&host).join("scan"), "- - -") {
                tracing::debug!(host, err = %error, "Failed to scan a SCSI host");
            }
        }
    }

    /// The sessions with an iSCSI target.
    ///
    /// # Errors
    /// The list of hosts cannot be read.
    pub(in crate::volumes::kinds) fn sessions(&self, iqn: &str) -> io::Result<Vec<IscsiSession>> {
        let hosts = self.root.join("sys/class/iscsi_host");
        let entries = if_exists(fs::read_dir(&hosts))?.into_iter().flatten();
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("host").and_then(|it| it.parse().ok());
            let Some(host) = number else { continue };
            let device = hosts.join(&name).join("device");
            for session in with_prefix(&device, "session") {
                let path = device.join(&session);
                let target = path.join("iscsi_session").join(&session).join("targetname");
                // A session that goes meanwhile has no name.
                if read(&target).as_deref() == Some(iqn) {
                    found.push(IscsiSession { host, portals: portals(&path), path });
                }
            }
        }
        Ok(found)
    }

    /// The devices of a logical unit of an iSCSI target: one per session.
    pub(in crate::volumes::kinds) fn iscsi_devices(&self, iqn: &str, lun: i32) -> Vec<String> {
        let mut found = BTreeSet::new();
        for session in self.sessions(iqn).unwrap_or_default() {
            for target in with_prefix(&session.path, "target") {
                let target = session.path.join(target);
                let units = names(&target).into_iter();
                let suffix = format!(":{lun}");
                // Host, channel, target and unit.
                let units = units.filter(|name| name.split(':').count() == 4);
                for unit in units.filter(|name| name.ends_with(&suffix)) {
                    found.extend(names(&target.join(unit).join("block")));
                }
            }
        }
        found.into_iter().collect()
    }
}

/// The portals of a session's connections.
fn portals(session: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for connection in with_prefix(session, "connection") {
        let path = session.join(&connection).join("iscsi_connection").join(&connection);
        for (address, port) in [("address", "port"), ("persistent_address", "persistent_port")] {
            let (address, port) = (read(&path.join(address)), read(&path.join(port)));
            if let Some((address, port)) = address.zip(port) {
                found.insert(if address.contains(':') {
                    format!("[{address}]:{port}")
                } else {
                    format!("{address}:{port}")
                });
            }
        }
    }
    found
}

/// The names in a directory, sorted; none if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

fn with_prefix(directory: &Path, prefix: &str) -> Vec<String> {
    let mut names = names(directory);
    names.retain(|name| name.starts_with(prefix));
    names
}

fn read(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

/// Writes to a file of the kernel, which is never created.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(file)?;
    io::Write::write_all(&mut file, text.as_bytes())
}
