//! A bot that posts a picture carousel to each of its chats three times a day: once each, whatever happens to the bot.
//!
//! ```text
//! cargo run --example carousel_agent -- --fast     a day lasts twenty seconds
//! ```
//!
//! End it with Ctrl-C or `kill -9`, in the middle of a post too, and start it again: what was begun is tried again, what fell
//! due meanwhile is caught up with, and no chat sees a picture twice. `--db FILE` names the database (`carousel.db` here),
//! `--for SECONDS` lets the bot end by itself.

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
        .observe(tell)
        .start()?;

    for chat in CHATS {
        // `replace`, because the code is the truth: the same task again changes nothing, an edited one takes effect.
        let task = scheduler.replace(
            NewTask::cron(format!("carousel:{chat}"), pace.cron)
                .time_zone("Europe/Rome")
                .handler("carousel")
                .payload(chat)
                // A chat gets one thing at a time. What else the bot will send there can share the key.
                .concurrency_key(format!("chat:{chat}"))
                // A slow post makes the next one wait; by default it would be skipped, and a row would say so.
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
        // Nothing to clean up on Ctrl-C: a promise that is kept only if the bot may say goodbye is none.
        None => scheduler.wait()?,
    }
    Ok(())
}

/// One attempt to keep one occurrence.
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

    // The chat's receipt. If the bot dies here, the post is made and nobody knows; the next attempt finds out.
    take_a_moment(run, moment)
}

/// Stands for a chat service that knows a message again by the id its client gave it. Whether the message is new.
///
/// An attempt that was lost may have come as far as this, so the run is tried again: at least once. The key is the same for
/// all attempts of a run, so the chat keeps one message of them: at least once and a key make one post.
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

/// Work, of which a bot has more. A scheduler that shuts down asks its handlers to stop: then an error says "later".
fn take_a_moment(run: &Context, moment: Duration) -> Result<(), BoxError> {
    if run.wait_cancelled(moment) { Err("asked to stop".into()) } else { Ok(()) }
}

/// What a start after a crash finds, and what was passed over while nobody was there.
fn tell(event: &Event) {
    match event {
        Event::Lost { .. } | Event::OwnerLost { .. } => println!("recovered: {event}"),
        Event::PassedOver { .. } | Event::Finished { error: Some(_), .. } => println!("note: {event}"),
        _ => {}
    }
}

/// How fast the days of this bot pass.
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
