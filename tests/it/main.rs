//! The one test binary.
mod smoke;
