//! What an iSCSI volume says, upstream's file about its disk, and what `iscsiadm` prints. Pure.
//!
//! Upstream: `pkg/volume/iscsi/iscsi_util.go`.

use crate::volumes::disk_dirs::{self, DiskDir, DiskPlugin, IscsiName};
use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Upstream's file about a disk, in its directory.
pub(super) const FILE: &str = "iscsi.json";
/// A secret's keys for target discovery.
pub(super) const DISCOVERY_KEYS: [&str; 4] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
];
/// The keys of a secret for sessions.
pub(super) const SESSION_KEYS: [&str; 4] = [
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];
/// The transport whose links have no PCI address.
const TCP: &str = "tcp";
const DEFAULT_IFACE: &str = "default";

/// A volume's source as pods and PersistentVolumes have it. Recorded for claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IscsiSource {
    target_portal: String,
    #[serde(default)]
    portals: Vec<String>,
    iqn: String,
    lun: i32,
    iscsi_interface: Option<String>,
    initiator_name: Option<String>,
    pub(super) fs_type: Option<String>,
    #[serde(default)]
    pub(super) read_only: bool,
    #[serde(default)]
    chap_auth_discovery: bool,
    #[serde(default)]
    chap_auth_session: bool,
    secret_ref: Option<SecretReference>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SecretReference {
    #[serde(default)]
    name: String,
    namespace: Option<String>,
}

/// A disk of an iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IscsiDisk {
    /// Name of the PersistentVolume, or of the pod's volume.
    name: String,
    target_portal: String,
    /// With their ports; at least one.
    pub(super) portals: Vec<String>,
    pub(super) iqn: String,
    pub(super) lun: i32,
    /// The interface that is configured, which has the transport.
    pub(super) init_iface: String,
    /// The sessions' interface: the same, or its copy with another initiator name.
    pub(super) iface: String,
    pub(super) initiator_name: Option<String>,
    pub(super) chap_discovery: bool,
    pub(super) chap_session: bool,
    /// Namespace and name of the secret, if it is used.
    pub(super) secret: Option<(String, String)>,
}

impl IscsiDisk {
    /// The disk of a volume with this name. `namespace` is for a secret that names none.
    pub(super) fn new(name: &str, namespace: &str, source: &IscsiSource) -> Self {
        let portals = std::iter::once(&source.target_portal).chain(&source.portals);
        let portals: Vec<_> = portals.map(|it| disk_dirs::with_port(it)).collect();
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let init_iface = given(&source.iscsi_interface);
        let init_iface = init_iface.unwrap_or_else(|| DEFAULT_IFACE.to_owned());
        let initiator_name = given(&source.initiator_name);
        let iface = match (&initiator_name, portals.first()) {
            (Some(_), Some(portal)) => format!("{portal}:{name}"),
            _ => init_iface.clone(),
        };
        let uses_secret = source.chap_auth_discovery || source.chap_auth_session;
        let secret = source.secret_ref.as_ref().filter(|_| uses_secret);
        let secret = secret.filter(|secret| !secret.name.is_empty()).map(|secret| {
            let own = given(&secret.namespace);
            (own.unwrap_or_else(|| namespace.to_owned()), secret.name.clone())
        });
        Self {
            name: name.to_owned(),
            target_portal: source.target_portal.clone(),
            portals,
            iqn: source.iqn.clone(),
            lun: source.lun,
            init_iface,
            iface,
            initiator_name,
            chap_discovery: source.chap_auth_discovery,
            chap_session: source.chap_auth_session,
            secret,
        }
    }

