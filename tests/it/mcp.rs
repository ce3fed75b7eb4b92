//! `duly mcp`: a model looks, and changes what it was given.

mod agent;
mod change;
mod guide;
mod look;
mod month;
mod protocol;
mod red_team;
mod schema;
mod servers;
