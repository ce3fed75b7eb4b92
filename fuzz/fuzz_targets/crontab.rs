//! Parses crontabs with the program's own modules: each line is imported, refused or ignored; added comments change no
//! result.
#![no_main]
#![allow(dead_code)]

use std::collections::BTreeSet;

use duly::{Timestamp, Zone};
use libfuzzer_sys::fuzz_target;

use crate::import::crontab::{Options, parse};
use crate::import::users::User;

/// The program's own modules, at the paths by which they import each other.
mod cli {
    #[path = "../../../src/bin/duly/cli/failure.rs"]
    pub(crate) mod failure;
    #[path = "../../../src/bin/duly/cli/values.rs"]
    pub(crate) mod values;
    #[path = "../../../src/bin/duly/cli/zone.rs"]
    pub(crate) mod zone;
}
mod exec {
    #[path = "../../../src/bin/duly/exec/payload.rs"]
    pub(crate) mod payload;
}
mod import {
    #[path = "../../../src/bin/duly/import/crontab.rs"]
    pub(crate) mod crontab;
    #[path = "../../../src/bin/duly/import/lines.rs"]
    pub(crate) mod lines;
    #[path = "../../../src/bin/duly/import/name.rs"]
    pub(crate) mod name;
    #[path = "../../../src/bin/duly/import/source.rs"]
    pub(crate) mod source;
    #[path = "../../../src/bin/duly/import/users.rs"]
    pub(crate) mod users;
}

fuzz_target!(|crontab: (bool, &[u8])| {
    let (system, bytes) = crontab;
    let zone = Zone::named("Europe/Rome").expect("a zone");
    let users = BTreeSet::from(["anna".to_owned()]);
    let user = User { name: "anna".into(), home: Some("/home/anna".into()) };
    let options = Options { system, user, users: &users, zone: &zone, prefix: "cron" };
    let found = parse(bytes, &options);
    let names: BTreeSet<_> = found.tasks.iter().map(|task| &task.name).collect();
    assert_eq!(names.len(), found.tasks.len());
    assert!(found.refused.iter().chain(&found.remarks).all(|note| note.reason.lines().count() == 1));
    for task in &found.tasks {
        if let Err(error) = task.item.task.occurrences(Timestamp::MIN, 2) {
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
    let more = parse(&[b"# a comment\n", bytes, b"\n#"].concat(), &options);
    assert_eq!((more.tasks.len(), more.refused.len()), (found.tasks.len(), found.refused.len()));
});
