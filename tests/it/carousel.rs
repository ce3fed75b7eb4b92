//! The first program a newcomer reads, killed in the middle of a post, before and after the chat has it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::fixtures::TestDb;

/// Longest that the bot may be silent: its days have a post every seven seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// The example as a process, read line by line.
struct Bot {
    process: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Bot {
    fn start(program: &Path, db: &TestDb, more: &[&str]) -> Self {
        let mut process = Command::new(program)
            .args(["--fast", "--db"])
            .arg(db.file())
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (told, lines) = mpsc::channel();
        // It ends with the process, whose end closes the pipe.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| told.send(line)));
        Bot { process, lines, said: Vec::new() }
    }

    /// Reads until a line says this, and answers with it.
    fn hear(&mut self, words: &str) -> String {
        let deadline = Instant::now() + SILENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("expected {words:?} within {SILENCE:?}, heard {:#?}", self.said));
            self.said.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// SIGKILL. What it said until then.
    fn kill(mut self) -> Vec<String> {
        self.process.kill().expect("a process that can be killed");
        self.end()
    }

    /// Waits until it ends by itself, or has been killed. All that it said.
    fn end(mut self) -> Vec<String> {
        self.said.extend(self.lines.iter());
        self.process.wait().expect("its end");
        std::mem::take(&mut self.said)
    }
}

/// A test that fails leaves no bot behind, which would post for ever.
impl Drop for Bot {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Cargo builds the examples beside the tests, unless it is told to build the tests alone.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().expect("the test program");
    let name = format!("carousel_agent{}", std::env::consts::EXE_SUFFIX);
    let program = test.parent()?.parent()?.join("examples").join(name);
    program.exists().then_some(program)
}

/// The key, the event and the number of the attempt, of the lines that say these words.
fn attempts<'a>(said: &'a [String], words: &str) -> Vec<(&'a str, u32)> {
    let tell = |line: &'a String| {
        let (key, rest) = line.split_once(' ')?;
        let attempt = rest.strip_prefix(words)?.strip_prefix(", attempt ")?;
        Some((key, attempt.parse().expect("the number of an attempt")))
    };
    said.iter().filter_map(tell).collect()
}

#[test]
fn the_carousel_bot_is_killed_twice_and_posts_each_picture_once() {
    let Some(program) = program() else {
        assert!(std::env::var_os("DULY_CI").is_none(), "the example carousel_agent is not built");
        println!("skipped: no carousel_agent (cargo build --examples)");
        return;
    };
    let db = TestDb::new();

    // Killed while it draws: the chat has nothing yet.
    let mut bot = Bot::start(&program, &db, &[]);
    bot.hear("drawing, attempt 1");
    let mut said = bot.kill();

    // It takes that up again, makes another day's posts, and is killed when the chat has the post and nobody knows.
    let mut bot = Bot::start(&program, &db, &[]);
    bot.hear("recovered: ");
    bot.hear(", attempt 2");
    bot.hear("posted, attempt 1");
    said.extend(bot.kill());

    let mut bot = Bot::start(&program, &db, &["--for", "5"]);
    bot.hear("was posted before, attempt 2");
    bot.hear("ended; 0 posts were cut short");
    said.extend(bot.end());

    // No attempt was started twice, and whatever was tried again had been lost before.
    let drawn = attempts(&said, "drawing");
    let once: BTreeSet<_> = drawn.iter().copied().collect();
    assert_eq!(once.len(), drawn.len(), "{said:#?}");
    let key = "t.name || '/' || strftime('%Y-%m-%dT%H:%M:%fZ', r.scheduled_for / 1000.0, 'unixepoch')";
    let from = "FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id";
    let lost: BTreeSet<String> = db
        .rows(&format!("SELECT {key} || ' ' || a.attempt {from} JOIN task_attempts a ON a.run_id = r.id"))
        .into_iter()
        .collect();
    for (key, attempt) in &drawn {
        assert!((1..*attempt).all(|before| lost.contains(&format!("{key} {before}"))), "{key} {attempt}: {lost:?}");
    }
    let other_ends = "SELECT count(*) FROM task_attempts WHERE outcome NOT IN ('lost', 'released')";
    assert_eq!(db.ask(other_ends), "0");
    assert!(lost.len() >= 2, "{lost:?}");

    // Each post was made once, and a run that succeeded is one. A bot that dies between the two says so at the next attempt.
    let new = attempts(&said, "posted");
    let known = attempts(&said, "was posted before");
    let posted: BTreeSet<_> = new.iter().chain(&known).map(|(key, _)| (*key).to_owned()).collect();
    let keys: BTreeSet<_> = new.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.len(), new.len(), "{said:#?}");
    assert_eq!(posted, db.rows("SELECT key FROM posts").into_iter().collect());
    let kept = db.rows(&format!("SELECT {key} {from} WHERE r.status = 'succeeded'"));
    assert!(kept.iter().all(|key| posted.contains(key)), "{kept:?} {posted:?}");
    assert!(kept.len() >= 3, "{said:#?}");

    // No occurrence is missing between the first and the last, and all were kept but what the last moment left waiting.
    for chat in ["carousel:family", "carousel:climbing-club"] {
        let runs = db.rows(&format!(
            "SELECT r.scheduled_for / 1000, r.status {from} WHERE t.name = '{chat}' ORDER BY r.scheduled_for"
        ));
        let (seconds, stands): (Vec<i64>, Vec<&str>) = runs
            .iter()
            .map(|row| row.split_once('|').expect("two columns"))
            .map(|(second, status)| (second.parse::<i64>().expect("a second"), status))
            .unzip();
        let named = (seconds[0]..=seconds[seconds.len() - 1]).filter(|second| [0, 7, 14].contains(&(second % 20)));
        assert_eq!(seconds, named.collect::<Vec<_>>(), "{chat}");
        let waits = stands.iter().rev().take_while(|status| **status == "queued").count();
        assert!(waits <= 1, "{chat}: {runs:?}");
        assert!(stands[..stands.len() - waits].iter().all(|status| *status == "succeeded"), "{chat}: {runs:?}");
    }
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL"), "0");
    db.assert_sound();
}
