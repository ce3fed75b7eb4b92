//! Which zone data answers: the machine's where it has any, the built-in rules where it has none, and an error where a file
//! is damaged. `TZDIR` is read once per process, so the tests that set it start this one again.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use duly::{Event, Limits, NewTask, ProblemKind, zone_data};

use crate::fixtures::{TestDb, at, minutes};

/// From this release on British Columbia stays on summer time.
const VANCOUVER_STAYS: &str = "2026b";

/// Adds a daily task, and answers with its next occurrence, or with why there is none.
fn noon(zone: &str, now: &str) -> String {
    let db = TestDb::new();
    let stepper = db.stepper(now);
    match stepper.client().add(NewTask::cron("noon", "0 12 * * *").time_zone(zone).handler("work")) {
        Ok(added) => added.next_run.map_or("never".to_owned(), |next| next.to_string()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_change_of_law_counts_as_soon_as_the_system_knows_of_it() {
    let data = zone_data();
    if data.folder.is_none() || data.version.as_str() < VANCOUVER_STAYS || !data.version.starts_with('2') {
        // `.ci/run` brings it up to date.
        assert_ne!(std::env::var("DULY_CI").as_deref(), Ok("1"), "zone data {data} is older than {VANCOUVER_STAYS}");
        return println!("skipped: zone data {data} is older than {VANCOUVER_STAYS}");
    }
    assert_eq!(noon("America/Vancouver", "2026-12-01T00:00:00Z"), "2026-12-01T19:00:00.000Z");
}

/// Says what answers here, and when noon is in `$DULY_TEST_ZONE`.
#[test]
#[ignore = "started by other tests"]
fn in_another_process() {
    let Ok(zone) = std::env::var("DULY_TEST_ZONE") else { return };
    println!("data: {}", zone_data());
    println!("noon: {}", noon(&zone, "2027-07-01T00:00:00Z"));
}

/// What another process says with this folder of zone files.
fn with_folder(folder: &Path, zone: &str) -> (String, String) {
    let said = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "zones::in_another_process", "--ignored", "--nocapture"])
        .env("TZDIR", folder)
        .env("DULY_TEST_ZONE", zone)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    // The harness may have begun the line.
    let after = |word: &str| said.split_once(word).and_then(|(_, rest)| rest.lines().next()).map(str::to_owned);
    after("data: ").zip(after("noon: ")).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn without_zone_files_the_built_in_rules_answer_and_say_so() {
    let empty = tempfile::tempdir().unwrap();
    let built_in = format!("{} built in", zone_data().built_in);
    for folder in [Path::new("/nowhere"), Path::new("nowhere"), empty.path()] {
        let said = with_folder(folder, "Europe/Rome");
        assert_eq!(said, (built_in.clone(), "2027-07-01T10:00:00.000Z".to_owned()), "{}", folder.display());
    }
    let (_, refusal) = with_folder(empty.path(), "europe/rome");
    let says = "invalid time_zone: expected an exact IANA name (did you mean Europe/Rome?), found \"europe/rome\"";
    assert_eq!(refusal, says);
}

/// What the program says with these arguments and this folder of zone files.
fn program(db: &TestDb, folder: &Path, arguments: &[&str]) -> String {
    let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
    let said = duly.env("TZDIR", folder).arg("--db").arg(db.file()).args(arguments).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

#[test]
fn the_program_says_which_data_it_goes_by() {
    let db = TestDb::new();
    drop(db.client());
    let nowhere = db.home().join("nowhere");
    let zones = |said: &str| said.lines().find(|line| line.starts_with("time zones")).expect("a line").to_owned();
    assert!(zones(&program(&db, &nowhere, &["status"])).ends_with(" built in"));
    let vancouver = ["next", "0 12 * * *", "--tz", "America/Vancouver", "--from", "2026-12-01T00:00:00Z", "-n", "1"];
    assert!(program(&db, &nowhere, &vancouver).contains("2026-12-01T20:00:00.000Z"), "the built-in rules are older");
}

#[test]
fn the_folder_that_is_named_answers_and_a_damaged_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Europe")).unwrap();
    for (name, bytes) in
        [("UTC", zone_file(0)), ("Europe/Rome", zone_file(5)), ("Europe/Oslo", zone_file(1)[..40].to_vec())]
    {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    std::fs::write(folder.path().join("tzdata.zi"), "# version 2099z\n").unwrap();

    let (data, noon) = with_folder(folder.path(), "Europe/Rome");
    assert!(data.starts_with(&format!("2099z from {}", folder.path().display())), "{data}");
    assert_eq!(noon, "2027-07-01T07:00:00.000Z");
    let (_, noon) = with_folder(folder.path(), "Europe/Paris");
    assert_eq!(noon, "2027-07-01T10:00:00.000Z", "no file: the built-in rules");
    let (_, refusal) = with_folder(folder.path(), "Europe/Oslo");
    let path = folder.path().join("Europe/Oslo");
    assert!(refusal.contains(path.to_str().unwrap()) && refusal.contains("unexpected end of data"), "{refusal}");
}

/// Whatever a name is made of, nothing outside the folder is opened for it.
#[test]
fn a_name_is_no_path() {
    for name in [
        "../../etc/passwd",
        "/usr/share/zoneinfo/Europe/Rome",
        "Europe//Rome",
        "Europe/../Europe/Rome",
        "right/Europe/Rome",
        "posixrules",
        "localtime",
        "Local",
        "Europe",
    ] {
        let says = format!("invalid time_zone: expected an IANA name such as Europe/Rome or UTC, found {name:?}");
        assert_eq!(noon(name, "2027-07-01T00:00:00Z"), says);
    }
    let says = noon("america/new_york", "2027-07-01T00:00:00Z");
    assert!(says.contains("(did you mean America/New_York?)"), "{says}");
    assert_eq!(at(&noon("America/New_York", "2027-07-01T00:00:00Z")), at("2027-07-01T16:00:00Z"));
}

/// A scheduler with two tasks that SQL wrote, one of them in `$DULY_TEST_ZONE`; it does what `$DULY_TEST_STEPS` says.
#[test]
#[ignore = "started by other tests"]
fn a_scheduler_in_another_process() {
    let (Ok(zone), Ok(steps)) = (std::env::var("DULY_TEST_ZONE"), std::env::var("DULY_TEST_STEPS")) else { return };
    let db = TestDb::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let observe = move |event: &Event| match event {
        Event::SetAside { .. } | Event::Invalid { .. } => tell.lock().unwrap().push(event.to_string()),
        _ => {}
    };
    let mut stepper = db.builder("2027-07-01T00:00:00Z").accept("work").observe(observe).start().unwrap();
    let insert = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, time_zone, active_since, created_at)
                  VALUES (?1, 'work', 'cron', '0 12 * * *', ?2, ?3, ?3)";
    let now = at("2027-07-01T00:00:00Z").as_millis();
    for (name, zone) in [("noon", &*zone), ("bystander", "UTC")] {
        db.plain().execute(insert, (name, zone, now)).unwrap();
    }
    let mut held = Vec::new();
    for step in steps.split(' ') {
        match step {
            "step" => assert!(stepper.step().unwrap().is_empty()),
            "full" => stepper.clock().advance(minutes(1)),
            "exhaust" => held.extend(std::iter::from_fn(|| std::fs::File::open("/dev/null").ok())),
            "free" => held.clear(),
            "mend" => {
                let path = zone_data().folder.as_ref().unwrap().join(&zone);
                std::fs::remove_file(&path).unwrap();
                std::fs::write(path, zone_file(2)).unwrap();
            }
            "replace" => {
                let noon = NewTask::cron("noon", "0 12 * * *").time_zone("UTC").handler("work");
                stepper.client().replace(noon).unwrap();
            }
            _ => println!("row: {} {}", db.next(step), db.ask("SELECT updated_at FROM scheduled_tasks WHERE id = 1")),
        }
    }
    let zones =
        stepper.client().check(&Limits::default()).unwrap().into_iter().filter(|one| one.kind == ProblemKind::Zone);
    println!("check: {}", zones.map(|one| one.to_string()).collect::<Vec<_>>().join("; "));
    println!("told: {}", told.lock().unwrap().join("; "));
    println!("bystander: {}", db.next("bystander"));
}

/// What a scheduler in another process says; it may have 64 files open.
fn scheduler(folder: &Path, zone: &str, steps: &str) -> Vec<String> {
    let said = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "zones::a_scheduler_in_another_process", "--ignored", "--nocapture"])
        .envs([("DULY_TEST_ZONE", zone), ("DULY_TEST_STEPS", steps)])
        .env("TZDIR", folder)
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut lines = Vec::new();
    for line in said.lines() {
        // The harness may have begun the line.
        let told = ["row: ", "check: ", "told: ", "bystander: "].iter().filter_map(|word| line.find(word)).min();
        lines.extend(told.map(|from| line[from..].to_owned()));
    }
    assert_eq!(lines.last().map(String::as_str), Some("bystander: 2027-07-01 12:00:00 active"), "{lines:?}");
    lines
}

