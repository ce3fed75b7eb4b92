//! The source of zone data: the machine's files, else the built-in rules, and an error for a damaged file. `TZDIR` is read
//! once per process, so tests that set it start this program again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use duly::{Event, Limits, NewTask, ProblemKind, zone_data};

#[cfg(target_os = "linux")]
use crate::disk::tools::{skip_without, succeeds};
use crate::fixtures::{Process, TestDb, at, eventually, minutes, skip};
#[cfg(unix)]
use crate::sidecar::signal;

/// Adds a daily task. Returns its next occurrence, or the error.
fn next_noon(zone: &str, now: &str) -> String {
    let db = TestDb::new();
    let stepper = db.stepper(now);
    match stepper.client().add(NewTask::cron("noon", "0 12 * * *").time_zone(zone).handler("work")) {
        Ok(added) => added.next_run.map_or("never".to_owned(), |next| next.to_string()),
        Err(error) => error.to_string(),
    }
}

/// The rules of 2026: British Columbia and Alberta stay on summer time, Morocco on that of Greenwich, Cuba on summer time until 2027. The
/// offsets are those of `zdump` with the release 2026f; `.ci/run` updates the files of the machine.
#[test]
fn the_rules_of_2026_are_built_in_and_those_of_the_system() {
    let nowhere = Path::new("/nowhere");
    let folders = [Some(nowhere), zone_data().folder.as_deref().filter(|_| zone_data().version.as_str() >= "2026f")];
    for folder in folders.into_iter().flatten() {
        for (zone, noon) in [
            ("America/Vancouver", "2026-12-10T12:00:00-07:00"),
            ("America/Edmonton", "2026-12-10T12:00:00-06:00"),
            ("Africa/Casablanca", "2026-12-10T12:00:00+00:00"),
            ("America/Havana", "2026-12-10T12:00:00-04:00"),
            ("Europe/Rome", "2026-12-10T12:00:00+01:00"),
        ] {
            let db = TestDb::new();
            let line = ["next", "0 12 * * *", "--tz", zone, "--from", "2026-12-10T06:00:00Z", "-n", "1"];
            let printed = program(&db, folder, &line);
            assert!(printed.contains(noon), "{}: {printed}", folder.display());
        }
    }
}

/// What is mounted on `/etc/localtime` is also on the file to which it is a link: in many images, `Etc/UTC`.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_covers_that_of_utc_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Etc")).unwrap();
    for name in ["UTC", "Etc/UTC"] {
        std::fs::write(folder.path().join(name), zone_file(2)).unwrap();
    }
    let db = TestDb::new();
    for zone in ["UTC", "Etc/UTC", "GMT", "Zulu"] {
        let line = ["next", "0 7 * * *", "--tz", zone, "--from", "2026-07-01T00:00:00Z", "-n", "1"];
        assert!(program(&db, folder.path(), &line).contains("2026-07-01T07:00:00Z"), "{zone}");
    }
}

