//! Text in a line of the log.

use std::fmt::{self, Write as _};

/// Text from any source, displayed with control characters escaped.
pub(super) struct OneLine<'a>(pub(super) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            // U+2028 and similar characters break lines or reverse text as control characters do.
            if c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
                write!(f, "{}", c.escape_default())
            } else {
                f.write_char(c)
            }
        })
    }
}
