//! Cancellations in each state of an attempt.

use serde_json::{Value, json};

use crate::workers::conformance::Case;
use crate::workers::peer::cancel_message;
use crate::workers::rules::ensure;

pub(crate) const CASES: &[Case] = &[
    Case::new("cancels a running attempt, for each reason", &["wait"], |peer| {
        for (run, reason) in ["asked", "timeout", "shutdown"].into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            peer.run(id, "wait", Value::Null);
            peer.begun(id)?;
            peer.cancel(id, reason);
            let end = peer.failure_of(id, reason)?;
            let retry = end.body.get("retry");
            ensure(retry.is_none_or(|retry| *retry == json!(true)), || format!("{reason}: no retry: {}", end.body))?;
        }
        peer.quiet()
    }),
    Case::new("cancels an attempt that has not begun", &["wait"], |peer| {
        for run in 1..=20 {
            let id = (run, 1);
            let message = peer.handed(id, "wait", Value::Null);
            peer.send_bytes(format!("{message}\n{}\n", cancel_message(id, "asked")).as_bytes());
            peer.failure_of(id, "")?;
        }
        peer.quiet()
    }),
    Case::new("ignores a cancellation of an attempt that has ended", &["echo", "fail"], |peer| {
        peer.run((1, 1), "echo", Value::Null);
        peer.run((2, 1), "fail", json!({"error": "no"}));
        peer.end_of((1, 1))?;
        peer.end_of((2, 1))?;
        peer.cancel((1, 1), "asked");
        peer.cancel((2, 1), "timeout");
        peer.quiet()
    }),
    Case::new("ignores a cancellation of an attempt that it does not have", &["wait"], |peer| {
        peer.cancel((99, 1), "asked");
        peer.quiet()?;
        peer.run((5, 2), "wait", Value::Null);
        peer.begun((5, 2))?;
        peer.cancel((5, 1), "asked");
        peer.cancel((5, 3), "shutdown");
        peer.quiet()?;
        peer.cancel((5, 2), "asked");
        peer.failure_of((5, 2), "asked").map(drop)
    }),
    Case::new("cancels one of two attempts", &["wait"], |peer| {
        if peer.concurrency < 2 {
            return Ok(());
        }
        peer.run((1, 1), "wait", Value::Null);
        peer.run((2, 1), "wait", Value::Null);
        peer.begun((1, 1))?;
        peer.begun((2, 1))?;
        peer.cancel((2, 1), "timeout");
        peer.failure_of((2, 1), "timeout")?;
        peer.quiet()?;
        peer.cancel((1, 1), "asked");
        peer.failure_of((1, 1), "asked").map(drop)
    }),
    Case::new("a cancelled attempt can succeed", &["finish"], |peer| {
        for (run, reason) in ["asked", "timeout", "shutdown"].into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            peer.run(id, "finish", Value::Null);
            // After `begin` a cancellation can still precede the call of the handler.
            while peer.progress.len() <= run {
                peer.next()?;
            }
            peer.cancel(id, reason);
            let result = peer.result_of(id)?;
            ensure(result == reason, || format!("expected {reason:?}, found {result}"))?;
        }
        Ok(())
    }),
    Case::new("reads its input while a cancelled attempt goes on", &["ignore", "echo"], |peer| {
        peer.run((1, 1), "ignore", Value::Null);
        peer.begun((1, 1))?;
        // A task that is cancelled before its first step never ignores that; it has made it when one that was started later has ended.
        if peer.concurrency > 1 {
            peer.run((2, 1), "echo", Value::Null);
            peer.result_of((2, 1))?;
        }
        peer.cancel((1, 1), "asked");
        peer.quiet()?;
        if peer.concurrency > 1 {
            peer.run((3, 1), "echo", Value::Null);
            peer.result_of((3, 1))?;
        }
        peer.close_input();
        peer.exit().map(drop)
    }),
];
