//! Workers: the conformance kit of docs/workers.md, and faults of workers.
//!
//! The kit plays duly's side of the protocol against a worker and checks each rule of the page. The page's section "Testing a client"
//! says which handlers the worker offers.
#![cfg(unix)]

mod attempts;
mod cancels;
mod conformance;
mod effects;
mod ends;
mod faults;
mod lines;
mod peer;
mod planted;
mod rules;
mod strays;
