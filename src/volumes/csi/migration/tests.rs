use super::*;
use serde_json::{Value, json};

fn translated(spec: Value, metadata: Value) -> Value {
    let mut metadata = metadata;
    metadata["name"] = "pv1".into();
    let volume = json!({"metadata": metadata, "spec": spec});
    let volume = serde_json::from_value(volume).unwrap();
    let translated = persistent_volume(&volume).unwrap().unwrap();
    serde_json::to_value(translated.spec.unwrap()).unwrap()
}

fn csi(driver: &str, handle: &str, mut others: Value) -> Value {
    others["driver"] = driver.into();
    others["volumeHandle"] = handle.into();
    others
}

#[test]
fn a_persistent_volume_of_a_former_plugin_is_one_of_its_driver() {
    let secret = json!({"name": "azure-storage-account-acc-secret", "namespace": "sec"});
    for (source, metadata, expected) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1", "fsType": "ext4", "partition": 2,
                "readOnly": true}}),
            json!({}),
            csi(
                AWS_EBS,
                "vol-1",
                json!({"fsType": "ext4", "readOnly": true, "volumeAttributes": {"partition": "2"}}),
            ),
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-2"}}),
            json!({}),
            csi(AWS_EBS, "vol-2", json!({"volumeAttributes": {"partition": "0"}})),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "fsType": "xfs", "partition": 3, "readOnly": true}}),
            json!({"labels": {"topology.kubernetes.io/zone": "us-east1-a"}}),
            csi(
                GCE_PD,
                "projects/UNSPECIFIED/zones/us-east1-a/disks/d",
                json!({"fsType": "xfs", "readOnly": true, "volumeAttributes": {"partition": "3"}}),
            ),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            json!({"labels": {"failure-domain.beta.kubernetes.io/zone": "us-east1-a__us-east1-b"}}),
            csi(
                GCE_PD,
                "projects/UNSPECIFIED/regions/us-east1/disks/d",
                json!({"volumeAttributes": {"partition": ""}}),
            ),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            json!({}),
            csi(
                GCE_PD,
                "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
                json!({"volumeAttributes": {"partition": ""}}),
            ),
        ),
        (
            json!({"azureDisk": {"diskName": "n", "diskURI": "/subscriptions/s/disks/n", "cachingMode": "None",
                "fsType": "ext4", "kind": "Dedicated", "readOnly": true}}),
            json!({}),
            csi(
                AZURE_DISK,
                "/subscriptions/s/disks/n",
                json!({"fsType": "ext4", "readOnly": true,
                "volumeAttributes": {"cachingmode": "None", "fstype": "ext4", "kind": "Dedicated"}}),
            ),
        ),
        (
            json!({"azureDisk": {"diskName": "n", "diskURI": "u"}}),
            json!({}),
            csi(AZURE_DISK, "u", json!({"volumeAttributes": {"kind": "Managed"}})),
        ),
        (
            json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "secretNamespace": "sec",
                "shareName": "sh", "readOnly": true}}),
            json!({"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}}),
            csi(
                AZURE_FILE,
                "rg#acc#sh#pv1#sec",
                json!({"readOnly": true, "nodeStageSecretRef": secret,
                "volumeAttributes": {"sharename": "sh"}}),
            ),
        ),
        (
            json!({"azureFile": {"secretName": "other", "shareName": "sh"}, "claimRef": {"namespace": "ns"}}),
            json!({}),
            csi(
                AZURE_FILE,
                "#other#sh#pv1#ns",
                json!({"nodeStageSecretRef": {"name": "other", "namespace": "ns"},
                "volumeAttributes": {"sharename": "sh"}}),
            ),
        ),
        (
            json!({"cinder": {"volumeID": "c1", "fsType": "ext3", "readOnly": true}}),
            json!({}),
            csi(CINDER, "c1", json!({"fsType": "ext3", "readOnly": true})),
        ),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk", "fsType": "ext4", "storagePolicyName": "gold"}}),
            json!({}),
            csi(
                VSPHERE,
                "[ds] a/b.vmdk",
                json!({"fsType": "ext4", "volumeAttributes": {"storagepolicyname": "gold"}}),
            ),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p1", "fsType": "ext4", "readOnly": true}}),
            json!({}),
            csi(PORTWORX, "p1", json!({"fsType": "ext4"})),
        ),
    ] {
        let spec = translated(source.clone(), metadata);
        assert_eq!(spec["csi"], expected, "{source}");
        let kept = source.as_object().unwrap().keys().find(|key| *key != "claimRef").unwrap();
        assert_eq!(spec.get(kept), None, "{source}");
    }
    let other = json!({"metadata": {"name": "pv1"}, "spec": {"nfs": {"server": "s", "path": "/"}}});
    let other = serde_json::from_value(other).unwrap();
    assert_eq!(persistent_volume(&other).unwrap(), None);
}

