//! The faults that `planted.rs` puts into `worker.awk`.

use crate::workers::planted::{Fault, fault};

const HELLO: &str = "    say(\"hello\"";
const ECHO: &str = r#"end(at, "done", ",\"result\":" m["payload"])"#;
const RUN: &str = "function run(at,    p, n) {\n";
const SAY: &str = r#"{ print "{\"type\":\"" type "\"" keys "}"; fflush() }"#;
const RULE: &str = "/^[ \\t]*$/ { next }\n";
const CANCEL: &str = "{ if (at in id) on_cancel(at) }";
const PONG: &str = r#"say("pong", "")"#;
const WAIT: &str = "if (handler[at] == \"\\\"wait\\\"\") failed(at, m[\"reason\"], \"true\")";
const DOUBT: &str = r#"failed(at, "\"in doubt\"", "false")"#;
const DONE_EFFECT: &str = r#"end(at, "done", ",\"result\":" m["value"])"#;

const RESULTS: &str = "returns results of every type";
const MANY: &str = "two thousand attempts each end once";
const FIRST: &str = "says hello, and nothing else before welcome";
const AGAIN: &str = "a run comes again with a higher attempt";
const PLACES: &str = "runs as many attempts at once as it has said, and ends them in any order";
const PINGS: &str = "answers ping at any time";
const UNICODE: &str = "returns every Unicode text unchanged";
const LONG: &str = "reads and writes long messages";
const RETRY: &str = "fails with each form of retry";
const PROGRESS: &str = "reports progress, and the last text before its end";
const CANCELS: &str = "cancels a running attempt, for each reason";
const UNKNOWN_CANCEL: &str = "ignores a cancellation of an attempt that it does not have";
const LATE_CANCEL: &str = "ignores a cancellation of an attempt that has ended";
const PERFORM: &str = "performs an effect that has not begun";
const BACK: &str = "takes an effect back that was certainly not performed";
const STOPPED: &str = "stops after the end of its attempts";
const UNKNOWN_TYPE: &str = "ends after a message with an unknown type";

