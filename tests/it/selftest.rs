//! `duly selftest`: its result on a safe disk, that it leaves nothing behind however it ends, and that the checker finds each
//! kind of fault.

use std::collections::BTreeSet;

use duly::{AttemptOutcome, NewTask, Outcome, RunStatus, Timestamp};

use crate::fixtures::{NOON, TestDb, at, seconds};

#[path = "../../src/bin/duly/selftest/checker.rs"]
pub(crate) mod checker;

use checker::{Counts, Expectation, Fault, Line, Tables};

/// A journal of a few seconds, and the tables.
#[derive(Clone)]
struct Case {
    lines: Vec<Line>,
    tables: Tables,
    expectations: Vec<Expectation>,
}

impl Case {
    /// Three occurrences of a task whose first attempts fail, and of an at-most-once task.
    fn new() -> Case {
        let (db, start) = (TestDb::new(), at(NOON));
        let mut stepper = db.builder(NOON).accept("work").start().expect("a stepper");
        let task = |name: &str| NewTask::interval(name, seconds(10)).starts_at(start.plus(seconds(10))).handler("work");
        let end = start.plus(seconds(30));
        stepper.client().add(task("again").ends_at(end)).expect("a task");
        stepper.client().add(task("once").ends_at(end).at_most_once()).expect("a task");
        let mut lines = Vec::new();
        for _ in 0..60 {
            for claim in stepper.step().expect("a turn") {
                let (run, attempt) = (claim.run_id, claim.attempt);
                let fails = claim.task == "again" && attempt == 1;
                let (task, scheduled_for) = (claim.task.clone(), claim.scheduled_for);
                lines.push(Line::Began { run, attempt, process: 7, scheduled_for, task });
                lines.push(Line::Ended { run, attempt });
                stepper.finish(&claim, if fails { Outcome::failed("not yet") } else { Outcome::succeeded() });
            }
            stepper.step().expect("a turn");
            stepper.clock().advance(seconds(1));
        }
        let tables = Tables::read(&db.client()).expect("the tables");
        let due: BTreeSet<Timestamp> = (1..=3).map(|nth| start.plus(seconds(10 * nth))).collect();
        let expectation = |task: &str| Expectation {
            task: task.to_owned(),
            due: Some(due.clone()),
            at_most_once: task == "once",
            alone: true,
        };
        Case { lines, tables, expectations: vec![expectation("again"), expectation("once")] }
    }

    fn faults(&self) -> Vec<Fault> {
        checker::check(&self.lines, &self.tables, &self.expectations)
    }

    /// Returns the rules that are violated after a change, without consecutive repetitions.
    fn violated_rules(&self, change: impl FnOnce(&mut Case)) -> Vec<&'static str> {
        let mut other = self.clone();
        change(&mut other);
        let mut rules: Vec<_> = other.faults().iter().map(|fault| fault.rule).collect();
        rules.dedup();
        rules
    }

    /// Returns the index of the start of an attempt of a task.
    fn start_index(&self, wanted: &str, number: u32) -> usize {
        let is =
            |line: &Line| matches!(line, Line::Began { task, attempt, .. } if task == wanted && *attempt == number);
        self.lines.iter().position(is).expect("such a start")
    }
}

