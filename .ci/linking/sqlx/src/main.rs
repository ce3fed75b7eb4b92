//! Adds a task to the file of an application, and reads it through the application's own connection.

use duly::{Client, NewTask};
use sqlx::{Connection, Executor, Row};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("expected the name of a new file")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connection = sqlx::SqliteConnection::connect(&format!("sqlite:{file}?mode=rwc")).await?;
        connection.execute("CREATE TABLE posts (id INTEGER PRIMARY KEY, text TEXT)").await?;
        Client::open(&file)?.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
        let row = connection.fetch_one("SELECT handler FROM scheduled_tasks WHERE name = 'digest'").await?;
        assert_eq!(row.get::<String, _>(0), "digest");
        println!("sqlx and duly: SQLite {}", duly::rusqlite::version());
        Ok(())
    })
}
