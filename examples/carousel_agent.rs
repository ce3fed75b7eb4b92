//! A bot that posts a picture carousel to each of its chats three times a day: once each, even if the bot is killed.
//!
//! ```text
//! cargo run --example carousel_agent -- --fast     a day lasts twenty seconds
//! ```
//!
//! End it with Ctrl-C or `kill -9`, also during a post, and start it again: a run that was begun is retried,
//! occurrences that were due meanwhile are caught up, and no chat sees a picture twice. `--db FILE` names the database
//! (default `carousel.db`), `--for SECONDS` ends the bot after that time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::{BoxError, Context, Event, NewTask, Overlap, RetryPolicy, Scheduler};
use rusqlite::{Connection, params};

const CHATS: [&str; 2] = ["family", "climbing-club"];

fn main() -> Result<(), BoxError> {
    let Options { db, pace, end_after } = Options::read()?;

    let file = db.clone();
    let scheduler = Scheduler::builder(&db)
        .handler("carousel", move |run: &Context| post_carousel(run, &file, pace.moment))
        .observe(print_event)
        .start()?;

    for chat in CHATS {
        // `replace`, because the code defines the tasks: an equal task changes nothing, an edited one takes effect.
        let task = scheduler.replace(
            NewTask::cron(format!("carousel:{chat}"), pace.cron)
                .time_zone("Europe/Rome")
                .handler("carousel")
                .payload(chat)
                // One message per chat at a time. Other tasks for the same chat can share the key.
                .concurrency_key(format!("chat:{chat}"))
                // A slow post delays the next one; by default the next one would be skipped, with a row.
                .overlap(Overlap::BufferAll)
                .retry(RetryPolicy { backoff: pace.moment, ..RetryPolicy::default() }),
        )?;
        if let Some(next) = task.next_run {
            println!("{}: next post at {next}", task.name);
        }
    }

    match end_after {
        Some(time) => {
            std::thread::sleep(time);
            let left = scheduler.shutdown(Duration::from_secs(10))?;
            println!("ended; {} posts were cut short", left.unfinished);
        }
        // Ctrl-C needs no clean-up: recovery does not depend on a clean exit.
        None => scheduler.wait()?,
    }
    Ok(())
}

/// Executes one attempt.
fn post_carousel(run: &Context, db: &Path, moment: Duration) -> Result<(), BoxError> {
    let chat: String = run.payload()?;
    let key = run.idempotency_key();
    println!("{key} drawing, attempt {}", run.attempt());
    take_a_moment(run, moment)?;

    if send(db, &key, &chat, "five pictures")? {
        println!("{key} posted, attempt {}", run.attempt());
    } else {
        println!("{key} was posted before, attempt {}", run.attempt());
    }

    // If the bot dies here, the post is made and not recorded; the next attempt detects that.
    take_a_moment(run, moment)
}

/// Simulates a chat service that detects repeated messages by the id of the client. Returns whether the message is new.
///
/// A lost attempt may have posted already, and the run is retried: at least once. The key is the same for all attempts
/// of a run, so the service keeps one message: at least once and a key make one post.
fn send(db: &Path, key: &str, chat: &str, pictures: &str) -> rusqlite::Result<bool> {
    let service = Connection::open(db)?;
    service.busy_timeout(Duration::from_secs(5))?;
    service.execute("CREATE TABLE IF NOT EXISTS posts (key TEXT PRIMARY KEY, chat TEXT, pictures TEXT) STRICT", [])?;
    let rows = service.execute(
        "INSERT INTO posts (key, chat, pictures) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        params![key, chat, pictures],
    )?;
    Ok(rows == 1)
}

/// Simulates work. A scheduler that shuts down asks its handlers to stop; the error then means a later retry.
fn take_a_moment(run: &Context, moment: Duration) -> Result<(), BoxError> {
    if run.wait_cancelled(moment) { Err("asked to stop".into()) } else { Ok(()) }
}

/// Prints what a start after a crash recovers, and which occurrences were skipped or missed meanwhile.
fn print_event(event: &Event) {
    match event {
        Event::Lost { .. } | Event::OwnerLost { .. } => println!("recovered: {event}"),
        Event::PassedOver { .. } | Event::Finished { error: Some(_), .. } => println!("note: {event}"),
        _ => {}
    }
}

/// The speed of the bot.
#[derive(Clone, Copy)]
struct Pace {
    cron: &'static str,
    moment: Duration,
}

const REAL: Pace = Pace { cron: "0 9,13,18 * * *", moment: Duration::from_secs(30) };
/// A day of twenty seconds, with a post at 0, 7 and 14.
const FAST: Pace = Pace { cron: "0,7,14,20,27,34,40,47,54 * * * * *", moment: Duration::from_secs(1) };

struct Options {
    db: PathBuf,
    pace: Pace,
    end_after: Option<Duration>,
}

impl Options {
    fn read() -> Result<Self, BoxError> {
        let mut options = Options { db: "carousel.db".into(), pace: REAL, end_after: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--fast" => options.pace = FAST,
                "--db" => options.db = value()?.into(),
                "--for" => options.end_after = Some(Duration::from_secs(value()?.parse()?)),
                other => return Err(format!("expected --fast, --db FILE or --for SECONDS, found {other}").into()),
            }
        }
        Ok(options)
    }
}
