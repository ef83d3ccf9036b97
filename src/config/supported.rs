//! Which settings have an effect in this kubelet. Others are accepted, and reported if their value is not the
//! default.

use super::flags::Flags;
use super::kubelet_configuration::KubeletConfiguration;

/// Fields that have no effect here.
const WITHOUT_EFFECT: &[&str] = &[
    "enableContentionProfiling",
    "hairpinMode",
    "podCIDR",
    "runOnce",
    "contentType",
    "makeIPTablesUtilChains",
    "iptablesMasqueradeBit",
    "iptablesDropBit",
    "configMapAndSecretChangeDetectionStrategy",
    "showHiddenMetricsForVersion",
    "kernelMemcgNotification",
];

/// Fields that have an effect only on a node of a cluster.
const ONLY_IN_CLUSTERS: &[&str] = &[
    "registerNode",
    "registerWithTaints",
    "providerID",
    "nodeStatusUpdateFrequency",
    "nodeStatusReportFrequency",
    "nodeStatusMaxImages",
    "nodeLeaseDurationSeconds",
    "enableControllerAttachDetach",
    "eventRecordQPS",
    "eventBurst",
];

/// The given settings that have no effect yet: fields by name, flags with their dashes.
///
/// `effective` is the configuration with defaults; `defaults` has only the defaults.
pub(super) fn unsupported(
    effective: &KubeletConfiguration,
    defaults: &KubeletConfiguration,
    flags: &Flags,
) -> Vec<String> {
    let fields = |config| match serde_json::to_value(config) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let defaults = fields(defaults);
    let mut names: Vec<String> = fields(effective)
        .into_iter()
        .filter(|(name, value)| {
            let same = match defaults.get(name) {
                Some(default) => default == value,
                None => is_zero(value),
            };
            let name = name.as_str();
            let standalone = flags.kubeconfig.is_none();
            !same
                && (WITHOUT_EFFECT.contains(&name)
                    || standalone && ONLY_IN_CLUSTERS.contains(&name))
        })
        .map(|(name, _)| name)
        .collect();
    if flags.kubeconfig.is_none() && flags.cloud_provider.is_some() {
        names.push("--cloud-provider".to_owned());
    }
    names.sort();
    names
}

/// Whether a value is the zero value: generated files contain empty sections.
fn is_zero(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}
