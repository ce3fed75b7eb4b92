// Tasks through the tables: what is written, what is refused, and the application's own transaction.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import test from "node:test";

import { DatabaseError, add, trigger } from "../src/index.js";
import { modules, opensPaths, withFile } from "./support/databases.js";

/** A test with an open handle, once per module. */
function each(title, work) {
  if (modules.size === 0) test(title, { skip: "no module for SQLite, and no python3 with sqlite3" }, () => {});
  for (const [module, openFile] of modules) {
    test(`${title}, with ${module}`, () =>
      withFile((file) => {
        const db = openFile(file);
        try {
          work(db, file);
        } finally {
          db.close();
        }
      }));
  }
}

const row = (db, columns, name) => ({ ...db.prepare(`SELECT ${columns} FROM scheduled_tasks WHERE name = ?`).get(name) });
const count = (db, table = "scheduled_tasks") => db.prepare(`SELECT count(*) AS n FROM ${table}`).get().n;
const code = (expected, text) => (error) => {
  assert.ok(error instanceof DatabaseError, String(error));
  assert.equal(error.code, expected, error.message);
  assert.match(error.message, text);
  return true;
};

each("each schedule is a row that no scheduler has planned", (db) => {
  const at = new Date("2027-03-14T06:00:00Z");
  const cases = [
    [{ cron: "0 6 * * *" }, "cron", "0 6 * * *"],
    [{ on: "every 2 weeks on mon at 09:00" }, "calendar", "every 2 weeks on mon at 09:00"],
    [{ every: "1h 30m" }, "interval", "1h 30m"],
    [{ everySeconds: 1.5 }, "interval", "1500ms"],
    [{ delay: "15m" }, "delay", "15m"],
    [{ delaySeconds: 60 }, "delay", "60000ms"],
    [{ atSeconds: 1804000000.25 }, "once", "2027-03-02T15:06:40.250Z"],
    [{ at: "2027-03-14T06:00+01:00" }, "once", "2027-03-14T06:00:00+01:00"],
    [{ at }, "once", "2027-03-14T06:00:00.000Z"],
    [{ at: "2027-03-14 06:00", timeZone: "Europe/Rome" }, "once", "2027-03-14 06:00"],
    [{ manual: true }, "manual", ""],
  ];
  cases.forEach(([schedule, type, value], number) => {
    const name = `task-${number}`;
    assert.deepEqual(add(db, { name, handler: "mail", payload: { to: ["anna", "é😀"] }, ...schedule }), { name, change: "created" });
    assert.deepEqual(row(db, "handler, payload, schedule_type, schedule_value, next_run, planned, status", name), {
      handler: "mail", payload: '{"to":["anna","é😀"]}', schedule_type: type, schedule_value: value, next_run: null, planned: 0, status: "active",
    });
  });
});

each("a handle without a busy timeout has one while the client writes, and another keeps its own", (db) => {
  const timeout = () => Number(db.prepare("PRAGMA busy_timeout").get().timeout);
  for (const [own, during] of [[0, 5000], [70, 70]]) {
    db.exec(`PRAGMA busy_timeout = ${own}`);
    const seen = [];
    const watched = {
      exec: (sql) => db.exec(sql),
      prepare: (sql) => {
        if (sql.startsWith("INSERT")) seen.push(timeout());
        return db.prepare(sql);
      },
    };
    add(watched, { name: `digest-${own}`, handler: "mail", manual: true });
    trigger(watched, `digest-${own}`);
    assert.throws(() => trigger(watched, "none"), code("unknown", /none/));
    assert.deepEqual([...new Set(seen)], [during]);
    assert.equal(timeout(), own);
  }
});

