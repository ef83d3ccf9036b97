//! gitRepo volumes, which upstream has disabled for good: their pods wait.

use super::KindRow;
use super::plan::Planning;
use crate::volumes::VolumeError;
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, SetUp};
use anyhow::anyhow;
use std::sync::Arc;

/// Upstream's text; the gate is locked.
const DISABLED: &str = "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`";

pub(super) const KIND: KindRow = KindRow { plan, ..KindRow::NONE };

#[derive(Debug, PartialEq, Eq)]
struct GitRepo;

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let is_git_repo = planning.volume.git_repo.is_some();
    Ok(is_git_repo.then(|| Arc::new(GitRepo) as Arc<dyn Kind>))
}

impl Kind for GitRepo {
    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        let error = VolumeError::set_up(&attempt.name, anyhow!(DISABLED));
        Box::pin(std::future::ready(Err(error)))
    }

    fn is_supported(&self) -> bool {
        false
    }
}
