//! An agent without a model plays a month against the carousel: the clock moves from day to day, and `duly mcp` and `duly run` are killed at
//! random. Each post is made once. `DULY_DAYS` is the number of days, `DULY_SEED` repeats the choices.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use duly::Timestamp;
use fastrand::Rng;
use serde_json::{Value, json};

use crate::dst_nights::library;
use crate::fixtures::{Process, TestDb, eventually, is_of_sqlite};
use crate::mcp::agent::Agent;

/// A post is a file of its occurrence: creating it twice fails, as a chat with idempotency keys would refuse it.
const POST: &str = r#"
echo "$DULY_TASK $DULY_SCHEDULED_FOR" >> attempts
while [ -e hold ]; do sleep 0.02; done
set -C
name=$(echo "$DULY_TASK" | tr / _)
{ echo "$1" > "posts/$name $DULY_SCHEDULED_FOR"; } 2>/dev/null || echo "$DULY_TASK $DULY_SCHEDULED_FOR" >> again
"#;

const MANIFEST: &str = r#"
[[template]]
name = "post"
command = ["sh", "post.sh", "{text}"]
backoff = "100ms"
overlap = "buffer_one"
max_attempts = 9
parameters.text = { max_length = 100 }
"#;

const OPTIONS: [&str; 9] = [
    "mcp",
    "--allow",
    "add,trigger,pause,cancel,remove",
    "--scope",
    "agent:anna/",
    "--manifest",
    "tasks.toml",
    "--as",
    "player",
];

/// The programs, and what the player knows of the day.
struct Month {
    db: TestDb,
    library: PathBuf,
    random: Rng,
    /// The date, and the time of the next start.
    day: String,
    kills: usize,
}

impl Month {
    /// The program at a time of the day, which passes at the usual pace.
    fn program(&self, at: &str, words: &[&str]) -> Command {
        let mut duly = self.db.duly(words);
        duly.env("LD_PRELOAD", &self.library).env("FAKETIME", format!("@{} {at}", self.day));
        duly.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1").stderr(Stdio::null());
        duly
    }

    fn agent(&self, at: &str) -> Agent {
        Agent::shaken(&mut self.program(at, &OPTIONS))
    }

    fn scheduler(&self, at: &str) -> Process {
        Process::spawn(&mut self.program(at, &["run", "--poll", "50ms"]))
    }

    /// Calls a tool of an agent that may be killed before it answers; then another one repeats the call.
    fn survive(&mut self, agent: Agent, at: &str, tool: &str, arguments: Value) -> Agent {
        let mut agent = agent;
        if self.random.u8(..3) == 0 {
            agent.ask_tool(tool, arguments.clone());
            agent.kill();
            self.kills += 1;
            agent = self.agent(at);
        }
        agent.done(tool, arguments);
        agent
    }

