# A short worker of duly, without a client library: see docs/workers.md. mawk -W interactive -f short.awk, or gawk -f short.awk.
function say(type, keys) { print "{\"type\":\"" type "\"" keys "}"; fflush() }
function end(type, keys) { say(type, id[at] keys); delete id[at]; running-- }
function quit(why) { print why > "/dev/stderr"; exit 1 }
# Splits an object into `m`: the JSON of each value, by its key. Returns whether it is complete.
function parse(text, m,    token, depth, key, value) {
    for (split("", m); match(text, /^[ \t]*("([^"\\]|\\.)*"|[][{}:,]|[^][{}:," \t]+)/); text = substr(text, RLENGTH + 1)) {
        token = substr(text, 1, RLENGTH)
        sub(/^[ \t]+/, "", token)
        if (token ~ /^[]}]$/) depth--
        if (depth == 1 && token == ":") { key = substr(value, 2, length(value) - 2); value = "" }
        else if (depth == 0 || depth == 1 && token == ",") { m[key] = value; key = value = "" }
        else value = value token
        if (token ~ /^[[{]$/) depth++
    }
    return text ~ /^[ \t]*$/ && depth == 0
}
BEGIN { say("hello", ",\"protocol\":1,\"handlers\":[\"echo\",\"fail\",\"wait\"],\"concurrency\":4") }
/^[ \t]*$/ { next }
{ if (!parse($0, m)) quit("this is no message: " substr($0, 1, 80)); at = m["run"] "." m["attempt"]; type = m["type"] }
type == "\"run\"" {
    if (++running > 4) quit("more runs than the concurrency of 4")
    say("begin", id[at] = ",\"run\":" m["run"] ",\"attempt\":" m["attempt"])
    parse(m["payload"], p)
    if (m["handler"] == "\"echo\"") end("done", ",\"result\":" m["payload"])
    if (m["handler"] == "\"fail\"") end("failed", ",\"error\":" p["error"] ("retry" in p ? ",\"retry\":" p["retry"] : ""))
}
type == "\"cancel\"" && at in id { end("failed", ",\"error\":" m["reason"]) }
type == "\"ping\"" { say("pong") }
type !~ /^"(welcome|run|cancel|effect|ping|pong|stop)"$/ { quit("an error, or an unknown message: " substr($0, 1, 200)) }
type == "\"stop\"" { stopping = 1 }
stopping && !running { exit }
