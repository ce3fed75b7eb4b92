//! Effects: each answer of duly in each state.

use serde_json::{Value, json};

use crate::workers::conformance::Case;
use crate::workers::peer::Peer;
use crate::workers::rules::{Checked, Id, Message, ensure, same};

/// An answer without further keys.
const ALONE: (&str, Value) = ("", Value::Null);

pub(crate) const CASES: &[Case] = &[
    Case::new("performs an effect that has not begun", &["effect"], |peer| {
        let text = "ä \u{2028} 漢";
        let values = [json!(null), json!(true), json!(-1.5), json!(text), json!([]), json!({"a": [1, {}]})];
        for (run, value) in values.into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            perform(peer, id, &json!({"key": "send", "value": value}))?;
            let result = peer.result_of(id)?;
            ensure(same(&result, &value), || format!("expected {value}, found {result}"))?;
        }
        Ok(())
    }),
    Case::new("does not repeat an effect that is done", &["effect"], |peer| {
        peer.run((1, 2), "effect", json!({"key": "a kéy \"1\"", "value": "new"}));
        let asked = said(peer, (1, 2), "effect_begin")?;
        ensure(asked.text("key") == "a kéy \"1\"", || format!("another key: {}", asked.body))?;
        peer.answer(&asked, "done", ("value", json!({"old": [1]})));
        let result = peer.result_of((1, 2))?;
        ensure(result == json!({"old": [1]}), || format!("another value: {result}"))
    }),
    Case::new("gives up if an effect is in doubt", &["effect"], |peer| {
        peer.run((1, 2), "effect", json!({"key": "send", "value": 1}));
        let asked = said(peer, (1, 2), "effect_begin")?;
        peer.answer(&asked, "in_doubt", ALONE);
        let end = peer.failure_of((1, 2), "")?;
        ensure(end.body["retry"] == json!(false), || format!("it is to be retried: {}", end.body))
    }),
    Case::new("stores what it has found out about an effect in doubt", &["found"], |peer| {
        peer.run((1, 2), "found", json!({"key": "send", "found": "message 7", "value": "new"}));
        let asked = said(peer, (1, 2), "effect_begin")?;
        peer.answer(&asked, "in_doubt", ALONE);
        let stored = said(peer, (1, 2), "effect_done")?;
        ensure(stored.body["value"] == "message 7", || format!("another value: {}", stored.body))?;
        peer.answer(&stored, "stored", ALONE);
        let result = peer.result_of((1, 2))?;
        ensure(result == "message 7", || format!("another value: {result}"))
    }),
    Case::new("performs an effect that was in doubt and is not found", &["found"], |peer| {
        peer.run((1, 2), "found", json!({"key": "send", "value": "new"}));
        let asked = said(peer, (1, 2), "effect_begin")?;
        peer.answer(&asked, "in_doubt", ALONE);
        let stored = said(peer, (1, 2), "effect_done")?;
        ensure(stored.body["value"] == "new", || format!("another value: {}", stored.body))?;
        peer.answer(&stored, "stored", ALONE);
        peer.result_of((1, 2)).map(drop)
    }),
    Case::new("fails if an effect is refused", &["effect"], |peer| {
        peer.run((1, 1), "effect", json!({"key": "send", "value": 1}));
        let asked = said(peer, (1, 1), "effect_begin")?;
        peer.answer(&asked, "refused", ("error", json!("the attempt was taken from this worker")));
        peer.failure_of((1, 1), "the attempt was taken from this worker")?;
        peer.quiet()
    }),
    Case::new("ends the attempt if the value of an effect is refused", &["effect"], |peer| {
        peer.run((1, 1), "effect", json!({"key": "send", "value": 1}));
        let asked = said(peer, (1, 1), "effect_begin")?;
        peer.answer(&asked, "begin", ALONE);
        let stored = said(peer, (1, 1), "effect_done")?;
        peer.answer(&stored, "refused", ("error", json!("the database is full")));
        peer.end_of((1, 1))?;
        peer.quiet()
    }),
    Case::new("takes an effect back that was certainly not performed", &["effect"], |peer| {
        for (run, state) in ["undone", "refused"].into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            peer.run(id, "effect", json!({"key": "send", "failed": true}));
            let asked = said(peer, id, "effect_begin")?;
            peer.answer(&asked, "begin", ALONE);
            let undone = said(peer, id, "effect_failed")?;
            ensure(undone.text("key") == "send", || format!("another key: {}", undone.body))?;
            let why = if state == "refused" { ("error", json!("the database is full")) } else { ALONE };
            peer.answer(&undone, state, why);
            peer.failure_of(id, "")?;
        }
        peer.quiet()
    }),
    Case::new("effects of two runs do not mix", &["effect"], |peer| {
        if peer.concurrency < 2 {
            return Ok(());
        }
        peer.run((1, 1), "effect", json!({"key": "send", "value": "one"}));
        let one = said(peer, (1, 1), "effect_begin")?;
        peer.run((2, 1), "effect", json!({"key": "send", "value": "two"}));
        let two = said(peer, (2, 1), "effect_begin")?;
        for (asked, value) in [(two, "two"), (one, "one")] {
            peer.answer(&asked, "begin", ALONE);
            let stored = said(peer, asked.id.expect("an attempt"), "effect_done")?;
            ensure(stored.body["value"] == value, || format!("another value: {}", stored.body))?;
            peer.answer(&stored, "stored", ALONE);
            let result = peer.result_of(asked.id.expect("an attempt"))?;
            ensure(result == value, || format!("another value: {result}"))?;
        }
        Ok(())
    }),
    Case::new("ends an attempt that is cancelled within an effect", &["effect"], |peer| {
        peer.run((1, 1), "effect", json!({"key": "send", "value": 1}));
        let asked = said(peer, (1, 1), "effect_begin")?;
        peer.cancel((1, 1), "asked");
        peer.answer(&asked, "begin", ALONE);
        loop {
            let next = peer.next()?;
            match &*next.kind {
                "effect_done" => peer.answer(&next, "stored", ALONE),
                "effect_failed" => peer.answer(&next, "undone", ALONE),
                "done" | "failed" => return peer.quiet(),
                other => return Err(format!("unexpected {other:?}")),
            }
        }
    }),
];

/// Hands over an effect, and answers it as one that has not begun.
fn perform(peer: &mut Peer, id: Id, payload: &Value) -> Checked<()> {
    peer.run(id, "effect", payload.clone());
    let asked = said(peer, id, "effect_begin")?;
    peer.answer(&asked, "begin", ALONE);
    let stored = said(peer, id, "effect_done")?;
    let value = &stored.body["value"];
    ensure(same(value, &payload["value"]), || format!("expected the value {}, found {value}", payload["value"]))?;
    peer.answer(&stored, "stored", ALONE);
    Ok(())
}

/// Waits for the next message other than `begin`, which must be of this kind and about this attempt.
fn said(peer: &mut Peer, id: Id, kind: &str) -> Checked<Message> {
    let mut next = peer.next()?;
    if next.kind == "begin" {
        next = peer.next()?;
    }
    ensure(next.kind == kind && next.id == Some(id), || format!("expected {kind:?} of {id:?}, found {}", next.body))?;
    Ok(next)
}
