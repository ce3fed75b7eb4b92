//! The conformance kit finds faults: each is an edit of `worker.awk`, and one case must fail because of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::fixtures::skip;
use crate::workers::conformance::{awks, cases};
use crate::workers::peer::Program;
use crate::workers::planted_faults::FAULTS;

/// A fault of a worker.
pub(crate) struct Fault {
    name: &'static str,
    /// What is replaced in the source, and by what.
    edits: &'static [(&'static str, &'static str)],
    /// The case that must find it.
    case: &'static str,
    /// A part of what the case reports.
    found: &'static str,
}

pub(crate) const fn fault(
    name: &'static str,
    edits: &'static [(&'static str, &'static str)],
    case: &'static str,
    found: &'static str,
) -> Fault {
    Fault { name, edits, case, found }
}

#[test]
fn the_kit_finds_each_fault() {
    let Some(awk) = awks().into_iter().next() else { return skip("no awk") };
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/workers/worker.awk")).unwrap();
    let home = tempfile::tempdir().unwrap();
    let next = AtomicUsize::new(0);
    let missed = std::thread::scope(|scope| {
        let look = || {
            let mut missed = Vec::new();
            while let Some(fault) = FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
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
    assert!(missed.is_empty(), "{} of {} faults\n{}", missed.len(), FAULTS.len(), missed.join("\n"));
    println!("{} faults found", FAULTS.len());
}

/// Returns the source of the worker with a fault.
fn edited(source: &str, fault: &Fault) -> String {
    fault.edits.iter().fold(source.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{}: worker.awk has no {from:?}", fault.name);
        text.replace(from, to)
    })
}
