//! Attempts: their order and number, results, failures, progress, and what a handler learns about its run.

use serde_json::{Value, json};

use crate::workers::conformance::Case;
use crate::workers::peer::Peer;
use crate::workers::rules::{Checked, Id, Message, ensure, same};

/// The greatest concurrency that the kit fills.
const MOST: usize = 200;

pub(crate) const CASES: &[Case] = &[
    Case::new("returns results of every type", &["echo"], |peer| {
        let nested = (0..60).fold(json!("innermost"), |inner, _| json!([{ "inner": inner }]));
        let results = [
            json!(null),
            json!(true),
            json!(false),
            json!(0),
            json!(-1),
            json!(1.5),
            json!(1.0e300),
            json!(-2.5e-7),
            json!(9_007_199_254_740_991_i64),
            json!(""),
            json!("text"),
            json!([]),
            json!({}),
            json!([null, [], {}]),
            json!({"a": {"b": [1, "2", false]}, "type": "done"}),
            nested,
        ];
        for (run, payload) in results.into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            peer.run(id, "echo", payload.clone());
            let result = peer.result_of(id)?;
            ensure(same(&result, &payload), || format!("expected {payload}, found {result}"))?;
        }
        Ok(())
    }),
    Case::new("runs as many attempts at once as it has said, and ends them in any order", &["wait"], |peer| {
        let mut ids = fill(peer)?;
        peer.quiet()?;
        ids.reverse();
        for id in ids {
            peer.cancel(id, "asked");
            peer.failure_of(id, "asked")?;
        }
        let ids = fill(peer)?;
        ids.iter().for_each(|id| peer.cancel(*id, "timeout"));
        ids.iter().try_for_each(|id| peer.failure_of(*id, "timeout").map(drop))
    }),
    Case::new("ends after a run beyond its concurrency", &["wait"], |peer| {
        if peer.concurrency > MOST {
            return Ok(());
        }
        fill(peer)?;
        peer.run((MOST as i64 + 1, 1), "wait", Value::Null);
        peer.gives_up()
    }),
    Case::new("an attempt that has ended frees its place", &["echo", "fail"], |peer| {
        let places = peer.concurrency.min(8) as i64;
        for round in 0..5 {
            for run in 1..=places {
                let handler = if run % 2 == 0 { "echo" } else { "fail" };
                peer.run((round * places + run, 1), handler, json!({"error": "no"}));
            }
            (1..=places).try_for_each(|run| peer.end_of((round * places + run, 1)).map(drop))?;
        }
        peer.quiet()
    }),
    Case::new("two thousand attempts each end once", &["echo"], |peer| {
        let places = peer.concurrency.min(16) as i64;
        (1..=places).for_each(|run| peer.run((run, 1), "echo", json!(run)));
        for run in 1..=2000 {
            let result = peer.result_of((run, 1))?;
            ensure(result == json!(run), || format!("run {run} has returned {result}"))?;
            if run + places <= 2000 {
                peer.run((run + places, 1), "echo", json!(run + places));
            }
        }
        peer.quiet()
    }),
    Case::new("fails with each form of retry", &["fail"], |peer| {
        let forms = [Value::Null, json!(true), json!(false), json!("30s"), json!("1h 30m"), json!("1500ms")];
        for (run, retry) in forms.into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            let mut payload = json!({"error": "the service is down"});
            if !retry.is_null() {
                payload["retry"] = retry.clone();
            }
            peer.run(id, "fail", payload);
            let end = peer.failure_of(id, "the service is down")?;
            ensure(is_retry(&end, &retry), || format!("expected retry {retry}, found {}", end.body))?;
        }
        Ok(())
    }),
    Case::new("fails with every text", &["fail"], |peer| {
        let texts = ["", "ä 漢 🦉 \u{2028}", "two\nlines \"quoted\" \\", &"long ".repeat(20_000)];
        for (run, text) in texts.into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            peer.run(id, "fail", json!({"error": text}));
            // A client may shorten it.
            let start: String = text.chars().take(1000).collect();
            peer.failure_of(id, start.trim_end())?;
        }
        Ok(())
    }),
    Case::new("reports progress, and the last text before its end", &["progress"], |peer| {
        peer.run((1, 1), "progress", json!(["10 %", "ä \u{2028} \"50\" %", "100 %"]));
        peer.result_of((1, 1))?;
        let texts: Vec<&str> = peer.progress.iter().map(|(_, text)| &**text).collect();
        let mut sent = ["10 %", "ä \u{2028} \"50\" %", "100 %"].into_iter();
        ensure(texts.iter().all(|text| sent.any(|of| of == *text)), || format!("another order: {texts:?}"))?;
        ensure(texts.last() == Some(&"100 %"), || format!("the last text is missing: {texts:?}"))
    }),
    Case::new("a run comes again with a higher attempt", &["fail", "echo", "wait"], |peer| {
        peer.run((7, 1), "fail", json!({"error": "first"}));
        peer.failure_of((7, 1), "first")?;
        peer.run((7, 2), "wait", Value::Null);
        peer.begun((7, 2))?;
        peer.cancel((7, 2), "timeout");
        peer.failure_of((7, 2), "timeout")?;
        peer.run((7, 3), "wait", Value::Null);
        peer.begun((7, 3))?;
        peer.quiet().map_err(|error| format!("the cancellation of attempt 2 reached attempt 3: {error}"))?;
        peer.cancel((7, 3), "asked");
        peer.failure_of((7, 3), "asked")?;
        peer.run((7, 4), "echo", json!("fourth"));
        let result = peer.result_of((7, 4))?;
        ensure(result == "fourth", || format!("another result: {result}"))
    }),
    Case::new("keeps great numbers", &["echo"], |peer| {
        let id = (9_007_199_254_740_991, 1_000_000);
        peer.run(id, "echo", json!(1));
        peer.result_of(id).map(drop)
    }),
    Case::new("tells a handler about its run", &["context"], |peer| {
        for (id, deadline) in [((81, 2), Value::Null), ((82, 1), json!("2027-03-14T07:00:00.500Z"))] {
            let mut message = peer.handed(id, "context", json!({"to": "anna"}));
            message["deadline"] = deadline;
            message["task"] = json!("a täsk");
            peer.send(&message);
            let found = peer.result_of(id)?;
            for key in ["run", "attempt", "task", "payload", "origin", "idempotency_key"] {
                ensure(same(&found[key], &message[key]), || {
                    format!("{key}: expected {}, found {found}", message[key])
                })?;
            }
            for key in ["scheduled_for", "deadline"] {
                let time = |value: &Value| value.as_str().and_then(|text| text.parse::<duly::Timestamp>().ok());
                ensure(time(&found[key]) == time(&message[key]), || {
                    format!("{key}: expected {}, found {found}", message[key])
                })?;
            }
        }
        Ok(())
    }),
    Case::new("a result, an error or a progress of two mebibytes breaks no rule", &["large"], |peer| {
        for (run, what) in ["result", "error", "progress"].into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            peer.run(id, "large", json!({ what: 2 << 20 }));
            peer.end_of(id)?;
        }
        peer.quiet()
    }),
    Case::new("a handler's log and prints do not disturb the messages", &["print"], |peer| {
        peer.run((1, 1), "print", json!("{\"type\":\"done\"}"));
        peer.result_of((1, 1))?;
        peer.quiet()
    }),
];

/// Hands over as many attempts as it takes, and waits until all have begun.
fn fill(peer: &mut Peer) -> Checked<Vec<Id>> {
    let ids: Vec<Id> = (1..=peer.concurrency.min(MOST) as i64).map(|run| (run, 1)).collect();
    for id in &ids {
        peer.forget(*id);
        peer.run(*id, "wait", Value::Null);
    }
    ids.iter().try_for_each(|id| peer.begun(*id))?;
    Ok(ids)
}

/// Whether `failed` carries a form of retry; `null` stands for the default.
fn is_retry(end: &Message, expected: &Value) -> bool {
    let found = end.body.get("retry").unwrap_or(&Value::Bool(true));
    match (found.as_str(), expected.as_str()) {
        (Some(found), Some(expected)) => {
            humantime::parse_duration(found).ok() == humantime::parse_duration(expected).ok()
        }
        _ => *found == if expected.is_null() { json!(true) } else { expected.clone() },
    }
}
