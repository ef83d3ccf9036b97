//! What a row in the tables of configuration fields says besides key, type and default. Pure.

use std::collections::BTreeMap;

use crate::base::{GoDuration, SecretUrl};

/// A field of the format.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// Its key in the file.
    pub key: &'static str,
    /// The lines of its documentation.
    pub lines: &'static [&'static str],
    /// The name of its type, which may be a section's.
    pub type_name: &'static str,
    /// Where it has an effect.
    pub(super) effect: Effect,
    /// An empty text, a zero or a zero duration in a file counts as not set.
    pub(super) zero_is_unset: bool,
    /// The deprecated flag that sets it: kind, name and help.
    pub(super) flag: Option<(FlagKind, &'static str, &'static str)>,
    /// What help prints in place of the default.
    pub(super) shown_default: Option<&'static str>,
}

impl FieldSpec {
    /// A row without properties.
    pub(super) const PLAIN: Self = Self {
        key: "",
        lines: &[],
        type_name: "",
        effect: Effect::Everywhere,
        zero_is_unset: false,
        flag: None,
        shown_default: None,
    };
}

/// Where a field has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Everywhere,
    /// Only on a node of a cluster.
    InClusters,
    Nowhere,
}

/// The types of values of flags, parsed by Go's rules.
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

/// A default in seconds.
pub(super) fn secs(seconds: i64) -> GoDuration {
    GoDuration::from_secs(seconds)
}

/// A value in which fields can be absent.
pub(super) trait ApplyDefaults {
    /// Sets each absent field that has a default, here and in the sections that are present.
    fn apply_defaults(&mut self) {}
}

macro_rules! without_fields {
    ($($type:ty)*) => { $(impl ApplyDefaults for $type {})* };
}
without_fields! { bool i32 i64 u32 f64 String GoDuration SecretUrl }

impl<T> ApplyDefaults for Vec<T> {}
impl<K, V> ApplyDefaults for BTreeMap<K, V> {}

/// Declares sections. In the file a field is named as the string before it; it is always optional, and is omitted from
/// output if absent. After its type may come its default, and properties of [`FieldSpec`]. `SECTIONS` has the rows.
macro_rules! config_sections {
    ($(
        $(#[$outer:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $key:literal $field:ident: $type:ty $(= $default:expr)? $(, $property:ident: $value:expr)*;
            )*
        }
    )*) => {
        $(
            $(#[$outer])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
            pub struct $name {
                $(
                    $(#[doc = $doc])*
                    #[serde(rename = $key, default, skip_serializing_if = "Option::is_none")]
                    pub $field: Option<$type>,
                )*
            }

            impl ApplyDefaults for $name {
                fn apply_defaults(&mut self) {
                    $(
                        $(self.$field.get_or_insert_with(|| $default.into());)?
                        self.$field.iter_mut().for_each(ApplyDefaults::apply_defaults);
                    )*
                }
            }
        )*

        pub(super) const SECTIONS: &[(&str, &[FieldSpec])] = &[$((
            stringify!($name),
            &[$(FieldSpec {
                key: $key,
                lines: &[$($doc),*],
                type_name: stringify!($type),
                $($property: $value,)*
                ..FieldSpec::PLAIN
            }),*],
        )),*];
    };
}
pub(super) use config_sections;
