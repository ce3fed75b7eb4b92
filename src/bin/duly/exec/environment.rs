//! The environment of a command or a worker.

use std::ffi::OsString;
use std::process::Command;

use crate::cli::{alarm_args, service_manager};
use crate::exec::payload::{DEAD_RUN, PAYLOAD_FILE, Payload};
use crate::exec::user;

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

/// The variables of a command that describe its run.
const RUN: [&str; 6] =
    ["DULY_TASK", "DULY_RUN_ID", "DULY_ATTEMPT", "DULY_SCHEDULED_FOR", "DULY_ORIGIN", "DULY_IDEMPOTENCY_KEY"];

/// Returns whether duly sets or removes a variable for each run of a command.
pub(crate) fn sets(name: &str) -> bool {
    RUN.contains(&name) || DEAD_RUN.contains(&name) || name == PAYLOAD_FILE
}

impl Environment {
    /// Sets what a command inherits, and what its `env_from` names; removes what is meant for this process only.
    pub(crate) fn apply(self, command: &mut Command, payload: &Payload) {
        self.inherit(command);
        command.envs(payload.env_from.iter().map(String::as_str).filter_map(own));
        remove_own(command);
    }

    /// Sets what a worker inherits; removes what is meant for this process only, and what describes a run.
    pub(crate) fn apply_to_worker(self, command: &mut Command) {
        self.inherit(command);
        remove_own(command);
        for name in RUN {
            command.env_remove(name);
        }
    }

    fn inherit(self, command: &mut Command) {
        if self == Environment::Clean {
            command.env_clear().envs(BASIC.iter().copied().filter_map(own));
        }
        // As under cron; a service of the system has neither.
        for name in ["LOGNAME", "USER"].into_iter().filter(|name| cfg!(unix) && own(name).is_none()) {
            command.envs(user::login_name().map(|user| (name, user)));
        }
    }
}

/// Returns a variable of this process.
fn own(name: &str) -> Option<(String, OsString)> {
    std::env::var_os(name).map(|value| (name.to_owned(), value))
}

/// Removes what is meant for this process only.
fn remove_own(command: &mut Command) {
    // The scheduler may itself have been started by a command, and have inherited variables of that run.
    let own = [PAYLOAD_FILE].into_iter().chain(DEAD_RUN).chain(service_manager::VARIABLES);
    for name in own.chain(alarm_args::VARIABLES) {
        command.env_remove(name);
    }
}
