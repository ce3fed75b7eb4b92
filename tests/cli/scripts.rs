//! What scripts rely on: columns in a pipe, exit codes of what was interrupted, and what is said instead of waiting in silence.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use duly::{BoxError, Context, NewTask, Scheduler};

use crate::program::{duly, program, result, temp_dir};
use crate::seed;
#[cfg(target_os = "linux")]
use crate::waits::eventually;
use crate::waits::receive;

/// A script reads what a list prints into a pipe: nothing is shortened, and each column is found by two blanks.
#[test]
fn a_list_in_a_pipe_has_columns_for_scripts() {
    let home = temp_dir();
    seed::fill(&home.path().join("duly.db"));
    let name = "report:monthly-balance-of-all-accounts";
    let rows = |line: &[&str]| -> Vec<Vec<String>> {
        let (code, out, err) = result(&duly(home.path(), line));
        assert_eq!((code, err.as_str()), (0, ""), "{line:?}");
        let columns =
            |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
        out.lines().map(columns).collect()
    };
    let list = rows(&["list", "--all"]);
    assert_eq!(list[0], ["NAME", "SCHEDULE", "STATUS", "NEXT (UTC)", "LAST", "ENDED (UTC)"]);
    let of = |name: &str| list.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{list:?}"));
    let hourly = ["cron 0 * * * * (Europe/Paris)", "paused", "-", "dead", "2023-03-14T08:01:02.400+00:00"];
    assert_eq!(of("hourly")[1..], hourly.map(str::to_owned));
    let argentine = "cron 0 7 1 * * (America/Argentina/Buenos_Aires)";
    assert_eq!(of(name)[1..], [argentine, "active", "2023-04-01T10:00:00+00:00", "-", "-"].map(str::to_owned));
    let history = rows(&["history"]);
    assert_eq!(history[0], ["RUN", "TASK", "SCHEDULED (UTC)", "ORIGIN", "STATUS", "TRY", "TOOK", "NOTE"]);
    assert!(history.iter().all(|row| row.len() == 8), "{history:?}");
    // watch shows on a terminal what a pipe gave it, and sets COLUMNS.
    let narrow = program(home.path(), &["list", "--all"]).env("COLUMNS", "60").output().expect("the program");
    assert!(result(&narrow).1.lines().all(|line| line.chars().count() <= 60), "{narrow:?}");
}

/// A zone that does not exist is not taken for another one without a word; where no time is shown, nothing is said.
#[test]
fn a_zone_of_the_environment_that_is_none_is_said() {
    let home = temp_dir();
    assert_eq!(result(&duly(home.path(), &["add", "t", "--cron", "0 7 * * *", "--", "true"])).0, 0);
    let list =
        |line: &[&str], zone: &str| result(&program(home.path(), line).env("TZ", zone).output().expect("the program"));
    let (code, out, err) = list(&["list"], "Nonsense/Zone");
    assert!(code == 0 && out.contains("NEXT ("), "{out}");
    let warning =
        "warning: TZ=\"Nonsense/Zone\" is not the name of a time zone, such as Europe/Rome: times are shown in ";
    assert!(err.starts_with(warning) && err.lines().count() == 1, "{err}");
    for (line, zone) in [
        (&["list"][..], "Europe/Rome"),
        (&["list", "--json"], "Nonsense/Zone"),
        (&["list", "--names"], "Nonsense/Zone"),
    ] {
        assert_eq!(list(line, zone).2, "", "{line:?} {zone}");
    }
    // Both names of UTC look alike, at any width.
    for width in ["80", "120"] {
        let at =
            |zone| program(home.path(), &["list"]).env("TZ", zone).env("COLUMNS", width).output().expect("the program");
        let title = |zone| result(&at(zone)).1.lines().next().map(str::to_owned);
        assert_eq!(
            (title("UTC"), title("Etc/UTC").is_some_and(|line| line.contains("NEXT (UTC)"))),
            (title("Etc/UTC"), true)
        );
    }
}

/// cron sets LOGNAME and USER for each command; a service of the system has neither.
#[cfg(unix)]
#[test]
fn a_command_has_the_name_of_its_user() {
    let home = temp_dir();
    let name = Command::new("id").arg("-un").output().map(|output| result(&output).1.trim().to_owned()).expect("id");
    let line = ["-q", "add", "t", "--now", "--", "sh", "-c", "echo $LOGNAME/$USER"];
    assert_eq!(result(&duly(home.path(), &line)).0, 0);
    let mut run = program(home.path(), &["-q", "run", "--until-idle"]);
    let run = run.env_remove("LOGNAME").env_remove("USER").output().expect("the program");
    assert_eq!(result(&run).0, 0);
    let (_, out, _) = result(&duly(home.path(), &["logs", "t"]));
    assert!(out.ends_with(&format!("{name}/{name}\n")), "{out}");
}

/// Interrupted, a change of many says how many are left. The write lock holds it up meanwhile.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_change_of_many_says_what_is_left() {
    let home = temp_dir();
    assert_eq!(result(&duly(home.path(), &["add", "t", "--manual", "--", "true"])).0, 0);
    for _ in 0..3 {
        assert_eq!(result(&duly(home.path(), &["trigger", "t"])).0, 0);
    }
    let lock = rusqlite::Connection::open(home.path().join("duly.db")).expect("the file");
    lock.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let mut cancel = program(home.path(), &["cancel", "--name", "t", "--yes"]);
    let cancel = cancel.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let pid = cancel.id();
    // The second bit is SIGINT.
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
    };
    eventually("it catches SIGINT", catches);
    let interrupted = Command::new("kill").args(["-INT", &pid.to_string()]).status().expect("kill");
    assert!(interrupted.success());
    let output = cancel.wait_with_output().expect("an end");
    let left = "error: interrupted: 3 runs are left; repeat the command to do the rest\n";
    assert_eq!(result(&output), (1, String::new(), left.to_owned()));
    drop(lock);
    assert_eq!(result(&duly(home.path(), &["cancel", "--name", "t", "--yes"])).1, "cancelled 3 runs\n");
}

/// A run whose handler no scheduler has waits for ever: that is said, although the scheduler is alive.
#[test]
fn waiting_for_a_handler_that_no_scheduler_has_is_reported() {
    let home = temp_dir();
    let scheduler =
        Scheduler::builder(home.path().join("duly.db")).handler("work", |_: &Context| Ok::<_, BoxError>(()));
    let scheduler = scheduler.start().expect("a scheduler");
    scheduler.add(NewTask::manual("t").handler("missing")).expect("a task");
    let mut waits = program(home.path(), &["trigger", "t", "--wait"]);
    let mut waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut errors = BufReader::new(waits.stderr.take().expect("a pipe"));
    let (send, first_line) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        errors.read_line(&mut line).map(|_| send.send(line))
    });
    let line = receive(&first_line, "a line");
    scheduler.cancel(1).expect("an end of the run");
    let (code, ..) = result(&waits.wait_with_output().expect("an end"));
    assert_eq!(code, 1);
    let start = "warning: run 1 has not begun: unknown_handler: runs of handler missing that may start: 1, for ";
    assert!(line.starts_with(start), "{line}");
    scheduler.shutdown(Duration::from_secs(30)).expect("an end");
}
