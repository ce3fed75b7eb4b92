//! What `import` can be told.

use std::path::PathBuf;

use clap::Subcommand;

/// Where tasks are brought over from.
#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// The lines of a crontab, as tasks that keep cron's habits.
    #[command(after_help = OF_CRONTAB)]
    Crontab(Crontab),
    /// The scheduled tasks of NanoClaw, each carried out by a command of yours.
    #[command(
        override_usage = "duly import nanoclaw [OPTIONS] <FILE> -- <ARGV>...",
        after_help = OF_NANOCLAW
    )]
    Nanoclaw(Nanoclaw),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Crontab {
    /// The crontab, or - for standard input.
    pub(crate) file: PathBuf,
    /// Its lines name a user before the command. Known by itself of /etc/crontab and what is in /etc/cron.d.
    #[arg(long)]
    pub(crate) system: bool,
    /// Whose lines to take of a system crontab, and whose home they start in. Default: whoever runs this.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// What their names begin with.
    #[arg(long, value_name = "WORD", default_value = "cron")]
    pub(crate) prefix: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Nanoclaw {
    /// Its database. It is read, and not written.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) common: Common,
    /// What their names begin with.
    #[arg(long, value_name = "WORD", default_value = "nanoclaw")]
    pub(crate) prefix: String,
    /// A command and its arguments, for each of them. No shell reads them.
    #[arg(last = true, value_name = "ARGV", required = true)]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// The zone in which their times are read: an IANA name, or local for this machine's.
    #[arg(long, value_name = "ZONE", default_value = "local")]
    pub(crate) tz: String,
    /// Remove what was imported from the same source before and is not in it any more.
    #[arg(long)]
    pub(crate) prune: bool,
    /// With --prune: accept a source that holds no task, and remove all that was imported from it before.
    #[arg(long, requires = "prune")]
    pub(crate) allow_empty: bool,
    /// Succeed although something could not be imported.
    #[arg(long)]
    pub(crate) partial: bool,
    /// Take over tasks that were imported from another source, as after a file was moved.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Show what would come, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

// One line a paragraph: it is laid out for the terminal that it is shown on.
const OF_CRONTAB: &str = "\
As with cron, each line is tried once, is not made up for if nobody was there to run it, may run beside itself, has no time \
limit, and starts in the home folder. It gets what the crontab sets, above the scheduler's own environment. CRON_TZ counts \
from its line on; TZ is for the commands only.

What cannot come is listed with its reason, and keeps nothing else back; the exit code is then 1, unless --partial is given. \
The same again changes nothing.

Examples:
  crontab -l | duly import crontab -
  duly import crontab --dry-run /etc/crontab
  duly import crontab /etc/cron.d/certbot --user root --tz Europe/Rome";

const OF_NANOCLAW: &str = "\
The command reads one line of JSON from its standard input: id, group_folder, chat_jid, prompt, context_mode, script, \
schedule_type and schedule_value, as NanoClaw has them. At most one task of a chat runs at a time.

What is paused comes paused. What is completed, or cannot come, is listed with its reason, and keeps nothing else back; the \
exit code is then 1, unless --partial is given. The same again changes nothing. Stop NanoClaw's own scheduler before duly runs.

Examples:
  duly import nanoclaw store/messages.db --tz Europe/Rome -- node run-task.js";
