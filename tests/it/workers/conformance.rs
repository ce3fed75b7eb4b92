//! The conformance kit: every case against the workers in awk, Node.js and Python, and against another command.

use std::time::{Duration, Instant};

use crate::disk::tools::succeeds;
use crate::fixtures::skip;
use crate::workers::peer::{Peer, Program};
use crate::workers::rules::Checked;
use crate::workers::{attempts, cancels, effects, ends, lines};

/// One check of a worker.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The handlers that the worker needs for it.
    needs: &'static [&'static str],
    /// Whether `hello` and `welcome` precede it.
    greeted: bool,
    check: fn(&mut Peer) -> Checked<()>,
}

impl Case {
    pub(crate) const fn new(
        name: &'static str,
        needs: &'static [&'static str],
        check: fn(&mut Peer) -> Checked<()>,
    ) -> Self {
        Case { name, needs, greeted: true, check }
    }

    /// A case that begins before `hello`.
    pub(crate) const fn raw(
        name: &'static str,
        needs: &'static [&'static str],
        check: fn(&mut Peer) -> Checked<()>,
    ) -> Self {
        Case { name, needs, greeted: false, check }
    }

    /// Starts a worker and checks it. Unless the case has ended it, it must end after `stop`.
    pub(crate) fn check(&self, program: &Program) -> Checked<()> {
        let mut peer = Peer::start(program);
        let checked = if self.greeted { peer.greet() } else { Ok(()) }
            .and_then(|()| (self.check)(&mut peer))
            .and_then(|()| if peer.has_exited() { Ok(()) } else { peer.stop() });
        checked.map_err(|error| {
            let log = peer.log();
            let last = log.lines().last().map(|line| format!("; its stderr: {line}")).unwrap_or_default();
            format!("{error}{last}")
        })
    }
}

pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    [lines::CASES, attempts::CASES, cancels::CASES, effects::CASES, ends::CASES].into_iter().flatten()
}

/// Checks a worker with every case that its handlers allow.
fn conforms(program: &Program) {
    let name = program.argv.join(" ");
    let mut first = Peer::start(program);
    first.hello().unwrap_or_else(|error| panic!("{}: {error}", name));
    let begin = Instant::now();
    let (mut passed, mut skipped, mut failed) = (0, Vec::new(), Vec::new());
    for case in cases() {
        if let Some(missing) = case.needs.iter().find(|name| !first.handlers.iter().any(|handler| handler == *name)) {
            skipped.push(format!("  skipped: no handler {missing:?}: {}", case.name));
            continue;
        }
        match case.check(program) {
            Ok(()) => passed += 1,
            Err(error) => failed.push(format!("  {}: {error}", case.name)),
        }
    }
    println!("{}: {passed} cases passed in {:.1?}\n{}", name, begin.elapsed(), skipped.join("\n"));
    assert!(failed.is_empty(), "{}: {} cases failed\n{}", name, failed.len(), failed.join("\n"));
}

fn program(argv: &[&str]) -> Program {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    Program { argv, hello: Duration::from_secs(30), patience: Duration::from_secs(20) }
}

/// Returns the command of an awk that reads lines as they come, and of every other one.
pub(crate) fn awks() -> Vec<Vec<&'static str>> {
    let known: [&[&str]; 4] = [&["mawk", "-W", "interactive"], &["gawk"], &["original-awk"], &["busybox", "awk"]];
    known
        .into_iter()
        .filter(|awk| succeeds("sh", &["-c", &format!("command -v {}", awk[0])]))
        .map(<[_]>::to_vec)
        .collect()
}

#[test]
fn of_awk() {
    let Some(awk) = awks().into_iter().next() else { return skip("no awk") };
    conforms(&program(&[&awk[..], &["-f", "tests/it/workers/worker.awk"]].concat()));
}

#[test]
#[ignore = "nightly: each worker takes up to half a minute"]
fn of_every_awk() {
    for awk in awks() {
        for worker in ["tests/it/workers/short.awk", "tests/it/workers/worker.awk"] {
            conforms(&program(&[&awk[..], &["-f", worker]].concat()));
        }
    }
}

#[test]
#[ignore = "nightly: it takes half a minute"]
fn of_node() {
    if !succeeds("node", &["--version"]) {
        return skip("no node");
    }
    conforms(&program(&["node", "tests/it/workers/worker.mjs"]));
}

#[test]
#[ignore = "nightly: it takes a minute"]
fn of_python() {
    if !succeeds("python3", &["--version"]) {
        return skip("no python3");
    }
    conforms(&program(&["python3", "tests/it/workers/worker.py"]));
    conforms(&program(&["python3", "tests/it/workers/worker.py", "async"]));
}

/// The same workers as applications: their child is a program that stands for duly, and hands on what the kit says.
#[test]
#[ignore = "nightly: it takes a minute"]
fn of_applications() {
    if !succeeds("node", &["--version"]) || !succeeds("python3", &["--version"]) {
        return skip("no node and python3");
    }
    // Without the variable of a worker: their standard streams are their own.
    let application =
        |argv: &[&str]| conforms(&program(&[&["env", "-u", "DULY_WORKER"], argv, &["application"]].concat()));
    application(&["node", "tests/it/workers/worker.mjs"]);
    application(&["python3", "tests/it/workers/worker.py"]);
    application(&["python3", "tests/it/workers/worker.py", "async"]);
}

/// Another worker: `DULY_TEST_WORKER='ruby worker.rb' cargo test --test it -- of_a_command --nocapture`.
#[test]
fn of_a_command() {
    let Ok(command) = std::env::var("DULY_TEST_WORKER") else { return };
    conforms(&program(&command.split_whitespace().collect::<Vec<_>>()));
}
