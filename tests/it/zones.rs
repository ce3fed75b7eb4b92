//! The source of zone data: the machine's files, else the built-in rules, and an error for a damaged file. `TZDIR` is read
//! once per process, so tests that set it start this program again.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use duly::{Event, Limits, NewTask, ProblemKind, zone_data};

use crate::fixtures::{TestDb, at, minutes, skip};

/// Since this release British Columbia stays on summer time.
const VANCOUVER_STAYS: &str = "2026b";

/// Adds a daily task. Returns its next occurrence, or the error.
fn next_noon(zone: &str, now: &str) -> String {
    let db = TestDb::new();
    let stepper = db.stepper(now);
    match stepper.client().add(NewTask::cron("noon", "0 12 * * *").time_zone(zone).handler("work")) {
        Ok(added) => added.next_run.map_or("never".to_owned(), |next| next.to_string()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn new_zone_data_of_the_system_applies_at_once() {
    let data = zone_data();
    if data.folder.is_none() || data.version.as_str() < VANCOUVER_STAYS || !data.version.starts_with('2') {
        // `.ci/run` updates it.
        return skip(&format!("zone data {data} is older than {VANCOUVER_STAYS}"));
    }
    assert_eq!(next_noon("America/Vancouver", "2026-12-01T00:00:00Z"), "2026-12-01T19:00:00.000Z");
}

/// Prints the source of zone data here, and the next noon in `$DULY_TEST_ZONE`.
#[test]
#[ignore = "started by other tests"]
fn in_another_process() {
    let Ok(zone) = std::env::var("DULY_TEST_ZONE") else { return };
    println!("data: {}", zone_data());
    println!("noon: {}", next_noon(&zone, "2027-07-01T00:00:00Z"));
}

/// Returns the output of another process with this folder of zone files.
fn in_folder(folder: &Path, zone: &str) -> (String, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "zones::in_another_process", "--ignored", "--nocapture"])
        .env("TZDIR", folder)
        .env("DULY_TEST_ZONE", zone)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    // The test harness may have begun the line.
    let after = |word: &str| output.split_once(word).and_then(|(_, rest)| rest.lines().next()).map(str::to_owned);
    after("data: ").zip(after("noon: ")).unwrap_or_else(|| panic!("{output}"))
}

#[test]
fn without_zone_files_the_built_in_rules_are_used_and_reported() {
    let empty = tempfile::tempdir().unwrap();
    let built_in = format!("{} built in", zone_data().built_in);
    for folder in [Path::new("/nowhere"), Path::new("nowhere"), empty.path()] {
        let output = in_folder(folder, "Europe/Rome");
        assert_eq!(output, (built_in.clone(), "2027-07-01T10:00:00.000Z".to_owned()), "{}", folder.display());
    }
    let (_, refusal) = in_folder(empty.path(), "europe/rome");
    let says = "invalid time_zone: expected an exact IANA name (did you mean Europe/Rome?), found \"europe/rome\"";
    assert_eq!(refusal, says);
}

/// Returns the program's output with these arguments and this folder of zone files.
fn program(db: &TestDb, folder: &Path, arguments: &[&str]) -> String {
    let output = db.duly(arguments).env("TZDIR", folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_program_reports_its_source_of_zone_data() {
    let db = TestDb::new();
    drop(db.client());
    let nowhere = db.home().join("nowhere");
    let zones = |output: &str| output.lines().find(|line| line.starts_with("time zones")).expect("a line").to_owned();
    assert!(zones(&program(&db, &nowhere, &["status"])).ends_with(" built in"));
    let vancouver = ["next", "0 12 * * *", "--tz", "America/Vancouver", "--from", "2026-12-01T00:00:00Z", "-n", "1"];
    assert!(program(&db, &nowhere, &vancouver).contains("2026-12-01T20:00:00Z"), "the built-in rules are older");
}

#[test]
fn the_folder_in_tzdir_is_used_and_a_damaged_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Europe")).unwrap();
    for (name, bytes) in
        [("UTC", zone_file(0)), ("Europe/Rome", zone_file(5)), ("Europe/Oslo", zone_file(1)[..40].to_vec())]
    {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    std::fs::write(folder.path().join("tzdata.zi"), "# version 2099z\n").unwrap();

    let (data, noon) = in_folder(folder.path(), "Europe/Rome");
    assert!(data.starts_with(&format!("2099z from {}", folder.path().display())), "{data}");
    assert_eq!(noon, "2027-07-01T07:00:00.000Z");
    let (_, noon) = in_folder(folder.path(), "Europe/Paris");
    assert_eq!(noon, "2027-07-01T10:00:00.000Z", "no file: the built-in rules");
    let (_, refusal) = in_folder(folder.path(), "Europe/Oslo");
    let path = folder.path().join("Europe/Oslo");
    assert!(refusal.contains(path.to_str().unwrap()) && refusal.contains("unexpected end of data"), "{refusal}");
}

/// No file outside of the folder is opened for any zone name.
#[test]
fn a_zone_name_is_no_path() {
    // A unit test has the other names that are paths.
    for name in ["../../etc/passwd", "Europe/../Europe/Rome", "Local", "Europe"] {
        let says = format!("invalid time_zone: expected an IANA name such as Europe/Rome or UTC, found {name:?}");
        assert_eq!(next_noon(name, "2027-07-01T00:00:00Z"), says);
    }
    let says = next_noon("america/new_york", "2027-07-01T00:00:00Z");
    assert!(says.contains("(did you mean America/New_York?)"), "{says}");
    assert_eq!(at(&next_noon("America/New_York", "2027-07-01T00:00:00Z")), at("2027-07-01T16:00:00Z"));
}

/// Runs a scheduler with two tasks inserted by SQL, one of them in `$DULY_TEST_ZONE`, as `$DULY_TEST_STEPS` says.
#[test]
#[ignore = "started by other tests"]
fn a_scheduler_in_another_process() {
    let (Ok(zone), Ok(steps)) = (std::env::var("DULY_TEST_ZONE"), std::env::var("DULY_TEST_STEPS")) else { return };
    let db = TestDb::new();
    let set_aside = Arc::new(Mutex::new(Vec::new()));
    let log = set_aside.clone();
    let observe = move |event: &Event| match event {
        Event::SetAside { .. } | Event::Invalid { .. } => log.lock().unwrap().push(event.to_string()),
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
    println!("events: {}", set_aside.lock().unwrap().join("; "));
    println!("bystander: {}", db.next("bystander"));
}

/// Returns the output of a scheduler in another process, which may have 64 files open.
fn scheduler(folder: &Path, zone: &str, steps: &str) -> Vec<String> {
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "zones::a_scheduler_in_another_process", "--ignored", "--nocapture"])
        .envs([("DULY_TEST_ZONE", zone), ("DULY_TEST_STEPS", steps)])
        .env("TZDIR", folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = Vec::new();
    for line in output.lines() {
        // The test harness may have begun the line.
        let start = ["row: ", "check: ", "events: ", "bystander: "].iter().filter_map(|word| line.find(word)).min();
        lines.extend(start.map(|from| line[from..].to_owned()));
    }
    assert_eq!(lines.last().map(String::as_str), Some("bystander: 2027-07-01 12:00:00 active"), "{lines:?}");
    lines
}

/// The smallest zone file: version 1, one offset.
fn zone_file(hours: i32) -> Vec<u8> {
    let counts = [0, 0, 0, 0, 1, 4_u32].map(u32::to_be_bytes).concat();
    [b"TZif".as_slice(), &[0; 16], &counts, &(hours * 3600).to_be_bytes(), b"\0\0XXX\0"].concat()
}

/// The row as another program has written it.
fn is_unplanned(line: &str) -> bool {
    line.starts_with("row: - active ")
}

#[cfg(unix)]
#[test]
fn an_unreadable_zone_file_makes_no_task_invalid() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Europe")).unwrap();
    std::fs::write(folder.path().join("UTC"), zone_file(0)).unwrap();
    // No file can be opened at first; later one can.
    let rome = folder.path().join("Europe/Rome");
    std::fs::write(&rome, zone_file(2)).unwrap();
    let output = scheduler(folder.path(), "Europe/Rome", "exhaust step step free noon full step noon");
    assert!(is_unplanned(&output[0]) && output[1].starts_with("row: 2027-07-01 10:00:00 active "), "{output:?}");
    assert_eq!(output[2], "check: ");
    assert!(
        output[3].starts_with("events: set aside task \"noon\": ") && output[3].contains("Too many open files"),
        "{output:?}"
    );
    assert_eq!(output[3].matches("task \"noon\"").count(), 1, "once: {output:?}");
    // The file cannot be parsed until it is repaired.
    std::fs::remove_file(&rome).unwrap();
    std::os::unix::fs::symlink("Rome", &rome).unwrap();
    let output = scheduler(folder.path(), "Europe/Rome", "step noon full step noon mend full step noon");
    assert!(is_unplanned(&output[0]) && output[0] == output[1], "{output:?}");
    assert!(output[2].starts_with("row: 2027-07-01 10:00:00 active "), "{output:?}");
    assert_eq!(output[4].matches("set aside").count(), 1, "once: {output:?}");
}

#[test]
fn a_task_in_an_unknown_zone_is_left_to_other_schedulers() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("UTC"), zone_file(0)).unwrap();
    let output = scheduler(folder.path(), "Mars/Olympus_Mons", "step noon full step noon");
    assert!(is_unplanned(&output[0]) && output[0] == output[1], "{output:?}");
    let unknown = "invalid time_zone: expected an IANA name such as Europe/Rome or UTC, found \"Mars/Olympus_Mons\"";
    assert!(
        output[2].contains("zone: the time zone of noon is not known here") && output[2].contains(unknown),
        "{output:?}"
    );
    assert_eq!(output[3], format!("events: set aside task \"noon\": {unknown}"));
    // A scheduler that knows the zone runs the task; a repaired row is planned in the next turn.
    std::fs::create_dir(folder.path().join("Mars")).unwrap();
    std::fs::write(folder.path().join("Mars/Olympus_Mons"), zone_file(5)).unwrap();
    let output = scheduler(folder.path(), "Mars/Olympus_Mons", "step noon");
    assert!(output[0].starts_with("row: 2027-07-01 07:00:00 active "), "{output:?}");
    let output = scheduler(folder.path(), "Mars/Elysium", "step noon replace step noon");
    assert!(is_unplanned(&output[0]) && output[1].starts_with("row: 2027-07-01 12:00:00 active "), "{output:?}");
    // Text that can be no zone anywhere makes the row invalid.
    let output = scheduler(folder.path(), "mars/elysium", "step noon");
    assert!(output[0].starts_with("row: - invalid "), "{output:?}");
}