each("every policy has its column, and an absent one the default", (db) => {
  const startsAt = new Date("2027-01-01T00:00:00Z");
  add(db, {
    name: "all", handler: "mail", cron: "@daily", timeZone: "Europe/Rome", startsAt, endsAt: 1900000000000, onlyBetween: "09:00-17:30",
    onlyOn: "2027-01-01..2030-01-01", exceptOn: "holidays: 2027-12-25", overlap: "buffer_all",
    misfire: "run_all", misfireGraceMs: 1, catchUpLimit: 2, expiresMs: 3, maxAttempts: 4, backoffMs: 5, backoffCapMs: 6, timeoutMs: 7,
    jitterMs: 8, priority: 3, concurrencyKey: "chat:7", maxStarts: "4/1d", whenLimited: "skip", onDead: "alarm", onSuccess: "next", onEnd: "log", onMissed: "tell", pauseAfterFailures: 9,
  });
  const columns = `time_zone, starts_at, ends_at, only_between, only_on, except_on, overlap, misfire, misfire_grace_ms, catch_up_limit, expires_ms, max_attempts, backoff_ms,
    backoff_cap_ms, timeout_ms, jitter_ms, priority, concurrency_key, max_starts, when_limited, on_dead, on_success, on_end, on_missed, pause_after_failures`;
  assert.deepEqual(Object.values(row(db, columns, "all")), [
    "Europe/Rome", startsAt.getTime(), 1900000000000, "09:00-17:30", "2027-01-01..2030-01-01", "holidays: 2027-12-25", "buffer_all", "run_all", 1, 2, 3, 4, 5, 6, 7, 8, 3, "chat:7", "4/1d", "skip", "alarm", "next", "log", "tell", 9,
  ]);
  add(db, { name: "none", handler: "mail", cron: "@daily" });
  assert.deepEqual(Object.values(row(db, `payload, ${columns}`, "none")), [
    "null", "UTC", null, null, null, null, null, "skip", "run_once", 60000, 100, null, 5, 10000, 3600000, null, 0, 1, null, null, "wait", null, null, null, null, null,
  ]);
});

each("a name is an idempotency key", (db) => {
  const task = { name: "digest", handler: "mail", at: "2027-03-14T06:00:00Z", payload: { a: 1, b: [2] }, timeoutMs: 60000 };
  assert.equal(add(db, task).change, "created");
  assert.equal(add(db, { ...task, payload: { b: [2], a: 1 } }).change, "unchanged");
  assert.equal(add(db, { ...task, at: new Date(task.at) }).change, "unchanged");
  const before = row(db, "*", "digest");
  const differs = code("exists", /^cannot add task "digest": a task of this name exists and differs in priority: expected 0, found 1; set replace/);
  assert.throws(() => add(db, { ...task, priority: 0 }), differs);
  assert.throws(() => add(db, { ...task, payload: null }), code("exists", /differs in payload/));
  const { timeoutMs, ...without } = task;
  assert.throws(() => add(db, without), code("exists", /differs in timeout_ms: expected null, found 60000/));
  assert.equal(add(db, { ...task, priority: 0, ifAbsent: true }).change, "unchanged");
  assert.deepEqual(row(db, "*", "digest"), before);

  assert.equal(add(db, { ...without, priority: 0, replace: true }).change, "replaced");
  assert.deepEqual(row(db, "priority, timeout_ms, payload", "digest"), { priority: 0, timeout_ms: null, payload: task.payload && '{"a":1,"b":[2]}' });
  assert.equal(add(db, { ...without, priority: 0, replace: true }).change, "unchanged");
  assert.equal(count(db), 1);
});

each("what the table refuses is an error that names the column", (db) => {
  const task = { name: "t", handler: "mail", cron: "@daily" };
  const cases = [
    [{ name: "no spaces, please" }, /cannot add task "no spaces, please": name is not allowed: the table requires length\(name\)/],
    [{ timeoutMs: -1 }, /timeout_ms is not allowed: the table requires timeout_ms BETWEEN 0 AND/],
    [{ overlap: "dance" }, /overlap is not allowed/],
    [{ priority: 4 }, /priority is not allowed: the table requires priority BETWEEN 0 AND 3/],
    [{ payload: "x".repeat(262144) }, /payload is not allowed/],
    [{ startsAt: 1700000000 }, /starts_at is not allowed/],
    [{ misfire: "run_all" }, /misfire/],
    [{ handler: "" }, /handler is not allowed/],
  ];
  for (const [part, expected] of cases) assert.throws(() => add(db, { ...task, ...part }), code("refused", expected));
  assert.equal(count(db), 0);
});

each("a wrong call is a TypeError, and writes nothing", (db) => {
  const task = { name: "t", handler: "mail", cron: "@daily" };
  const cases = [
    [{ cron: undefined }, /expected one of cron, on, every, delay, at, in, now and manual, found none/],
    [{ every: "1h" }, /found cron and every/],
    [{ name: 7 }, /expected texts as name and handler/],
    [{ timeout: 7 }, /timeout is no part of a task/],
    [{ payload: 7n }, /payload cannot be written as JSON/],
  ];
  for (const [part, expected] of cases) {
    assert.throws(() => add(db, { ...task, ...part }), (error) => error instanceof TypeError && expected.test(error.message));
  }
  assert.throws(() => add({}, task), /expected a path, or a database/);
  assert.throws(() => trigger(db, "t", { key: "" }), TypeError);
  assert.equal(count(db), 0);
});