/// `--tz local` on a machine with this `/etc/timezone`, and with the file of this zone as `/etc/localtime`, or with a link to it.
#[cfg(target_os = "linux")]
fn local_zone(db: &TestDb, timezone: &str, localtime: &str) -> std::process::Output {
    let script = format!(
        "cp -r /etc/. \"$0\" 2>/dev/null; rm -f \"$0/localtime\"; echo {timezone} >\"$0/timezone\"
         {localtime} \"$0/localtime\" && mount --bind \"$0\" /etc && exec \"$@\""
    );
    let etc = tempfile::tempdir().unwrap();
    let name = timezone.replace('/', "-");
    let add = db.duly(&["add", &name, "--cron", "@daily", "--tz", "local", "--", "true"]);
    let mut within = Command::new("unshare");
    within.args(["-rm", "sh", "-c", &script]).arg(etc.path()).arg(add.get_program()).args(add.get_args());
    within.current_dir(db.home()).env_remove("TZ").output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn the_local_zone_is_the_one_whose_rules_are_in_force() {
    let Some(folder) = zone_data().folder.as_deref().and_then(Path::to_str) else { return skip("no zoneinfo") };
    if folder != "/usr/share/zoneinfo" || !succeeds("unshare", &["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        return skip_without("unshare", "a unit test compares files");
    }
    let db = TestDb::new();
    let copy = |zone: &str| format!("cp {folder}/{zone}");
    // The name in /etc/timezone counts only if /etc/localtime is no link.
    let link = format!("ln -s {folder}/Europe/Berlin");
    for (timezone, localtime, zone) in [
        ("Europe/Berlin", copy("Europe/Berlin"), "Europe/Berlin"),
        ("Europe/Paris", copy("Europe/Berlin"), "Europe/Paris"),
        ("America/New_York", link, "Europe/Berlin"),
    ] {
        let output = local_zone(&db, timezone, &localtime);
        assert!(output.status.success(), "{output:?}");
        let name = timezone.replace('/', "-");
        assert_eq!(db.ask(&format!("SELECT time_zone FROM scheduled_tasks WHERE name = '{name}'")), zone);
    }
    let output = local_zone(&db, "Asia/Tokyo", &copy("America/New_York"));
    let error = String::from_utf8(output.stderr).unwrap();
    let says = "error: --tz local: the time zone of this machine is not certain: its name is Asia/Tokyo, and /etc/localtime has other rules: ";
    assert!(error.starts_with(says) && error.contains("give its name, for example --tz Europe/Rome"), "{error}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks"), "3");
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
pub(crate) fn zone_file(hours: i32) -> Vec<u8> {
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

/// Prints what `check` finds about zone data at `$DULY_TEST_NOW`, with a task in each of `$DULY_TEST_ZONE`.
#[test]
#[ignore = "started by other tests"]
fn a_check_in_another_process() {
    let (Ok(zones), Ok(now)) = (std::env::var("DULY_TEST_ZONE"), std::env::var("DULY_TEST_NOW")) else { return };
    let db = TestDb::new();
    let stepper = db.stepper(&now);
    for zone in zones.split(' ') {
        let task = NewTask::cron(zone.replace(['/', '+'], "-"), "0 12 * * *").time_zone(zone).handler("work");
        stepper.client().add(task).unwrap();
    }
    let found = stepper.client().check(&Limits::default()).unwrap().into_iter();
    let found = found.filter(|one| one.kind == ProblemKind::ZoneData).map(|one| one.to_string());
    println!("found: {}", found.collect::<Vec<_>>().join("; "));
}

/// Returns what `check` finds in another process.
fn check(folder: &Path, zones: &str, now: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "zones::a_check_in_another_process", "--ignored", "--nocapture"])
        .env("TZDIR", folder)
        .envs([("DULY_TEST_ZONE", zones), ("DULY_TEST_NOW", now)])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = output.split_once("found: ").and_then(|(_, rest)| rest.lines().next());
    found.unwrap_or_else(|| panic!("{output}")).to_owned()
}

#[test]
fn check_warns_of_old_built_in_rules_that_are_used() {
    let nowhere = Path::new("/nowhere");
    let release = zone_data().built_in;
    let year: i32 = release[..4].parse().unwrap();
    let [late, too_late] = [1, 2].map(|years| format!("{}-01-01T00:00:00Z", year + years));
    assert_eq!(check(nowhere, "UTC Etc/GMT+5", &too_late), "", "they have no rules");
    assert_eq!(check(nowhere, "UTC Europe/Rome", &late), "");
    let expected = format!(
        "zone_data: the rules of America/Havana and 1 more are those of {release}, which are built in and older than a year: \
         install the zone data of the system (the package tzdata), or a newer release of duly; then restart"
    );
    assert_eq!(check(nowhere, "UTC Europe/Rome America/Havana", &too_late), expected);
}

#[test]
fn check_warns_of_a_file_that_contradicts_the_past() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Europe")).unwrap();
    std::fs::write(folder.path().join("tzdata.zi"), "# version 2025b\n").unwrap();
    for name in ["UTC", "Europe/Rome"] {
        std::fs::write(folder.path().join(name), zone_file(5)).unwrap();
    }
    let found = check(folder.path(), "UTC Europe/Paris Europe/Rome", "2027-07-01T00:00:00Z");
    let path = folder.path().join("Europe/Rome");
    let starts = format!(
        "zone_data: the time zone of Europe-Rome may be wrong: {} has 2014-12-25T04:59:59+05:00 where the rules of {} have \
         2014-12-25T00:59:59+01:00: look whether another file is mounted on it",
        path.display(),
        zone_data().built_in
    );
    assert!(found.starts_with(&starts) && found.matches("zone_data:").count() == 1, "{found}");
}

