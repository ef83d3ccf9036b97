//! The declaration of a flag: name, type of value, what it sets, and its help.

use std::borrow::Cow;

use crate::base::document::DocumentNode;
use crate::base::named_enum;
use crate::config::fields::FlagKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagTarget {
    /// The configuration field with this dotted path; the flag has precedence over files.
    Field(&'static str),
    /// A setting without a configuration field; stored in `Flags`.
    Process,
    /// Nothing; accepted for compatibility with older command lines.
    Ignored,
}

impl FlagTarget {
    /// The target of a row with at most one field's path or one member of `Flags`.
    pub(super) const fn of(path: &[&'static str], member: &[&str]) -> Self {
        match (path, member) {
            ([path], _) => Self::Field(path),
            (_, [_]) => Self::Process,
            _ => Self::Ignored,
        }
    }
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

#[derive(Debug, Clone)]
pub(super) struct FlagSpec {
    pub(super) name: &'static str,
    pub(super) kind: FlagKind,
    pub(super) target: FlagTarget,
    pub(super) group: FlagGroup,
    /// Printed in help only; the value itself comes from `defaults` or `Flags`.
    pub(super) default: Cow<'static, str>,
    pub(super) help: &'static str,
}

/// Configuration fields by dotted path. Values may be secret, so `Debug` prints only the fields' names.
#[derive(Clone, Default, PartialEq)]
pub(in crate::config) struct FieldLayer(pub(in crate::config) Vec<(&'static str, DocumentNode)>);

impl std::fmt::Debug for FieldLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(path, _)| path)).finish()
    }
}
