//! Each picture is posted once: after failures, after crashes, and not at all if it was not committed.

use std::sync::Mutex;
use std::time::Duration;

use duly::testing::Stepper;
use duly::{BoxError, Context};

const NOON: &str = "2027-03-14T12:00:00Z";

/// The uploads of all tests, as `path key`.
static UPLOADS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn upload(path: &str, key: &str) -> Result<String, BoxError> {
    let mut uploads = UPLOADS.lock().unwrap();
    uploads.push(format!("{path} {key}"));
    // The service is down for the first attempt of this picture.
    match path {
        "flaky.jpg" if uploads.iter().filter(|line| line.starts_with(path)).count() == 1 => Err("503".into()),
        _ => Ok(format!("https://pictures.example.org/{path}")),
    }
}

fn uploads(path: &str) -> usize {
    UPLOADS.lock().unwrap().iter().filter(|line| line.starts_with(path)).count()
}

struct Bot {
    _home: tempfile::TempDir,
    own: rusqlite::Connection,
    stepper: Stepper,
}

fn bot() -> Bot {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("bot.db");
    let own = bot::open(file.to_str().unwrap()).unwrap();
    own.execute_batch("INSERT INTO followers VALUES ('anna'), ('bob')").unwrap();
    let stepper = Stepper::builder(&file, NOON.parse().unwrap())
        .handler("post", |run: &Context| bot::post(run, upload))
        .handler("announce", bot::announce)
        .start()
        .unwrap();
    Bot { _home: home, own, stepper }
}

fn counts(own: &rusqlite::Connection) -> (i64, i64) {
    let count = |table: &str| own.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
    (count("posts"), count("inbox"))
}

#[test]
fn a_queued_picture_is_posted_and_announced_once() {
    let Bot { mut own, mut stepper, _home } = bot();
    bot::queue(&mut own, stepper.client(), "flaky.jpg").unwrap();
    assert_eq!(counts(&own), (0, 0), "no scheduler has run yet");
    stepper.run_until_idle(Duration::from_secs(600)).unwrap();
    assert_eq!(counts(&own), (1, 2));
    assert_eq!(uploads("flaky.jpg"), 2, "one that failed, and one more");
}

#[test]
fn a_crash_after_the_upload_does_not_upload_again() {
    let Bot { mut own, mut stepper, _home } = bot();
    bot::queue(&mut own, stepper.client(), "crash.jpg").unwrap();
    let claims = stepper.step().unwrap();
    // The bot is killed when the post is stored, and before the scheduler knows of it.
    stepper.carry_out(&claims[0]).unwrap();
    let mut stepper = stepper.restart().unwrap();
    stepper.run_until_idle(Duration::from_secs(600)).unwrap();
    assert_eq!((counts(&own), uploads("crash.jpg")), ((1, 2), 1));
}

#[test]
fn a_picture_that_was_not_committed_is_not_posted() {
    let Bot { mut own, mut stepper, _home } = bot();
    // The tables are missing, so the transaction of the picture fails, and its task with it.
    own.execute_batch("ALTER TABLE pictures RENAME TO archive").unwrap();
    bot::queue(&mut own, stepper.client(), "lost.jpg").unwrap_err();
    assert!(stepper.run_until_idle(Duration::from_secs(600)).unwrap().is_empty());
    assert!(stepper.client().tasks().unwrap().is_empty());
    assert_eq!(uploads("lost.jpg"), 0);
}