#[test]
fn an_inline_volume_of_a_former_plugin_is_a_persistent_one_of_its_driver() {
    for (source, name, handle, mode) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}),
            "ebs.csi.aws.com-vol-1",
            "vol-1",
            READ_WRITE_ONCE,
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}),
            "pd.csi.storage.gke.io-d",
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            READ_ONLY_MANY,
        ),
        (
            json!({"azureDisk": {"diskName": "n", "diskURI": "/u/n"}}),
            "disk.csi.azure.com-n",
            "/u/n",
            READ_WRITE_ONCE,
        ),
        (
            json!({"azureFile": {"secretName": "x-azure-storage-account-a-secret", "shareName": "sh"}}),
            "#a#sh#v#ns",
            "#a#sh#v#ns",
            READ_WRITE_MANY,
        ),
        (
            json!({"cinder": {"volumeID": "c1"}}),
            "cinder.csi.openstack.org-c1",
            "c1",
            READ_WRITE_ONCE,
        ),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk"}}),
            "csi.vsphere.vmware.com-[ds] a~b.vmdk",
            "[ds] a/b.vmdk",
            READ_WRITE_ONCE,
        ),
        (
            json!({"portworxVolume": {"volumeID": "p", "readOnly": true}}),
            "pxd.portworx.com-p",
            "p",
            READ_ONLY_MANY,
        ),
    ] {
        let mut volume = source;
        volume["name"] = "v".into();
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let spec = inline_volume(&volume, "ns").unwrap().unwrap();
        assert_eq!((&*spec.spec_name, &*spec.handle()), (name, handle));
        let modes: Vec<_> = spec.access_modes.iter().map(|mode| mode.as_str()).collect();
        assert_eq!(modes, [mode], "{name}");
        assert!(spec.is_migrated && !spec.read_only, "{name}");
        assert_eq!(spec.unique_name(), format!("kubernetes.io/csi/{}^{handle}", spec.driver()));
    }
    let other: Volume = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap();
    assert_eq!(inline_volume(&other, "ns").unwrap(), None);
}

#[test]
fn a_gce_disk_is_for_one_node_unless_it_is_only_read() {
    for (modes, expected) in [
        (json!(["ReadWriteMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadWriteOnce", "ReadOnlyMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadOnlyMany", "ReadWriteMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadOnlyMany"]), json!(["ReadOnlyMany"])),
        (json!(null), json!(null)),
    ] {
        let spec = json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes});
        assert_eq!(translated(spec, json!({}))["accessModes"], expected, "{modes}");
    }
}

#[test]
fn zones_are_those_of_the_driver() {
    let affinity = |key: &str, values: Value| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": key, "operator": "In", "values": values}]}]}})
    };
    let ebs = json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let vsphere = json!({"vsphereVolume": {"volumePath": "p"}});
    let azure = json!({"azureDisk": {"diskName": "n", "diskURI": "u"}});
    for (source, before, labels, expected) in [
        (
            &ebs,
            affinity(topology::ZONE, json!(["a"])),
            json!({}),
            affinity("topology.ebs.csi.aws.com/zone", json!(["a"])),
        ),
        (
            &ebs,
            affinity(topology::BETA_ZONE, json!(["a"])),
            json!({}),
            affinity("topology.ebs.csi.aws.com/zone", json!(["a"])),
        ),
        // In the affinity or, without, in a label.
        (
            &ebs,
            json!(null),
            json!({topology::ZONE: "b__ a"}),
            affinity("topology.ebs.csi.aws.com/zone", json!(["a", "b"])),
        ),
        (
            &ebs,
            json!(null),
            json!({topology::BETA_ZONE: "a"}),
            affinity("topology.ebs.csi.aws.com/zone", json!(["a"])),
        ),
        (&ebs, affinity("other", json!(["x"])), json!({}), affinity("other", json!(["x"]))),
        (&ebs, json!(null), json!({}), json!(null)),
        (
            &vsphere,
            affinity("topology.kubernetes.io/region", json!(["r"])),
            json!({}),
            affinity("topology.csi.vmware.com/region", json!(["r"])),
        ),
        (
            &azure,
            affinity(topology::ZONE, json!(["a"])),
            json!({}),
            affinity(topology::ZONE, json!(["a"])),
        ),
    ] {
        let mut spec = source.clone();
        if !before.is_null() {
            spec["nodeAffinity"] = before.clone();
        }
        let spec = translated(spec, json!({"labels": labels}));
        assert_eq!(spec["nodeAffinity"], expected, "{source} {before} {labels}");
    }
    let mut both = ebs.clone();
    both["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": topology::BETA_ZONE, "operator": "In", "values": ["a"]},
        {"key": "failure-domain.beta.kubernetes.io/region", "operator": "In", "values": ["r"]}]}]}});
    let both = translated(both, json!({})).to_string();
    assert!(both.contains("\"topology.kubernetes.io/region\"") && !both.contains("beta"), "{both}");
}

#[test]
fn a_volume_that_cannot_be_translated_says_why() {
    for (spec, labels, expected) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://zone/snap-1"}}),
            json!({}),
            "invalid format for AWS volume (aws://zone/snap-1)",
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            json!({topology::ZONE: "a__b"}),
            "failed to get region from zones: zone in unexpected format, expected: {locale}-{region}-{zone}, got: a",
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            json!({topology::ZONE: "us-east1-a__us-west1-a"}),
            "failed to get region from zones: multiple or no regions gotten from zones",
        ),
        (
            json!({"azureFile": {"secretName": "s", "shareName": "sh"}}),
            json!({}),
            "could not find a secret namespace in PersistentVolumeSource or ClaimRef",
        ),
    ] {
        let volume = json!({"metadata": {"name": "pv1", "labels": labels}, "spec": spec});
        let volume = serde_json::from_value(volume).unwrap();
        let error = format!("{:#}", persistent_volume(&volume).unwrap_err());
        assert_eq!(error, format!("failed to translate in-tree pv to CSI: {expected}"));
    }
}
