//! The errors of pods whose volumes cannot be set up, with upstream's texts. Pure.

use super::machine::Step;
use super::spec::CsiVolumeSpec;
use crate::volumes::VolumeError;
use anyhow::anyhow;

/// The error of a pod's sync whose volume waits.
pub(super) fn wait_error(spec: &CsiVolumeSpec, why: String) -> VolumeError {
    if spec.identity.is_block() {
        return setup_error(spec, &Step::Stage, why);
    }
    VolumeError::set_up(&spec.spec_name, anyhow!(why))
}

/// The error of a pod's sync after a step that failed.
pub(super) fn setup_error(spec: &CsiVolumeSpec, step: &Step, why: String) -> VolumeError {
    let (volume, source) = (spec.spec_name.clone(), anyhow!(why));
    let is_stage = matches!(step, Step::Stage | Step::Unstage);
    match (step, spec.identity.is_block()) {
        (Step::Expand(_), _) => VolumeError::Expand { volume, source },
        (_, true) => VolumeError::Map {
            step: if is_stage { "SetUpDevice" } else { "MapPodDevice" },
            volume,
            source,
        },
        (_, false) if is_stage => VolumeError::MountDevice { volume, source },
        (_, false) => VolumeError::set_up(&volume, source),
    }
}