each("a schedule or a zone that no scheduler could read is an error at the call", (db) => {
  const cases = [
    [{ at: Date.now() + 7_200_000 }, /at: expected a Date, or a text .* use atSeconds, found 1\d+/],
    [{ at: new Date(NaN) }, /at: expected a valid Date/],
    [{ at: new Date(7) }, /at: expected a time between 2001 and 4000/],
    [{ at: "tomorrow" }, /at: expected a Date, or a text such as/],
    [{ at: "2027-02-30 12:00" }, /at: expected a date that exists/],
    [{ at: "2027-02-20 25:00" }, /at: expected a time of the day that exists/],
    [{ atSeconds: Date.now() }, /atSeconds: expected a time between/],
    [{ inSeconds: "60" }, /inSeconds: expected a number of seconds/],
    [{ after: "2h" }, /after is not an option: `in` runs once, this long from now; `delay` runs again/],
    [{ every: 60 }, /every: expected a text with a unit such as "15m"; for a number of seconds, use everySeconds, found 60/],
    [{ every: "soon" }, /every: expected a duration/],
    [{ in: "90" }, /in: expected a duration/],
    [{ now: 1 }, /now: expected true/],
    [{ cron: "every day" }, /cron: expected a cron expression of 5 or 6 fields/],
    [{ cron: "60 * * * *" }, /cron: expected \* or 0-59 as minute/],
    [{ cron: "0 7 * * mon-fry" }, /as day of week/],
    [{ cron: 7 }, /cron: expected a cron expression/],
    [{ cron: "@daily", timeZone: "Rome" }, /timeZone: expected an IANA name such as "Europe\/Rome" or "UTC", found "Rome"/],
    [{ cron: "@daily", timeZone: "europe/rome" }, /timeZone/],
    [{ cron: "@daily", endsAt: new Date(NaN) }, /endsAt: expected a valid Date/],
    [{ cron: "@daily", timeoutMs: "soon" }, /timeoutMs: expected a duration/],
  ];
  for (const [part, expected] of cases) {
    const call = () => add(db, { name: "t", handler: "mail", ...part });
    assert.throws(call, (error) => error instanceof TypeError && expected.test(error.message), JSON.stringify(part));
  }
  assert.equal(count(db), 0);
});

each("now and in are the same work whenever they are called, and replace moves them", (db) => {
  for (const [name, schedule] of [["now", { now: true }], ["in", { in: "2h" }], ["seconds", { inSeconds: 7200 }]]) {
    const task = { name, handler: "mail", ...schedule };
    const before = Date.now();
    assert.equal(add(db, task).change, "created");
    const { schedule_value: value } = row(db, "schedule_value", name);
    const late = Date.parse(value) - before - (name === "now" ? 0 : 7_200_000);
    assert.ok(late >= 0 && late < 60_000, value);
    db.prepare("UPDATE scheduled_tasks SET schedule_value = '2027-01-01T00:00:00Z' WHERE name = ?").run(name);
    assert.equal(add(db, task).change, "unchanged");
    assert.throws(() => add(db, { ...task, priority: 0 }), code("exists", /differs in/));
    assert.equal(add(db, { ...task, replace: true }).change, "replaced");
    assert.notEqual(row(db, "schedule_value", name).schedule_value, "2027-01-01T00:00:00Z");
  }
});

each("within a transaction of the application, a task is stored if and only if it commits", (db) => {
  db.exec("CREATE TABLE orders (id INTEGER)");
  add(db, { name: "often", handler: "mail", manual: true });
  for (const end of ["ROLLBACK", "COMMIT"]) {
    db.exec("BEGIN IMMEDIATE");
    db.prepare("INSERT INTO orders VALUES (7)").run();
    add(db, { name: "ship:7", handler: "mail", at: new Date() });
    trigger(db, "often", { key: "7" });
    // What is refused leaves the rest of the transaction as it is.
    assert.throws(() => add(db, { name: "ship:8", handler: "mail", at: new Date(), priority: 9 }), DatabaseError);
    assert.throws(() => trigger(db, "unknown"), DatabaseError);
    db.exec(end);
    assert.deepEqual([count(db), count(db, "orders")], end === "COMMIT" ? [3, 1] : [1, 0]);
  }
});

