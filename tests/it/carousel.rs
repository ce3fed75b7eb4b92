//! The example `carousel_agent`, killed in the middle of a post: before and after the chat has received it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::fixtures::{Process, TestDb, example, exited};

/// The longest wait for a line of the bot, which posts every seven seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// The example as a process, read line by line.
struct Bot {
    process: Process,
    lines: Receiver<String>,
    output: Vec<String>,
}

impl Bot {
    fn start(program: &Path, db: &TestDb, more: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(["--fast", "--db"]).arg(db.file()).args(more).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let output = BufReader::new(process.0.stdout.take().expect("its output"));
        let (sender, lines) = mpsc::channel();
        // The thread ends when the process closes the pipe.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Bot { process, lines, output: Vec::new() }
    }

    /// Reads until a line contains these words.
    fn wait_for(&mut self, words: &str) {
        let deadline = Instant::now() + SILENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line =
                line.unwrap_or_else(|_| panic!("expected {words:?} within {SILENCE:?}, found {:#?}", self.output));
            self.output.push(line.clone());
            if line.contains(words) {
                return;
            }
        }
    }

    /// Kills it with SIGKILL and returns its lines.
    fn kill(mut self) -> Vec<String> {
        self.process.0.kill().expect("a process that can be killed");
        self.end()
    }

    /// Waits for its end and returns its lines.
    fn end(mut self) -> Vec<String> {
        self.output.extend(std::iter::from_fn(|| self.lines.recv_timeout(crate::fixtures::patience()).ok()));
        exited(&mut self.process.0, "the agent");
        self.output
    }
}

/// The key and the attempt of each line with these words.
fn attempts<'a>(output: &'a [String], words: &str) -> Vec<(&'a str, u32)> {
    let parse = |line: &'a String| {
        let (key, rest) = line.split_once(' ')?;
        let attempt = rest.strip_prefix(words)?.strip_prefix(", attempt ")?;
        Some((key, attempt.parse().expect("the number of an attempt")))
    };
    output.iter().filter_map(parse).collect()
}

#[test]
fn the_carousel_bot_posts_each_picture_once_although_it_is_killed_twice() {
    let Some(program) = example("carousel_agent") else { return };
    let db = TestDb::new();

    // Killed while it draws: the chat has received nothing.
    let mut bot = Bot::start(&program, &db, &[]);
    bot.wait_for("drawing, attempt 1");
    let mut output = bot.kill();

    // The next one recovers that run, and is killed when the chat has received a post that is not yet recorded.
    let mut bot = Bot::start(&program, &db, &[]);
    bot.wait_for("recovered: ");
    bot.wait_for(", attempt 2");
    bot.wait_for("posted, attempt 1");
    output.extend(bot.kill());

    let mut bot = Bot::start(&program, &db, &["--for", "5"]);
    bot.wait_for("was posted before, attempt 2");
    bot.wait_for("ended; 0 posts were cut short");
    output.extend(bot.end());

    // No attempt started twice, and each retry follows a lost attempt.
    let drawn = attempts(&output, "drawing");
    let once: BTreeSet<_> = drawn.iter().copied().collect();
    assert_eq!(once.len(), drawn.len(), "{output:#?}");
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

    // Each post was made once, and each run that succeeded has one. After a death between post and record, the next attempt
    // reports the post.
    let new = attempts(&output, "posted");
    let known = attempts(&output, "was posted before");
    let posted: BTreeSet<_> = new.iter().chain(&known).map(|(key, _)| (*key).to_owned()).collect();
    let keys: BTreeSet<_> = new.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.len(), new.len(), "{output:#?}");
    assert_eq!(posted, db.rows("SELECT key FROM posts").into_iter().collect());
    let kept = db.rows(&format!("SELECT {key} {from} WHERE r.status = 'succeeded'"));
    assert!(kept.iter().all(|key| posted.contains(key)), "{kept:?} {posted:?}");
    assert!(kept.len() >= 3, "{output:#?}");

    // No occurrence is missing between the first and the last, and all succeeded but one that may still be queued.
    for chat in ["carousel:family", "carousel:climbing-club"] {
        let runs = db.rows(&format!(
            "SELECT r.scheduled_for / 1000, r.status {from} WHERE t.name = '{chat}' ORDER BY r.scheduled_for"
        ));
        let (seconds, statuses): (Vec<i64>, Vec<&str>) = runs
            .iter()
            .map(|row| row.split_once('|').expect("two columns"))
            .map(|(second, status)| (second.parse::<i64>().expect("a second"), status))
            .unzip();
        let named = (seconds[0]..=seconds[seconds.len() - 1]).filter(|second| [0, 7, 14].contains(&(second % 20)));
        assert_eq!(seconds, named.collect::<Vec<_>>(), "{chat}");
        let waits = statuses.iter().rev().take_while(|status| **status == "queued").count();
        assert!(waits <= 1, "{chat}: {runs:?}");
        assert!(statuses[..statuses.len() - waits].iter().all(|status| *status == "succeeded"), "{chat}: {runs:?}");
    }
    assert_eq!(db.registered_schedulers(), 0);
    db.assert_sound();
}
