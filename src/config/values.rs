//! Conversions of optional fields of the configuration file.

use crate::base::GoDuration;

pub(super) fn time(value: Option<GoDuration>) -> std::time::Duration {
    value.unwrap_or_default().to_std()
}

pub(super) fn some_text(value: &Option<String>) -> Option<String> {
    value.clone().filter(|text| !text.is_empty())
}

pub(super) fn count(value: Option<i32>) -> u32 {
    u32::try_from(value.unwrap_or_default()).unwrap_or(0)
}
