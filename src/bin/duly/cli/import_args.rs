//! Arguments of `import`.

use std::path::PathBuf;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;

/// The source of an import.
#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// Import the entries of a crontab, as tasks that behave as under cron.
    #[command(after_help = CRONTAB_NOTES)]
    Crontab(Crontab),
    /// Import the entries of a crontab of supercronic, as tasks that behave as under it.
    #[command(after_help = SUPERCRONIC_NOTES)]
    Supercronic(Supercronic),
    /// Import the scheduled tasks of NanoClaw. Each runs the given command or handler.
    #[command(
        override_usage = "duly import nanoclaw [OPTIONS] <FILE> -- <ARGV>...\n       \
                          duly import nanoclaw [OPTIONS] <FILE> --handler <NAME>",
        after_help = NANOCLAW_NOTES
    )]
    Nanoclaw(Nanoclaw),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Crontab {
    /// Crontab to read, or - for standard input.
    pub(crate) file: PathBuf,
    /// System crontab: each entry names a user before the command. Assumed for /etc/crontab and files in /etc/cron.d.
    #[arg(long)]
    pub(crate) system: bool,
    /// Crontab of a user, although every command begins with the name of a user of this machine, as in a system crontab.
    #[arg(long, conflicts_with = "system")]
    pub(crate) user_crontab: bool,
    /// User of the entries: of a system crontab, only those of this user are imported. They start in the home directory of this
    /// user, and run as this user if root imports them, otherwise as the user of duly run. Default: the current user; of a
    /// system crontab root imports the entries of all users, of a crontab in /var/spool/cron those of its user.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Prefix of the names of the imported tasks.
    #[arg(long, value_name = "WORD", default_value = "cron")]
    pub(crate) prefix: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Supercronic {
    /// Crontab of supercronic to read, or - for standard input.
    pub(crate) file: PathBuf,
    /// Allow runs of a task to overlap, as supercronic -overlapping does. Default: skip an occurrence while the previous run is
    /// unfinished.
    #[arg(long)]
    pub(crate) overlapping: bool,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Prefix of the names of the imported tasks.
    #[arg(long, value_name = "WORD", default_value = "cron")]
    pub(crate) prefix: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Nanoclaw {
    /// Database of NanoClaw 1 (store/messages.db); or of a session of NanoClaw 2 (inbound.db), or the folder of all sessions
    /// (data/v2-sessions). It is only read.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Prefix of the names of the imported tasks.
    #[arg(long, value_name = "WORD", default_value = "nanoclaw")]
    pub(crate) prefix: String,
    /// Handler for each task, for example of a worker. Instead of a command.
    #[arg(long, value_name = "NAME", conflicts_with = "argv", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) handler: Option<String>,
    /// Command and its arguments, for each task; started without a shell.
    #[arg(last = true, value_name = "ARGV", required_unless_present = "handler")]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Time zone of the imported schedules: an IANA name, or local for the zone of this machine.
    #[arg(long, value_name = "ZONE", default_value = "local")]
    pub(crate) tz: String,
    /// Remove tasks that were imported from this source before and are no longer in it.
    #[arg(long)]
    pub(crate) prune: bool,
    /// With --prune: accept a source without tasks, and remove all tasks that were imported from it before.
    #[arg(long, requires = "prune")]
    pub(crate) allow_empty: bool,
    /// Exit with code 0 even if some entries could not be imported.
    #[arg(long)]
    pub(crate) partial: bool,
    /// Take over tasks that were imported from another source, for example after the file was moved.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Show what would be imported, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

// One line for each paragraph: clap wraps it to the width of the terminal.
const CRONTAB_NOTES: &str = "\
Imported tasks behave as under cron: one attempt, no catch-up of missed occurrences, overlapping runs allowed, no timeout, \
started in the home directory. The variables of the crontab are added to the environment of the scheduler. CRON_TZ applies to \
the entries below it; TZ is passed to the commands only.

Entries that cannot be imported are listed with the reason; the others are imported. The exit code is then 1, unless --partial \
is given. Repeating an import changes nothing.

Examples:
  crontab -l | duly import crontab -
  duly import crontab --dry-run /etc/crontab
  duly import crontab /etc/cron.d/certbot --user root --tz Europe/Rome";

const SUPERCRONIC_NOTES: &str = "\
Five fields of times, six (the year last), seven (seconds first, the year last) or a nickname such as @daily. A year other than * \
is refused: duly has no field of years. Imported tasks behave as under supercronic: one attempt, no catch-up of missed \
occurrences, no overlap, no timeout, started in the working directory of the scheduler, % is not special. A change of daylight \
saving follows the rules of duly.

The last value of each variable applies to all entries, also to those above it, and is added to the environment of the \
scheduler. CRON_TZ is the zone of the schedules, too; USER and TZ are passed to the commands only.

Entries that cannot be imported are listed with the reason; the others are imported. The exit code is then 1, unless --partial \
is given. Repeating an import changes nothing.

Examples:
  duly import supercronic --dry-run crontab
  duly import supercronic crontab --overlapping --tz Europe/Rome";

const NANOCLAW_NOTES: &str = "\
The command reads one line of JSON from its standard input: id, group_folder, chat_jid, prompt, context_mode, script, \
schedule_type and schedule_value, with the values of NanoClaw. At most one task of a chat runs at a time. For NanoClaw 2 the line has \
id (the series), agent_group, session, channel_type, platform_id, thread_id, prompt, script, content, schedule_type and \
schedule_value; at most one task of a session runs at a time. Its rows of kind task in messages_in with one series_id become one \
task.

With --handler, each task gets this handler and the same JSON as its payload: duly run --worker serves it.

Paused tasks are imported as paused. Tasks that are completed or cannot be imported are listed with the reason; the others are \
imported. The exit code is then 1, unless --partial is given. Repeating an import changes nothing. Stop the scheduler of \
NanoClaw before you start duly.

Examples:
  duly import nanoclaw store/messages.db --tz Europe/Rome -- node run-task.js
  duly import nanoclaw store/messages.db --handler agent
  duly import nanoclaw data/v2-sessions --dry-run -- node run-task.js";
