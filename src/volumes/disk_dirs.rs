//! Directories of iSCSI and Fibre Channel disks, as upstream has them, and the volumes' unique names.
//!
//! The directory of a disk is the record that it is in use: it is created before the disk is attached, and removed once it
//! is detached. So the next kubelet knows what to undo, also of pods that it never sees.

use super::{KubeletRoot, VolumePlugin};
use crate::base::if_exists;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Directory below a plugin's, for devices of block volumes.
pub(super) const BLOCK_DIRECTORY: &str = "volumeDevices";
const IFACE: &str = "iface-";
const LUN: &str = "-lun-";
/// The port of portals that name none.
const ISCSI_PORT: &str = ":3260";

/// A plugin for disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DiskPlugin {
    Iscsi,
    Fc,
}

impl DiskPlugin {
    pub(super) const ALL: [Self; 2] = [Self::Iscsi, Self::Fc];

    pub(super) const fn plugin(self) -> VolumePlugin {
        match self {
            Self::Iscsi => VolumePlugin("kubernetes.io/iscsi"),
            Self::Fc => VolumePlugin("kubernetes.io/fc"),
        }
    }

    /// Whether a volume of the plugin has this unique name.
    pub(super) fn has(self, unique_name: &str) -> bool {
        let rest = unique_name.strip_prefix(self.plugin().0);
        rest.is_some_and(|rest| rest.starts_with('/'))
    }
}

/// The directory of a disk: where it is mounted, or where its devices for pods are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DiskDir {
    pub(super) plugin: DiskPlugin,
    pub(super) is_block: bool,
    /// The initiator's interface, of an iSCSI disk.
    pub(super) iface: Option<String>,
    /// See [`iscsi_name`] and [`FcName`].
    pub(super) name: String,
}

impl DiskDir {
    pub(super) fn path(&self, root: &KubeletRoot) -> PathBuf {
        let mut path = directory(root, self.plugin, self.is_block);
        if let Some(iface) = &self.iface {
            path.push(format!("{IFACE}{iface}"));
        }
        path.join(&self.name)
    }

    /// The unique names that its volume may have: the directory does not say whether a portal was given its port.
    pub(super) fn unique_names(&self) -> Vec<String> {
        let plugin = self.plugin.plugin().0;
        let names = match self.plugin {
            DiskPlugin::Iscsi => IscsiName::parse(&self.name).map(|of| {
                let name = |portal: &str| format!("{portal}:{}:{}", of.iqn, of.lun);
                let short = of.portal.strip_suffix(ISCSI_PORT).map(name);
                short.into_iter().chain([name(&of.portal)]).collect()
            }),
            DiskPlugin::Fc => FcName::parse(&self.name).map(|of| vec![of.unique_name()]),
        };
        let names: Vec<_> = names.unwrap_or_default();
        names.iter().map(|name| format!("{plugin}/{name}")).collect()
    }
}

fn directory(root: &KubeletRoot, plugin: DiskPlugin, is_block: bool) -> PathBuf {
    let mut path = root.path().join("plugins").join(plugin.plugin().0);
    if is_block {
        path.push(BLOCK_DIRECTORY);
    }
    path
}

/// The directories of all disks. Blocking.
///
/// # Errors
/// A directory cannot be read, so there may be more of them.
pub(super) fn list_all(root: &KubeletRoot) -> io::Result<Vec<DiskDir>> {
    let mut found = Vec::new();
    for plugin in DiskPlugin::ALL {
        found.extend(list(root, plugin)?);
    }
    Ok(found)
}

