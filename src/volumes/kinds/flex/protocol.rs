//! What flexVolume drivers are given and answer. Pure.
//!
//! Upstream: `pkg/volume/flexvolume`.

use crate::host::ProgramEnd;
use crate::volumes::kinds::programs::status;
use crate::volumes::paths::MOUNTS;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Beginning of the directories of upstream's own plugins.
const IN_TREE: &str = "kubernetes.io~";
/// How many characters of a driver's message an error repeats.
const SHOWN: usize = 1024;

/// The name of a driver, `<vendor>/<driver>` or `<driver>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DriverName(String);

impl DriverName {
    /// `None` if it cannot be a driver's: it becomes part of paths, plugins of the vendor `kubernetes.io` are upstream's, and
    /// the directory `mounts` of a vendor has the devices of the driver without a vendor.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let is_part =
            |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['~', '\0']);
        let parts: Vec<_> = name.split('/').collect();
        let is_name = match parts.as_slice() {
            [driver] => is_part(driver),
            ["kubernetes.io", _] | [_, MOUNTS] => false,
            [vendor, driver] => is_part(vendor) && is_part(driver),
            _ => false,
        };
        (is_name && name.len() <= 255).then(|| Self(name.to_owned()))
    }

    /// From the name of a directory, `<vendor>~<driver>`.
    pub(super) fn of_directory(directory: &str) -> Option<Self> {
        if directory.starts_with(IN_TREE) {
            return None;
        }
        Self::parse(&directory.replacen('~', "/", 1))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its directories.
    pub(super) fn directory(&self) -> String {
        self.0.replace('/', "~")
    }

    /// The name of its executable.
    pub(super) fn executable(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

/// What a driver can do, as `init` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Capabilities {
    /// Volumes are attached to the node, and mounted there once.
    pub(super) attach: bool,
    #[serde(rename = "selinuxRelabel")]
    pub(super) selinux_relabel: bool,
    pub(super) supports_metrics: bool,
    #[serde(rename = "fsGroup")]
    pub(super) fs_group: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { attach: true, selinux_relabel: true, supports_metrics: false, fs_group: true }
    }
}

/// The answer of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    #[serde(deserialize_with = "or_default")]
    status: String,
    #[serde(deserialize_with = "or_default")]
    message: String,
    /// The path of the attached device.
    #[serde(deserialize_with = "or_default")]
    pub(super) device: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) capabilities: Capabilities,
}

fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Why a call has no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// The driver leaves the call to the kubelet.
    NotSupported,
    /// Upstream's text.
    Failed(String),
}

/// Reads the answer of a driver to a call.
pub(super) fn read_answer(call: &str, end: &ProgramEnd) -> Result<Answer, CallError> {
    let answer: Answer = match serde_json::from_str(&end.stdout) {
        Ok(answer) => answer,
        // The output may have a secret.
        Err(error) => {
            let status = status(end);
            let why = format!("{call} command failed, {status}, its output is no answer: {error}");
            return Err(CallError::Failed(why));
        }
    };
    match answer.status.as_str() {
        "Not supported" => Err(CallError::NotSupported),
        "Success" if end.code == Some(0) => Ok(answer),
        "Success" => Err(CallError::Failed(status(end))),
        status => {
            let shown = |text: &str| text.chars().take(SHOWN).collect::<String>();
            let (status, message) = (shown(status), shown(&answer.message));
            let why = format!("{call} command failed, status: {status}, reason: {message}");
            Err(CallError::Failed(why))
        }
    }
}