    /// A day: the agent looks after its tasks before one, the post runs at one, and is looked at.
    fn pass(&mut self) {
        // The agent has ten minutes for its calls, however slow the machine is.
        let (early, before, after) = ("12:50:00", "12:59:58", "13:00:30");
        let mut agent = self.agent(early);
        let carousel = json!({"name": "agent:anna/carousel", "schedule": "every day at 13:00", "template": "post", "parameters": {"text": "carousel"}});
        agent = self.survive(agent, early, "schedule_task", carousel);
        let reminder = json!({
            "name": format!("agent:anna/reminder-{}", self.day), "schedule": format!("{}T13:00", self.day), "template": "post",
            "parameters": {"text": "reminder"},
        });
        agent = self.survive(agent, early, "schedule_task", reminder);
        let news = json!({"name": "agent:anna/news", "schedule": "every day at 13:00", "template": "post", "parameters": {"text": "news"}});
        agent = self.survive(agent, early, "schedule_task", news);
        agent = self.survive(agent, early, "pause_task", json!({"name": "agent:anna/news"}));
        let key = format!("by hand {}", self.day);
        agent = self.survive(agent, early, "trigger_task", json!({"name": "agent:anna/carousel", "key": key}));
        let held = self.random.bool();
        if held {
            std::fs::write(self.db.home().join("hold"), "").expect("a file");
        }
        let scheduler = self.scheduler(before);
        let at_one = format!("{}T13:00:00Z", self.day).parse::<Timestamp>().expect("a time").as_millis();
        let opened = format!("SELECT count(*) FROM task_runs WHERE scheduled_for = {at_one}");
        if self.random.bool() {
            // The carousel may wait for the run that was triggered, if that is held.
            eventually("it is one o'clock", || self.db.number::<usize>(&opened) > 0);
        }
        // In the middle of a post, or before one.
        scheduler.kill();
        self.kills += 1;
        if self.random.bool() {
            agent.kill();
            self.kills += 1;
        } else {
            assert_eq!(agent.leave(), Some(0));
        }
        let _ = std::fs::remove_file(self.db.home().join("hold"));
        let scheduler = self.scheduler(after);
        let ended = format!("{opened} AND status = 'succeeded'");
        eventually("the post and the reminder are made", || self.db.number::<usize>(&ended) == 2);
        let triggered = "SELECT count(*) FROM task_runs WHERE origin = 'manual' AND status <> 'succeeded'";
        eventually("what was triggered has run", || self.db.number::<usize>(triggered) == 0);
        let mut agent = self.agent("13:05:00");
        let why = agent.told("history", json!({"name": "agent:anna/news", "around": "13:00"}));
        assert!(
            why.contains("nothing ran because the task was paused at ") && why.contains("by mcp:player session"),
            "{why}"
        );
        let ran = agent.told("history", json!({"name": "agent:anna/carousel", "around": "13:00"}));
        assert!(ran.contains("it ran: run "), "{ran}");
        agent.done("resume_task", json!({"name": "agent:anna/news"}));
        agent.done("pause_task", json!({"name": "agent:anna/news"}));
        scheduler.kill();
        agent.kill();
    }
}

#[test]
fn each_post_of_a_month_is_made_once_although_everything_is_killed() {
    if is_of_sqlite("the time of a server is not moved by its clients") {
        return;
    }
    let Some(library) = library() else { return };
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (days, seed) = (number("DULY_DAYS", 4), number("DULY_SEED", fastrand::u64(..)));
    println!("DULY_SEED={seed} DULY_DAYS={days}");
    let db = TestDb::new();
    std::fs::create_dir(db.home().join("posts")).unwrap();
    std::fs::write(db.home().join("post.sh"), POST).unwrap();
    std::fs::write(db.home().join("tasks.toml"), MANIFEST).unwrap();
    let mut month = Month { db, library, random: Rng::with_seed(seed), day: String::new(), kills: 0 };
    for day in 1..=days {
        month.day = format!("2027-03-{day:02}");
        month.pass();
    }
    let mut posts: BTreeMap<String, usize> = BTreeMap::new();
    for post in std::fs::read_dir(month.db.home().join("posts")).unwrap() {
        let name = post.unwrap().file_name().into_string().unwrap();
        let at_one = name.ends_with("T13:00:00.000Z");
        let (task, _) = name.split_once(' ').unwrap();
        let kind = if task.contains("reminder") { "reminder" } else { task };
        *posts.entry(format!("{kind} {}", if at_one { "at one" } else { "by hand" })).or_default() += 1;
    }
    let days = usize::try_from(days).unwrap();
    let expected =
        [("agent:anna_carousel at one", days), ("agent:anna_carousel by hand", days), ("reminder at one", days)];
    assert_eq!(posts, expected.map(|(kind, count)| (kind.to_owned(), count)).into(), "{} kills", month.kills);
    // The ledger has each once, too.
    let runs = month.db.number::<usize>("SELECT count(*) FROM task_runs WHERE status = 'succeeded'");
    assert_eq!(runs, 3 * days);
    let others = month.db.rows("SELECT status, count(*) FROM task_runs WHERE status <> 'succeeded' GROUP BY 1");
    assert!(others.is_empty(), "{others:?}");
    println!(
        "{} kills, {} attempts, {} of them again",
        month.kills,
        month.db.lines("attempts").len(),
        month.db.lines("again").len()
    );
    month.db.assert_sound();
}
