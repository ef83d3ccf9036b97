//! Parses `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount point.
    pub mount_point: PathBuf,
    /// The numbers of the device of the file system, such as `98:0`.
    pub device: String,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// File system type, such as `tmpfs`.
    pub fs_type: String,
    /// The mount source, such as a device.
    pub source: String,
}

impl MountEntry {
    /// Whether the mount point is the directory or below it.
    pub fn is_beneath(&self, directory: &Path) -> bool {
        self.mount_point.starts_with(directory)
    }
}

/// Parses the file in its order, which is that of mounting; invalid lines are skipped.
pub fn parse_mountinfo(text: &[u8]) -> Vec<MountEntry> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda1 rw`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = OsString::from_vec(unescape(rest.next()?));
    Some(MountEntry {
        mount_point: OsString::from_vec(mount_point).into(),
        device,
        root: OsString::from_vec(root).into(),
        fs_type,
        source: source.to_string_lossy().into_owned(),
    })
}

/// Decodes the kernel's octal escapes (`\040`) of spaces, tabs, line breaks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| tail.first_chunk::<3>())
            .flatten()
            .and_then(|digits| {
                digits.iter().try_fold(0_u32, |value, digit| {
                    let digit = char::from(*digit).to_digit(8)?;
                    Some(value * 8 + digit)
                })
            })
            .and_then(|value| u8::try_from(value).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}
