//! What is printed, and how it looks.

pub(crate) mod bar;
pub(crate) mod escape;
pub(crate) mod printer;
pub(crate) mod rows;
pub(crate) mod sizes;
pub(crate) mod spark;
pub(crate) mod table;
pub(crate) mod times;
