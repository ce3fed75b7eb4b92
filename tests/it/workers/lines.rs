//! Lines in both directions: the first messages, `ping`, unknown keys and types, Unicode, long, split and joined lines.

use serde_json::{Value, json};

use crate::workers::conformance::Case;
use crate::workers::peer::{Peer, cancel_message, run_message, stop_message, welcome};
use crate::workers::rules::{Checked, MAX_MESSAGE, ensure, same};

pub(crate) const CASES: &[Case] = &[
    Case::raw("says hello, and nothing else before welcome", &[], |peer| {
        peer.hello()?;
        peer.silent()?;
        for name in ["echo", "fail", "wait"] {
            ensure(peer.handlers.iter().any(|handler| handler == name), || format!("it has no handler {name:?}"))?;
        }
        peer.welcome(&welcome());
        peer.quiet()
    }),
    Case::new("answers ping at any time", &["wait"], |peer| {
        peer.quiet()?;
        peer.quiet()?;
        peer.run((1, 1), "wait", Value::Null);
        peer.begun((1, 1))?;
        peer.quiet()?;
        peer.cancel((1, 1), "asked");
        peer.failure_of((1, 1), "asked")?;
        peer.quiet()
    }),
    Case::raw("ignores unknown keys", &["echo", "wait"], |peer| {
        peer.hello()?;
        peer.welcome(&with_unknown_keys(welcome()));
        peer.ping(&with_unknown_keys(json!({"type": "ping"})));
        ensure(peer.next()?.kind == "pong", || "no pong".to_owned())?;
        let run = peer.handed((1, 1), "echo", json!("text"));
        peer.send(&with_unknown_keys(run));
        ensure(peer.result_of((1, 1))? == "text", || "another result".to_owned())?;
        let run = peer.handed((2, 1), "wait", Value::Null);
        peer.send(&with_unknown_keys(run));
        peer.begun((2, 1))?;
        peer.send(&with_unknown_keys(cancel_message((2, 1), "asked")));
        peer.failure_of((2, 1), "asked")?;
        peer.send(&with_unknown_keys(stop_message()));
        peer.stopped()
    }),
    Case::new("takes keys in any order, with spaces between them", &["echo"], |peer| {
        for (run, line) in [
            r#"{"type":"run","run":1,"attempt":1,"handler":"echo","payload":{"type":"stop"},"origin":"manual"}"#,
            r#"  { "origin" : "manual" , "payload" : { "run" : 7 } , "handler" : "echo" , "attempt" : 1 , "run" : 2 ,
                "type" : "run" }  "#,
        ]
        .into_iter()
        .enumerate()
        {
            let id = (run as i64 + 1, 1);
            let whole = with_defaults(&line.replace('\n', ""));
            peer.handed(id, "echo", Value::Null);
            peer.send_bytes(whole.as_bytes());
            let result = peer.result_of(id)?;
            ensure(result.is_object(), || format!("{line}: {result}"))?;
        }
        Ok(())
    }),
    Case::new("ends after a message with an unknown type", &[], |peer| {
        peer.send(&json!({"type": "greeting"}));
        peer.gives_up()
    }),
    Case::new("ends after a line that is no JSON", &[], |peer| {
        peer.send_bytes(b"no message\n");
        peer.gives_up()
    }),
    Case::new("ends after an incomplete object", &[], |peer| {
        peer.send_bytes(b"{\"type\":\"ping\"\n");
        peer.gives_up()
    }),
    Case::raw("ignores empty lines", &["echo"], |peer| {
        peer.hello()?;
        peer.send_bytes(b"\n\n");
        peer.welcome(&welcome());
        peer.send_bytes(b"\n");
        peer.run((1, 1), "echo", json!(1));
        peer.send_bytes(b"\n\n\n");
        peer.result_of((1, 1))?;
        peer.quiet()
    }),
    Case::raw("reads several messages of one write", &["echo"], |peer| {
        peer.hello()?;
        let runs: Vec<_> = (1..=peer.concurrency.min(4) as i64).map(|run| (run, 1)).collect();
        let mut text = String::new();
        for id in &runs {
            text += &format!("{}\n", peer.handed(*id, "echo", json!({"run": id.0})));
        }
        let half = text.split_off(text.len() - 40);
        peer.welcomed_with(&format!("{}\n{text}", welcome()));
        peer.until_read()?;
        peer.send_bytes(half.as_bytes());
        for id in &runs {
            let result = peer.result_of(*id)?;
            ensure(result == json!({"run": id.0}), || format!("{id:?} has returned {result}"))?;
        }
        peer.quiet()
    }),
    Case::new("reads a message of many writes", &["echo"], |peer| {
        let payload = json!("ä – 漢 – 🦉");
        let message = peer.handed((1, 1), "echo", payload.clone());
        for byte in format!("{message}\n").as_bytes() {
            peer.send_bytes(&[*byte]);
            peer.until_read()?;
        }
        returned(peer, (1, 1), &payload)
    }),
    Case::new("returns every Unicode text unchanged", &["echo"], |peer| {
        for (run, payload) in texts().into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            peer.run(id, "echo", payload.clone());
            returned(peer, id, &payload)?;
        }
        Ok(())
    }),
    Case::new("reads escaped Unicode", &["echo"], |peer| {
        let text = r#"{"\u00e4":"\ud83e\udd89\u2028\/\b\f\n\r\t\"\\\u0000"}"#;
        let payload: Value = serde_json::from_str(text).expect("JSON");
        let message = peer.handed((1, 1), "echo", json!("HERE")).to_string();
        peer.send_bytes(format!("{}\n", message.replace("\"HERE\"", text)).as_bytes());
        returned(peer, (1, 1), &payload)
    }),
    Case::new("reads and writes long messages", &["echo"], |peer| {
        for (run, letter) in ["a", "漢"].into_iter().enumerate() {
            let id = (run as i64 + 1, 1);
            let room = MAX_MESSAGE - 1 - run_message(id, "echo", json!("")).to_string().len();
            let text = letter.repeat(room / letter.len());
            let payload = json!(format!("{text}{}", "b".repeat(room % letter.len())));
            let message = peer.handed(id, "echo", payload.clone()).to_string();
            assert_eq!(message.len() + 1, MAX_MESSAGE);
            peer.send_bytes(format!("{message}\n").as_bytes());
            returned(peer, id, &payload)?;
        }
        let payload = json!((0..20_000).map(|number| json!({"number": number})).collect::<Vec<_>>());
        peer.run((3, 1), "echo", payload.clone());
        returned(peer, (3, 1), &payload)
    }),
];

