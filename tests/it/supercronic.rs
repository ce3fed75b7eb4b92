//! `duly import supercronic`, and that `duly import crontab` refuses crontabs of six or seven fields.

use serde_json::Value;

use crate::fixtures::TestDb;
use crate::import::{document, duly, entries, stdout_of, write};

/// The crontabs of supercronic's own integration tests and documentation, and a few more lines.
const CRONTAB: &str = "\
# Run every minute
*/1 * * * * echo \"hello\"
*/2 * * * * * * ls 2>/dev/null
@hourly echo \"$SOME_HOURLY_JOB\"
* * * * * * * echo 1
* * * * * * with year
30 4 1,15 * friday date +%F%T
VAR=\"hello from bar\"
0 3 * * * * echo 1 year
* * * * * 2030 a
@midnight b
*/60 * * * * * * c
0 0 30 2 * d
SHELL=/bin/bash
USER=anna
";

#[test]
fn supercronic_crontabs_are_imported_by_its_rules() {
    let db = TestDb::new();
    write(&db, "crontab", CRONTAB);
    let line = ["import", "supercronic", "crontab"];
    let first = document(&db, &line);
    let years = "duly has no field of years";
    assert_eq!(
        entries(&first, "refused"),
        [
            format!(
                "10: {years}, found \"2030\": write * there, or add the task with duly add, --starts-at and --ends-at"
            ),
            "11: supercronic has @yearly, @annually, @monthly, @weekly, @daily, @hourly only, found \"@midnight\""
                .into(),
            "12: second: expected 0-59, found \"*/60\"".into(),
            "13: no moment before the year 4000 matches it".into(),
        ]
    );
    assert_eq!(entries(&first, "tasks"), [2, 3, 4, 5, 6, 7, 9].map(|line| format!("{line}: added")));
    let remark = "15: passed to the commands only, as under supercronic: they run as the user of the scheduler";
    assert_eq!(entries(&first, "remarks"), [remark]);
    assert_eq!(
        db.rows("SELECT schedule_value, json_extract(payload, '$.argv[2]') FROM scheduled_tasks ORDER BY id"),
        [
            "* * * * *|echo \"hello\"",
            "*/2 * * * * *|ls 2>/dev/null",
            "@hourly|echo \"$SOME_HOURLY_JOB\"",
            "* * * * * *|echo 1",
            "* * * * *|with year",
            "30 4 1,15 * 5|date +%F%T",
            "0 3 * * *|echo 1 year",
        ]
    );
    // The last value of a variable applies to the entries above it, too.
    let settings = "SELECT DISTINCT time_zone, handler, overlap, misfire, max_attempts, timeout_ms,
                           json_extract(payload, '$.argv[0]'), json_extract(payload, '$.env'),
                           json_extract(payload, '$.cwd') FROM scheduled_tasks";
    let env = "{\"SHELL\":\"/bin/bash\",\"USER\":\"anna\",\"VAR\":\"hello from bar\"}";
    assert_eq!(db.rows(settings), [format!("Europe/Rome|command|skip|skip|1|0|/bin/bash|{env}|-")]);

    let rows = db.tasks();
    let second = document(&db, &line);
    assert!(entries(&second, "tasks").iter().all(|place| place.ends_with(": unchanged")), "{second}");
    assert_eq!(db.tasks(), rows);
    document(&db, &[&line[..], &["--overlapping"]].concat());
    assert_eq!(db.rows("SELECT DISTINCT overlap FROM scheduled_tasks"), ["allow"], "as supercronic -overlapping");
    db.assert_sound();
}

