//! Workers: long-lived programs whose functions are handlers. See docs/workers.md.

mod protocol;