/// Requires that an attempt returns a value.
fn returned(peer: &mut Peer, id: (i64, u32), expected: &Value) -> Checked<()> {
    let result = peer.result_of(id)?;
    let short = |value: &Value| value.to_string().chars().take(100).collect::<String>();
    ensure(same(&result, expected), || format!("expected {}, found {}", short(expected), short(&result)))
}

fn with_unknown_keys(mut message: Value) -> Value {
    message["future"] = json!({"type": "stop", "run": [1, "}", null]});
    message["another"] = json!(7);
    message
}

/// Adds the missing keys of `run` at the end of its text.
fn with_defaults(line: &str) -> String {
    let missing = r#","task":"t","scheduled_for":"2027-03-14T06:00:00.000Z","idempotency_key":"k","deadline":null"#;
    let (start, end) = line.rsplit_once('}').expect("an object");
    format!("{start}{missing}}}{end}\n")
}

/// Texts that programs split, normalize or cut off.
fn texts() -> Vec<Value> {
    let separators = "\u{2028} \u{2029} \u{85} \u{b} \u{c} \u{1c} \u{1e} \r \n \r\n \t";
    let long: String = (0xa0..0xd7ff_u32).step_by(7).filter_map(char::from_u32).collect();
    vec![
        json!("ä é ß – „Ω“ 漢字 🦉 👩‍👩‍👧 𝔘"),
        json!(separators),
        json!("\u{feff}text\u{fffd}\u{fffe}\u{10ffff}"),
        json!("e\u{301} \u{e9}"),
        json!("\u{0}\u{1}\u{1f}\u{7f}"),
        json!("quote \" backslash \\ both \\\" slash / \\u0041 end \\"),
        json!({"ключ": "значение", "\u{2028}": {"\"": "}"}, "": ""}),
        json!(long),
    ]
}
