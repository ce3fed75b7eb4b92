//! The sidecar: duly as a program.

fn main() {}
