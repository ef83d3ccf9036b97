//! What static pods and this kubelet refuse.

use super::*;

#[test]
fn static_pods_name_no_api_objects() {
    for (patch, expected) in [
        (
            json!({"serviceAccountName": "s"}),
            "spec.serviceAccountName: Forbidden: static pods may not reference serviceaccounts",
        ),
        (
            json!({"imagePullSecrets": [{"name": "s"}]}),
            "spec.imagePullSecrets[0]: Forbidden: static pods may not reference secrets",
        ),
        (
            json!({"resourceClaims": [{"name": "r"}]}),
            "spec.resourceClaims: Forbidden: static pods may not reference resourceclaims",
        ),
        (
            container(&json!({"envFrom": [{"configMapRef": {"name": "m"}}]})),
            "spec.containers[0].envFrom[0].configMapRef: Forbidden: static pods may not reference configmaps",
        ),
        (
            container(
                &json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]}),
            ),
            "spec.containers[0].env[0].valueFrom.secretKeyRef: Forbidden: static pods may not reference secrets",
        ),
        (
            json!({"volumes": [{"name": "v", "configMap": {}}]}),
            "spec.volumes[0].configMap: Forbidden: static pods may not reference configmaps",
        ),
        (
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
            "spec.volumes[0].persistentVolumeClaim: Forbidden: static pods may not reference persistentvolumeclaims",
        ),
        (
            json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}),
            "spec.volumes[0].csi: Forbidden: static pods may not reference csidrivers",
        ),
        (
            json!({"volumes": [{"name": "v", "flexVolume": {"driver": "a/b", "secretRef": {"name": "s"}}}]}),
            "spec.volumes[0].flexVolume.secretRef: Forbidden: static pods may not reference secrets",
        ),
        (
            json!({"volumes": [{"name": "v", "iscsi": {"targetPortal": "h", "iqn": "iqn.2001-04.com.example:a", "lun": 0, "secretRef": {"name": "s"}}}]}),
            "spec.volumes[0].iscsi.secretRef: Forbidden: static pods may not reference secrets",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {}}, {"clusterTrustBundle": {"path": "p"}}]}}]}),
            "spec.volumes[0].projected.sources[1].clusterTrustBundle: Forbidden: static pods may not reference clustertrustbundles",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "p"}}]}}]}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: static pods may not reference serviceaccounts",
        ),
    ] {
        assert_eq!(
            lines(&validate_static_pod_references(&pod(&patch), LocalConfigMapsAndSecrets::None)),
            [expected]
        );
    }
    let old_name = lines(&validate_static_pod_references(
        &pod(&json!({"serviceAccount": "s"})),
        LocalConfigMapsAndSecrets::None,
    ));
    assert!(old_name.iter().all(|line| line.contains("serviceaccounts")) && !old_name.is_empty());
    assert_eq!(
        validate_static_pod_references(&pod(&json!({})), LocalConfigMapsAndSecrets::None),
        []
    );
}

#[test]
fn a_node_with_local_objects_has_config_maps_and_secrets_and_nothing_else() {
    let local = |patch: &Value| {
        lines(&validate_static_pod_references(&pod(patch), LocalConfigMapsAndSecrets::Files))
    };
    for patch in [
        container(&json!({"envFrom": [{"configMapRef": {"name": "m"}}]})),
        container(&json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]})),
        json!({"volumes": [{"name": "v", "configMap": {"name": "m"}}]}),
        json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
        json!({"volumes": [{"name": "v", "projected": {"sources": [
            {"secret": {"name": "s"}}, {"configMap": {"name": "m"}}]}}]}),
    ] {
        assert_eq!(local(&patch), [""; 0]);
        assert_eq!(lines(&unsupported_fields(&pod(&patch))), [""; 0]);
    }
    for (patch, field) in [
        (json!({"imagePullSecrets": [{"name": "s"}]}), "spec.imagePullSecrets[0]"),
        (json!({"serviceAccountName": "s"}), "spec.serviceAccountName"),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "p"}}]}}]}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
        ),
        (json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}), "spec.volumes[0].csi"),
    ] {
        let refused = local(&patch);
        assert_eq!(refused.len(), 1);
        assert!(refused[0].starts_with(field), "{refused:?}");
    }
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    let not_yet = "Forbidden: not supported yet by this kubelet";
    for (patch, path) in [
        (
            json!({"volumes": [{"name": "v", "rbd": {"monitors": ["m"], "image": "i"}}]}),
            "spec.volumes[0].rbd",
        ),
        (
            container(&json!({"volumeDevices": [{"name": "d", "devicePath": "/d"}]})),
            "spec.containers[0].volumeDevices",
        ),
    ] {
        assert_eq!(lines(&unsupported_fields(&pod(&patch))), [format!("{path}: {not_yet}")]);
    }
    let extended = container(&json!({"resources": {"limits": {"example.com/gpu": "1"}}}));
    let extended = pod(&extended);
    assert_eq!(lines(&unsupported_fields(&extended)), [""; 0], "device plugins have it");
    let plain = json!({"nodeSelector": {"kubernetes.io/os": "linux"}, "hostUsers": true,
        "os": {"name": "linux"}, "volumes": [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w"}]});
    assert_eq!(lines(&unsupported_fields(&pod(&plain))), [""; 0]);
}

#[test]
fn parts_of_volumes_read_only_trees_and_other_hostnames_are_given() {
    let mounts = json!({"volumeMounts": [
        {"name": "v", "mountPath": "/a", "subPath": "s"},
        {"name": "v", "mountPath": "/b", "subPathExpr": "$(A)/s"},
        {"name": "v", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "Enabled"},
        {"name": "v", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "IfPossible"},
    ]});
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    for mut patch in [
        container(&mounts),
        json!({"setHostnameAsFQDN": true, "subdomain": "s"}),
        json!({"hostnameOverride": "any.name"}),
    ] {
        merge(&mut patch, &volumes);
        assert_eq!(errors(&patch), [""; 0]);
        assert_eq!(lines(&unsupported_fields(&pod(&patch))), [""; 0]);
    }
}
