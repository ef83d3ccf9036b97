//! The identity of the machine and its operating system.

use std::fs;

/// Identifiers and names that do not change while the machine runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineIdentity {
    /// ID of the operating system installation (`/etc/machine-id`).
    pub machine_id: String,
    /// ID of the hardware or virtual machine.
    pub system_uuid: String,
    /// Name of the distribution, as in `PRETTY_NAME`.
    pub os_image: String,
}

impl MachineIdentity {
    /// Reads the identity. Blocking. Values that are not available are empty.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let first = |paths: &[&str]| {
            // Strings of the device tree end with a NUL byte.
            let mut texts =
                paths.iter().map(|path| text(path).trim_matches(['\0', ' ', '\n']).to_owned());
            texts.find(|text| !text.is_empty()).unwrap_or_default()
        };
        Self {
            machine_id: first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]),
            system_uuid: first(&[
                "/sys/class/dmi/id/product_uuid",
                "/proc/device-tree/system-id",
                "/proc/device-tree/vm,uuid",
                "/etc/machine-id",
            ]),
            os_image: pretty_name(&first(&["/etc/os-release", "/usr/lib/os-release"])).to_owned(),
        }
    }
}

fn pretty_name(os_release: &str) -> &str {
    let mut lines = os_release.lines();
    let name = lines.find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_system_is_read_without_its_quotes() {
        assert_eq!(pretty_name("ID=x\nPRETTY_NAME=\"A B\"\n"), "A B");
        assert_eq!(pretty_name("PRETTY_NAME='A B'"), "A B");
        assert_eq!(pretty_name(""), "");
    }
}
