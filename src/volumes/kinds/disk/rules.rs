//! How a disk is formatted, checked and mounted. Pure.
//!
//! Upstream: `SafeFormatAndMount` of `k8s.io/mount-utils`.

use crate::host::ProgramEnd;
use crate::volumes::kinds::programs::{output, status};
use std::collections::BTreeSet;

/// The file system of volumes without `fsType`.
const DEFAULT_FS_TYPE: &str = "ext4";
/// The format reported for a device with partitions: it is not formatted, and mounting it fails.
const PARTITIONS: &str = "unknown data, probably partitions";

/// The file system type for mounting a device. `None` if it is not a valid name.
pub(in crate::volumes::kinds) fn fs_type(wanted: Option<&str>) -> Option<String> {
    let wanted = wanted.filter(|it| !it.is_empty());
    let fs_type = wanted.unwrap_or(DEFAULT_FS_TYPE);
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    // It becomes part of a program name (`mkfs.<type>`).
    let is_name = fs_type.starts_with(|c: char| c.is_ascii_alphanumeric());
    (is_name && fs_type.chars().all(is_of_name)).then(|| fs_type.to_owned())
}

/// The arguments of `blkid` that prints the format of a device.
pub(super) fn probe_args(device: &str) -> Vec<String> {
    strings(&["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device])
}

/// Parses the output of `blkid`: `None` if the device is not formatted.
///
/// # Errors
/// `blkid` failed, or its output cannot be parsed.
pub(super) fn format_of(end: &ProgramEnd) -> Result<Option<String>, String> {
    match end.code {
        Some(0) => {}
        Some(2) if output(end).trim().is_empty() => return Ok(None),
        _ => return Err(status(end)),
    }
    let (mut format, mut has_partitions) = (None, false);
    for line in end.stdout.lines().filter(|line| !line.is_empty()) {
        match line.split_once('=') {
            Some(("TYPE", value)) => format = Some(value.to_owned()),
            Some(("PTTYPE", value)) => has_partitions |= !value.is_empty(),
            Some(_) => {}
            None => return Err(format!("blkid returns invalid output: {}", end.stdout)),
        }
    }
    if has_partitions {
        return Ok(Some(PARTITIONS.to_owned()));
    }
    // It may hold data, so it is not formatted.
    let format = format.ok_or("blkid found something without a type")?;
    Ok(Some(format))
}

/// What is done with a device before it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceStep {
    /// It is empty: a file system is created.
    Format,
    /// Its file system is checked, and repaired where that is safe (`fsck -a`).
    Check,
    Nothing,
}

/// Decides by the device's format (`found`). A device with any content is never formatted. `None` for an empty device
/// that is mounted read-only, which cannot be used.
pub(super) fn device_step(found: Option<&str>, read_only: bool) -> Option<DeviceStep> {
    match (found, read_only) {
        (None, true) => None,
        (None, false) => Some(DeviceStep::Format),
        (Some(_), true) => Some(DeviceStep::Nothing),
        (Some(_), false) => Some(DeviceStep::Check),
    }
}

/// The program and arguments that format a device.
pub(super) fn format_command(fs_type: &str, device: &str) -> (String, Vec<String>) {
    let args = match fs_type {
        "ext3" | "ext4" => strings(&["-F", "-m0", device]),
        "xfs" => strings(&["-f", device]),
        _ => strings(&[device]),
    };
    (format!("mkfs.{fs_type}"), args)
}

/// The arguments of `fsck`.
pub(super) fn check_args(device: &str) -> Vec<String> {
    strings(&["-a", device])
}

/// Whether `fsck` left errors uncorrected; the device is not mounted then.
pub(super) fn has_errors_left(end: &ProgramEnd) -> bool {
    end.code == Some(4)
}

/// The options for mounting a device.
pub(in crate::volumes::kinds) fn device_options(
    options: &[String],
    read_only: bool,
) -> Vec<String> {
    let mut all: BTreeSet<&str> = options.iter().map(String::as_str).collect();
    if read_only {
        all.insert("ro");
    }
    let all = all.into_iter().chain(["defaults"]);
    all.map(str::to_owned).collect()
}

/// Whether the options make the mount read-only.
pub(super) fn is_read_only(options: &[String]) -> bool {
    options.iter().any(|option| option == "ro")
}

/// The arguments of `mount` for a device.
pub(super) fn mount_args(
    device: &str,
    fs_type: &str,
    options: &[String],
    target: &str,
) -> Vec<String> {
    strings(&["-t", fs_type, "-o", &options.join(","), device, target])
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(code: i32, stdout: &str, stderr: &str) -> ProgramEnd {
        ProgramEnd { code: Some(code), stdout: stdout.into(), stderr: stderr.into() }
    }

    #[test]
    fn a_file_system_is_ext4_unless_it_has_a_name_and_a_name_is_no_path() {
        for (wanted, expected) in [
            (None, Some("ext4")),
            (Some(""), Some("ext4")),
            (Some("xfs"), Some("xfs")),
            (Some("../../bin/sh"), None),
            (Some("ext4 -n"), None),
            (Some("-x"), None),
        ] {
            assert_eq!(fs_type(wanted).as_deref(), expected, "{wanted:?}");
        }
    }

    #[test]
    fn what_blkid_says_is_the_format_of_a_device() {
        let partitions = Some(PARTITIONS.to_owned());
        for (found, expected) in [
            (end(2, "", ""), Ok(None)),
            (end(0, "DEVNAME=/dev/x\nTYPE=xfs\n", ""), Ok(Some("xfs".to_owned()))),
            (end(0, "PTTYPE=gpt\n", ""), Ok(partitions.clone())),
            (end(0, "TYPE=vfat\nPTTYPE=dos\n", ""), Ok(partitions)),
            (
                end(0, "DEVNAME=/dev/x\n", ""),
                Err("blkid found something without a type".to_owned()),
            ),
            (end(2, "odd", ""), Err("exit status 2".to_owned())),
            (end(0, "odd", ""), Err("blkid returns invalid output: odd".to_owned())),
            (end(2, "", "blkid: I/O error"), Err("exit status 2".to_owned())),
            // Several signatures: it is not known which one holds.
            (end(8, "", ""), Err("exit status 8".to_owned())),
            (ProgramEnd { code: None, ..end(0, "", "") }, Err("it was killed".to_owned())),
        ] {
            assert_eq!(format_of(&found), expected, "{found:?}");
        }
    }

    #[test]
    fn only_an_empty_device_that_is_written_to_is_formatted() {
        for (found, read_only, expected) in [
            (None, false, Some(DeviceStep::Format)),
            (None, true, None),
            (Some("ext4"), false, Some(DeviceStep::Check)),
            (Some("xfs"), false, Some(DeviceStep::Check)),
            (Some(PARTITIONS), false, Some(DeviceStep::Check)),
            (Some("ext4"), true, Some(DeviceStep::Nothing)),
        ] {
            let text = format!("{found:?} {read_only}");
            assert_eq!(device_step(found, read_only), expected, "{text}");
        }
    }

    #[test]
    fn programs_are_called_as_upstream_calls_them() {
        let joined = |args: Vec<String>| args.join(" ");
        for (fs_type, expected) in [
            ("ext4", "mkfs.ext4 -F -m0 /dev/x"),
            ("ext3", "mkfs.ext3 -F -m0 /dev/x"),
            ("xfs", "mkfs.xfs -f /dev/x"),
            ("btrfs", "mkfs.btrfs /dev/x"),
        ] {
            let (program, args) = format_command(fs_type, "/dev/x");
            assert_eq!(format!("{program} {}", joined(args)), expected);
        }
        let options = strings(&["noatime", "discard"]);
        let device = device_options(&options, true);
        assert!(is_read_only(&device) && !is_read_only(&device_options(&options, false)));
        assert_eq!(
            joined(mount_args("/dev/x", "ext4", &device, "/g")),
            "-t ext4 -o discard,noatime,ro,defaults /dev/x /g"
        );
        assert!(has_errors_left(&end(4, "", "")));
        for code in [0, 1, 2, 8, 16, 32] {
            assert!(!has_errors_left(&end(code, "", "")), "{code}");
        }
    }
}