#[test]
fn the_checker_finds_each_fault() {
    let case = Case::new();
    assert_eq!(
        (case.lines.len(), case.tables.runs.len(), case.tables.attempts.len()),
        (18, 6, 3),
        "{case:?}",
        case = case.lines
    );
    assert_eq!(case.faults(), []);
    let (first, again, once) =
        (case.start_index("again", 1), case.start_index("again", 2), case.start_index("once", 1));

    // Changes of the journal.
    let double = case.violated_rules(|case| {
        let repeated = [case.lines[again].clone(), case.lines[again + 1].clone()];
        case.lines.splice(again + 2..again + 2, repeated);
    });
    assert_eq!(double, ["double"]);
    let both = case.violated_rules(|case| case.lines.swap(first + 1, again));
    assert!(both.contains(&"at once"), "{both:?}");
    let killed = case.violated_rules(|case| {
        case.lines[first + 1] = Line::Killed { process: 7 };
    });
    assert_eq!(killed, [""; 0], "a killed handler need not end");
    let last = case.lines.len() - 1;
    assert_eq!(case.violated_rules(|case| drop(case.lines.remove(last))), ["not done"]);
    let of = |change: fn(&mut Line)| case.violated_rules(|case| change(&mut case.lines[first]));
    let other_run = of(|line| {
        if let Line::Began { run, .. } = line {
            *run = 99
        }
    });
    assert_eq!(other_run, ["at once", "unrecorded"], "it never ended");
    let other_task = of(|line| {
        if let Line::Began { task, .. } = line {
            *task = "third".into()
        }
    });
    assert_eq!(other_task, ["unrecorded"]);
    let other_time = of(|line| {
        if let Line::Began { scheduled_for, .. } = line {
            *scheduled_for = Timestamp::MIN
        }
    });
    assert_eq!(other_time, ["unrecorded"]);
    let late = case.violated_rules(|case| {
        let mut line = case.lines[once].clone();
        let Line::Began { attempt, .. } = &mut line else { panic!("{line:?}") };
        *attempt = 2;
        case.lines.insert(once + 2, line);
    });
    assert_eq!(late, ["at most once", "at once", "unrecorded"], "it also overlaps with the next run of its task");
    assert_eq!(case.violated_rules(|case| case.lines.clear()), ["not done", "unrecorded"]);

    // Changes of the tables.
    let edited = |change: fn(&mut Tables)| case.violated_rules(|case| change(&mut case.tables));
    assert_eq!(edited(|tables| tables.attempts.clear()), ["unrecorded", "attempts"]);
    assert_eq!(edited(|tables| tables.attempts[0].1 = AttemptOutcome::Released), ["released"]);
    assert_eq!(edited(|tables| tables.attempts[0].1 = AttemptOutcome::Lost), [""; 0], "a lost attempt may have ended");
    assert_eq!(edited(|tables| tables.runs[0].status = RunStatus::Queued), ["unrecorded", "unfinished"]);
    let gone = edited(|tables| drop(tables.runs.remove(0)));
    assert!(gone.contains(&"lost") && gone.contains(&"unrecorded"), "{gone:?}");
    let twice = edited(|tables| {
        let mut copy = tables.runs[0].clone();
        (copy.id, copy.status, copy.attempt) = (99, RunStatus::Skipped, 0);
        tables.runs.push(copy);
    });
    assert_eq!(twice, ["twice"]);

    // Changes of the expectations.
    let expected = |change: fn(&mut BTreeSet<Timestamp>)| {
        case.violated_rules(|case| change(case.expectations[0].due.as_mut().expect("a schedule")))
    };
    assert_eq!(expected(|due| due.extend([at("2027-03-14T12:00:40Z")])), ["lost"]);
    assert_eq!(expected(|due| due.retain(|due| *due != at("2027-03-14T12:00:10Z"))), ["unasked"]);
}

#[test]
fn a_row_of_several_occurrences_covers_all_of_them() {
    let case = Case::new();
    let of_it = |case: &mut Case| {
        case.tables.runs.retain(|run| run.task == "again");
        case.lines.retain(|line| !matches!(line, Line::Began { task, .. } if task == "once"));
        case.tables.runs.sort_by_key(|run| run.scheduled_for);
    };
    let skipped = |last: &'static str| {
        case.violated_rules(|case| {
            of_it(case);
            case.expectations.truncate(1);
            let begun = case.tables.runs.split_off(1);
            let skip = &mut case.tables.runs[0];
            (skip.status, skip.attempt, skip.last_scheduled_for) = (RunStatus::Skipped, 0, Some(at(last)));
            let kept: BTreeSet<i64> = begun.iter().skip(1).map(|run| run.id).collect();
            case.tables.runs.extend(begun.into_iter().skip(1));
            case.lines
                .retain(|line| matches!(line, Line::Began { run, .. } | Line::Ended { run, .. } if kept.contains(run)));
            case.tables.attempts.retain(|((run, _), _)| kept.contains(run));
        })
    };
    assert_eq!(skipped("2027-03-14T12:00:20Z"), [""; 0]);
    assert_eq!(skipped("2027-03-14T12:00:15Z"), ["lost"]);
    assert_eq!(skipped("2027-03-14T12:00:30Z"), ["twice"]);
}

#[test]
fn a_journal_is_parsed_as_written_and_a_torn_line_is_a_fault() {
    let case = Case::new();
    let mut text: String = case.lines.iter().map(ToString::to_string).collect();
    text.push_str(&Line::Killed { process: 12 }.to_string());
    let (lines, torn) = checker::parse(&text);
    assert_eq!(torn, []);
    assert_eq!(lines, [case.lines.as_slice(), &[Line::Killed { process: 12 }]].concat());
    let (lines, torn) = checker::parse("ended 1 1\nbegan 2 1\nended 2 one\n");
    assert_eq!(lines, [Line::Ended { run: 1, attempt: 1 }]);
    let faults: Vec<String> = torn.iter().map(ToString::to_string).collect();
    assert_eq!(faults, ["torn: line 2 of the journal: \"began 2 1\"", "torn: line 3 of the journal: \"ended 2 one\""]);
    let counts = Counts::of(&case.lines, &case.tables);
    assert_eq!(counts, Counts { occurrences: 6, starts: 9, lost: 0, skipped: 0 });
}

// ------------------------------------------------------------------------------------------------ the program --

#[cfg(target_os = "linux")]
mod program {
    use std::path::PathBuf;
    use std::process::{Child, Command, Output, Stdio};

    use serde_json::Value;

    use crate::fixtures::{TestDb, end, eventually};
    use crate::sidecar::signal;