/// The files of a running scheduler are replaced: it goes on with its data until it is restarted, and `check` says so. What a client adds
/// with the new data is planned by the scheduler; one that starts with the new data plans everything anew.
#[cfg(unix)]
#[test]
fn zone_data_that_changes_under_a_running_scheduler() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Europe")).unwrap();
    let install = |release: &str, hours: i32| {
        std::fs::write(folder.path().join("UTC"), zone_file(0)).unwrap();
        std::fs::write(folder.path().join("Europe/Rome"), zone_file(hours)).unwrap();
        std::fs::write(folder.path().join("tzdata.zi"), format!("# version {release}\n")).unwrap();
    };
    let db = TestDb::new();
    let run = || run_in(&db, folder.path());
    let add = |name: &str| {
        let line = ["-q", "add", name, "--cron", "0 12 * * *", "--tz", "Europe/Rome", "--", "true"];
        program(&db, folder.path(), &line);
    };
    let hours =
        || db.rows("SELECT name, strftime('%H', next_run / 1000, 'unixepoch') FROM scheduled_tasks ORDER BY name");
    let check = || printed(&db, folder.path(), "check");
    install("first", 1);
    add("before");
    let old = run();
    eventually("it has registered", || db.ask("SELECT count(*) FROM scheduler_instances") == "1");
    eventually("it has planned", || hours() == ["before|11"] && recorded(&db).is_some());
    assert!(!check().contains("zone data"), "{}", check());

    install("second", 2);
    add("since");
    eventually("the scheduler has planned it by its own data", || hours() == ["before|11", "since|11"]);
    let found = check();
    let folder_name = folder.path().display();
    let says = |found: &str| {
        found.contains(&format!("has the zone data first from {folder_name}, "))
            && found.contains("and this process second from ")
    };
    assert!(says(&found), "{found}");

    let new = run();
    eventually("the other scheduler has planned all anew", || hours() == ["before|10", "since|10"]);
    assert!(says(&check()), "the first one still runs: {}", check());
    end(old);
    eventually("no other has other rules", || !check().contains("zone data"));
    assert_eq!(hours(), ["before|10", "since|10"]);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'zone_data'"), "1");

    // A daily task has run half an hour ago by these rules. By the next ones its time comes again in half an hour.
    let ran = db.number::<u64>("SELECT (CAST((julianday('now') - 2440587.5) * 86400 AS INTEGER) - 1800) / 60 * 60");
    let at = (ran + 2 * 3600) / 60 % (24 * 60);
    let line = format!("{} {} * * *", at % 60, at / 60);
    program(&db, folder.path(), &["-q", "add", "ran", "--cron", &line, "--tz", "Europe/Rome", "--", "true"]);
    db.execute(&format!("UPDATE scheduled_tasks SET resolved_until = {ran}000 WHERE name = 'ran'"));
    let since = || db.number::<u64>("SELECT next_run / 1000 FROM scheduled_tasks WHERE name = 'ran'") - ran;
    assert_eq!(since(), 24 * 3600);
    install("third", 1);
    let third = run();
    eventually("all is planned anew", || hours()[..1] == ["before|11"] && since() != 24 * 3600);
    assert_eq!(since(), 25 * 3600, "on the next date, and not in half an hour");
    end(new);
    end(third);
    assert_eq!(
        db.ask("SELECT count(*) FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = 'ran')"),
        "0"
    );
    db.assert_sound();
}

/// Starts the sidecar with a folder of zone files. It compares their rules each 5 s.
#[cfg(unix)]
fn run_in(db: &TestDb, folder: &Path) -> Process {
    let line = ["run", "--poll", "50ms", "--lease", "15s"];
    Process::spawn(db.duly(&line).env("TZDIR", folder).stderr(Stdio::null()))
}

#[cfg(unix)]
fn end(mut scheduler: Process) {
    signal("TERM", &scheduler.0.id().to_string());
    assert_eq!(scheduler.exit_code(), Some(0));
}

