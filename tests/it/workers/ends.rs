//! The end of a worker: `stop`, the end of its input at each point, SIGTERM; and a peer that reads slowly.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::workers::conformance::Case;
use crate::workers::peer::{run_message, stop_message, welcome};
use crate::workers::rules::{Id, ensure};

pub(crate) const CASES: &[Case] = &[
    Case::raw("stops at once if it has no attempt", &[], |peer| {
        peer.hello()?;
        peer.welcomed_with(&format!("{}\n{}\n", welcome(), stop_message()));
        peer.stopped()
    }),
    Case::new("stops after the end of its attempts", &["wait"], |peer| {
        let ids: Vec<Id> = (1..=peer.concurrency.min(2) as i64).map(|run| (run, 1)).collect();
        for id in &ids {
            peer.run(*id, "wait", Value::Null);
            peer.begun(*id)?;
        }
        peer.send(&stop_message());
        for id in &ids {
            peer.quiet()?;
            peer.cancel(*id, "shutdown");
            peer.failure_of(*id, "shutdown")?;
        }
        peer.stopped()
    }),
    Case::new("carries out what it was given before stop", &["echo"], |peer| {
        let ids: Vec<Id> = (1..=peer.concurrency.min(4) as i64).map(|run| (run, 1)).collect();
        let mut text = String::new();
        for id in &ids {
            text += &format!("{}\n", peer.handed(*id, "echo", json!(id.0)));
        }
        peer.send_bytes(format!("{text}{}\n", stop_message()).as_bytes());
        ids.iter().try_for_each(|id| peer.result_of(*id).map(drop))?;
        peer.stopped()
    }),
    Case::new("completes an effect after stop", &["effect"], |peer| {
        peer.run((1, 1), "effect", json!({"key": "send", "value": 7}));
        let asked = loop {
            let next = peer.next()?;
            if next.kind == "effect_begin" {
                break next;
            }
        };
        peer.send(&stop_message());
        peer.answer(&asked, "begin", ("", Value::Null));
        let stored = peer.next()?;
        ensure(stored.kind == "effect_done", || format!("unexpected: {}", stored.body))?;
        peer.answer(&stored, "stored", ("", Value::Null));
        peer.result_of((1, 1))?;
        peer.stopped()
    }),
    Case::raw("ends at the end of its input: before hello", &[], |peer| {
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::raw("ends at the end of its input: before welcome", &[], |peer| {
        peer.hello()?;
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends at the end of its input: without an attempt", &[], |peer| {
        peer.quiet()?;
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends at the end of its input: with attempts that it was just handed", &["wait"], |peer| {
        (1..=peer.concurrency.min(4) as i64).for_each(|run| peer.run((run, 1), "wait", Value::Null));
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends at the end of its input: with a running attempt", &["wait"], |peer| {
        peer.run((1, 1), "wait", Value::Null);
        peer.begun((1, 1))?;
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends at the end of its input: with a handler that does not notice it", &["ignore"], |peer| {
        peer.run((1, 1), "ignore", Value::Null);
        peer.begun((1, 1))?;
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends at the end of its input: within an effect", &["effect"], |peer| {
        peer.run((1, 1), "effect", json!({"key": "send", "value": 7}));
        while peer.next()?.kind != "effect_begin" {}
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends at the end of its input: after stop, with a running attempt", &["wait"], |peer| {
        peer.run((1, 1), "wait", Value::Null);
        peer.begun((1, 1))?;
        peer.send(&stop_message());
        peer.quiet()?;
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends at the end of its input: within a message", &["echo"], |peer| {
        let message = run_message((1, 1), "echo", Value::Null).to_string();
        peer.send_bytes(&message.as_bytes()[..message.len() / 2]);
        peer.until_read()?;
        peer.close_input();
        peer.exit().map(drop)
    }),
    Case::new("ends if duly is gone while it writes", &["echo"], |peer| {
        peer.run((1, 1), "echo", json!("a".repeat(900_000)));
        peer.begun((1, 1)).or_else(|error| if error.contains("has ended") { Ok(()) } else { Err(error) })?;
        peer.vanish();
        peer.exit().map(drop)
    }),
    Case::new("ends after SIGTERM", &["wait"], |peer| {
        peer.run((1, 1), "wait", Value::Null);
        peer.begun((1, 1))?;
        peer.close_input();
        peer.signal(Signal::TERM);
        peer.exit().map(drop)
    }),
    Case::new("waits for a slow reader, and loses nothing", &["echo"], |peer| {
        let ids: Vec<Id> = (1..=peer.concurrency.min(4) as i64).map(|run| (run, 1)).collect();
        for round in 0..3 {
            for id in &ids {
                peer.run((id.0, round + 1), "echo", json!(id.0.to_string().repeat(300_000)));
            }
            ensure(peer.still_runs(), || "it has ended".to_owned())?;
            for id in &ids {
                let result = peer.result_of((id.0, round + 1))?;
                ensure(result.as_str().map(str::len) == Some(300_000), || format!("{id:?} is cut off"))?;
            }
        }
        peer.quiet()
    }),
];
