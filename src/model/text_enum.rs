//! Enumerations that have a text form.

/// Defines an enumeration that has a text form, as in the tables: its variants, `ALL`, `as_str` and `parse`; `Display`, `FromStr`
/// and serde in the same form. `$column` is the name of the field in the message of a parse error.
macro_rules! text_enum {
    ($(#[$about:meta])* $name:ident, $column:literal { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* #[serde(rename = $text)] $variant,)+ }

        impl $name {
            /// All variants, in the order of their declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// Returns the text form, as in the tables.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }

            /// Returns the variant with this text form. [`FromStr`](std::str::FromStr) returns an error instead of `None`.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::error::Error;

            /// Parses the exact text form: neither upper case nor spaces are accepted.
            fn from_str(text: &str) -> crate::error::Result<Self> {
                $name::parse(text)
                    .ok_or_else(|| crate::error::Error::invalid_task($column, text, [$($text),+].join(", ")))
            }
        }
    };
}
pub(crate) use text_enum;
