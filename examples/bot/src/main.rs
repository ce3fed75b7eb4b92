//! Queues three pictures, and posts them: `cargo run -- bot.db`. Run it again, or kill it: no picture is posted twice.

use std::time::Duration;

use duly::{BoxError, Scheduler};

/// Takes the role of a picture service, which must not get a picture twice.
fn upload(path: &str, key: &str) -> Result<String, BoxError> {
    println!("upload {path} (key {key})");
    Ok(format!("https://pictures.example.org/{path}"))
}

fn main() -> Result<(), BoxError> {
    let file = std::env::args().nth(1).ok_or("expected the name of a database")?;
    let mut own = bot::open(&file)?;
    own.execute_batch("INSERT OR IGNORE INTO followers VALUES ('anna'), ('bob')")?;
    let scheduler = Scheduler::builder(&file)
        .handler("post", |run| bot::post(run, upload))
        .handler("announce", bot::announce)
        .start()?;
    // It may have been killed after it had queued some of them.
    let queued: i64 = own.query_row("SELECT count(*) FROM pictures", [], |row| row.get(0))?;
    for path in ["sunrise.jpg", "noon.jpg", "sunset.jpg"].into_iter().skip(usize::try_from(queued)?) {
        bot::queue(&mut own, scheduler.client(), path)?;
    }
    while !scheduler.is_idle()? {
        std::thread::sleep(Duration::from_millis(20));
    }
    scheduler.shutdown(Duration::from_secs(10))?;
    let count = |table: &str| own.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
    println!("{} posts, {} entries for followers", count("posts")?, count("inbox")?);
    // A self-check, for the pipeline.
    assert_eq!((count("posts")?, count("inbox")?), (3, 6));
    Ok(())
}
