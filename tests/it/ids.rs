//! A client that adds many tasks one by one reserves ids, which no other writer gets.

use duly::{Change, Client, Error};

use crate::fixtures::{TestDb, is_of_sqlite, once};

/// Tasks that a client adds before it reserves ids, and the number of ids that it reserves at a time.
const UNRESERVED: usize = 16;
const RESERVED: i64 = 100;

/// Adds tasks with these numbers.
fn add(client: &Client, name: &str, numbers: std::ops::Range<usize>) {
    for n in numbers {
        assert_eq!(client.add(once(&format!("{name}-{n}"))).unwrap().change, Change::Created);
    }
}

fn id(db: &TestDb, name: &str) -> i64 {
    db.number(&format!("SELECT id FROM scheduled_tasks WHERE name = '{name}'"))
}

fn insert(db: &TestDb, id: &str, name: &str) {
    let row = format!("({id}, '{name}', 'work', 'once', '2027-03-14T12:00:00Z')");
    let insert = format!("INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value) VALUES {row}");
    db.execute(&insert);
}

#[test]
fn few_additions_leave_no_gap_and_many_get_reserved_ids() {
    if is_of_sqlite("a server assigns ids by a sequence, and none is reserved") {
        return;
    }
    let db = TestDb::new();
    let (one, other) = (db.client(), db.client());
    add(&one, "one", 0..UNRESERVED);
    add(&other, "other", 0..3);
    assert_eq!(id(&db, "other-2"), UNRESERVED as i64 + 3);

    add(&one, "one", UNRESERVED..UNRESERVED + 1);
    let first = id(&db, &format!("one-{UNRESERVED}"));
    assert_eq!(first, UNRESERVED as i64 + 4);
    // Other writers get the ids after the reserved ones.
    add(&other, "other", 3..4);
    insert(&db, "NULL", "by-sql");
    other.add_all([once("at-once")]).unwrap();
    for (place, name) in ["other-3", "by-sql", "at-once"].iter().enumerate() {
        assert_eq!(id(&db, name), first + RESERVED + place as i64, "{name}");
    }
    add(&one, "one", UNRESERVED + 1..UNRESERVED + RESERVED as usize);
    assert_eq!(id(&db, &format!("one-{}", UNRESERVED + RESERVED as usize - 1)), first + RESERVED - 1);

    // The next hundred: the newest is removed, and its id is never used again.
    add(&one, "one", 200..202);
    assert_eq!(id(&db, "one-200"), first + RESERVED + 3);
    db.execute("DELETE FROM scheduled_tasks WHERE name = 'one-201'");
    let newer = db.client();
    add(&one, "one", 202..203);
    add(&newer, "newer", 0..1);
    assert_eq!(id(&db, "one-202"), first + RESERVED + 5);
    assert_eq!(id(&db, "newer-0"), first + 2 * RESERVED + 3);
    db.assert_sound();
}

#[test]
fn ids_are_reserved_in_a_file_with_too_many_rows_for_the_debug_checks() {
    let db = TestDb::brief();
    let client = db.client();
    client.add_all((0..295).map(|n| once(&format!("all-{n}")))).unwrap();
    add(&client, "one", 0..10);
    db.assert_sound();
}

#[test]
fn a_task_with_a_reserved_id_writes_a_page_less() {
    if is_of_sqlite("it opens the file") {
        return;
    }
    let (db, client) = TestDb::with_client();
    client.add_all((0..200).map(|n| once(&format!("all-{n}")))).unwrap();
    let log = db.home().join("agent.db-wal");
    // The minimum, since some inserts split a page.
    let least = |numbers: std::ops::Range<usize>| {
        let pages = numbers.map(|n| {
            let before = std::fs::metadata(&log).unwrap().len();
            add(&client, "one", n..n + 1);
            (std::fs::metadata(&log).unwrap().len() - before) / (4096 + 24)
        });
        pages.min().unwrap()
    };
    assert_eq!(least(0..UNRESERVED), 4);
    assert_eq!(least(UNRESERVED + 1..UNRESERVED + 10), 3);
}