    /// The command, in the folder of `db`.
    fn selftest(db: &TestDb, line: &[&str]) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_duly"));
        program.arg("selftest").args(line).current_dir(db.home()).env_remove("DULY_DB").stdin(Stdio::null());
        program
    }

    /// Exit code, stdout and stderr.
    fn parts_of(output: &Output) -> (Option<i32>, String, String) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// The folders in the folder of `db`.
    fn folders(db: &TestDb) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(db.home()).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.is_dir()).collect()
    }

    /// Live children in the folder of `db`: ID, and check and role.
    fn children(db: &TestDb) -> Vec<(String, String)> {
        let processes = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
        let of_it = processes.filter_map(|process| {
            let folder = std::fs::read_link(process.path().join("cwd")).ok()?;
            let variables = std::fs::read(process.path().join("environ")).ok()?;
            let variables = String::from_utf8_lossy(&variables).into_owned();
            let role = variables.split('\0').find_map(|one| one.strip_prefix("DULY_SELFTEST_PART="))?.to_owned();
            let check = folder.strip_prefix(db.home()).ok()?.file_name()?.to_string_lossy().into_owned();
            let id = process.file_name().to_string_lossy().into_owned();
            Some((id, format!("{check}/{role}")))
        });
        of_it.collect()
    }

    /// Waits until two schedulers of a check are running, and returns their IDs.
    fn schedulers(db: &TestDb, check: &str) -> Vec<String> {
        let mut found = Vec::new();
        eventually(&format!("two schedulers of {check} are running"), || {
            let is_scheduler = |(id, role): (String, String)| (role == format!("{check}/schedule")).then_some(id);
            found = children(db).into_iter().filter_map(is_scheduler).collect();
            found.len() == 2
        });
        found
    }

    fn spawn_selftest(db: &TestDb, line: &[&str]) -> Child {
        selftest(db, line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program")
    }

    #[test]
    fn a_safe_disk_passes_and_nothing_is_left_on_it() {
        let db = TestDb::new();
        std::fs::write(db.file(), "of the user, and no database").expect("a file");
        let output = selftest(&db, &["--for", "3s", "--seed", "7", "--json", "--db", "agent.db"]).output();
        let (code, out, err) = parts_of(&output.expect("the program"));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        let document: Value = serde_json::from_str(&out).expect("one document");
        assert_eq!(
            (&document["seed"], &document["trusted"], &document["kept"]),
            (&7.into(), &true.into(), &Value::Null)
        );
        let checks = document["checks"].as_array().expect("checks");
        let names: Vec<_> = checks.iter().map(|check| check["check"].as_str().expect("a name")).collect();
        let all = ["file system", "locks", "shared memory", "syncs", "naive loop", "duly", "kills", "doctor"];
        assert_eq!(names, all);
        assert!(checks.iter().all(|check| check["verdict"] != "bad"), "{out}");
        assert_eq!(std::fs::read_dir(db.home()).expect("a folder").count(), 1, "nothing is left beside the user's");
        assert_eq!(std::fs::read_to_string(db.file()).expect("a file"), "of the user, and no database");
        assert_eq!(children(&db), []);
    }

    #[test]
    fn a_scheduler_that_ends_by_itself_leaves_its_check_undecided_and_the_folder_is_kept() {
        let db = TestDb::new();
        let child = spawn_selftest(&db, &["--for", "5s", "--quiet"]);
        signal("KILL", &schedulers(&db, "bench")[0]);
        let (code, out, err) = parts_of(&child.wait_with_output().expect("an end"));
        assert_eq!(code, Some(5), "{out}{err}");
        assert!(
            out.starts_with("OPEN ") && out.contains("duly") && out.contains("ended by itself, signal: 9"),
            "{out}"
        );
        assert!(!out.contains("good"), "--quiet prints neither good checks nor notes: {out}");
        let [kept] = folders(&db).try_into().expect("one folder");
        assert!(
            err.starts_with(
                "error: not decided whether this disk is safe for duly, 1 of 7 checks could not be completed: "
            ),
            "{err}"
        );
        assert!(err.ends_with(&format!("; files kept in {}\n", kept.display())), "{err}");
        assert!(kept.join("bench/agent.db").exists() && kept.join("bench/log").exists());
        assert_eq!(children(&db), []);
    }

    #[test]
    fn ctrl_c_leaves_no_process_and_no_folder() {
        for name in ["INT", "TERM", "HUP"] {
            let db = TestDb::new();
            let child = spawn_selftest(&db, &["--for", "1h"]);
            schedulers(&db, "bench");
            signal(name, &child.id().to_string());
            let (code, out, err) = parts_of(&child.wait_with_output().expect("an end"));
            let error = format!("error: SIG{name}: stopped without a result; the temporary folder is removed\n");
            assert_eq!((code, out.as_str(), err), (Some(1), "", error));
            assert_eq!((children(&db), folders(&db).len()), (vec![], 0));
        }
    }

    #[test]
    fn no_child_outlives_the_program_when_it_is_killed() {
        let db = TestDb::new();
        let mut child = spawn_selftest(&db, &["--for", "1h"]);
        schedulers(&db, "bench");
        end(&mut child);
        eventually("its schedulers have ended", || children(&db).is_empty());
    }
}