/// Returns what a command prints that may fail.
#[cfg(unix)]
fn printed(db: &TestDb, folder: &Path, command: &str) -> String {
    let output = db.duly(&[command]).env("TZDIR", folder).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The rules by which the tasks of Rome are planned.
#[cfg(unix)]
fn recorded(db: &TestDb) -> Option<String> {
    db.rows("SELECT value FROM scheduler_meta WHERE key = 'zone_rules:Europe/Rome'").pop()
}

/// A zone file was wrong when its tasks were planned, then damaged, then repaired, all within one release, or with no release stated.
#[cfg(unix)]
#[test]
fn a_zone_file_that_is_repaired_within_a_release_plans_its_tasks_again() {
    for release in [Some("first"), None] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("Europe")).unwrap();
        for name in ["UTC", "Europe/Oslo"] {
            std::fs::write(folder.path().join(name), zone_file(2)).unwrap();
        }
        if let Some(release) = release {
            std::fs::write(folder.path().join("tzdata.zi"), format!("# version {release}\n")).unwrap();
        }
        let rome = |bytes: &[u8]| std::fs::write(folder.path().join("Europe/Rome"), bytes).unwrap();
        let db = TestDb::new();
        let add = |name: &str, zone: &str| {
            program(&db, folder.path(), &["-q", "add", name, "--cron", "0 12 * * *", "--tz", zone, "--", "true"])
        };
        let hours =
            || db.rows("SELECT name, strftime('%H', next_run / 1000, 'unixepoch') FROM scheduled_tasks ORDER BY name");
        let look = || (printed(&db, folder.path(), "check"), printed(&db, folder.path(), "doctor"));
        let run = |until: &dyn Fn() -> bool| {
            let started = db.number::<u32>("SELECT count(*) FROM scheduler_instances");
            let scheduler = run_in(&db, folder.path());
            eventually("it has registered", || db.number::<u32>("SELECT count(*) FROM scheduler_instances") > started);
            eventually("it has compared the rules", until);
            end(scheduler);
        };

        rome(&zone_file(5));
        add("oslo", "Europe/Oslo");
        add("rome", "Europe/Rome");
        run(&|| recorded(&db).is_some());
        let (wrong, planned) = (recorded(&db), ["oslo|10", "rome|07"]);
        assert_eq!(hours(), planned);
        let (check, doctor) = look();
        assert!(!check.contains("zone_data") && doctor.starts_with("no damage found"), "{check}{doctor}");

        rome(&zone_file(5)[..30]);
        run(&|| true);
        assert_eq!((recorded(&db), hours()), (wrong.clone(), planned.map(str::to_owned).to_vec()), "it is unknown");
        let (check, doctor) = look();
        assert!(check.contains("zone: the time zone of rome is not known here: "), "{check}");
        assert!(!check.contains("zone_data") && doctor.starts_with("no damage found"), "{check}{doctor}");

        rome(&zone_file(1));
        db.execute(
            "CREATE TRIGGER moved AFTER UPDATE OF next_run ON scheduled_tasks WHEN NEW.name = 'oslo'
             BEGIN INSERT INTO scheduler_events (at, kind) VALUES (1900000000000, 'touched'); END",
        );
        let (check, doctor) = look();
        let says = "zone_data: rome was planned by other rules of Europe/Rome than those of this process: restart the schedulers";
        assert!(check.contains(says) && doctor.contains(says), "{check}{doctor}");
        run(&|| hours() == ["oslo|10", "rome|11"]);
        assert_ne!(recorded(&db), wrong);
        let (check, doctor) = look();
        assert!(!check.contains("zone_data") && doctor.starts_with("no damage found"), "{check}{doctor}");
        let events = "SELECT kind, detail LIKE '%other rules for Europe/Rome' FROM scheduler_events WHERE kind IN ('zone_data', 'touched')";
        assert_eq!(db.rows(events), ["zone_data|1"]);
        db.execute("DROP TRIGGER moved");
        db.assert_sound();
    }
}

/// A scheduler that could not read a zone when it started plans its tasks again as soon as it can.
#[cfg(unix)]
#[test]
fn a_zone_file_that_is_repaired_under_a_scheduler_that_could_not_read_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("Europe")).unwrap();
    std::fs::write(folder.path().join("UTC"), zone_file(0)).unwrap();
    let rome = |bytes: &[u8]| std::fs::write(folder.path().join("Europe/Rome"), bytes).unwrap();
    let db = TestDb::new();
    rome(&zone_file(5));
    program(&db, folder.path(), &["-q", "add", "t", "--cron", "0 12 * * *", "--tz", "Europe/Rome", "--", "true"]);
    let scheduler = run_in(&db, folder.path());
    eventually("it has compared the rules", || recorded(&db).is_some());
    end(scheduler);
    let wrong = recorded(&db);
    rome(b"");
    let scheduler = run_in(&db, folder.path());
    eventually("it has registered", || db.ask("SELECT count(*) FROM scheduler_instances") == "2");
    assert_eq!(recorded(&db), wrong);
    rome(&zone_file(1));
    let hour = "SELECT strftime('%H', next_run / 1000, 'unixepoch') FROM scheduled_tasks";
    eventually("it has planned again", || recorded(&db) != wrong && db.ask(hour) == "11");
    end(scheduler);
    db.assert_sound();
}
