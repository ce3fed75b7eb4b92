//! drain
fn main(){}
