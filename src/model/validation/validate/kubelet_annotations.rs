//! Validates the annotations that this kubelet defines itself.

use super::{Errors, Path};
use crate::base::GoDuration;
use crate::model::validation::FieldError;
use crate::model::{PodExt, RESTART_PERIODS, keys, parse_restart_period};
use k8s_openapi::api::core::v1::Pod;

/// Validates annotations that this kubelet evaluates. An invalid value is an error rather than ignored, because users
/// rely on these annotations.
pub fn validate_kubelet_annotations(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let metadata = Path::root("metadata");
    let annotations = metadata.child("annotations");
    let period = pod.annotation(keys::MAX_RESTART_PERIOD);
    if let Some(text) = period.filter(|text| parse_restart_period(text).is_none()) {
        let (min, max) = (*RESTART_PERIODS.start(), *RESTART_PERIODS.end());
        let (min, max) = (GoDuration::from(min), GoDuration::from(max));
        let detail = format!("must be a duration from {min} to {max}, such as 30s");
        errors.invalid(&annotations.key(keys::MAX_RESTART_PERIOD), text, detail);
    }
    errors.into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validated(value: &str) -> Vec<String> {
        let mut pod = Pod::default();
        let key = keys::MAX_RESTART_PERIOD.to_string();
        pod.metadata.annotations = Some([(key, value.to_string())].into());
        validate_kubelet_annotations(&pod).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_restart_period_is_a_duration_from_a_second_to_five_minutes() {
        for good in ["1s", "1.5s", "30s", "5m", "300s"] {
            assert!(validated(good).is_empty(), "{good}");
        }
        for bad in ["", "0", "999ms", "5m1s", "-1s", "10", "fast", "10000000h"] {
            let expected = format!(
                "metadata.annotations[kubelet.rs/max-container-restart-period]: Invalid value: \
                 \"{bad}\": must be a duration from 1s to 5m0s, such as 30s"
            );
            assert_eq!(validated(bad), [expected]);
        }
    }

    #[test]
    fn a_pod_without_these_annotations_is_good() {
        assert!(validate_kubelet_annotations(&Pod::default()).is_empty());
    }
}
