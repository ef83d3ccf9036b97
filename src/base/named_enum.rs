//! Enumerations whose variants have names.

/// An enumeration without data, with a name for each variant: also defines `ALL`, `as_str`, `parse` and `Display`.
/// It has to be `Copy`.
macro_rules! named_enum {
    ($(#[$attribute:meta])* $vis:vis enum $type:ident {
        $($(#[$about:meta])* $variant:ident = $name:literal,)*
    }) => {
        $(#[$attribute])*
        $vis enum $type { $($(#[$about])* $variant,)* }

        #[allow(dead_code, reason = "few enumerations need all of these")]
        impl $type {
            /// All variants, in order.
            $vis const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name of the variant.
            $vis fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The variant with this name.
            $vis fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use named_enum;
