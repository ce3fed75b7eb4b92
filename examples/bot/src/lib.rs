//! A bot that posts queued pictures: each at most once, and its followers hear of it once, even if it is killed at any point. Killed
//! during an upload, it cannot know whether the picture was posted: the run is dead, and a user decides (or `Context::effect_or`, if
//! the service can be asked).
//!
//! The queue, the posts and the tasks are tables of one file, so each step is one transaction:
//!
//! 1. [`queue`] stores a picture and the task that posts it (the outbox pattern, `Client::add_in`);
//! 2. [`post`] uploads it (`Context::effect`, outside of the file), then stores the post and the next task (`Context::finish`);
//! 3. [`announce`] writes an entry for each follower, together with the end of its run.

use std::time::Duration;

use duly::{BoxError, Client, Context, NewTask};
use rusqlite::Connection;

/// The bot's own tables, beside those of duly.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS pictures (id INTEGER PRIMARY KEY, path TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS posts (picture INTEGER PRIMARY KEY REFERENCES pictures (id), url TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS followers (name TEXT PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS inbox (follower TEXT NOT NULL, url TEXT NOT NULL, PRIMARY KEY (follower, url));";

/// Opens the bot's own connection, and creates its tables.
pub fn open(file: &str) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.execute_batch(TABLES)?;
    Ok(connection)
}

/// Queues a picture: its row and the task that posts it are stored together, or neither is.
pub fn queue(connection: &mut Connection, client: &Client, path: &str) -> Result<i64, BoxError> {
    let tx = connection.transaction()?;
    tx.execute("INSERT INTO pictures (path) VALUES (?1)", [path])?;
    let picture = tx.last_insert_rowid();
    // `queue` needs no scheduler: the task is due at once, and waits for one.
    let task = NewTask::once_in(format!("post:{picture}"), Duration::ZERO).handler("post").payload((picture, path));
    client.add_in(&tx, task)?;
    tx.commit()?;
    Ok(picture)
}

/// What uploads a picture, and returns its address.
pub type Upload = fn(path: &str, key: &str) -> Result<String, BoxError>;

/// Handler: uploads a picture, and stores the post with the task that announces it.
pub fn post(run: &Context, upload: Upload) -> Result<(), BoxError> {
    let (picture, path): (i64, String) = run.payload()?;
    // A retry gets the stored address, and does not upload again.
    let url: String = run.effect("upload", || upload(&path, &run.idempotency_key()))?;
    run.progress(format!("{path} is at {url}"));
    run.finish(|tx| {
        tx.execute("INSERT INTO posts (picture, url) VALUES (?1, ?2)", (picture, &url))?;
        let next = NewTask::once(format!("announce:{picture}"), run.scheduled_for()).handler("announce").payload(&url);
        run.add_in(tx, next)?;
        Ok(())
    })
}

/// Handler: an entry for each follower, exactly once, since it commits with the end of the run.
pub fn announce(run: &Context) -> Result<usize, BoxError> {
    let url: String = run.payload()?;
    run.finish(|tx| Ok(tx.execute("INSERT INTO inbox (follower, url) SELECT name, ?1 FROM followers", [url])?))
}