each("a trigger makes a task due, once until it has run", (db) => {
  const now = Date.now();
  add(db, { name: "digest", handler: "mail", cron: "@daily" });
  assert.deepEqual(trigger(db, "digest"), { name: "digest", change: "triggered" });
  const { next_run: due } = row(db, "next_run", "digest");
  assert.ok(due >= now - 1 && due <= Date.now() + 1, `${due}`);
  assert.deepEqual(trigger(db, "digest"), { name: "digest", change: "unchanged" });
  assert.equal(row(db, "next_run", "digest").next_run, due);
  assert.equal(count(db, "task_runs"), 0, "no occurrence was recorded as missed");

  db.exec(`UPDATE scheduled_tasks SET next_run = ${now + 3600000}, planned = 1`);
  assert.equal(trigger(db, "digest").change, "triggered");
  assert.equal(count(db, "task_runs"), 0);
});

each("a trigger with a key or a payload is a task of its own", (db) => {
  add(db, { name: "digest", handler: "mail", cron: "@daily", payload: 1, maxAttempts: 2, timeoutMs: 3, concurrencyKey: "k", onDead: "alarm" });
  const before = row(db, "*", "digest");
  assert.deepEqual(trigger(db, "digest", { key: "order-7", payload: { order: 7 } }), { name: "digest/order-7", change: "created" });
  assert.deepEqual(trigger(db, "digest", { key: "order-7", payload: { order: 8 } }), { name: "digest/order-7", change: "unchanged" });
  assert.equal(trigger(db, "digest", { key: "order-8" }).change, "created");
  assert.match(trigger(db, "digest", { payload: null }).name, /^digest\/[0-9a-f-]{36}$/);
  const columns = "handler, payload, schedule_type, max_attempts, timeout_ms, concurrency_key, on_dead, planned, next_run";
  const same = { handler: "mail", schedule_type: "once", max_attempts: 2, timeout_ms: 3, concurrency_key: "k", on_dead: "alarm", planned: 0, next_run: null };
  assert.deepEqual(row(db, columns, "digest/order-7"), { ...same, payload: '{"order":7}' });
  assert.deepEqual(row(db, columns, "digest/order-8"), { ...same, payload: "1" });
  assert.match(row(db, "schedule_value", "digest/order-7").schedule_value, /^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ$/);
  assert.deepEqual(row(db, "*", "digest"), before);
  assert.throws(() => trigger(db, "digest", { key: "no spaces" }), code("refused", /cannot trigger task "digest": name is not allowed/));
});

each("a task that is unknown, paused or invalid cannot be triggered", (db) => {
  assert.throws(() => trigger(db, "digest"), code("unknown", /^cannot trigger task "digest": there is no such task$/));
  assert.throws(() => trigger(db, "digest", { key: "7" }), code("unknown", /no such task/));
  add(db, { name: "digest", handler: "mail", cron: "@daily" });
  db.exec("UPDATE scheduled_tasks SET status = 'paused'");
  assert.throws(() => trigger(db, "digest"), code("paused", /it is paused; resume it first/));
  assert.equal(trigger(db, "digest", { key: "7" }).change, "created", "as duly trigger runs a paused task");
  db.exec("DELETE FROM scheduled_tasks WHERE name <> 'digest'");
  db.exec("UPDATE scheduled_tasks SET status = 'invalid', invalid_reason = 'no such zone', planned = 1");
  for (const options of [{}, { key: "8" }]) {
    assert.throws(() => trigger(db, "digest", options), code("invalid", /it is invalid: no such zone; repair it first/));
  }
  assert.equal(count(db), 1);
});

each("a file without the tables, or with newer ones, is refused", (db) => {
  const task = { name: "t", handler: "mail", cron: "@daily" };
  db.exec("UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version'");
  assert.throws(() => add(db, task), code("no_database", /the tables have version 2, and this client knows version 1/));
  assert.equal(count(db), 0);
});

test("a path is opened for the call", { skip: opensPaths ? false : "no module for SQLite" }, () =>
  withFile((file) => {
    assert.equal(add(file, { name: "t", handler: "mail", manual: true }).change, "created");
    assert.equal(trigger(new URL(`file://${file}`), "t").change, "triggered");
    assert.throws(() => add(`${file}-missing`, { name: "t", handler: "mail", manual: true }), code("no_database", /there is no such file/));
    writeFileSync(`${file}-empty`, "");
    assert.throws(() => trigger(`${file}-empty`, "t"), code("no_database", /the file has no tables of duly/));
    writeFileSync(`${file}-text`, "no database at all, only text".repeat(100));
    assert.throws(() => trigger(`${file}-text`, "t"), /not a database/);
  }));

test("without a module for SQLite, a path is refused by name", { skip: opensPaths ? "there is a module" : false }, () =>
  withFile((file) => {
    writeFileSync(file, "");
    assert.throws(() => add(file, { name: "t", handler: "mail", now: true }), code("no_module", /better-sqlite3 is not installed; .* client\(\.\.\)/));
  }, { schema: false }));
