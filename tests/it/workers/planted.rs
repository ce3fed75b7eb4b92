//! The conformance kit finds faults: each is an edit of `worker.awk`, and one case must fail because of it. `planted_faults.txt` lists
//! them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::fixtures::skip;
use crate::workers::conformance::{awks, cases};
use crate::workers::peer::Program;

/// A fault of a worker.
struct Fault<'a> {
    name: &'a str,
    /// What is replaced in the source, and by what.
    edits: Vec<(String, String)>,
    /// The case that must find it.
    case: &'a str,
    /// A part of what the case reports; several are separated by a bar.
    found: &'a str,
}

/// Reads the list: the depth of a line says whether it is a case, a fault or an edit.
fn faults(list: &str) -> Vec<Fault<'_>> {
    let (mut faults, mut case): (Vec<Fault<'_>>, _) = (Vec::new(), "");
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        if let Some(edit) = line.strip_prefix("    ") {
            let (from, to) = edit.split_once(" =>").unwrap_or_else(|| panic!("no edit: {line:?}"));
            let text = |text: &str| text.replace('¶', "\n");
            let edit = (text(from), text(to.strip_prefix(' ').unwrap_or(to)));
            faults.last_mut().expect("a fault before its edits").edits.push(edit);
        } else if let Some(fault) = line.strip_prefix("  ") {
            let (name, found) = fault.split_once(':').unwrap_or_else(|| panic!("no fault: {line:?}"));
            faults.push(Fault { name, edits: Vec::new(), case, found: found.trim_start() });
        } else {
            case = line;
        }
    }
    faults
}

#[test]
fn the_kit_finds_a_fault_of_each_kind() {
    assert_found(10);
}

#[test]
#[ignore = "nightly: it takes half a minute"]
fn the_kit_finds_each_fault() {
    assert_found(1);
}

/// Plants every `step`th fault.
fn assert_found(step: usize) {
    let Some(awk) = awks().into_iter().next() else { return skip("no awk") };
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/workers/worker.awk")).unwrap();
    let all = faults(include_str!("planted_faults.txt"));
    assert_eq!(all.len(), 96);
    let faults: Vec<&Fault<'_>> = all.iter().step_by(step).collect();
    let home = tempfile::tempdir().unwrap();
    let next = AtomicUsize::new(0);
    let missed = std::thread::scope(|scope| {
        let look = || {
            let mut missed = Vec::new();
            while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                let file = home.path().join(fault.name.replace('/', "-"));
                std::fs::write(&file, edited(&source, fault)).unwrap();
                // Bytes are letters.
                let words = ["env", "LC_ALL=C"].into_iter().chain(awk.iter().copied()).chain(["-f"]).map(str::to_owned);
                let argv = words.chain([file.to_str().unwrap().to_owned()]).collect();
                let program = Program { argv, hello: Duration::from_secs(2), patience: Duration::from_secs(2) };
                let case =
                    cases().find(|case| case.name == fault.case).unwrap_or_else(|| panic!("no case {:?}", fault.case));
                match case.check(&program) {
                    Err(found) if fault.found.split('|').any(|part| found.contains(part)) => {}
                    other => missed.push(format!("  {}: expected {:?}, found {other:?}", fault.name, fault.found)),
                }
            }
            missed
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(look)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(missed.is_empty(), "{} of {} faults\n{}", missed.len(), faults.len(), missed.join("\n"));
    println!("{} faults found", faults.len());
}

/// Returns the source of the worker with a fault.
fn edited(source: &str, fault: &Fault<'_>) -> String {
    fault.edits.iter().fold(source.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{}: worker.awk has no {from:?}", fault.name);
        text.replace(from, to)
    })
}