/// The smallest zone file: version 1, one offset.
fn zone_file(hours: i32) -> Vec<u8> {
    let counts = [0, 0, 0, 0, 1, 4_u32].map(u32::to_be_bytes).concat();
    [b"TZif".as_slice(), &[0; 16], &counts, &(hours * 3600).to_be_bytes(), b"\0\0XXX\0"].concat()
}

/// The row as it was written, as another program has left it.
fn untouched(line: &str) -> bool {
    line.starts_with("row: - active ")
}

#[cfg(unix)]
#[test]
fn a_zone_file_that_cannot_be_read_retires_no_task() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Europe")).unwrap();
    std::fs::write(folder.path().join("UTC"), zone_file(0)).unwrap();
    // No file can be opened, and then one can.
    let rome = folder.path().join("Europe/Rome");
    std::fs::write(&rome, zone_file(2)).unwrap();
    let said = scheduler(folder.path(), "Europe/Rome", "exhaust step step free noon full step noon");
    assert!(untouched(&said[0]) && said[1].starts_with("row: 2027-07-01 10:00:00 active "), "{said:?}");
    assert_eq!(said[2], "check: ");
    assert!(
        said[3].starts_with("told: set aside task \"noon\": ") && said[3].contains("Too many open files"),
        "{said:?}"
    );
    assert_eq!(said[3].matches("task \"noon\"").count(), 1, "once: {said:?}");
    // The file is one that no try can read, until it is mended.
    std::fs::remove_file(&rome).unwrap();
    std::os::unix::fs::symlink("Rome", &rome).unwrap();
    let said = scheduler(folder.path(), "Europe/Rome", "step noon full step noon mend full step noon");
    assert!(untouched(&said[0]) && said[0] == said[1], "{said:?}");
    assert!(said[2].starts_with("row: 2027-07-01 10:00:00 active "), "{said:?}");
    assert_eq!(said[4].matches("set aside").count(), 1, "once: {said:?}");
}

