//! Notes and examples at the end of each help text. Tests parse and run every example.

/// Appends examples for options of the feature `page`.
macro_rules! run {
    ($page:literal) => {
        concat!(
            r#"SIGHUP applies --tasks again, without removing tasks. A second SIGINT or SIGTERM ends running commands at once.
SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF and SIGIO are logged and ignored. As process 1 of a container, it drains at SIGQUIT, SIGWINCH, SIGPWR and SIGRTMIN+3 too.

DULY_LOG sets the level of the log: off, error, warn, info (default), debug or trace.

Commands inherit the environment of duly run, unless --clean-env is given. Each runs in its own session, without a terminal.

A worker (--worker, or [[worker]] in the manifest of --tasks) is a program in any language whose functions are handlers. It is started again when it ends. A reload does not change the workers.

Under systemd (Type=notify, WatchdogSec), duly reports that it is ready, and sends signs of life. As PID 1, it reaps orphan processes.

Examples:
  duly run --tasks tasks.toml
  duly run --worker 'mail=node mail.mjs'
  duly run --create --clean-env --workers 8 --drain 5m
  duly run --until-idle --keep-runs 7d --most-runs 500
  duly run --alert-command 'mail -s duly root'"#,
            $page
        )
    };
}

#[cfg(feature = "page")]
pub(crate) const RUN: &str = run!("\n  duly run --http 127.0.0.1:8629");
#[cfg(not(feature = "page"))]
pub(crate) const RUN: &str = run!("");

pub(crate) const ADD: &str = r#"Durations have a unit: 90s, 15m, 1h 30m, 2d. Times without an offset are read in --tz.

--overlap: an occurrence is due while an earlier run of the task is unfinished
  skip            do not run it; record it as skipped
  buffer_one      let one run wait; skip further occurrences
  buffer_all      let every run wait, in order, up to --catch-up-limit
  cancel_running  stop the earlier run, then start the new one
  allow           run both at the same time

--misfire: occurrences are later than --misfire-grace, for example after a shutdown
  run_once  run once for all of them; record the others as missed
  skip      run none of them; record them as missed
  run_all   run each of the newest --catch-up-limit ones; needs --overlap buffer_all or allow

Examples:
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
  duly import supercronic crontab --dry-run
  duly import nanoclaw store/messages.db -- node run-task.js"#;

/// Prefixes examples with the legend of the sparkline.
macro_rules! spark {
    ($examples:literal) => {
        concat!(
            "The last runs are shown as one character each, oldest first. A bar (without Unicode: a point) is a run that ",
            "succeeded; its height (1 to 8) is its duration relative to the longest one. x dead, ! failed and waiting for a ",
            "retry, - skipped, m missed, c cancelled, > running, q queued.\n\n",
            $examples
        )
    };
}

pub(crate) const LIST: &str = spark!(
    r#"Examples:
  duly list
  duly list "backup*" --status paused
  duly list --all --handler command --wide
  duly --db agent.db list --json"#
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
  duly logs 42
  duly logs nightly --follow"#;

pub(crate) const TRIGGER: &str = r#"Examples:
  duly trigger nightly --wait
  duly trigger digest --payload '{"to": "bruno"}' --key bruno-march"#;

pub(crate) const RETRY: &str = r#"Examples:
  duly retry 42
  duly retry --status dead --handler mail --older-than 1h --dry-run"#;

pub(crate) const PAUSE: &str = r#"Examples:
  duly pause nightly
  duly pause --handler mail --yes"#;

pub(crate) const RESUME: &str = r#"Examples:
  duly resume nightly
  duly resume --handler mail --yes"#;

pub(crate) const CANCEL: &str = r#"Examples:
  duly cancel 42
  duly cancel nightly
  duly cancel --handler mail --status queued --name "report-*" --older-than 2h --dry-run
  duly cancel 42 --gone"#;

pub(crate) const REMOVE: &str = r#"Examples:
  duly remove nightly
  duly remove nightly --cancel
  duly remove --name "import-*" --status completed --older-than 7d --yes"#;

pub(crate) const LIMIT: &str = r#"A limit holds for all schedulers of the database, while some of them are killed, too. Without a limit, one run of a key runs at a time.

Examples:
  duly limit
  duly limit set --key smtp --running 3
  duly limit set --handler command --rate 100/1m
  duly limit remove --key smtp"#;

pub(crate) const CHECK: &str = r#"Examples:
  duly check
  duly check --overdue 1h --failures 5"#;

pub(crate) const PRUNE: &str = r#"Examples:
  duly prune --dry-run
  duly prune --keep-runs 7d --least-runs 10 --keep-events 7d"#;

pub(crate) const DOCTOR: &str = r#"Examples:
  duly doctor"#;

pub(crate) const SELFTEST: &str = r#"If a check fails, the exit code is 1; if one could not be completed and none failed, 5: not decided. Then the temporary folder is kept, else it is removed.

Examples:
  duly selftest
  duly selftest --for 10m --dir /var/lib/agent
  duly selftest --seed 7 --json"#;

pub(crate) const BACKUP: &str = r#"Examples:
  duly backup agent-copy.db"#;

pub(crate) const MIGRATE: &str = r#"All rows are copied in one transaction: if it is cut short, the target holds none. The source is not changed.

Examples:
  duly migrate --from agent.db --to postgres://duly@db.example/app
  duly migrate --from postgres://duly@db.example/app --to agent-copy.db"#;

/// Appends examples to what the commands of `service` have in common.
macro_rules! service {
    ($examples:literal) => {
        concat!(
            "A service of systemd on Linux, of launchd on macOS, of the Task Scheduler on Windows. duly replaces and removes only files ",
            "that it has written.\n\n",
            $examples
        )
    };
}

pub(crate) const SERVICE: &str = service!(
    "Examples:
  duly service install --db agent.db
  duly service install --dry-run --for windows
  duly service status"
);

pub(crate) const SERVICE_INSTALL: &str = service!(
    "Examples:
  duly service install --db agent.db
  duly service install --db agent.db --name mail -- --tasks tasks.toml --drain 1m
  duly service install --system --dry-run --for launchd"
);

pub(crate) const SERVICE_UNINSTALL: &str = service!(
    "Examples:
  duly service uninstall
  duly service uninstall --name mail --dry-run"
);

pub(crate) const SERVICE_STATUS: &str = r#"The exit code is 1 unless the service is running. It is current if install, with the program that runs now, would write the same file.

Examples:
  duly service status
  duly service status --name mail --json"#;

#[cfg(feature = "mcp")]
pub(crate) const MCP: &str = r#"A client of the Model Context Protocol starts this command, and speaks with it over standard input and output. It never takes a command from a model: a manifest declares templates. See docs/agents.md.

Examples:
  duly mcp
  duly mcp --scope agent:anna/ --allow add,trigger,pause --handlers remind,post --manifest tasks.toml
  duly mcp --scope agent:anna/ --see-all --allow add,pause,remove --handlers remind --tz Europe/Rome --max-tasks 20"#;

pub(crate) const COMPLETIONS: &str = r#"In bash, zsh and fish, names of tasks are completed too, from the database of --db or DULY_DB. Each line below installs the completions of one shell; new shells read them.

Examples:
  duly completions bash > ~/.local/share/bash-completion/completions/duly
  duly completions zsh > "${fpath[1]}/_duly"
  duly completions fish > ~/.config/fish/completions/duly.fish"#;

pub(crate) const MAN: &str = r#"Examples:
  duly man | man -l -
  duly man add > duly-add.1"#;
