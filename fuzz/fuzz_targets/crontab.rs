//! Crontabs, read by the program's own rooms: each line comes, is refused, or says nothing; a comment changes none of it.
#![no_main]
#![allow(dead_code)]

use std::collections::BTreeSet;

use duly::{Timestamp, Zone};
use libfuzzer_sys::fuzz_target;

use crate::crontab::{Reading, read};
use crate::people::Person;

#[path = "../../src/bin/duly/import/crontab.rs"]
mod crontab;
#[path = "../../src/bin/duly/failure.rs"]
mod failure;
#[path = "../../src/bin/duly/import/found.rs"]
mod found;
#[path = "../../src/bin/duly/import/lines.rs"]
mod lines;
#[path = "../../src/bin/duly/import/name.rs"]
mod name;
#[path = "../../src/bin/duly/exec/payload.rs"]
mod payload;
#[path = "../../src/bin/duly/import/people.rs"]
mod people;
#[path = "../../src/bin/duly/values.rs"]
mod values;
#[path = "../../src/bin/duly/zone.rs"]
mod zone;

/// The rooms at the paths by which they know each other.
mod exec {
    pub(crate) use crate::payload;
}
mod import {
    pub(crate) use crate::{found, lines, name, people};
}

fuzz_target!(|crontab: (bool, &[u8])| {
    let (system, bytes) = crontab;
    let zone = Zone::named("Europe/Rome").expect("a zone");
    let people = BTreeSet::from(["anna".to_owned()]);
    let person = Person { name: "anna".into(), home: Some("/home/anna".into()) };
    let reading = Reading { system, person, people: &people, zone: &zone, prefix: "cron" };
    let found = read(bytes, &reading);
    let names: BTreeSet<_> = found.tasks.iter().map(|task| &task.name).collect();
    assert_eq!(names.len(), found.tasks.len());
    assert!(found.refused.iter().chain(&found.remarks).all(|said| said.reason.lines().count() == 1));
    for coming in &found.tasks {
        if let Err(error) = coming.brought.task.occurrences(Timestamp::MIN, 2) {
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
    let more = read(&[b"# a comment\n", bytes, b"\n#"].concat(), &reading);
    assert_eq!((more.tasks.len(), more.refused.len()), (found.tasks.len(), found.refused.len()));
});