/// The options of a volume, which nearly all calls are given as JSON. `more` is what only `mount` is given.
pub(super) fn options<'a>(
    fs_type: &str,
    read_only: bool,
    volume: &str,
    more: impl IntoIterator<Item = (String, String)>,
    own: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> String {
    let access = if read_only { "ro" } else { "rw" };
    let own = own.into_iter().map(|(key, value)| (key.clone(), value.clone()));
    let base = [("fsType", fs_type), ("readwrite", access), ("pvOrVolumeName", volume)];
    let base = base.map(|(key, value)| (format!("kubernetes.io/{key}"), value.to_owned()));
    let all = base.into_iter().chain(more).chain(own);
    let all: Map<_, _> = all.map(|(key, value)| (key, Value::from(value))).collect();
    Value::from(all).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_driver_has_a_directory_of_its_own_and_never_that_of_a_plugin() {
        for (name, directory, executable) in [
            ("k8s/nfs", "k8s~nfs", "nfs"),
            ("foo", "foo", "foo"),
            ("example.com/lvm", "example.com~lvm", "lvm"),
        ] {
            let driver = DriverName::parse(name).unwrap();
            assert_eq!((&*driver.directory(), driver.executable()), (directory, executable));
            assert_eq!(DriverName::of_directory(directory), Some(driver));
        }
        for name in [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "../x",
            "a/..",
            ".a",
            "a~b",
            "kubernetes.io/nfs",
            "acme/mounts",
        ] {
            assert_eq!(DriverName::parse(name), None, "{name}");
        }
        for directory in
            ["kubernetes.io~nfs", "kubernetes.io~rbd", "acme~mounts", "a~b~c", ".x", ""]
        {
            assert_eq!(DriverName::of_directory(directory), None, "{directory}");
        }
    }

    #[test]
    fn the_answer_of_a_driver_is_its_status_or_a_reason() {
        let failed = |why: &str| Err(CallError::Failed(why.to_owned()));
        for (code, stdout, expected) in [
            (
                0,
                json!({"status": "Success", "device": "/dev/x"}),
                Ok(("/dev/x", Capabilities::default())),
            ),
            (
                0,
                json!({"status": "Success", "message": null, "capabilities": {"attach": false, "fsGroup": false,
                    "selinuxRelabel": false, "supportsMetrics": true, "requiresFSResize": true}}),
                Ok((
                    "",
                    Capabilities {
                        attach: false,
                        selinux_relabel: false,
                        supports_metrics: true,
                        fs_group: false,
                    },
                )),
            ),
            (1, json!({"status": "Not supported"}), Err(CallError::NotSupported)),
            (
                1,
                json!({"status": "Failure", "message": "no disk"}),
                failed("mount command failed, status: Failure, reason: no disk"),
            ),
            (
                0,
                json!({"status": "Failure"}),
                failed("mount command failed, status: Failure, reason: "),
            ),
            // The exit code counts, too.
            (3, json!({"status": "Success"}), failed("exit status 3")),
            (0, json!({}), failed("mount command failed, status: , reason: ")),
        ] {
            let end =
                ProgramEnd { code: Some(code), stdout: stdout.to_string(), stderr: "noise".into() };
            let answer = read_answer("mount", &end);
            let answer = answer.as_ref().map(|it| (&*it.device, it.capabilities));
            assert_eq!(answer.map_err(Clone::clone), expected, "{stdout}");
        }
        for stdout in ["", "odd", "{\"status\": 1}"] {
            let end =
                ProgramEnd { code: Some(126), stdout: stdout.into(), ..ProgramEnd::default() };
            let Err(CallError::Failed(why)) = read_answer("init", &end) else {
                panic!("{stdout}");
            };
            assert!(why.starts_with("init command failed, exit status 126"), "{why}");
        }
    }

    #[test]
    fn the_options_of_a_volume_win_over_those_of_the_kubelet() {
        let own = [("kubernetes.io/readwrite", "odd"), ("share", "a")];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let more = [("kubernetes.io/pod.name".to_owned(), "web".to_owned())];
        let own = own.iter().map(|(key, value)| (key, value));
        let text = options("ext4", true, "v", more, own);
        let expected = json!({"kubernetes.io/fsType": "ext4", "kubernetes.io/pod.name": "web",
            "kubernetes.io/pvOrVolumeName": "v", "kubernetes.io/readwrite": "odd", "share": "a"});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        let text = options("", false, "v", [], []);
        assert!(text.contains("\"kubernetes.io/readwrite\":\"rw\""), "{text}");
    }
}