/// All disk directories of a plugin. Blocking.
///
/// # Errors
/// A directory cannot be read, so there may be more of them.
pub(super) fn list(root: &KubeletRoot, plugin: DiskPlugin) -> io::Result<Vec<DiskDir>> {
    let mut found = Vec::new();
    for is_block in [false, true] {
        let of = |iface, name| DiskDir { plugin, is_block, iface, name };
        let all = directory(root, plugin, is_block);
        for name in directories_in(&all)? {
            match (plugin, name.strip_prefix(IFACE)) {
                (DiskPlugin::Iscsi, Some(iface)) => {
                    let names = directories_in(&all.join(&name))?.into_iter();
                    found.extend(names.map(|name| of(Some(iface.to_owned()), name)));
                }
                (DiskPlugin::Fc, _) if name != BLOCK_DIRECTORY => found.push(of(None, name)),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// The names of the directories in one, as its entries say: a mounted file system is not asked. None if it is missing.
fn directories_in(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in if_exists(fs::read_dir(directory))?.into_iter().flatten() {
        let entry = entry?;
        if if_exists(entry.file_type())?.is_some_and(|kind| kind.is_dir()) {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

/// A portal with the default port if it has none.
pub(super) fn with_port(portal: &str) -> String {
    if portal.contains(':') {
        return portal.to_owned();
    }
    format!("{portal}{ISCSI_PORT}")
}

/// The directory name of an iSCSI disk.
pub(super) fn iscsi_name(portal: &str, iqn: &str, lun: i32) -> String {
    format!("{portal}-{iqn}{LUN}{lun}")
}

/// What an iSCSI disk's directory name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IscsiName {
    pub(super) portal: String,
    pub(super) iqn: String,
    pub(super) lun: i32,
}

impl IscsiName {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (target, lun) = name.rsplit_once(LUN)?;
        let kinds = ["-iqn.", "-eui.", "-naa."];
        let at = kinds.iter().filter_map(|kind| target.find(kind)).min()?;
        let (portal, iqn) = target.split_at_checked(at)?;
        Some(Self {
            portal: portal.to_owned(),
            iqn: iqn.strip_prefix('-')?.to_owned(),
            lun: lun.parse().ok()?,
        })
    }
}

/// How a Fibre Channel disk is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FcName {
    /// By the names of target ports, and the logical unit.
    Ports(Vec<String>, i32),
    /// By the names of the logical unit.
    Units(Vec<String>),
}

impl FcName {
    /// Parses the name of a directory.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let parts = |text: &str| text.split('-').map(str::to_owned).collect::<Vec<_>>();
        let found = match name.rsplit_once(LUN) {
            Some((ports, lun)) => Self::Ports(parts(ports), lun.parse().ok()?),
            None => Self::Units(parts(name)),
        };
        let (Self::Ports(names, _) | Self::Units(names)) = &found;
        names.iter().all(|name| !name.is_empty()).then_some(found)
    }

    /// The name of the directory.
    pub(super) fn directory(&self) -> String {
        match self {
            Self::Ports(ports, lun) => format!("{}{LUN}{lun}", ports.join("-")),
            Self::Units(units) => units.join("-"),
        }
    }

    /// The unique name without the plugin: a list as Go prints it.
    pub(super) fn unique_name(&self) -> String {
        match self {
            Self::Ports(ports, lun) => format!("[{}]:{lun}", ports.join(" ")),
            Self::Units(units) => format!("[{}]", units.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iscsi(portal: &str, iqn: &str, lun: i32) -> IscsiName {
        IscsiName { portal: portal.to_owned(), iqn: iqn.to_owned(), lun }
    }

    #[test]
    fn the_name_of_a_directory_says_which_iscsi_disk_it_is() {
        for (name, expected) in [
            (
                "10.0.0.1:3260-iqn.2001-04.com.example:a-lun-0",
                Some(iscsi("10.0.0.1:3260", "iqn.2001-04.com.example:a", 0)),
            ),
            (
                "a-b.c:1-iqn.2001-04.com.example:x-lun-1-lun-22",
                Some(iscsi("a-b.c:1", "iqn.2001-04.com.example:x-lun-1", 22)),
            ),
            (
                "[fd00::1]:3260-eui.0123456789abcdef-lun-1",
                Some(iscsi("[fd00::1]:3260", "eui.0123456789abcdef", 1)),
            ),
            ("10.0.0.1:3260-naa.1-lun-1", Some(iscsi("10.0.0.1:3260", "naa.1", 1))),
            ("10.0.0.1:3260-iqn.x-lun-", None),
            ("10.0.0.1:3260-iqn.x", None),
            ("10.0.0.1:3260-x-lun-1", None),
            ("", None),
        ] {
            assert_eq!(IscsiName::parse(name), expected, "{name}");
            if let Some(parsed) = expected {
                assert_eq!(iscsi_name(&parsed.portal, &parsed.iqn, parsed.lun), name);
            }
        }
        assert_eq!(with_port("10.0.0.1"), "10.0.0.1:3260");
        assert_eq!(with_port("10.0.0.1:1"), "10.0.0.1:1");
    }

    #[test]
    fn the_name_of_a_directory_says_which_fibre_channel_disk_it_is() {
        let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        for (name, expected, unique) in [
            ("500a-500b-lun-2", FcName::Ports(strings(&["500a", "500b"]), 2), "[500a 500b]:2"),
            ("500a-lun-0", FcName::Ports(strings(&["500a"]), 0), "[500a]:0"),
            ("3600508b4", FcName::Units(strings(&["3600508b4"])), "[3600508b4]"),
            ("a_b-c", FcName::Units(strings(&["a_b", "c"])), "[a_b c]"),
        ] {
            assert_eq!(FcName::parse(name), Some(expected.clone()), "{name}");
            assert_eq!(expected.directory(), name);
            assert_eq!(expected.unique_name(), unique);
        }
        for name in ["", "-lun-1", "a--b", "a-lun-x"] {
            assert_eq!(FcName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn directories_are_upstreams_and_found_again() {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(base.path()).unwrap();
        let iqn = "10.0.0.1:3260-iqn.2001-04.com.example:a-lun-0";
        for (path, plugin, names) in [
            (
                format!("iscsi/iface-default/{iqn}"),
                DiskPlugin::Iscsi,
                &[
                    "kubernetes.io/iscsi/10.0.0.1:iqn.2001-04.com.example:a:0",
                    "kubernetes.io/iscsi/10.0.0.1:3260:iqn.2001-04.com.example:a:0",
                ][..],
            ),
            (
                "iscsi/volumeDevices/iface-10.0.0.1:1:pv/10.0.0.1:1-iqn.x-lun-1".to_owned(),
                DiskPlugin::Iscsi,
                &["kubernetes.io/iscsi/10.0.0.1:1:iqn.x:1"],
            ),
            ("fc/500a-lun-1".to_owned(), DiskPlugin::Fc, &["kubernetes.io/fc/[500a]:1"]),
            ("fc/volumeDevices/3600".to_owned(), DiskPlugin::Fc, &["kubernetes.io/fc/[3600]"]),
        ] {
            let all = root.path().join("plugins/kubernetes.io");
            fs::create_dir_all(all.join(&path)).unwrap();
            fs::write(all.join("iscsi").join("file"), "").unwrap_or_default();
            let found = list(&root, plugin).unwrap();
            assert_eq!(found.len(), 1, "{path}");
            assert_eq!(found[0].path(&root), all.join(&path));
            assert_eq!(found[0].unique_names(), names);
            assert_eq!(found[0].is_block, path.contains(BLOCK_DIRECTORY));
            fs::remove_dir_all(all).unwrap();
        }
    }
}
