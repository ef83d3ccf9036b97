//! How a `local` volume is bind-mounted, and when its device is unmounted. Pure.
//!
//! Upstream: `pkg/volume/local`, and `MakeBindOpts` of `k8s.io/mount-utils`.

use crate::host::MountEntry;
use crate::volumes::VolumePlugin;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

/// How a `local` volume is mounted.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LocalMount {
    /// The file system type of a device.
    pub(super) fs_type: String,
    /// The mount options.
    pub(super) options: Vec<String>,
}

/// The arguments of `mount` that remounts a bind mount with options; `None` if there are none. A bind mount takes its
/// options only when remounted.
pub(in crate::volumes::kinds) fn bind_args(
    source: &str,
    options: &[String],
    read_only: bool,
    target: &str,
) -> Option<Vec<String>> {
    let mut own: BTreeSet<&str> = options.iter().map(String::as_str).collect();
    if read_only {
        own.insert("ro");
    }
    own.remove("bind");
    own.remove("remount");
    if own.is_empty() {
        return None;
    }
    let all: Vec<&str> = ["bind", "remount"].into_iter().chain(own).collect();
    Some(strings(&["-o", &all.join(","), source, target]))
}

/// Whether a pod other than the one with this directory has the volume mounted.
pub(super) fn is_bound(
    mounts: &[MountEntry],
    pods: &Path,
    volume: &str,
    but: Option<&Path>,
) -> bool {
    let is_other = |mount: &&MountEntry| !but.is_some_and(|but| mount.is_beneath(but));
    let mut bound = mounts.iter().filter(is_other);
    bound.any(|mount| bound_volume(mount, pods).is_some_and(|name| name == volume))
}

/// The volume that is bind-mounted there, if the path is `<pods>/<uid>/volumes/kubernetes.io~local-volume/<volume>`.
fn bound_volume<'m>(mount: &'m MountEntry, pods: &Path) -> Option<&'m OsStr> {
    let mut parts = mount.mount_point.strip_prefix(pods).ok()?.iter();
    let (_uid, volumes, plugin) = (parts.next()?, parts.next()?, parts.next()?);
    let name = parts.next()?;
    let is_volume = volumes == "volumes" && *plugin == *VolumePlugin::LOCAL.directory();
    (is_volume && parts.next().is_none()).then_some(name)
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_mount_takes_its_options_when_it_is_remounted() {
        let rebind = strings(&["remount", "bind", "noexec"]);
        for (options, read_only, expected) in [
            (&[][..], false, None),
            (&[], true, Some("-o bind,remount,ro /g /p")),
            (&rebind, true, Some("-o bind,remount,noexec,ro /g /p")),
        ] {
            let args = bind_args("/g", options, read_only, "/p").map(|args| args.join(" "));
            assert_eq!(args.as_deref(), expected);
        }
    }

    #[test]
    fn a_volume_is_bound_in_the_directories_of_pods_alone() {
        let mount = |path: &str| MountEntry {
            mount_point: path.into(),
            device: "0:1".into(),
            root: "/".into(),
            fs_type: "ext4".into(),
            source: "/dev/x".into(),
        };
        let mounts = [
            "/k/plugins/kubernetes.io/local-volume/mounts/b",
            "/k/pods/u1/volumes/kubernetes.io~local-volume/a",
            "/k/pods/u2/volumes/kubernetes.io~local-volume/c/below",
            "/k/pods/u2/volumes/kubernetes.io~csi/b",
            "/k/pods/u2/volume-subpaths/b/c/0",
            "/k/other/u2/volumes/kubernetes.io~local-volume/b",
        ]
        .map(mount);
        for (volume, but, expected) in [
            ("a", None, true),
            ("a", Some("u2"), true),
            ("a", Some("u1"), false),
            ("a", Some("u"), true),
            ("b", None, false),
            ("c", None, false),
        ] {
            let but = but.map(|uid| Path::new("/k/pods").join(uid));
            let found = is_bound(&mounts, Path::new("/k/pods"), volume, but.as_deref());
            assert_eq!(found, expected, "{volume} {but:?}");
        }
    }
}
