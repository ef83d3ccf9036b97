//! The declaration of a flag: name, type of value, what it sets, and its help.

use crate::base::named_enum;

/// The types of values, parsed by Go's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagKind {
    Text,
    /// A file or directory.
    Path,
    /// `--flag`, `--flag=true`, `--flag=false`.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// As parsed by Go's `time.ParseDuration`.
    Duration,
    /// Comma separated; may be repeated.
    List,
    /// `key=value,...`; may be repeated.
    Map,
    /// `key<value,...`; may be repeated.
    Thresholds,
    /// `key=true,...`; may be repeated.
    BoolMap,
    /// `name:value,...`; may be repeated.
    Headers,
    /// `key=value:effect,...`.
    Taints,
    /// `node:memory=1Gi,hugepages-2Mi=1Gi;...`.
    ReservedMemory,
    /// `pattern=N,...`.
    VModule,
}

impl FlagKind {
    /// The placeholder for the value in help.
    pub(super) fn placeholder(self) -> &'static str {
        match self {
            FlagKind::Text => "<TEXT>",
            FlagKind::Path => "<PATH>",
            FlagKind::Bool => "",
            FlagKind::Int32 | FlagKind::Int64 => "<N>",
            FlagKind::Duration => "<DURATION>",
            FlagKind::List => "<A,B,...>",
            FlagKind::Map => "<K=V,...>",
            FlagKind::Thresholds => "<SIGNAL<AMOUNT,...>",
            FlagKind::BoolMap => "<K=BOOL,...>",
            FlagKind::Headers => "<NAME:VALUE,...>",
            FlagKind::Taints => "<K=V:EFFECT,...>",
            FlagKind::ReservedMemory => "<NODE:K=V;...>",
            FlagKind::VModule => "<PATTERN=N,...>",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagTarget {
    /// The configuration field with this dotted path; the flag has precedence over files.
    Field(&'static str),
    /// A setting without a configuration field; stored in `Flags`.
    Process,
    /// Nothing; accepted for compatibility with older command lines.
    Ignored,
}

named_enum! {
    /// The sections of the help text, in order, with their titles.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum FlagGroup {
        Essential = "Essential",
        Runtime = "Container runtime and images",
        Pods = "Static pods and containers",
        ApiServer = "API server and node",
        Logging = "Logging",
        Mirrors = "Deprecated mirrors of configuration fields (prefer the file)",
        Obsolete = "Obsolete (accepted, without effect)",
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FlagSpec {
    pub(super) name: &'static str,
    pub(super) kind: FlagKind,
    pub(super) target: FlagTarget,
    pub(super) group: FlagGroup,
    /// Printed in help only; the value itself comes from `defaults` or `Flags`.
    pub(super) default: &'static str,
    pub(super) help: &'static str,
}

/// A flag that sets the configuration field `field`.
pub(super) const fn field(
    group: FlagGroup,
    name: &'static str,
    kind: FlagKind,
    field: &'static str,
    default: &'static str,
    help: &'static str,
) -> FlagSpec {
    FlagSpec { name, kind, target: FlagTarget::Field(field), group, default, help }
}

/// A flag without a configuration field.
pub(super) const fn process(
    group: FlagGroup,
    name: &'static str,
    kind: FlagKind,
    default: &'static str,
    help: &'static str,
) -> FlagSpec {
    FlagSpec { name, kind, target: FlagTarget::Process, group, default, help }
}

/// A flag without effect.
pub(super) const fn ignored(name: &'static str, kind: FlagKind, help: &'static str) -> FlagSpec {
    FlagSpec {
        name,
        kind,
        target: FlagTarget::Ignored,
        group: FlagGroup::Obsolete,
        default: "",
        help,
    }
}