/// Every fault.
pub(crate) const FAULTS: &[Fault] = &[
    // The first messages.
    fault("no hello", &[(HELLO, "    if (0) say(\"hello\"")], FIRST, "until hello: no message"),
    fault("ends before hello", &[(HELLO, "    exit\n    say(\"hello\"")], FIRST, "its output has ended"),
    fault("a ping before hello", &[(HELLO, "    say(\"ping\", \"\")\n    say(\"hello\"")], FIRST, "before welcome"),
    fault(
        "a message before welcome",
        &[(",\\\"concurrency\\\":4\")", ",\\\"concurrency\\\":4\"); say(\"pong\", \"\")")],
        FIRST,
        "unexpected",
    ),
    fault(
        "hello twice",
        &[(
            "/^[ \\t]*$/ { next }\n",
            "/^[ \\t]*$/ { next }\nNR == 1 { say(\"hello\", \",\\\"protocol\\\":1,\\\"handlers\\\":[\" handlers \"],\\\"concurrency\\\":4\") }\n",
        )],
        FIRST,
        "a second hello",
    ),
    fault("another protocol", &[("\\\"protocol\\\":1", "\\\"protocol\\\":2")], FIRST, "invalid \"protocol\""),
    fault("no concurrency", &[(",\\\"concurrency\\\":4", "")], FIRST, "lacks the key \"concurrency\""),
    fault(
        "a concurrency of nothing",
        &[("\\\"concurrency\\\":4", "\\\"concurrency\\\":0")],
        FIRST,
        "invalid \"concurrency\"",
    ),
    fault("no handlers", &[("[\" handlers \"]", "[]")], FIRST, "invalid \"handlers\""),
    fault("a handler twice", &[("[\" handlers \"]", "[\" handlers \",\\\"echo\\\"]")], FIRST, "invalid \"handlers\""),
    // Lines.
    fault("prints garbage", &[(RUN, "function run(at,    p, n) {\nprint \"debug\"\n")], RESULTS, "no JSON"),
    fault("an unknown type", &[("say(\"begin\", ", "say(\"started\", ")], RESULTS, "unknown type \"started\""),
    fault("a missing key", &[("\",\\\"attempt\\\":\" m[\"attempt\"]", "\"\"")], RESULTS, "lacks the key \"attempt\""),
    fault(
        "an error that is no text",
        &[("\",\\\"error\\\":\" error", "\",\\\"error\\\":7\"")],
        RETRY,
        "invalid \"error\"",
    ),
    fault(
        "a retry that is no duration",
        &[("\",\\\"retry\\\":\" retry", "\",\\\"retry\\\":\\\"soon\\\"\"")],
        RETRY,
        "invalid \"retry\"",
    ),
    fault(
        "a message of two lines",
        &[(SAY, r#"{ print "{\"type\":\"" type "\""; print keys "}"; fflush() }"#)],
        FIRST,
        "no JSON",
    ),
    fault(
        "no line end at the end",
        &[(SAY, r#"{ printf "%s", (n++ ? "\n" : "") "{\"type\":\"" type "\"" keys "}"; fflush() }"#)],
        FIRST,
        "until hello: no message",
    ),
    fault(
        "breaks Unicode",
        &[(SAY, r#"{ gsub(/[\200-\377]/, "?", keys); print "{\"type\":\"" type "\"" keys "}"; fflush() }"#)],
        UNICODE,
        "expected",
    ),
    fault(
        "writes half of a letter",
        &[(SAY, r#"{ gsub(/\303/, "", keys); print "{\"type\":\"" type "\"" keys "}"; fflush() }"#)],
        UNICODE,
        "not UTF-8",
    ),
    fault(
        "drops escapes",
        &[(SAY, r#"{ gsub(/\\\\/, "", keys); print "{\"type\":\"" type "\"" keys "}"; fflush() }"#)],
        UNICODE,
        "expected",
    ),
    fault(
        "splits lines at U+2028",
        &[(RULE, "/^[ \\t]*$/ { next }\n{ sub(/\\342\\200\\250.*/, \"\") }\n")],
        UNICODE,
        "output has ended",
    ),
    fault(
        "decodes escapes in part",
        &[(RULE, "/^[ \\t]*$/ { next }\n{ gsub(/\\\\u0000/, \"\") }\n")],
        UNICODE,
        "expected",
    ),
    fault(
        "cuts long input",
        &[(RULE, "/^[ \\t]*$/ { next }\n{ $0 = substr($0, 1, 65536) }\n")],
        LONG,
        "output has ended",
    ),
    fault(
        "cuts long output",
        &[(SAY, r#"{ print substr("{\"type\":\"" type "\"" keys "}", 1, 65536); fflush() }"#)],
        LONG,
        "no JSON",
    ),
    fault(
        "writes lines that are too long",
        &[(
            SAY,
            r#"{ if (length(keys) > 65536) keys = keys sprintf("%200s", ""); print "{\"type\":\"" type "\"" keys "}"; fflush() }"#,
        )],
        LONG,
        "more than 1 MiB",
    ),
    fault("ends at an empty line", &[(RULE, "")], "ignores empty lines", "output has ended"),
    fault(
        "reads the first of several messages",
        &[(RULE, "/^[ \\t]*$/ { next }\n{ while (NR == 2 && (getline skipped) > 0) if (skipped ~ /ping/) break }\n")],
        "reads several messages of one write",
        "no message",
    ),
    fault(
        "expects an order of keys",
        &[(RULE, "/^[ \\t]*$/ { next }\n$0 !~ /\"type\":\"[a-z]*\"[^\"]*}$/ { quit(\"no type\") }\n")],
        "takes keys in any order, with spaces between them",
        "output has ended",
    ),
    fault(
        "takes nested keys for its own",
        &[("depth == 1 && (c == \":\"", "depth >= 1 && (c == \":\"")],
        "takes keys in any order, with spaces between them",
        "",
    ),
    fault(
        "ends at an unknown key",
        &[(RULE, "/^[ \\t]*$/ { next }\n/\"future\"/ { quit(\"unknown key\") }\n")],
        "ignores unknown keys",
        "output has ended",
    ),
    fault(
        "ignores unknown types",
        &[("else if (type != \"\\\"welcome\\\"\"", "else if (0 && type != \"\\\"welcome\\\"\"")],
        UNKNOWN_TYPE,
        "has not ended",
    ),
    fault(
        "ends without a message",
        &[("print why > \"/dev/stderr\"; ", "")],
        UNKNOWN_TYPE,
        "without a message on stderr",
    ),
    fault("ends with exit code 0 after an error", &[("exit 1", "exit 0")], UNKNOWN_TYPE, "exit code 0"),
    fault(
        "ignores a line that is no JSON",
        &[("quit(\"this is no message: \" substr($0, 1, 80))", "next")],
        "ends after a line that is no JSON",
        "has not ended",
    ),
    fault(
        "ignores an incomplete object",
        &[(RULE, "/^[ \\t]*$/ { next }\n!/}$/ { next }\n")],
        "ends after an incomplete object",
        "has not ended",
    ),
    fault("ignores ping", &[(PONG, "x = 1")], PINGS, "after a ping: no message"),
    fault(
        "ignores ping while an attempt runs",
        &[(PONG, "{ if (!running) say(\"pong\", \"\") }")],
        PINGS,
        "after a ping: no message",
    ),
    fault(
        "answers ping twice",
        &[(PONG, "{ say(\"pong\", \"\"); say(\"pong\", \"\") }")],
        PINGS,
        "a pong without a ping",
    ),
    fault(
        "does not read while a handler runs",
        &[
            (WAIT, "if (0) x = 1"),
            (
                RUN,
                "function run(at,    p, n) {\nif (m[\"handler\"] == \"\\\"wait\\\"\") { say(\"begin\", \",\\\"run\\\":\" m[\"run\"] \",\\\"attempt\\\":\" m[\"attempt\"]); system(\"sleep 20\") }\n",
            ),
        ],
        PINGS,
        "after a ping: no message",
    ),
    // Attempts.
    fault(
        "answers twice",
        &[("{ say(type, id[at] keys);", "{ say(type, id[at] keys); say(type, id[at] keys);")],
        RESULTS,
        "which it has ended",
    ),
    fault(
        "forgets an answer",
        &[(ECHO, "{ if (++n1000 != 1000) end(at, \"done\", \",\\\"result\\\":\" m[\"payload\"]) }")],
        MANY,
        "no message",
    ),
    fault(
        "mixes up two answers",
        &[(
            ECHO,
            "{ if (m[\"run\"] > 1) end(at, \"done\", \",\\\"result\\\":\" last); else end(at, \"done\", \",\\\"result\\\":1\"); last = m[\"payload\"] }",
        )],
        MANY,
        "has returned",
    ),
    fault(
        "the wrong attempt",
        &[("\",\\\"attempt\\\":\" m[\"attempt\"]", "\",\\\"attempt\\\":1\"")],
        AGAIN,
        "about attempt 1 of run 7",
    ),
    fault(
        "the wrong run",
        &[("id[at] = \",\\\"run\\\":\" m[\"run\"]", "id[at] = \",\\\"run\\\":\" m[\"run\"] + 1")],
        RESULTS,
        "does not have",
    ),
    fault(
        "dies at the third run",
        &[(RUN, "function run(at,    p, n) {\nif (++count == 3) exit 3\n")],
        RESULTS,
        "output has ended",
    ),
    fault(
        "frees no place",
        &[("; running-- }", " }")],
        "an attempt that has ended frees its place",
        "output has ended",
    ),
    fault(
        "one attempt after another",
        &[("    say(\"begin\", id[at])", "    if (running == 1) say(\"begin\", id[at])")],
        PLACES,
        "no message",
    ),
    fault(
        "exceeds its concurrency",
        &[("if (++running > 4)", "if (++running > 5)")],
        "ends after a run beyond its concurrency",
        "has not ended",
    ),
    fault(
        "begins twice",
        &[("    say(\"begin\", id[at])", "    say(\"begin\", id[at]); say(\"begin\", id[at])")],
        RESULTS,
        "\"begin\" after another message",
    ),
    fault("does not say begin", &[("    say(\"begin\", id[at])", "")], CANCELS, "no message"),
    fault(
        "begins after its end",
        &[
            ("    say(\"begin\", id[at])", ""),
            (ECHO, "{ begin = id[at]; end(at, \"done\", \",\\\"result\\\":\" m[\"payload\"]); say(\"begin\", begin) }"),
        ],
        RESULTS,
        "which it has ended",
    ),
    fault("forgets the result", &[(ECHO, "end(at, \"done\", \"\")")], RESULTS, "found null"),
    fault(
        "returns texts only",
        &[(ECHO, "end(at, \"done\", \",\\\"result\\\":\\\"text\\\"\")")],
        RESULTS,
        "found \"text\"",
    ),
    fault(
        "rounds great numbers",
        &[("id[at] = \",\\\"run\\\":\" m[\"run\"]", "id[at] = \",\\\"run\\\":\" sprintf(\"%.6g\", m[\"run\"])")],
        "keeps great numbers",
        "run",
    ),
    fault(
        "always retries",
        &[("p[\"retry\"] == \"\" ? \"true\" : p[\"retry\"]", "\"true\"")],
        RETRY,
        "expected retry false",
    ),
    fault(
        "does not retry unless asked",
        &[("? \"true\" : p[\"retry\"]", "? \"false\" : p[\"retry\"]")],
        RETRY,
        "expected retry null",
    ),
    fault(
        "succeeds instead of failing",
        &[("failed(at, p[\"error\"], ", "if (1) end(at, \"done\", \"\"); else failed(at, p[\"error\"], ")],
        RETRY,
        "has succeeded",
    ),
    fault(
        "another error",
        &[("failed(at, p[\"error\"], ", "failed(at, \"\\\"error\\\"\", ")],
        RETRY,
        "expected an error with",
    ),
    fault(
        "loses the last progress",
        &[("for (n = 1; n in p; n++)", "for (n = 1; (n + 1) in p; n++)")],
        PROGRESS,
        "the last text is missing",
    ),
    fault(
        "progress in another order",
        &[("for (n = 1; n in p; n++)", "for (n = 3; n in p; n--)")],
        PROGRESS,
        "another order",
    ),
    fault(
        "progress after the end",
        &[
            (
                "        end(at, \"done\", \"\")",
                "        late = id[at]; end(at, \"done\", \"\"); say(\"progress\", late \",\\\"text\\\":\\\"late\\\"\")",
            ),
            ("n in p; n++", "n in p && n < 4; n++"),
        ],
        PROGRESS,
        "which it has ended",
    ),
    fault(
        "hides the deadline",
        &[(
            "end(at, \"done\", \",\\\"result\\\":\" $0)",
            "{ gsub(/\"deadline\":\"[^\"]*\"/, \"\\\"deadline\\\":null\"); end(at, \"done\", \",\\\"result\\\":\" $0) }",
        )],
        "tells a handler about its run",
        "deadline: expected",
    ),
    // Cancellations.
    fault("ignores cancel", &[(CANCEL, "x = 1")], CANCELS, "no message"),
    fault(
        "ignores a cancel for a timeout",
        &[(CANCEL, "{ if (at in id && m[\"reason\"] != \"\\\"timeout\\\"\") on_cancel(at) }")],
        CANCELS,
        "no message",
    ),
    fault(
        "another reason",
        &[(WAIT, "if (handler[at] == \"\\\"wait\\\"\") failed(at, \"\\\"asked\\\"\", \"true\")")],
        CANCELS,
        "expected an error with \"timeout\"",
    ),
    fault(
        "gives a cancelled run up",
        &[(WAIT, "if (handler[at] == \"\\\"wait\\\"\") failed(at, m[\"reason\"], \"false\")")],
        CANCELS,
        "no retry",
    ),
    fault(
        "answers a late cancel",
        &[(
            CANCEL,
            "{ if (at in id) on_cancel(at); else say(\"failed\", \",\\\"run\\\":\" m[\"run\"] \",\\\"attempt\\\":\" m[\"attempt\"] \",\\\"error\\\":\\\"\\\"\") }",
        )],
        LATE_CANCEL,
        "which it has ended",
    ),
    fault(
        "ends at a late cancel",
        &[(CANCEL, "{ if (at in id) on_cancel(at); else quit(\"unknown\") }")],
        LATE_CANCEL,
        "output has ended",
    ),
    fault(
        "cancels by the run alone",
        &[(CANCEL, "{ for (at in id) if (at ~ \"^\" m[\"run\"] \"[.]\") { on_cancel(at); break } }")],
        UNKNOWN_CANCEL,
        "expected a pong",
    ),
    fault(
        "cancels all attempts",
        &[(CANCEL, "{ for (other in id) on_cancel(other) }")],
        "cancels one of two attempts",
        "expected a",
    ),
    fault(
        "a cancel reaches the next attempt",
        &[
            (CANCEL, "{ if (at in id) on_cancel(at); cancelled[m[\"run\"]] = 1 }"),
            (
                "    parse(m[\"payload\"], p)",
                "    parse(m[\"payload\"], p)\n    if (m[\"run\"] in cancelled) { m[\"reason\"] = \"\\\"timeout\\\"\"; on_cancel(at); return }",
            ),
        ],
        AGAIN,
        "reached attempt 3|has ended",
    ),
    fault(
        "a cancel before begin is lost",
        &[
            (CANCEL, "{ if (at in id && NR > began + 1) on_cancel(at) }"),
            (RUN, "function run(at,    p, n) {\nbegan = NR\n"),
        ],
        "cancels an attempt that has not begun",
        "no message",
    ),
    fault(
        "fails although it succeeded after a cancel",
        &[("end(at, \"done\", \",\\\"result\\\":\" m[\"reason\"])", "failed(at, m[\"reason\"], \"true\")")],
        "a cancelled attempt can succeed",
        "has failed",
    ),
    // Effects.
    fault(
        "does not ask",
        &[(
            "say(\"effect_begin\", id[at] key[at])",
            "say(\"effect_done\", id[at] key[at] \",\\\"value\\\":\" value[at])",
        )],
        PERFORM,
        "without effect_begin",
    ),
    fault(
        "does not store a value",
        &[(
            "else if (m[\"state\"] == \"\\\"begin\\\"\") say(\"effect_done\", id[at] key[at] \",\\\"value\\\":\" value[at])",
            "else if (m[\"state\"] == \"\\\"begin\\\"\") end(at, \"done\", \",\\\"result\\\":\" value[at])",
        )],
        PERFORM,
        "expected \"effect_done\"",
    ),
    fault(
        "another value",
        &[("\",\\\"value\\\":\" value[at]", "\",\\\"value\\\":true\"")],
        PERFORM,
        "expected the value",
    ),
    fault(
        "does not wait for stored",
        &[(
            "\",\\\"value\\\":\" value[at])",
            "\",\\\"value\\\":\" value[at]); if (m[\"state\"] == \"\\\"begin\\\"\") end(at, \"done\", \",\\\"result\\\":1\")",
        )],
        "ends the attempt if the value of an effect is refused",
        "",
    ),
    fault(
        "repeats what is done",
        &[(DONE_EFFECT, "say(\"effect_done\", id[at] key[at] \",\\\"value\\\":1\")")],
        "does not repeat an effect that is done",
        "no message",
    ),
    fault(
        "repeats what is in doubt",
        &[(DOUBT, "say(\"effect_done\", id[at] key[at] \",\\\"value\\\":1\")")],
        "gives up if an effect is in doubt",
        "no message",
    ),
    fault(
        "retries what is in doubt",
        &[(DOUBT, "failed(at, \"\\\"in doubt\\\"\", \"true\")")],
        "gives up if an effect is in doubt",
        "to be retried",
    ),
    fault(
        "goes on without permission",
        &[("    else failed(at, m[\"error\"], \"true\")", "    else end(at, \"done\", \"\")")],
        "fails if an effect is refused",
        "has succeeded",
    ),
    fault(
        "stores an effect that was not performed",
        &[("say(\"effect_failed\", id[at] key[at])", "say(\"effect_done\", id[at] key[at] \",\\\"value\\\":1\")")],
        BACK,
        "expected \"effect_failed\"",
    ),
    fault(
        "succeeds without its effect",
        &[("failed(at, \"\\\"not performed\\\"\", \"true\")", "end(at, \"done\", \"\")")],
        BACK,
        "has succeeded",
    ),
    fault("mixes up effects", &[("value[at]", "value[0]")], "effects of two runs do not mix", "another value"),
    fault(
        "forgets its effect after a cancel",
        &[
            (CANCEL, "{ if (at in id) handler[at] = state = \"cancelled\" }"),
            ("function on_effect(at) {\n", "function on_effect(at) {\nif (handler[at] == \"cancelled\") return\n"),
        ],
        "ends an attempt that is cancelled within an effect",
        "no message",
    ),
    // The end.
    fault("ignores stop", &[("stopping = 1", "stopping = 0")], "stops at once if it has no attempt", "has not ended"),
    fault(
        "stops before the end of its attempts",
        &[("stopping && running == 0", "stopping")],
        STOPPED,
        "output has ended",
    ),
    fault(
        "cancels its attempts at stop",
        &[("stopping = 1", "{ stopping = 1; m[\"reason\"] = \"\\\"shutdown\\\"\"; for (at in id) on_cancel(at) }")],
        STOPPED,
        "expected a pong|output has ended",
    ),
    fault(
        "reads nothing after stop",
        &[("stopping = 1", "{ stopping = 1; if (running) system(\"sleep 20\") }")],
        STOPPED,
        "no message",
    ),
    fault(
        "exit code 1 after stop",
        &[("running == 0) exit", "running == 0) exit 1")],
        "stops at once if it has no attempt",
        "exit status: 1",
    ),
    fault(
        "drops what came before stop",
        &[(
            "    if (type == \"\\\"run\\\"\") run(at)",
            "    if (type == \"\\\"run\\\"\") { if (m[\"run\"] < 3) run(at) }",
        )],
        "carries out what it was given before stop",
        "output has ended|it has ended without",
    ),
    fault(
        "ignores the end of its input",
        &[(RULE, "/^[ \\t]*$/ { next }\nEND { system(\"sleep 20\") }\n")],
        "ends at the end of its input: without an attempt",
        "has not ended",
    ),
    fault(
        "finishes its attempts after the end of its input",
        &[(RULE, "/^[ \\t]*$/ { next }\nEND { if (running) system(\"sleep 20\") }\n")],
        "ends at the end of its input: with a running attempt",
        "has not ended",
    ),
    fault(
        "waits for the answer about an effect after the end of its input",
        &[(RULE, "/^[ \\t]*$/ { next }\nEND { for (at in key) system(\"sleep 20\") }\n")],
        "ends at the end of its input: within an effect",
        "has not ended",
    ),
    fault(
        "waits for the rest of a message",
        &[(RULE, "/^[ \\t]*$/ { next }\nEND { if ($0 !~ /}$/) system(\"sleep 20\") }\n{ if ($0 !~ /}$/) next }\n")],
        "ends at the end of its input: within a message",
        "has not ended",
    ),
    fault(
        "drops output that is not read",
        &[(
            SAY,
            r#"{ if (length(keys) > 250000 && (srand() == srand())) { system("sleep 0.2"); keys = substr(keys, 1, 1000) "\"" }; print "{\"type\":\"" type "\"" keys "}"; fflush() }"#,
        )],
        "waits for a slow reader, and loses nothing",
        "is cut off",
    ),
];
