# A worker of duly without a client library: see docs/workers.md. mawk -W interactive -f worker.awk, or gawk -f worker.awk.

function say(type, keys) { print "{\"type\":\"" type "\"" keys "}"; fflush() }
function quit(why) { print why > "/dev/stderr"; exit 1 }
function end(at, type, keys) { say(type, id[at] keys); delete id[at]; running-- }
function failed(at, error, retry) { end(at, "failed", ",\"error\":" error ",\"retry\":" retry) }

# Splits an object into `m`, the JSON of each value by its key, or a list by the numbers 1, 2, .. Returns whether it is complete.
function parse(text, m,    part, parts, i, j, before, inside, depth, c, start, key, value, count) {
    split("", m)
    parts = split(text, part, /"/)
    for (i = 1; i <= parts; before += length(part[i++]) + 1) {
        if (inside) {
            # The text ends here, unless its quote is escaped: after an odd number of backslashes.
            for (j = length(part[i]); j > 0 && substr(part[i], j, 1) == "\\"; j--);
            inside = (length(part[i]) - j) % 2
            continue
        }
        for (j = 1; j <= length(part[i]); j++) {
            c = substr(part[i], j, 1)
            if (c == "}" || c == "]") depth--
            if (depth == 1 && (c == ":" || c == ",") || depth == 0 && (c == "}" || c == "]")) {
                value = substr(text, start, before + j - start)
                gsub(/^[ \t]+|[ \t]+$/, "", value)
                if (c == ":") key = substr(value, 2, length(value) - 2)
                else if (value != "") { m[key == "" ? ++count : key] = value; key = "" }
                start = before + j + 1
            }
            if ((c == "{" || c == "[") && depth++ == 0) start = before + j + 1
        }
        inside = 1
    }
    return text ~ /^[ \t]*[[{]/ && depth == 0 && inside
}

# Carries out an attempt. It ends now, or later with `on_cancel` or `on_effect`.
function run(at,    p, n) {
    if (++running > 4) quit("more runs than the concurrency of 4")
    id[at] = ",\"run\":" m["run"] ",\"attempt\":" m["attempt"]
    handler[at] = m["handler"]
    say("begin", id[at])
    parse(m["payload"], p)
    if (m["handler"] == "\"echo\"") end(at, "done", ",\"result\":" m["payload"])
    else if (m["handler"] == "\"fail\"") failed(at, p["error"], p["retry"] == "" ? "true" : p["retry"])
    else if (m["handler"] == "\"finish\"") say("progress", id[at] ",\"text\":\"waiting\"")
    else if (m["handler"] == "\"context\"") end(at, "done", ",\"result\":" $0)
    else if (m["handler"] == "\"progress\"") {
        for (n = 1; n in p; n++) say("progress", id[at] ",\"text\":" p[n])
        end(at, "done", "")
    } else if (m["handler"] == "\"effect\"") {
        key[at] = ",\"key\":" p["key"]; value[at] = p["value"]; undone[at] = p["failed"] == "true"
        say("effect_begin", id[at] key[at])
    }
}

function on_cancel(at) {
    if (handler[at] == "\"wait\"") failed(at, m["reason"], "true")
    else if (handler[at] == "\"finish\"") end(at, "done", ",\"result\":" m["reason"])
}

function on_effect(at) {
    if (m["state"] == "\"begin\"" && undone[at]) say("effect_failed", id[at] key[at])
    else if (m["state"] == "\"begin\"") say("effect_done", id[at] key[at] ",\"value\":" value[at])
    else if (m["state"] == "\"stored\"") end(at, "done", ",\"result\":" value[at])
    else if (m["state"] == "\"done\"") end(at, "done", ",\"result\":" m["value"])
    else if (m["state"] == "\"undone\"") failed(at, "\"not performed\"", "true")
    else if (m["state"] == "\"in_doubt\"") failed(at, "\"in doubt\"", "false")
    else failed(at, m["error"], "true")
}

BEGIN {
    handlers = "\"echo\",\"fail\",\"wait\",\"finish\",\"ignore\",\"progress\",\"effect\",\"context\""
    say("hello", ",\"protocol\":1,\"handlers\":[" handlers "],\"concurrency\":4")
}
/^[ \t]*$/ { next }
{
    if (!parse($0, m)) quit("this is no message: " substr($0, 1, 80))
    at = m["run"] "." m["attempt"]
    type = m["type"]
    if (type == "\"run\"") run(at)
    else if (type == "\"cancel\"") { if (at in id) on_cancel(at) }
    else if (type == "\"effect\"") on_effect(at)
    else if (type == "\"ping\"") say("pong", "")
    else if (type == "\"stop\"") stopping = 1
    else if (type == "\"error\"") quit("duly has ended this worker: " m["error"])
    else if (type != "\"welcome\"" && type != "\"pong\"") quit("an unknown message: " substr($0, 1, 80))
    if (stopping && running == 0) exit
}
