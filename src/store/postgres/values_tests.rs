//! JSON keeps its value: random documents are equal as the server compares them, and are the same after they were added and applied
//! twice, and after a migration there and back. `DULY_CASES` is the number of documents, `DULY_SEED` the first seed.

use fastrand::Rng;
use serde_json::value::RawValue;

use crate::model::json_value::same_value;
use crate::model::new_task::NewTask;
use crate::model::progress_meter::Progress;
use crate::model::request::{Apply, Change, Done};
use crate::store::postgres::testing::shared;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn cases() -> u64 {
    from_environment("DULY_CASES", 300)
}

fn random(case: u64) -> Rng {
    Rng::with_seed(from_environment("DULY_SEED", 7) * 1_000_000 + case)
}

/// A value, which many texts have.
#[derive(Clone, Debug)]
enum Value {
    Word(&'static str),
    /// A sign, digits and an exponent.
    Number(bool, String, i64),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

fn text(random: &mut Rng) -> String {
    let chars =
        ['a', 'b', '"', '\\', '/', '\n', '\u{1}', '\u{7f}', '\u{e9}', '\u{2028}', '\u{fffd}', '\u{1f980}', ' ', ','];
    (0..random.usize(..6)).map(|_| chars[random.usize(..chars.len())]).collect()
}

fn value(random: &mut Rng, depth: usize) -> Value {
    match random.u8(..if depth == 0 { 6 } else { 10 }) {
        0 => Value::Word(["null", "true", "false"][random.usize(..3)]),
        1 => Value::Number(random.bool(), "0".repeat(random.usize(1..3)), random.i64(-9..9)),
        2 => Value::Number(random.bool(), random.u64(..100).to_string(), random.i64(-30..30)),
        // More digits than a float has.
        3 => Value::Number(
            random.bool(),
            (0..random.usize(1..40)).map(|_| random.digit(10)).collect(),
            random.i64(-9..9),
        ),
        4 | 5 => Value::Text(text(random)),
        6 | 7 => Value::List((0..random.usize(..4)).map(|_| value(random, depth - 1)).collect()),
        _ => {
            let mut members = std::collections::BTreeMap::new();
            (0..random.usize(..5)).for_each(|_| _ = members.insert(text(random), value(random, depth - 1)));
            Value::Object(members.into_iter().collect())
        }
    }
}

fn document(random: &mut Rng) -> Value {
    let value = value(random, 4);
    let deeper = if random.u8(..20) == 0 { random.usize(..90) } else { 0 };
    (0..deeper).fold(value, |value, _| Value::List(vec![value]))
}

/// Changes one part of a value, which may stay the same by that.
fn changed(value: &Value, random: &mut Rng) -> Value {
    match value {
        Value::Number(sign, digits, exponent) => match random.u8(..3) {
            0 => Value::Number(!sign, digits.clone(), *exponent),
            1 => Value::Number(*sign, format!("{digits}{}", random.u8(..2)), *exponent),
            _ => Value::Number(*sign, digits.clone(), exponent + 1),
        },
        Value::Text(text) => Value::Text(format!("{text}{}", ["", "x", "\u{e9}"][random.usize(..3)])),
        Value::List(items) if !items.is_empty() => {
            let (mut items, at) = (items.clone(), random.usize(..items.len()));
            match random.u8(..3) {
                0 => items.rotate_left(at),
                1 => _ = items.remove(at),
                _ => items[at] = changed(&items[at], random),
            }
            Value::List(items)
        }
        Value::Object(members) if !members.is_empty() => {
            let (mut members, at) = (members.clone(), random.usize(..members.len()));
            if random.bool() {
                members.remove(at);
            } else {
                members[at].1 = changed(&members[at].1, random);
            }
            Value::Object(members)
        }
        other => Value::List(vec![other.clone()]),
    }
}

/// Writes a value in one of its forms.
fn write(value: &Value, random: &mut Rng, to: &mut String) {
    let space = |random: &mut Rng, to: &mut String| to.push_str(["", "", " ", "\n\t"][random.usize(..4)]);
    space(random, to);
    match value {
        Value::Word(word) => to.push_str(word),
        Value::Number(sign, digits, exponent) => write_number(*sign, digits, *exponent, random, to),
        Value::Text(text) => write_text(text, random, to),
        Value::List(items) => {
            to.push('[');
            for (at, item) in items.iter().enumerate() {
                to.push_str(if at > 0 { "," } else { "" });
                write(item, random, to);
            }
            to.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<(String, Value)> = members.clone();
            random.shuffle(&mut members);
            // Of equal keys the last one counts.
            if let Some((key, _)) = members.last().filter(|_| random.u8(..4) == 0) {
                members.insert(0, (key.clone(), Value::Text("first".to_owned())));
            }
            to.push('{');
            for (at, (key, value)) in members.iter().enumerate() {
                to.push_str(if at > 0 { "," } else { "" });
                write_text(key, random, to);
                to.push(':');
                write(value, random, to);
            }
            to.push('}');
        }
    }
    space(random, to);
}

fn write_number(sign: bool, digits: &str, exponent: i64, random: &mut Rng, to: &mut String) {
    let digits = match digits.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    };
    to.push_str(if sign { "-" } else { "" });
    let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap());
    let written = match random.u8(..5) {
        0 if exponent >= 0 && digits != "0" => format!("{digits}{}", zeros(exponent)),
        0 if digits == "0" => "0.0".to_owned(),
        1 => format!("{digits}.000E{exponent:+}"),
        2 if digits != "0" => format!("{digits}{}e{}", zeros(3), exponent - 3),
        3 => format!("0.{digits}e{}", exponent + digits.len() as i64),
        _ => format!("{digits}e{exponent}"),
    };
    to.push_str(&written);
}