#[test]
fn a_refused_task_uses_no_id() {
    let (db, client) = TestDb::with_client();
    add(&client, "one", 0..UNRESERVED + 2);
    let newest = id(&db, "one-17");
    for _ in 0..2 * RESERVED {
        assert_eq!(client.add_if_absent(once("one-3")).unwrap().change, Change::Unchanged);
    }
    assert!(matches!(client.add(once("one-3").priority(0)).unwrap_err(), Error::TaskDiffers { .. }));
    assert!(client.add(once("no name")).is_err());
    assert_eq!(client.replace(once("one-3").priority(0)).unwrap().change, Change::Replaced);
    // The next addition checks the reservation first.
    add(&client, "one", 18..20);
    if db.is_on_server() {
        // Its sequence reserves none.
        assert_eq!(id(&db, "one-18"), newest + 1);
        assert_eq!(id(&db, "one-19"), newest + 2);
    } else {
        assert_eq!(id(&db, "one-18"), id(&db, "one-16") + RESERVED);
        assert_eq!(id(&db, "one-19"), newest + 1);
    }
    assert_eq!(id(&db, "one-3"), 4);
}

#[test]
fn a_task_that_a_trigger_ignores_is_not_reported_as_created() {
    let (db, client) = TestDb::with_client();
    add(&client, "one", 0..UNRESERVED + 2);
    db.execute("CREATE TRIGGER no BEFORE INSERT ON scheduled_tasks BEGIN SELECT RAISE(IGNORE); END");
    for refused in [client.add(once("one-18")).unwrap_err(), client.add_all([once("one-18")]).unwrap_err()] {
        let expected = match db.is_on_server() {
            true => "a trigger on scheduled_tasks ignores the row: it returns NULL",
            false => r#"cannot add task "one-18": a trigger on scheduled_tasks ignores it, with RAISE(IGNORE)"#,
        };
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    assert_eq!(client.add(once("one-3")).unwrap().change, Change::Unchanged);
    assert!(matches!(client.add(once("one-3").priority(0)).unwrap_err(), Error::TaskDiffers { .. }));
    db.execute("DROP TRIGGER no");
    add(&client, "one", 18..20);
    let before = if db.is_on_server() { "one-18" } else { "one-17" };
    assert_eq!(id(&db, "one-19"), id(&db, before) + 1);
}

#[test]
fn a_foreign_row_with_a_reserved_id_is_skipped() {
    if is_of_sqlite("it changes settings or tables of SQLite") {
        return;
    }
    let (db, client) = TestDb::with_client();
    add(&client, "one", 0..UNRESERVED + 1);
    let next = id(&db, &format!("one-{UNRESERVED}")) + 1;
    insert(&db, &next.to_string(), "by-hand");
    let before = db.rows("SELECT * FROM scheduled_tasks WHERE name = 'by-hand'");
    add(&client, "one", UNRESERVED + 1..UNRESERVED + 200);
    assert_eq!(db.tasks().len(), UNRESERVED + 201);
    assert_eq!(db.rows("SELECT * FROM scheduled_tasks WHERE name = 'by-hand'"), before);
    // At the conflict the rest of the reservation is given up, and new ids are reserved after it.
    assert_eq!(id(&db, "one-17"), next + RESERVED - 1);
    let count =
        "SELECT seq > (SELECT max(id) FROM scheduled_tasks) FROM sqlite_sequence WHERE name = 'scheduled_tasks'";
    assert_eq!(db.ask(count), "1");
    db.assert_sound();
}

#[test]
fn without_a_usable_sequence_sqlite_assigns_the_ids() {
    if is_of_sqlite("it changes settings or tables of SQLite") {
        return;
    }
    for count in ["DELETE FROM sqlite_sequence", "UPDATE sqlite_sequence SET seq = 9223372036854775800"] {
        let (db, client) = TestDb::with_client();
        add(&client, "one", 0..UNRESERVED);
        db.execute(&format!("{count} WHERE name = 'scheduled_tasks'"));
        add(&client, "one", UNRESERVED..UNRESERVED + 3);
        let ids = "SELECT max(id) - min(id) FROM scheduled_tasks WHERE name IN ('one-16', 'one-18')";
        assert_eq!(db.ask(ids), "2", "{count}");
        db.assert_sound();
    }
}

#[test]
fn an_existing_task_is_found_although_no_id_is_left() {
    let (db, client) = TestDb::with_client();
    add(&client, "one", 0..3);
    insert(&db, &i64::MAX.to_string(), "last");
    assert_eq!(client.add(once("one-1")).unwrap().change, Change::Unchanged);
    assert!(matches!(client.add(once("one-1").priority(0)).unwrap_err(), Error::TaskDiffers { .. }));
    assert_eq!(client.add(once("one-3")).unwrap_err().to_string(), "cannot add a task: database or disk is full");
}