#[test]
fn a_task_in_a_zone_that_is_not_known_here_is_left_to_others() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("UTC"), zone_file(0)).unwrap();
    let said = scheduler(folder.path(), "Mars/Olympus_Mons", "step noon full step noon");
    assert!(untouched(&said[0]) && said[0] == said[1], "{said:?}");
    let unknown = "invalid time_zone: expected an IANA name such as Europe/Rome or UTC, found \"Mars/Olympus_Mons\"";
    assert!(said[2].contains("zone: the time zone of noon is not known here") && said[2].contains(unknown), "{said:?}");
    assert_eq!(said[3], format!("told: set aside task \"noon\": {unknown}"));
    // One that knows it runs the task; and a row that is mended is looked at in the next turn.
    std::fs::create_dir(folder.path().join("Mars")).unwrap();
    std::fs::write(folder.path().join("Mars/Olympus_Mons"), zone_file(5)).unwrap();
    let said = scheduler(folder.path(), "Mars/Olympus_Mons", "step noon");
    assert!(said[0].starts_with("row: 2027-07-01 07:00:00 active "), "{said:?}");
    let said = scheduler(folder.path(), "Mars/Elysium", "step noon replace step noon");
    assert!(untouched(&said[0]) && said[1].starts_with("row: 2027-07-01 12:00:00 active "), "{said:?}");
    // What can be no zone anywhere is the row's own fault.
    let said = scheduler(folder.path(), "mars/elysium", "step noon");
    assert!(said[0].starts_with("row: - invalid "), "{said:?}");
}
