//! Arguments of `service`.

use clap::{Subcommand, ValueEnum};

use crate::cli::help_examples;

#[derive(Debug, Subcommand)]
pub(crate) enum Service {
    /// Write a service that runs duly run with this program and --db, enable it and start it. Idempotent.
    #[command(after_help = help_examples::SERVICE_INSTALL)]
    Install(Install),
    /// Stop and disable a service, and remove its file. The database is left.
    #[command(after_help = help_examples::SERVICE_UNINSTALL)]
    Uninstall {
        #[command(flatten)]
        which: Which,
        /// Print what would be removed and run, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Show whether a service is installed, enabled and running, and what it runs. --db is ignored.
    #[command(after_help = help_examples::SERVICE_STATUS)]
    Status(Which),
}

/// Which service.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// One of several services: duly-NAME. Default: duly.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<String>,
    /// A service of the machine, which starts at boot and runs as root. Default: one of the user.
    #[arg(long)]
    pub(crate) system: bool,
}

/// Arguments of `service install`.
#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Print what would be written and run, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With --dry-run: print it for this service manager. Default: that of this system.
    #[arg(long = "for", value_name = "MANAGER", requires = "dry_run")]
    pub(crate) manager: Option<Manager>,
    /// Options of duly run. Relative paths in them stay relative to the current directory.
    #[arg(last = true, value_name = "OPTION")]
    pub(crate) options: Vec<String>,
}

/// The service managers for which duly writes services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Manager {
    Systemd,
    Launchd,
    Windows,
}

impl Manager {
    /// Returns the one of this system, if duly knows it.
    pub(crate) fn of_system() -> Option<Self> {
        if cfg!(windows) {
            Some(Manager::Windows)
        } else if cfg!(target_os = "macos") {
            Some(Manager::Launchd)
        } else if cfg!(target_os = "linux") {
            Some(Manager::Systemd)
        } else {
            None
        }
    }
}

/// Longest name of a service.
const MAX_NAME: usize = 60;

/// Checks a name that is part of the names of files, units and tasks.
fn name(text: &str) -> Result<String, String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(is_letter) {
        return Err(format!("expected 1 to {MAX_NAME} letters, digits, - and _"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn a_name_is_the_name_of_a_file_everywhere() {
        assert_eq!(name("mail-2_b").as_deref(), Ok("mail-2_b"));
        for refused in ["", "a b", "a/b", "..", "a.b", "a@b", "na\u{ef}ve", &"a".repeat(61)] {
            assert!(name(refused).is_err(), "{refused}");
        }
    }
}
