//! What the next step of a volume depends on besides its state. Pure.

/// What the next step depends on besides the state of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// The driver; `None` while it is not registered.
    pub driver: Option<DriverFacts>,
    /// A controller has to attach the volume before it is staged or published. See [`attach_required`].
    pub attach_required: bool,
    /// The API server has confirmed that the Node's `volumesInUse` has the volume.
    pub is_confirmed_in_use: bool,
    /// The Node's `volumesAttached` has the volume, in a version of the Node that is not older than that confirmation.
    pub is_attached: bool,
    /// Every source of pods has delivered, and the pods that want the volume have said so. Until then nothing is
    /// unstaged that an earlier kubelet staged.
    pub pods_are_known: bool,
}

/// What the next step depends on of a registered driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverFacts {
    /// It has the capability `STAGE_UNSTAGE_VOLUME`.
    pub stages: bool,
}

/// Whether a volume has to be attached. While the volume is in use, a driver that no longer requires it is honoured, as
/// upstream does; one that begins to is not, because nothing would have attached the volume.
pub fn attach_required(earlier: Option<bool>, now: bool) -> bool {
    earlier.unwrap_or(true) && now
}
