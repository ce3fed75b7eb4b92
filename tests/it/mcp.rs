//! `duly mcp`: a model looks, and changes what it was given.

mod agent;
mod change;
mod look;
mod protocol;
mod red_team;