/// Instants from the tests of the package that supercronic uses, and those of two restricted days.
#[test]
fn imported_times_are_those_of_supercronic() {
    let db = TestDb::new();
    for (at, times, from, first) in [
        (0, "17-43/5 * * * *", "2027-01-01T00:30:00", "2027-01-01T00:32:00"),
        (1, "15-30/4,55 * * * *", "2027-12-31T23:55:00", "2028-01-01T00:15:00"),
        (2, "0 0 * * 6#5", "2013-09-02T00:00:00", "2013-11-30T00:00:00"),
        (3, "0 0 14W * *", "2013-08-31T00:00:00", "2013-09-13T00:00:00"),
        (4, "0 0 30W * *", "2013-06-02T00:00:00", "2013-06-28T00:00:00"),
        (5, "0 0 LW * *", "2013-11-02T00:00:00", "2013-11-29T00:00:00"),
        (6, "0 0 28 02 * *", "2013-09-02T00:00:00", "2014-02-28T00:00:00"),
        (7, "*/5 * * * * * *", "2013-01-01T00:00:59", "2013-01-01T00:01:00"),
        // Either day: 2013-09-01 is a Sunday.
        (8, "0 0 1-7 * Fri", "2013-09-07T12:00:00", "2013-09-13T00:00:00"),
        (9, "0 0 */30 * MON", "2013-09-28T00:00:00", "2013-09-30T00:00:00"),
        (10, "0 0 */30 * MON", "2013-09-30T00:00:00", "2013-10-01T00:00:00"),
    ] {
        let file = format!("crontab-{at}");
        write(&db, &file, &format!("CRON_TZ=UTC\n{times} command-{at}\n"));
        stdout_of(duly(&db, &["import", "supercronic", &file]));
        let name = db.ask(&format!("SELECT name FROM scheduled_tasks WHERE name GLOB '*:command-{at}-*'"));
        let next: Value = document(&db, &["next", &name, "--from", &format!("{from}Z"), "-n", "1"]);
        assert_eq!(next[0]["scheduled_for"], format!("{first}.000Z"), "{times}");
    }
}

#[test]
fn the_last_zone_applies_to_the_whole_file() {
    let db = TestDb::new();
    write(&db, "crontab", "CRON_TZ=Asia/Tokyo\n@daily a\nCRON_TZ='America/New_York'\nTZ=UTC\n");
    let imported = document(&db, &["import", "supercronic", "crontab"]);
    assert_eq!(db.rows("SELECT time_zone FROM scheduled_tasks"), ["America/New_York"]);
    assert_eq!(
        entries(&imported, "remarks"),
        [
            "3: the last CRON_TZ applies to all entries, as under supercronic",
            "null: TZ: passed to the commands only, as under supercronic; their schedules are in America/New_York",
        ]
    );
    write(&db, "other", "@daily a\nCRON_TZ=Mars/Olympus\n");
    let refused = document(&db, &["import", "supercronic", "other"]);
    let why = "CRON_TZ is not a time zone: \"Mars/Olympus\"";
    assert_eq!(entries(&refused, "refused"), [format!("1: {why}"), format!("2: {why}; it applies to all entries")]);
}

#[cfg(target_os = "linux")]
#[test]
fn imported_commands_run_as_under_supercronic() {
    let crontab = "@daily echo \"$0 $WORD $PWD\"; echo 100%\nWORD='a b'\nSHELL=/bin/bash\n";
    assert_eq!(crate::import::output_of_imported("supercronic", crontab), "/bin/bash a b HERE\n100%\n");
}

/// `* * * * * * * echo 1` was imported as the command `* * echo 1`, every minute.
#[test]
fn import_crontab_refuses_six_and_seven_fields() {
    let db = TestDb::new();
    let text = "\
* * * * * * * echo 1
*/5 * * * * 2030 echo 1
0 0 12 * * MON-FRI /usr/bin/report
0 0 12 * * mon /usr/bin/report
* * * * * 7z a /tmp/a.7z /srv
* * * * * 2to3 x.py
* * * * * [ -x a ] && a
* * * * * /opt/7 a
* * * * * mon -f
* * * * * *.sh
@daily 7 a
";
    write(&db, "crontab", text);
    let imported = document(&db, &["import", "crontab", "crontab"]);
    let reason = |word: &str| {
        format!(
            "\"{word}\" after the five fields looks like a sixth one: import a crontab of six or seven fields with duly \
             import supercronic, or write the path of the program if that is its name"
        )
    };
    let refused = ["*", "2030", "MON-FRI", "mon"];
    let refused = refused.iter().enumerate().map(|(at, word)| format!("{}: {}", at + 1, reason(word)));
    assert_eq!(entries(&imported, "refused"), refused.collect::<Vec<_>>());
    assert_eq!(entries(&imported, "tasks"), (5..=11).map(|line| format!("{line}: added")).collect::<Vec<_>>());
    // The same word in the place of the user.
    write(&db, "system", "* * * * * * * echo 1\n* * * * * root 7z a\n");
    let imported = document(&db, &["import", "crontab", "system", "--system", "--user", "root"]);
    assert_eq!(entries(&imported, "refused"), [format!("1: {}", reason("*"))]);
}
