//! Compares the journal with the tables: the rules of `duly selftest`, and those that need more than its journal. Pure, except for
//! reading the tables; the tests below break each rule.

use std::collections::{BTreeMap, BTreeSet};

use duly::{AttemptOutcome, Client, RunStatus};

use crate::fixtures::{TestDb, findings};
use crate::kills::handlers::{FINISH, PAY};
use crate::kills::journal::{Journal, Note};
use crate::selftest::checker::{self, AttemptId, Counts, Expectation, Fault, Line, Tables};
use crate::sidecar::processes;

/// What must hold beside the rules for every journal.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    /// Schedules, tasks whose runs may start once, and tasks whose runs may not overlap.
    pub(crate) tasks: Vec<Expectation>,
    /// Tasks that have exactly one run, which succeeds, and whether it may be dead instead.
    pub(crate) once: BTreeMap<String, bool>,
    /// How an attempt may end beside success; `None`: in any way.
    pub(crate) outcomes: Option<&'static [AttemptOutcome]>,
    /// The number of workers of a scheduler: it can die with no more attempts that count and have not reached their handler.
    pub(crate) workers: Option<usize>,
    /// The number of starts, at most, in any period that is shorter than this number of milliseconds.
    pub(crate) rate: Option<(usize, i64)>,
}

/// What is compared.
#[derive(Clone, Default)]
pub(crate) struct Facts {
    pub(crate) journal: Journal,
    pub(crate) tables: Tables,
    /// The owners of lost attempts.
    owners: BTreeMap<AttemptId, String>,
    /// The rows that handlers have committed with their outcome: attempt and part.
    kept: Vec<(AttemptId, u32)>,
    /// What `doctor` finds, and what was set aside.
    findings: Vec<String>,
    /// Lock files, processes and registered schedulers.
    left: Vec<String>,
}

impl Facts {
    /// Reads them. All schedulers have ended.
    pub(crate) fn read(db: &TestDb) -> Facts {
        let numbers =
            |row: &String| row.split('|').map(|text| text.parse::<i64>().expect("a number")).collect::<Vec<_>>();
        let id = |of: &[i64]| (of[0], u32::try_from(of[1]).expect("an attempt"));
        let lost = db.rows("SELECT run_id, attempt, locked_by FROM task_attempts WHERE outcome = 'lost'");
        let lost = lost.iter().filter_map(|row| row.rsplit_once('|'));
        let kept = db
            .rows("SELECT run, attempt, part FROM kept")
            .iter()
            .map(numbers)
            .map(|row| (id(&row), row[2] as u32))
            .collect();
        let mut facts = Facts::of(Journal::read(db.home()), &db.client());
        facts.owners = lost.map(|(of, owner)| (id(&numbers(&of.to_owned())), owner.to_owned())).collect();
        facts.kept = kept;
        facts.findings.extend(
            db.rows("SELECT kind || ': ' || detail FROM scheduler_events WHERE kind IN ('set_aside', 'invalid')"),
        );
        // An owner that was killed while it created its lock file leaves the temporary one.
        facts.left = db.lock_files().into_iter().filter(|name| !name.ends_with(".new")).collect();
        facts.left.extend(db.rows("SELECT id FROM scheduler_instances WHERE stopped_at IS NULL"));
        facts.left.extend(processes_of(db).iter().map(|pid| format!("process {pid}")));
        facts
    }

    /// The facts of another database.
    pub(crate) fn of(journal: Journal, client: &Client) -> Facts {
        let tables = Tables::read(client).expect("the tables");
        Facts { journal, tables, findings: findings(client), ..Facts::default() }
    }

    /// Requires that no rule is broken.
    pub(crate) fn assert(&self, rules: &Rules) -> Counts {
        let faults: Vec<String> = check(self, rules).iter().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        let counts = Counts::of(&self.journal.lines, &self.tables);
        println!("{counts:?}");
        counts
    }
}

