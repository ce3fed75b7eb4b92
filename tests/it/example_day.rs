//! The day of `examples/day`: the clock moves to the hours that matter, `duly run` is killed during a fetch and stays off for three hours.
//! Each picture is posted once after its fetch, and one message says what was missed.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dst_nights::library;
use crate::fixtures::{Process, TestDb, eventually};

/// A feed that answers when the test lets it.
const FEED: &str = "echo asked >> asked\nwhile [ -e hold ]; do sleep 0.02; done\necho a picture\n";

const RUN: [&str; 7] = ["run", "--tasks", "day.toml", "--poll", "50ms", "--alert-command", "sh alarm.sh"];

/// The bot in a folder of its own.
struct Bot {
    db: TestDb,
    library: PathBuf,
}

impl Bot {
    fn new(library: PathBuf) -> Self {
        let db = TestDb::new();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/day");
        for file in ["day.toml", "fetch.sh", "post.sh", "tell.sh", "alarm.sh"] {
            std::fs::copy(example.join(file), db.home().join(file)).expect(file);
        }
        std::fs::write(db.home().join("feed.sh"), FEED).expect("a feed");
        Bot { db, library }
    }

    /// The program at a time of the day, which passes at the usual pace.
    fn duly(&self, at: &str, words: &[&str]) -> Command {
        let mut duly = self.db.duly(words);
        duly.env("LD_PRELOAD", &self.library).env("FAKETIME", format!("@2027-03-14 {at}")).env("FEED", "sh feed.sh");
        duly.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1");
        duly
    }

    fn run(&self, at: &str) -> Process {
        Process::spawn(&mut self.duly(at, &RUN))
    }

    /// The pictures that were posted, in the order of their names.
    fn posted(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.db.home().join("channel")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The runs of a task: hour, origin, status, attempts.
    fn runs(&self, task: &str) -> Vec<String> {
        self.db.rows(&format!(
            "SELECT strftime('%H:%M', r.scheduled_for / 1000, 'unixepoch'), r.origin, r.status, r.attempt
               FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = '{task}' ORDER BY r.id"
        ))
    }

    fn succeeded(&self, task: &str) -> usize {
        self.runs(task).iter().filter(|run| run.contains("|succeeded|")).count()
    }
}

#[test]
fn a_day_of_a_bot_that_is_killed_and_off_for_three_hours() {
    let Some(library) = library() else { return };
    let bot = Bot::new(library);
    let hold = bot.db.home().join("hold");
    assert!(bot.duly("06:00:30", &["-q", "apply", "day.toml"]).status().expect("duly apply").success());

    // A fetch, and the post after it.
    let running = bot.run("06:59:58");
    eventually("the first picture is posted", || bot.succeeded("post") == 1);
    running.kill();
    assert_eq!(bot.posted(), ["2027-03-14T07.txt"]);

    // Killed during a fetch: nothing follows it yet.
    std::fs::write(&hold, "").expect("a file");
    let running = bot.run("07:59:58");
    eventually("the second fetch has begun", || bot.db.lines("asked").len() == 2);
    running.kill();
    std::fs::remove_file(&hold).expect("the feed answers");
    assert_eq!(bot.runs("post").len(), 1, "a fetch that has not ended opens no post");

    // Off for three hours. The fetch is repeated, and what was missed in between is told.
    let running = bot.run("11:29:58");
    eventually("the second picture is posted", || bot.succeeded("post") == 2);
    eventually("what was missed is told", || bot.succeeded("tell") == 1);
    let missed = |state: &str| {
        let begins = format!("missed {state}: ");
        bot.db.lines("alarms").into_iter().filter(|line| line.starts_with(&begins)).count()
    };
    eventually("the alarm has begun", || missed("began") == 1);
    running.kill();

    // The next hour is as the first.
    let running = bot.run("11:59:58");
    eventually("the third picture is posted", || bot.succeeded("post") == 3);
    running.kill();

    assert_eq!(bot.posted(), ["07", "08", "12"].map(|hour| format!("2027-03-14T{hour}.txt")));
    assert_eq!(
        bot.runs("fetch"),
        [
            "07:00|schedule|succeeded|1",
            "08:00|schedule|succeeded|2",
            "09:00|schedule|missed|0",
            "12:00|schedule|succeeded|1"
        ]
    );
    let follows = "SELECT count(DISTINCT request_key) FROM task_runs WHERE origin = 'on_success'";
    assert_eq!((bot.runs("post").len(), bot.db.ask(follows).as_str()), (3, "3"), "one post after each fetch");
    assert_eq!(bot.db.lines("messages"), ["no pictures: 3 from 2027-03-14T09:00:00.000Z to 2027-03-14T11:00:00.000Z"]);
    bot.db.assert_sound();
}
