//! What a flag is: name, kind of value, what it sets, and how help presents it.

/// The kinds of values, with Go's spelling rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// A file or directory.
    Path,
    /// `--flag`, `--flag=true`, `--flag=false`.
    Bool,
    /// 32 bits, Go's number spellings.
    Int32,
    /// 64 bits.
    Int64,
    /// A Go duration.
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

impl Kind {
    /// The placeholder for the value in help.
    pub(super) fn placeholder(self) -> &'static str {
        match self {
            Kind::Text => "<TEXT>",
            Kind::Path => "<PATH>",
            Kind::Bool => "",
            Kind::Int32 | Kind::Int64 => "<N>",
            Kind::Duration => "<DURATION>",
            Kind::List => "<A,B,...>",
            Kind::Map => "<K=V,...>",
            Kind::Thresholds => "<SIGNAL<AMOUNT,...>",
            Kind::BoolMap => "<K=BOOL,...>",
            Kind::Headers => "<NAME:VALUE,...>",
            Kind::Taints => "<K=V:EFFECT,...>",
            Kind::ReservedMemory => "<NODE:K=V;...>",
            Kind::VModule => "<PATTERN=N,...>",
        }
    }
}

/// What a flag sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The configuration field of this dotted path; the flag wins over files.
    Field(&'static str),
    /// Something only flags can say; `Flags` has a member for it.
    Process,
    /// Nothing any more; accepted so that old command lines still start.
    Ignored,
}

/// Sections of the help text, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Essential,
    Runtime,
    Pods,
    ApiServer,
    Logging,
    Mirrors,
    Obsolete,
}

impl Group {
    pub(super) const ALL: &[Group] = &[
        Group::Essential,
        Group::Runtime,
        Group::Pods,
        Group::ApiServer,
        Group::Logging,
        Group::Mirrors,
        Group::Obsolete,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Group::Essential => "Essential",
            Group::Runtime => "Container runtime and images",
            Group::Pods => "Static pods and containers",
            Group::ApiServer => "API server and node (pods of a cluster are not taken yet)",
            Group::Logging => "Logging",
            Group::Mirrors => "Deprecated mirrors of configuration fields (prefer the file)",
            Group::Obsolete => "Obsolete (accepted, without effect)",
        }
    }
}

/// One flag.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlagSpec {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) target: Target,
    pub(super) group: Group,
    /// Shown in help; the value itself comes from `defaults` or `Flags`.
    pub(super) default: &'static str,
    pub(super) help: &'static str,
}

/// A flag that sets the configuration field `field`.
pub(super) const fn field(
    group: Group,
    name: &'static str,
    kind: Kind,
    field: &'static str,
    default: &'static str,
    help: &'static str,
) -> FlagSpec {
    FlagSpec {
        name,
        kind,
        target: Target::Field(field),
        group,
        default,
        help,
    }
}

/// A flag without a configuration field.
pub(super) const fn process(
    group: Group,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> FlagSpec {
    FlagSpec {
        name,
        kind,
        target: Target::Process,
        group,
        default,
        help,
    }
}

/// A flag without effect.
pub(super) const fn ignored(name: &'static str, kind: Kind, help: &'static str) -> FlagSpec {
    FlagSpec {
        name,
        kind,
        target: Target::Ignored,
        group: Group::Obsolete,
        default: "",
        help,
    }
}
