//! The environment of a command.

use std::process::Command;

use crate::cli::service_manager;
use crate::exec::payload::{DEAD_RUN, PAYLOAD_FILE, Payload};

/// What a command inherits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Environment {
    /// The environment of this process.
    #[default]
    Inherited,
    /// Only [`BASIC`].
    Clean,
}

/// The variables of a clean environment, where this process has them: those that cron or systemd set, and the time zone.
const BASIC: &[&str] = if cfg!(windows) {
    &["PATH", "PATHEXT", "SYSTEMROOT", "COMSPEC", "TEMP", "TMP", "USERNAME", "USERPROFILE", "TZ"]
} else {
    &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ"]
};

impl Environment {
    /// Sets what a command inherits, and what its `env_from` names; removes what is meant for this process only.
    pub(crate) fn apply(self, command: &mut Command, payload: &Payload) {
        let own = |name: &str| std::env::var_os(name).map(|value| (name.to_owned(), value));
        if self == Environment::Clean {
            command.env_clear().envs(BASIC.iter().copied().filter_map(own));
        }
        command.envs(payload.env_from.iter().map(String::as_str).filter_map(own));
        // The scheduler may itself have been started by a command, and have inherited variables of that run.
        for name in [PAYLOAD_FILE].iter().chain(&DEAD_RUN).chain(&service_manager::VARIABLES) {
            command.env_remove(name);
        }
    }
}
