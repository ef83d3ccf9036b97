//! A disk of the machine, for tests; those of a real cluster have it by its path.

use std::process::Command;

/// An empty disk of 64 MiB: a loop device, until it is dropped.
pub(super) struct Disk {
    pub(super) device: String,
    _image: tempfile::NamedTempFile,
}

impl Disk {
    /// `None`, with a warning, where this machine has none to give.
    pub(super) fn new() -> Option<Self> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(64 << 20).unwrap();
        let path = image.path().to_str().unwrap();
        let attached = Command::new("losetup").args(["-f", "--show", path]).output();
        match attached {
            Ok(output) if output.status.success() => Some(Self {
                device: String::from_utf8(output.stdout).unwrap().trim().to_owned(),
                _image: image,
            }),
            failed => {
                assert!(std::env::var_os("CI").is_none(), "{failed:?}");
                eprintln!("SKIPPED, no loop device here: {failed:?}");
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}
