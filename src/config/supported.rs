//! Which settings have an effect in this kubelet. Others are accepted, and reported if their value is not the
//! default.

use super::fields::Effect;
use super::flags::Flags;
use super::kubelet_configuration::{KIND, KubeletConfiguration, fields_of};

/// The given settings that have no effect yet: fields by name, flags with their dashes.
///
/// `effective` is the configuration with defaults; `defaults` has only the defaults.
pub(super) fn unsupported(
    effective: &KubeletConfiguration,
    defaults: &KubeletConfiguration,
    flags: &Flags,
) -> Vec<String> {
    let values = |config| serde_json::to_value(config).unwrap_or_default();
    let (effective, defaults) = (values(effective), values(defaults));
    let standalone = flags.kubeconfig.is_none();
    let idle = fields_of(KIND).into_iter().flatten().filter(|field| match field.effect {
        Effect::Everywhere => false,
        Effect::InClusters => standalone,
        Effect::Nowhere => true,
    });
    let given = idle.filter(|field| match (effective.get(field.key), defaults.get(field.key)) {
        (Some(value), Some(default)) => value != default,
        (Some(value), None) => !is_zero(value),
        (None, _) => false,
    });
    let mut names: Vec<String> = given.map(|field| field.key.to_owned()).collect();
    if standalone && flags.cloud_provider.is_some() {
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