    /// Its directory.
    ///
    /// # Errors
    /// Its names cannot be those of files, or would not be found again.
    pub(super) fn dir(&self, is_block: bool) -> anyhow::Result<DiskDir> {
        let portal = self.portals.first().map_or("", String::as_str);
        let name = disk_dirs::iscsi_name(portal, &self.iqn, self.lun);
        let expected =
            IscsiName { portal: portal.to_owned(), iqn: self.iqn.clone(), lun: self.lun };
        if IscsiName::parse(&name).as_ref() != Some(&expected) {
            let (portal, iqn) = (&self.target_portal, &self.iqn);
            return Err(anyhow!("targetPortal {portal:?} and iqn {iqn:?} name no target"));
        }
        crate::volumes::component(&name)?;
        crate::volumes::component(&format!("iface-{}", self.iface))?;
        Ok(DiskDir { plugin: DiskPlugin::Iscsi, is_block, iface: Some(self.iface.clone()), name })
    }

    /// Upstream's unique name of the volume.
    pub(super) fn unique_name(&self) -> String {
        let plugin = DiskPlugin::Iscsi.plugin().0;
        let (portal, iqn, lun) = (&self.target_portal, &self.iqn, self.lun);
        format!("{plugin}/{portal}:{iqn}:{lun}")
    }

    /// What upstream's file says.
    pub(super) fn to_file(&self) -> IscsiFile {
        IscsiFile {
            vol_name: self.name.clone(),
            portals: Some(self.portals.clone()),
            iqn: self.iqn.clone(),
            lun: self.lun.to_string(),
            init_iface: self.init_iface.clone(),
            iface: self.iface.clone(),
            initiator_name: self.initiator_name.clone().unwrap_or_default(),
            metrics_provider: (),
        }
    }

    /// Which of these names under `by-path` is the link to the disk by this portal.
    pub(super) fn link(&self, portal: &str, transport: &str, names: &[String]) -> Option<String> {
        // Links have no brackets around addresses.
        let portal = portal.replace(['[', ']'], "");
        let link = format!("ip-{portal}-iscsi-{}-lun-{}", self.iqn, self.lun);
        let suffix = format!("-{link}");
        let mut names = names.iter();
        let found = if transport == TCP {
            names.find(|name| **name == link)
        } else {
            names.find(|name| name.starts_with("pci-") && name.ends_with(&suffix))
        };
        found.cloned()
    }
}

/// Upstream's file about a disk; [`FILE`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct IscsiFile {
    vol_name: String,
    portals: Option<Vec<String>>,
    iqn: String,
    lun: String,
    init_iface: String,
    iface: String,
    initiator_name: String,
    #[serde(skip_deserializing)]
    metrics_provider: (),
}

impl IscsiFile {
    pub(super) fn text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }
}

/// The sessions that a disk has had.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IscsiLogin {
    pub(super) portals: Vec<String>,
    pub(super) iqn: String,
    pub(super) iface: String,
    /// The interface was made for the disk.
    pub(super) is_own_iface: bool,
}

impl IscsiLogin {
    /// By the directory of the disk, and what its file says. `None` if the directory has another name.
    pub(super) fn of(dir: &DiskDir, file: Option<&IscsiFile>) -> Option<Self> {
        let name = IscsiName::parse(&dir.name)?;
        let iface = dir.iface.clone()?;
        let mut portals = vec![name.portal];
        // A file of another disk says nothing about this one.
        let file = file.filter(|file| file.iqn == name.iqn && file.iface == iface);
        for portal in file.and_then(|file| file.portals.as_deref()).unwrap_or_default() {
            if !portal.is_empty() && !portals.contains(portal) {
                portals.push(portal.clone());
            }
        }
        let is_own_iface = file.is_some_and(|file| {
            let own = portals.first().map(|portal| format!("{portal}:{}", file.vol_name));
            !file.initiator_name.is_empty() && own.as_ref() == Some(&iface)
        });
        Some(Self { portals, iqn: name.iqn, iface, is_own_iface })
    }
}

