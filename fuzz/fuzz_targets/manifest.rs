//! Parses manifests with the program's own modules: tasks, or an error of one line. Written back as TOML, they are the
//! same tasks.
#![no_main]
#![allow(dead_code)]

use std::path::Path;

use duly::Timestamp;
use libfuzzer_sys::fuzz_target;

#[path = "../../src/bin/duly/manifest/mod.rs"]
mod manifest;

/// The program's own modules, at the paths by which they import each other.
mod cli {
    #[path = "../../../src/bin/duly/cli/values.rs"]
    pub(crate) mod values;
}
mod exec {
    #[path = "../../../src/bin/duly/exec/payload.rs"]
    pub(crate) mod payload;
}

fuzz_target!(|text: &str| {
    if let Ok(payload) = exec::payload::Payload::parse(text) {
        let written = payload.checked().expect("what was read");
        assert_eq!(exec::payload::Payload::parse(written.get()).as_ref(), Ok(&payload));
    }
    match manifest::parse(text, Path::new("/etc")) {
        Ok(tasks) => {
            let written = text.parse::<toml::Table>().expect("TOML").to_string();
            let again = manifest::parse(&written, Path::new("/etc")).expect("the same, written otherwise");
            assert_eq!(format!("{tasks:?}"), format!("{again:?}"));
            for task in tasks {
                if let Err(error) = task.occurrences(Timestamp::MIN, 2) {
                    assert_eq!(error.to_string().lines().count(), 1);
                }
            }
        }
        Err(reason) => assert_eq!(reason.lines().count(), 1, "{reason}"),
    }
});
