//! Adds a task to the file of an application, and reads it through the application's own connection.

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::sql_types::Text;
use duly::{Client, NewTask};

#[derive(QueryableByName)]
struct Task {
    #[diesel(sql_type = Text)]
    handler: String,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("expected the name of a new file")?;
    let mut connection = SqliteConnection::establish(&file)?;
    connection.batch_execute("CREATE TABLE posts (id INTEGER PRIMARY KEY, text TEXT)")?;
    Client::open(&file)?.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    let tasks: Vec<Task> =
        diesel::sql_query("SELECT handler FROM scheduled_tasks WHERE name = 'digest'").load(&mut connection)?;
    assert_eq!(tasks[0].handler, "digest");
    println!("diesel and duly: SQLite {}", duly::rusqlite::version());
    Ok(())
}