/// The transport of an interface, as `iscsiadm -m iface -o show` prints it.
pub(super) fn transport(shown: &str) -> Option<String> {
    let mut lines = shown.lines();
    let value = lines.find_map(|line| line.trim().strip_prefix("iface.transport_name = "))?;
    Some(match value.trim() {
        "<empty>" => TCP.to_owned(),
        value => value.to_owned(),
    })
}

/// The settings of an interface that its copy gets, with the initiator's name.
///
/// # Errors
/// The output has no form.
pub(super) fn iface_settings(
    shown: &str,
    initiator_name: &str,
) -> Result<BTreeMap<String, String>, String> {
    let mut settings = BTreeMap::new();
    let lines = shown.lines().filter(|line| line.starts_with("iface."));
    for line in lines.filter(|line| !line.contains("<empty>")) {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[key, "=", value] = fields.as_slice() else {
            return Err(format!("error: invalid iface setting: {line}"));
        };
        // The name of an interface never changes.
        if key != "iface.iscsi_ifacename" {
            settings.insert(key.to_owned(), value.to_owned());
        }
    }
    let key = "iface.initiatorname".to_owned();
    settings.insert(key, initiator_name.to_owned());
    Ok(settings)
}

/// An output without the values of a secret.
pub(super) fn redacted(text: String, secret: &BTreeMap<String, String>) -> String {
    let mut hidden: Vec<_> = secret.values().filter(|value| !value.is_empty()).collect();
    // A value may be a part of another one.
    hidden.sort_by_key(|value| std::cmp::Reverse(value.len()));
    hidden.into_iter().fold(text, |text, value| text.replace(value.as_str(), "***"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    const IQN: &str = "iqn.2001-04.com.example:a";

    fn disk(more: Value) -> IscsiDisk {
        let mut source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0});
        for (key, value) in more.as_object().unwrap() {
            source[key] = value.clone();
        }
        IscsiDisk::new("pv1", "ns", &from_value(source).unwrap())
    }

    #[test]
    fn a_disk_has_upstreams_names() {
        let plain = disk(json!({}));
        assert_eq!(plain.unique_name(), format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:0"));
        let dir = plain.dir(false).unwrap();
        assert_eq!(dir.name, format!("10.0.0.1:3260-{IQN}-lun-0"));
        assert_eq!(dir.iface.as_deref(), Some("default"));
        let own =
            disk(json!({"initiatorName": "iqn.x:y", "iscsiInterface": "i", "portals": ["h:1"],
            "targetPortal": "10.0.0.2:1"}));
        assert_eq!(own.iface, "10.0.0.2:1:pv1");
        assert_eq!((&*own.init_iface, &*own.portals[1]), ("i", "h:1"));
        for (key, value) in [
            ("iqn", "iqn.a/b"),
            ("iqn", "x"),
            ("targetPortal", "a-iqn.b"),
            ("targetPortal", "a/b"),
            ("iscsiInterface", "a/b"),
        ] {
            assert!(disk(json!({key: value})).dir(true).is_err(), "{value}");
        }
    }

    #[test]
    fn a_secret_is_used_only_for_authentication_and_may_have_a_namespace() {
        let named = |namespace: Value| json!({"name": "s", "namespace": namespace});
        let pair = |namespace: &str| Some((namespace.to_owned(), "s".to_owned()));
        for (discovery, session, secret, expected) in [
            (true, false, named(Value::Null), pair("ns")),
            (false, true, named("other".into()), pair("other")),
            (true, true, named("".into()), pair("ns")),
            (false, false, named(Value::Null), None),
            (true, true, Value::Null, None),
            (true, true, json!({}), None),
        ] {
            let given = json!({"chapAuthDiscovery": discovery, "chapAuthSession": session, "secretRef": secret});
            assert_eq!(disk(given.clone()).secret, expected, "{given}");
        }
    }

    #[test]
    fn the_file_is_that_of_a_go_kubelet_in_both_directions() {
        let own = disk(json!({"initiatorName": "iqn.x:y", "portals": ["10.0.0.2"]}));
        let file = own.to_file();
        let expected = concat!(
            r#"{"VolName":"pv1","Portals":["10.0.0.1:3260","10.0.0.2:3260"],"Iqn":"iqn.2001-04.com.example:a","#,
            r#""Lun":"0","InitIface":"default","Iface":"10.0.0.1:3260:pv1","InitiatorName":"iqn.x:y","MetricsProvider":null}"#,
            "\n"
        );
        assert_eq!(file.text().unwrap(), expected);
        let read: IscsiFile = serde_json::from_str(expected).unwrap();
        assert_eq!(read, file);
        let login = IscsiLogin::of(&own.dir(false).unwrap(), Some(&read)).unwrap();
        assert_eq!(login.portals, ["10.0.0.1:3260", "10.0.0.2:3260"]);
        assert_eq!((&*login.iface, login.is_own_iface), ("10.0.0.1:3260:pv1", true));
        // Without the file, the directory says enough for one portal.
        let login = IscsiLogin::of(&own.dir(true).unwrap(), None).unwrap();
        assert_eq!((login.portals.len(), &*login.iqn, login.is_own_iface), (1, IQN, false));
        // An older file lacks fields; one of another disk does not count.
        for odd in [
            "{}",
            r#"{"Portals":null,"Iqn":"iqn.2001-04.com.example:a"}"#,
            r#"{"Iqn":"iqn.other","Portals":["a:1"]}"#,
        ] {
            let file: IscsiFile = serde_json::from_str(odd).unwrap();
            let login = IscsiLogin::of(&own.dir(false).unwrap(), Some(&file)).unwrap();
            assert_eq!((login.portals.len(), login.is_own_iface), (1, false), "{odd}");
        }
    }

    #[test]
    fn a_disk_is_found_by_the_name_of_its_link() {
        let names = [
            format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-0"),
            format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-0-part1"),
            format!("ip-fd00::1:3260-iscsi-{IQN}-lun-0"),
            format!("pci-0000:04:00.0-ip-10.0.0.3:3260-iscsi-{IQN}-lun-0"),
        ];
        let disk = disk(json!({}));
        for (portal, transport, expected) in [
            ("10.0.0.1:3260", "tcp", Some(0)),
            ("[fd00::1]:3260", "tcp", Some(2)),
            ("10.0.0.3:3260", "tcp", None),
            ("10.0.0.3:3260", "bnx2i", Some(3)),
            ("10.0.0.1:3260", "bnx2i", None),
            ("0.0.0.3:3260", "bnx2i", None),
        ] {
            let found = disk.link(portal, transport, &names);
            assert_eq!(found, expected.map(|at: usize| names[at].clone()), "{portal} {transport}");
        }
    }

    #[test]
    fn the_output_about_an_interface_is_read_and_copied() {
        let shown = "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n\
            iface.transport_name = tcp\niface.initiatorname = <empty>\niface.mtu = 0\n# END RECORD\n";
        assert_eq!(transport(shown).as_deref(), Some("tcp"));
        assert_eq!(transport("iface.transport_name = <empty>\n").as_deref(), Some("tcp"));
        assert_eq!(transport("iface.transport_name = iser\n").as_deref(), Some("iser"));
        assert_eq!(transport("nothing"), None);
        let settings = iface_settings(shown, "iqn.x").unwrap();
        let settings: Vec<_> =
            settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            settings,
            ["iface.initiatorname=iqn.x", "iface.mtu=0", "iface.transport_name=tcp"]
        );
        assert!(iface_settings("iface.odd\n", "iqn.x").is_err());
    }

    #[test]
    fn no_value_of_a_secret_is_in_a_text() {
        let secret = [("a", "hush"), ("b", "hush-hush"), ("c", "")];
        let secret = secret.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let text = redacted("-v hush-hush and hush".to_owned(), &secret.into());
        assert_eq!(text, "-v *** and ***");
    }
}
