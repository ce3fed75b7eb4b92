//! `[[worker]]` of a manifest: `duly run --tasks` starts these workers beside those of `--worker`, with their folder, variables and
//! copies; two of one name are refused, and nothing is changed.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;

use duly::NewTask;

use crate::fixtures::{TestDb, eventually, overdue};
use crate::sidecar::Sidecar;

/// A worker with one handler, which returns the worker, a variable and the folder.
const WORKER: &str = r#"
printf '{"type":"hello","protocol":1,"handlers":["%s"],"concurrency":1}\n' "$1"
while IFS= read -r line; do
  case $line in
  *'"type":"run"'*)
    id=$(printf '%s' "$line" | sed 's/.*\("run":[0-9]*,"attempt":[0-9]*\).*/\1/')
    # The other copy gets the other run: both wait for each other.
    : >"$2/$DULY_WORKER-$DULY_WORKER_COPY"
    until [ "$(ls "$2" | grep -c "^$DULY_WORKER-")" -ge "$3" ]; do sleep 0.02; done
    printf '{"type":"done",%s,"result":"%s %s %s %s"}\n' "$id" "$DULY_WORKER" "$DULY_WORKER_COPY" "$LEVEL" "${PWD##*/}";;
  *'"type":"stop"'*) exit 0;;
  *'"type":"ping"'*) echo '{"type":"pong"}';;
  esac
done
"#;

/// Writes the worker and a manifest with the given sections, and returns the path of the manifest.
fn declare(db: &TestDb, workers: &str) -> String {
    for folder in ["declared/mail", "marks"] {
        std::fs::create_dir_all(db.home().join(folder)).expect("a folder");
    }
    std::fs::write(db.home().join("worker.sh"), WORKER).expect("a script");
    let path = db.home().join("declared/tasks.toml");
    std::fs::write(&path, workers).expect("a manifest");
    path.to_str().expect("a name").to_owned()
}

#[test]
fn declared_workers_run_beside_those_of_the_command_line() {
    let db = TestDb::new();
    let (script, marks) = (db.home().join("worker.sh"), db.home().join("marks"));
    let (script, marks) = (script.display(), marks.display());
    let section = |name: &str, handler: &str, rest: &str| {
        format!("[[worker]]\nname = \"{name}\"\ncommand = [\"sh\", \"{script}\", \"{handler}\", \"{marks}\", {rest}\n")
    };
    let mail = section("mail", "mail", "\"2\"]\ncwd = \"mail\"\nenv = { LEVEL = \"debug\" }\ncopies = 2");
    let file = declare(&db, &format!("{mail}{}", section("reports", "report", "\"1\"]")));
    let client = db.client();
    for (name, handler) in [("a", "mail"), ("b", "mail"), ("c", "report"), ("d", "other")] {
        client.add(overdue(name).handler(handler)).expect("a task");
    }
    let other = format!("other=sh {script} other {marks} 1");
    let mut sidecar = Sidecar::start(&db, &["--tasks", &file, "--worker", &other, "--until-idle"]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let results = db.rows("SELECT result ->> '$' FROM task_runs WHERE status = 'succeeded'");
    let results: BTreeSet<&str> = results.iter().map(String::as_str).collect();
    let here = std::env::current_dir().expect("the current directory");
    let here = here.file_name().and_then(|name| name.to_str()).expect("its name");
    let expected = ["mail 1 debug mail", "mail 2 debug mail", "reports 1  declared", &format!("other 1  {here}")];
    assert_eq!(results, expected.map(str::to_owned).iter().map(String::as_str).collect::<BTreeSet<_>>());
    db.assert_sound();
}

#[test]
fn two_workers_of_one_name_are_refused_and_no_task_is_added() {
    let db = TestDb::new();
    let task = "[[task]]\nname = \"t\"\nevery = \"1h\"\nhandler = \"mail\"\n";
    let section = "[[worker]]\nname = \"mail\"\ncommand = [\"true\"]\n";
    let file = declare(&db, &format!("{task}{section}"));
    let client = db.client();
    client.add(NewTask::manual("by-hand").handler("mail")).expect("a task");
    let many: Vec<String> = (0..64).map(|at| format!("w{at}=true")).collect();
    let many: Vec<&str> = many.iter().flat_map(|worker| ["--worker", worker]).collect();
    for (options, says) in [
        (&["--worker", "mail=true"][..], "tasks.toml declares a worker \"mail\", too: expected one of this name"),
        (&["--worker", "a=true", "--worker", "a=false"], "two workers have the name \"a\""),
        (&many, "expected at most 64 workers, found 65"),
    ] {
        let options = [&["--tasks", &file], options].concat();
        let mut sidecar = Sidecar::spawn(&db, &options);
        assert!(matches!(sidecar.end().code(), Some(1 | 2)), "{}", sidecar.log());
        assert!(sidecar.log().contains(says), "{}", sidecar.log());
        assert_eq!(client.names().expect("names"), ["by-hand"]);
    }
}

#[test]
fn a_reload_changes_no_worker() {
    let db = TestDb::new();
    let script = db.home().join("worker.sh");
    let marks = db.home().join("marks");
    let section = |name: &str| {
        format!(
            "[[worker]]\nname = \"{name}\"\ncommand = [\"sh\", \"{}\", \"mail\", \"{}\", \"1\"]\n",
            script.display(),
            marks.display()
        )
    };
    let file = declare(&db, &section("mail"));
    let mut sidecar = Sidecar::spawn(&db, &["--tasks", &file]);
    eventually("the worker is ready", || sidecar.log().contains("ready"));
    let applied = |count: usize| {
        sidecar.signal("HUP");
        eventually("it is applied", || sidecar.log().matches("applied \"").count() == count);
    };
    let says = "SIGHUP: the workers of the manifest have changed: restart duly run to apply that";
    applied(2);
    declare(&db, &format!("{}{}", section("mail"), section("more")));
    applied(3);
    eventually("the change is reported", || sidecar.log().contains(says));
    // The worker that was declared at the start still serves its handler.
    db.client().add(overdue("a").handler("mail")).expect("a task");
    eventually("its run succeeds", || db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'") == "1");
    declare(&db, &section("mail"));
    applied(4);
    sidecar.terminate();
    let log = sidecar.log();
    assert_eq!((log.matches(says).count(), log.matches("started, pid").count()), (1, 1), "{log}");
}
