//! duly
fn main(){}