fn write_text(text: &str, random: &mut Rng, to: &mut String) {
    to.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' if random.bool() => to.extend(['\\', c]),
            '\n' if random.bool() => to.push_str("\\n"),
            '/' if random.bool() => to.push_str("\\/"),
            c if c < ' ' || c == '"' || c == '\\' || random.u8(..5) == 0 => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| to.push_str(&format!("\\u{unit:04x}")));
            }
            c => to.push(c),
        }
    }
    to.push('"');
}

fn written(value: &Value, random: &mut Rng) -> String {
    let mut text = String::new();
    write(value, random, &mut text);
    text
}

#[test]
fn documents_are_equal_as_the_server_compares_them() {
    let Some(server) = shared() else { return };
    let mut other = server.other();
    let (mut equal, mut differing) = (0, 0);
    for part in (0..cases()).collect::<Vec<_>>().chunks(500) {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for case in part {
            let random = &mut random(*case);
            let one = document(random);
            let two = changed(&one, random);
            pairs.push((written(&one, random), written(&one, random)));
            pairs.push((written(&one, random), written(&two, random)));
        }
        let (ones, others): (Vec<&str>, Vec<&str>) = pairs.iter().map(|(one, other)| (&**one, &**other)).unzip();
        let compare = "SELECT o.one::jsonb = o.other::jsonb
                         FROM unnest($1::text[], $2::text[]) WITH ORDINALITY o (one, other, place) ORDER BY place";
        for (row, (one, two)) in other.query(compare, &[&ones, &others]).unwrap().iter().zip(&pairs) {
            let expected: bool = row.get(0);
            assert_eq!(same_value(one, two), expected, "{one}\n{two}");
            *(if expected { &mut equal } else { &mut differing }) += 1;
        }
    }
    assert!(equal >= cases() && differing > cases() / 3, "{equal} {differing}");
}

fn tasks(prefix: &str, form: u64) -> Vec<NewTask> {
    let task = |case: u64| {
        let value = document(&mut random(case));
        // The form differs each time.
        let payload = written(&value, &mut Rng::with_seed(case * 31 + form));
        let payload: Box<RawValue> = serde_json::from_str(&payload).unwrap();
        NewTask::manual(format!("{prefix}:{case}")).handler("work").payload(&payload)
    };
    (0..cases()).map(task).collect()
}

/// Adds and applies the documents in a form. Returns whether each of the two changed nothing.
fn add_and_apply(client: &crate::Client, form: u64) -> [bool; 2] {
    let added = client.add_all(tasks("added", form)).unwrap();
    let applied = client.apply("tasks.toml", tasks("applied", form), Apply::default()).unwrap();
    [
        added.iter().all(|added| added.change == Change::Unchanged),
        applied.iter().all(|applied| matches!(applied.done, Done::Unchanged)),
    ]
}

#[test]
fn documents_stay_the_same_when_they_are_added_applied_and_migrated() {
    let Some(server) = shared() else { return };
    let home = tempfile::tempdir().unwrap();
    let (file, back) = (home.path().join("agent.db"), home.path().join("back.db"));
    let address = |schema: &str| format!("{}?schema={schema}", server.url());
    let direct = crate::Client::open(address("values_direct")).unwrap();
    // To apply another form of a number changes a task, once.
    let expected = [[false; 2], [true, false], [true; 2]];
    assert_eq!([0, 1, 1].map(|form| add_and_apply(&direct, form)), expected, "on a server");
    let client = crate::Client::open(&file).unwrap();
    assert_eq!([2, 3, 3].map(|form| add_and_apply(&client, form)), expected, "in a file");
    drop(client);

    // Results and values of effects, as handlers wrote them.
    let tables = rusqlite::Connection::open(&file).unwrap();
    tables
        .execute_batch(
            "BEGIN;
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at, result)
             SELECT id, 'work', 1800000000000 + id, 'manual', 'succeeded', 1800000000000, 1, 1800000000000, 1800000000001, payload
               FROM scheduled_tasks;
             INSERT INTO task_effects (key, run_id, state, value, created_at, done_at) SELECT 'k', id, 'done', result, 1, 2 FROM task_runs;
             COMMIT",
        )
        .unwrap();
    let moved = crate::migrate(&file, address("values_moved"), &Progress::default()).unwrap();
    assert_eq!((moved.tasks, moved.runs, moved.replaced), (cases() * 2, cases() * 2, 0));
    assert_eq!(
        add_and_apply(&crate::Client::open(address("values_moved")).unwrap(), 3),
        [true; 2],
        "after the way there"
    );
    assert_eq!(crate::migrate(address("values_moved"), &back, &Progress::default()).unwrap(), moved);
    assert_eq!(add_and_apply(&crate::Client::open(&back).unwrap(), 3), [true; 2], "after the way back");
    let all = |tables: &rusqlite::Connection| {
        let all = "SELECT payload FROM scheduled_tasks UNION ALL SELECT result FROM task_runs UNION ALL SELECT value FROM task_effects";
        let mut all = tables.prepare(all).unwrap();
        let all = all.query_map([], |row| row.get::<_, String>(0)).unwrap();
        all.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let (before, after) = (all(&tables), all(&rusqlite::Connection::open(&back).unwrap()));
    assert_eq!(before.len(), after.len());
    for (one, other) in before.iter().zip(&after) {
        assert!(same_value(one, other), "{one}\n{other}");
    }
}