/// The processes whose command line names the folder of the database.
pub(crate) fn processes_of(db: &TestDb) -> Vec<u32> {
    let home = db.home().display().to_string();
    let line = |pid: u32| {
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
    };
    processes().map(|process| process.pid).filter(|pid| line(*pid).contains(&home)).collect()
}

/// Returns every broken rule.
pub(crate) fn check(facts: &Facts, rules: &Rules) -> Vec<Fault> {
    let Facts { journal, tables, .. } = facts;
    let mut faults = journal.torn.clone();
    faults.extend(checker::check(&journal.lines, tables, &rules.tasks));
    let mut fault = |rule, found: String| faults.push(Fault { rule, found });
    check_order(journal, rules, &mut fault);
    check_ends(facts, rules, &mut fault);
    check_effects(facts, &mut fault);
    facts.findings.iter().for_each(|found| fault("doctor", found.clone()));
    facts.left.iter().for_each(|found| fault("left", found.clone()));
    faults
}

/// The journal alone: no attempt overlaps, ends twice or after a later one has begun; limits are kept.
fn check_order(journal: &Journal, rules: &Rules, fault: &mut impl FnMut(&'static str, String)) {
    let (mut newest, mut ended) = (BTreeMap::new(), BTreeSet::new());
    for line in &journal.lines {
        match line {
            Line::Began { run, attempt, .. } => drop(newest.insert(*run, *attempt)),
            Line::Ended { run, attempt } => {
                let found = format!("attempt {attempt} of run {run} ended");
                if newest.get(run) != Some(attempt) {
                    fault("late end", format!("{found}, and the newest that began is {:?}", newest.get(run)));
                }
                if !ended.insert((*run, *attempt)) {
                    fault("late end", format!("{found} twice"));
                }
            }
            Line::Killed { .. } => {}
        }
    }
    let mut starts = Vec::new();
    for note in &journal.notes {
        match note {
            Note::Overlap(id) => fault("overlap", format!("{id:?} began while another attempt had its lock")),
            Note::Over(id) => fault("key", format!("{id:?} began while all slots of its key were taken")),
            Note::At(millis) => starts.push(*millis),
            Note::Paid(_) => {}
        }
    }
    starts.sort_unstable();
    if let Some((most, millis)) = rules.rate
        && let Some(starts) = starts.windows(most + 1).find(|starts| starts[most] - starts[0] < millis)
    {
        fault("rate", format!("more than {most} starts within {millis} ms: {starts:?}"));
    }
}

/// The journal and the tables: each run of a task that is due once is there and succeeded, and each attempt ended as it may.
fn check_ends(facts: &Facts, rules: &Rules, fault: &mut impl FnMut(&'static str, String)) {
    let mut missing = rules.once.clone();
    for run in facts.tables.runs.iter().filter(|run| rules.once.contains_key(&run.task)) {
        match missing.remove(&run.task) {
            None => fault("once", format!("{} has a second run, {}", run.task, run.id)),
            Some(true) if run.status == RunStatus::Dead => {}
            Some(_) if run.status == RunStatus::Succeeded => {}
            Some(_) => fault("once", format!("run {} of {} is {}: {:?}", run.id, run.task, run.status, run.error)),
        }
    }
    missing.keys().for_each(|task| fault("once", format!("{task} has no run")));
    for (id, outcome) in &facts.tables.attempts {
        if rules.outcomes.is_some_and(|outcomes| !outcomes.contains(outcome)) {
            fault("outcome", format!("attempt {id:?} is {outcome}"));
        }
    }
    let began = facts.journal.lines.iter().filter_map(|line| match line {
        Line::Began { run, attempt, .. } => Some((*run, *attempt)),
        _ => None,
    });
    let began: BTreeSet<AttemptId> = began.collect();
    let mut unseen: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, owner) in facts.owners.iter().filter(|(id, _)| !began.contains(id)) {
        *unseen.entry(owner).or_default() += 1;
    }
    for (owner, count) in unseen {
        if rules.workers.is_some_and(|workers| count > workers) {
            fault("slots", format!("{count} attempts of {owner} are lost, and had not begun"));
        }
    }
}

/// Effects are performed once, and rows are committed with the outcome of their attempt.
fn check_effects(facts: &Facts, fault: &mut impl FnMut(&'static str, String)) {
    let mut paid: BTreeMap<i64, usize> = BTreeMap::new();
    for note in &facts.journal.notes {
        if let Note::Paid((run, _)) = note {
            *paid.entry(*run).or_default() += 1;
        }
    }
    let mut kept: BTreeSet<_> = facts.kept.iter().copied().collect();
    if kept.len() < facts.kept.len() {
        fault("rows", format!("rows are there twice: {:?}", facts.kept));
    }
    for run in &facts.tables.runs {
        let (times, succeeded) = (paid.get(&run.id).copied().unwrap_or(0), run.status == RunStatus::Succeeded);
        if times > 1 || (run.handler == PAY && succeeded && times == 0) {
            fault("effect", format!("run {} is {}, and has performed its effect {times} times", run.id, run.status));
        }
        let parts = [1, 2].map(|part| kept.remove(&((run.id, run.attempt), part)));
        if parts != [run.handler == FINISH && succeeded; 2] {
            fault("rows", format!("run {} of {} is {}, rows: {parts:?}", run.id, run.task, run.status));
        }
    }
    if let Some(row) = kept.first() {
        fault("rows", format!("rows of an attempt that did not succeed: {row:?}"));
    }
}

/// Facts that break no rule: a run of each kind, one of them with a lost attempt, and the rules that they obey.
fn sound() -> (Facts, Rules) {
    use crate::fixtures::{NOON, once, seconds};
    use duly::Outcome;

    let db = TestDb::new();
    let accept =
        || ["work", FINISH, PAY].into_iter().fold(db.builder(NOON), |builder, name| builder.accept(name)).workers(3);
    let (mut stepper, mut lines) = (accept().start().expect("a stepper"), Vec::new());
    for (name, handler) in [("one", "work"), ("kept", FINISH), ("paid", PAY)] {
        stepper.client().add(once(name).handler(handler)).expect("a task");
    }
    let began = |claim: &duly::Claim, process| {
        let (run, attempt, scheduled_for) = (claim.run_id, claim.attempt, claim.scheduled_for);
        Line::Began { run, attempt, process, scheduled_for, task: claim.task.clone() }
    };
    let lost = stepper.step().expect("a turn");
    lines.extend(lost.iter().map(|claim| began(claim, 1)));
    stepper.crash();
    lines.push(Line::Killed { process: 1 });
    let mut stepper = accept().start().expect("a stepper");
    stepper.step().expect("a turn");
    stepper.clock().advance(seconds(60));
    let mut facts = Facts::default();
    for claim in stepper.step().expect("a turn") {
        let id = (claim.run_id, claim.attempt);
        lines.extend([began(&claim, 2), Line::Ended { run: id.0, attempt: id.1 }]);
        stepper.finish(&claim, Outcome::succeeded());
        facts.owners.insert((id.0, 1), "first".to_owned());
        match &*claim.handler {
            FINISH => facts.kept = vec![(id, 1), (id, 2)],
            PAY => facts.journal.notes.push(Note::Paid(id)),
            _ => {}
        }
    }
    stepper.step().expect("a turn");
    facts.journal.lines = lines;
    facts.journal.notes.extend([0, 500, 1000, 1500].map(Note::At));
    facts.tables = Tables::read(&db.client()).expect("the tables");
    let once = ["one", "kept", "paid"].map(|name| (name.to_owned(), false)).into();
    let rules = Rules {
        once,
        outcomes: Some(&[AttemptOutcome::Lost]),
        workers: Some(2),
        rate: Some((2, 1000)),
        ..Rules::default()
    };
    (facts, rules)
}

#[test]
fn each_broken_rule_is_found() {
    let (facts, rules) = sound();
    assert_eq!((facts.tables.runs.len(), facts.tables.attempts.len(), facts.journal.lines.len()), (3, 3, 10));
    assert_eq!(check(&facts, &rules), []);
    let broken = |change: &dyn Fn(&mut Facts)| {
        let mut other = facts.clone();
        change(&mut other);
        let mut rules: Vec<&str> = check(&other, &rules).iter().map(|fault| fault.rule).collect();
        rules.dedup();
        rules.join(", ")
    };
    let run = |name: &str| facts.tables.runs.iter().position(|run| run.task == name).expect("a run");
    let (one, kept, paid) = (run("one"), run("kept"), run("paid"));
    let id = facts.tables.runs[one].id;
    let note = |note: Note| broken(&|facts| facts.journal.notes.push(note));
    assert_eq!(note(Note::Overlap((id, 2))), "overlap");
    assert_eq!(note(Note::Over((id, 2))), "key");
    assert_eq!(note(Note::At(900)), "rate");
    assert_eq!(note(Note::Paid((facts.tables.runs[paid].id, 1))), "effect");
    assert_eq!(broken(&|facts| facts.journal.notes.retain(|note| !matches!(note, Note::Paid(_)))), "effect");
    assert_eq!(broken(&|facts| facts.journal.torn = Journal::parse("began 1\n").torn), "torn");
    assert_eq!(broken(&|facts| facts.journal.lines.push(Line::Ended { run: id, attempt: 1 })), "late end");
    assert_eq!(broken(&|facts| facts.journal.lines.push(Line::Ended { run: id, attempt: 2 })), "late end");
    let again = broken(&|facts| facts.journal.lines.extend(facts.journal.lines.clone().first().cloned()));
    assert_eq!(again, "double", "the rules of the selftest are checked, too");
    assert_eq!(broken(&|facts| facts.tables.runs[one].status = RunStatus::Dead), "unrecorded, attempts, once");
    assert_eq!(broken(&|facts| facts.tables.runs[kept].attempt = 3), "unrecorded, not done, attempts, rows");
    assert_eq!(broken(&|facts| drop(facts.tables.runs.remove(one))), "unrecorded, once");
    let twice = broken(&|facts| {
        let mut copy = facts.tables.runs[one].clone();
        (copy.id, copy.status, copy.attempt) = (99, RunStatus::Skipped, 0);
        facts.tables.runs.push(copy);
    });
    assert!(twice.ends_with("once"), "{twice}");
    assert_eq!(broken(&|facts| facts.tables.attempts[0].1 = AttemptOutcome::TimedOut), "outcome");
    let unseen = broken(&|facts| facts.owners.extend((50..53).map(|run| ((run, 1), "first".to_owned()))));
    assert_eq!(unseen, "slots");
    assert_eq!(broken(&|facts| facts.kept.truncate(1)), "rows");
    assert_eq!(broken(&|facts| facts.kept.push(((id, 2), 1))), "rows");
    assert_eq!(broken(&|facts| facts.kept.push(((id, 1), 1))), "rows");
    assert_eq!(broken(&|facts| facts.kept.push(facts.kept[0])), "rows");
    assert_eq!(broken(&|facts| facts.findings.push("a broken row".to_owned())), "doctor");
    assert_eq!(broken(&|facts| facts.left.push("process 7".to_owned())), "left");
}

#[test]
fn a_line_that_a_killed_process_left_unfinished_is_no_fault() {
    let journal = Journal::parse("paid 1 1\nended 1 1\nkilled 7\nbegan 2 1 7 2020-01-01T");
    assert_eq!((journal.lines.len(), journal.notes.len(), journal.torn.len()), (2, 1, 0));
    assert_eq!(Journal::parse("ended 1\npaid\nat noon\n").torn.len(), 3);
}
