//! An example or two of every command, as its help ends. A test types them all.

pub(crate) const RUN: &str = r#"SIGHUP has --tasks applied again; what is not declared any more stays. A second SIGINT or SIGTERM ends the wait.
SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF and SIGIO are logged and ignored.

A command runs in a session of its own, without a terminal. As process 1 of a container, duly reaps what its commands leave.

Examples:
  duly run --tasks tasks.toml
  duly run --create --workers 8 --drain 5m
  duly run --until-idle --keep-runs 7d --most-runs 500"#;

pub(crate) const ADD: &str = r#"Examples:
  duly add nightly --cron "0 3 * * *" --tz local -- ./backup.sh --full
  duly add poll --every 15m --overlap skip --timeout 5m --shell 'curl -sf "$URL" | ./import'
  duly add reminder --in 2h --at-most-once -- notify-send "Tea is ready"
  duly add digest --cron "0 7 * * mon-fri" --handler digest --payload '{"to": "anna"}'
  duly add reindex --manual -- ./reindex.sh"#;

pub(crate) const APPLY: &str = r#"Examples:
  duly apply tasks.toml
  duly apply tasks.toml --prune --dry-run"#;

pub(crate) const IMPORT: &str = r#"Examples:
  duly import crontab /etc/cron.d/certbot --user root --dry-run
  duly import nanoclaw store/messages.db -- node run-task.js"#;

/// What a line of runs says.
macro_rules! spark {
    ($examples:literal) => {
        concat!(
            "The last runs, oldest first: a block for each that succeeded, or where no Unicode is shown a digit, as high as it ",
            "took long, 1 to 8 eighths of the longest; x dead, ! to be tried again, - skipped, m missed, c cancelled, > running, ",
            "q queued.\n\n",
            $examples
        )
    };
}

pub(crate) const LIST: &str = spark!(
    "Examples:
  duly list
  duly list --names
  duly --db agent.db list --json"
);

pub(crate) const SHOW: &str = spark!(
    "Examples:
  duly show nightly"
);

pub(crate) const STATUS: &str = r#"Examples:
  duly status
  duly status --json"#;

pub(crate) const NEXT: &str = r#"Examples:
  duly next nightly -n 10
  duly next "0 2 * * *" --tz Europe/Rome --from 2027-03-27
  duly next nightly --if-down 8h"#;

pub(crate) const HISTORY: &str = r#"Examples:
  duly history nightly
  duly history --status dead --since 2d -n 50"#;

pub(crate) const LOGS: &str = r#"Examples:
  duly logs 42"#;

pub(crate) const TRIGGER: &str = r#"Examples:
  duly trigger nightly --wait
  duly trigger digest --payload '{"to": "bruno"}' --key bruno-march"#;

pub(crate) const RETRY: &str = r#"Examples:
  duly retry 42"#;

pub(crate) const PAUSE: &str = r#"Examples:
  duly pause nightly"#;

pub(crate) const RESUME: &str = r#"Examples:
  duly resume nightly"#;

pub(crate) const CANCEL: &str = r#"Examples:
  duly cancel 42
  duly cancel nightly
  duly cancel 42 --gone"#;

pub(crate) const REMOVE: &str = r#"Examples:
  duly remove nightly"#;

pub(crate) const CHECK: &str = r#"Examples:
  duly check
  duly check --overdue 1h --failures 5"#;

pub(crate) const PRUNE: &str = r#"Examples:
  duly prune --dry-run
  duly prune --keep-runs 7d --least-runs 10 --keep-events 7d"#;

pub(crate) const DOCTOR: &str = r#"Examples:
  duly doctor"#;

pub(crate) const SELFTEST: &str = r#"Exit code 1, and the folder is kept, if anything is found that should not be.

Examples:
  duly selftest
  duly selftest --for 10m --dir /var/lib/agent
  duly selftest --seed 7 --json"#;

pub(crate) const BACKUP: &str = r#"Examples:
  duly backup agent-copy.db"#;

pub(crate) const COMPLETIONS: &str = r#"Names of tasks are completed too, of the file that --db, or DULY_DB, names.

Examples:
  duly completions bash > ~/.local/share/bash-completion/completions/duly
  duly completions zsh > "${fpath[1]}/_duly"
  duly completions fish > ~/.config/fish/completions/duly.fish"#;

pub(crate) const MAN: &str = r#"Examples:
  duly man | man -l -
  duly man add > duly-add.1"#;
