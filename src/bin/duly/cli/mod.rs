//! Input of the program: arguments, option values, signals, and the end that one asks for; messages to the service manager; and the failure of a command in the words of the user.

pub(crate) mod add_args;
pub(crate) mod alarm_args;
pub(crate) mod args;
pub(crate) mod change_args;
pub(crate) mod command_line;
pub(crate) mod failure;
pub(crate) mod help_examples;
pub(crate) mod hints;
pub(crate) mod import_args;
pub(crate) mod last_resort;
pub(crate) mod limit_args;
#[cfg(feature = "mcp")]
pub(crate) mod mcp_args;
pub(crate) mod nearest;
#[cfg(test)]
pub(crate) mod reference;
pub(crate) mod retention_args;
pub(crate) mod service_args;
pub(crate) mod service_manager;
pub(crate) mod signals;
pub(crate) mod typed;
pub(crate) mod values;
pub(crate) mod zone;
