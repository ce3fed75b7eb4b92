"""Tasks through the tables: what is written, and what is refused."""

import os
import sqlite3
import tempfile
import threading
import unittest
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import fake

import duly

SCHEMA = os.path.join(os.path.dirname(__file__), "..", "..", "..", "schema.sql")


class TasksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "agent.db")
        self.plain = sqlite3.connect(self.file, isolation_level=None)
        self.addCleanup(self.plain.close)
        with open(SCHEMA, encoding="utf-8") as schema:
            self.plain.executescript("PRAGMA journal_mode = WAL;" + schema.read())

    def add(self, name="digest", handler="mail", **more):
        return duly.add(self.file, name=name, handler=handler, **more)

    def row(self, columns, name="digest"):
        rows = self.plain.execute(f"SELECT {columns} FROM scheduled_tasks WHERE name = ?", (name,)).fetchall()
        self.assertEqual(len(rows), 1, name)
        return rows[0]

    def plan(self, status="active", next_run=None):
        """Does what a scheduler does with the rows."""
        self.plain.execute(
            "UPDATE scheduled_tasks SET planned = 1, status = ?, next_run = ?, resolved_until = 1000000000000",
            (status, next_run),
        )

    def refused(self, text, kind=duly.InvalidTask, **more):
        with self.assertRaises(kind) as caught:
            self.add(**more)
        self.assertIn(text, str(caught.exception))
        self.assertIsInstance(caught.exception, duly.Error)


class Add(TasksTest):
    def test_each_schedule(self):
        winter = datetime(2027, 3, 14, 6, 0, 0, 250000, timezone(timedelta(hours=1)))
        for more, written in (
            ({"cron": "0 7 * * mon-fri"}, ("cron", "0 7 * * mon-fri", "UTC")),
            ({"on": "every 2 weeks on mon at 09:00"}, ("calendar", "every 2 weeks on mon at 09:00", "UTC")),
            ({"every": timedelta(minutes=90)}, ("interval", "1h 30m", "UTC")),
            ({"every": "15m"}, ("interval", "15m", "UTC")),
            ({"delay": timedelta(seconds=1.5)}, ("delay", "1s 500ms", "UTC")),
            ({"at": winter}, ("once", "2027-03-14T05:00:00.250Z", "UTC")),
            ({"at": winter.replace(tzinfo=None), "time_zone": "Europe/Rome"},
             ("once", "2027-03-14 06:00:00", "Europe/Rome")),
            ({"at": "2027-03-14 06:00", "time_zone": ZoneInfo("Europe/Rome")},
             ("once", "2027-03-14 06:00", "Europe/Rome")),
            ({"every_seconds": 1.5}, ("interval", "1s 500ms", "UTC")),
            ({"every": "1.5 hours"}, ("interval", "1.5 hours", "UTC")),
            ({"at_seconds": 1804000000.25}, ("once", "2027-03-02T15:06:40.250Z", "UTC")),
            ({"at": "2027-03-14T06:00+01:00"}, ("once", "2027-03-14T06:00:00+01:00", "UTC")),
            ({"manual": True, "time_zone": timezone.utc}, ("manual", "", "UTC")),
        ):  # fmt: skip
            with self.subTest(more):
                self.assertEqual(self.add(**more), "created")
                self.assertEqual(self.row("schedule_type, schedule_value, time_zone"), written)
                self.assertEqual(self.row("next_run, planned, status, payload"), (None, 0, "active", "null"))
                self.plain.execute("DELETE FROM scheduled_tasks")

    def test_now_is_a_time(self):
        before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
        self.add(now=True)
        kind, value = self.row("schedule_type, schedule_value")
        due = datetime.fromisoformat(value.replace("Z", "+00:00"))
        self.assertEqual(kind, "once")
        self.assertTrue(before <= due <= datetime.now(timezone.utc), value)

    def test_each_column(self):
        columns = {
            "payload": {"to": "änna", "n": [1, None]}, "time_zone": "Europe/Rome", "overlap": "allow",
            "misfire": "run_all", "misfire_grace_ms": 5, "catch_up_limit": 7, "expires_ms": timedelta(hours=1),
            "max_attempts": 3, "backoff_ms": timedelta(seconds=2), "backoff_cap_ms": 9000, "timeout_ms": 0,
            "jitter_ms": 10, "priority": 0, "concurrency_key": "mail", "max_starts": "4/1d", "when_limited": "skip", "on_dead": "tell",
            "only_between": "09:00-17:30", "only_on": "2027-01-01..2027-12-31", "except_on": "holidays: 2027-12-25",
            "on_success": "next", "on_end": "log", "on_missed": "tell, log", "pause_after_failures": 4,
            "starts_at": datetime(2027, 1, 1, tzinfo=timezone.utc),
            "ends_at": datetime(2028, 1, 1, tzinfo=timezone.utc),
        }  # fmt: skip
        self.assertEqual(self.add(cron="@daily", **columns), "created")
        written = dict(zip(columns, self.row(", ".join(columns))))
        expected = {
            **columns, "payload": '{"to":"änna","n":[1,null]}', "expires_ms": 3_600_000, "backoff_ms": 2000,
            "starts_at": 1798761600000, "ends_at": 1830297600000,
        }  # fmt: skip
        self.assertEqual(written, expected)
        self.assertEqual(self.add(cron="@daily", **columns), "unchanged")
        self.assertEqual(self.plain.execute("PRAGMA foreign_key_check").fetchall(), [])

    def test_the_same_definition_again_changes_nothing(self):
        self.add(cron="@daily", payload=1)
        self.plan(next_run=1800000000000)
        everything = self.row("*")
        for more in ({}, {"if_absent": True}, {"replace": True}):
            self.assertEqual(self.add(cron="@daily", payload=1, **more), "unchanged")
        self.assertEqual(self.row("*"), everything)

    def test_a_task_that_was_due_now_is_not_added_again(self):
        self.add(now=True)
        self.plain.execute("UPDATE scheduled_tasks SET schedule_value = '2027-03-14T06:00:00.000Z'")
        self.plan("completed")
        self.assertEqual(self.add(now=True), "unchanged")
        self.assertEqual(self.row("schedule_value, status, planned"), ("2027-03-14T06:00:00.000Z", "completed", 1))
        self.refused("it exists with another definition", duly.TaskExists, now=True, payload=1)
        self.refused("it exists with another definition", duly.TaskExists, manual=True)
        self.assertEqual(self.add(now=True, replace=True), "replaced")
        self.assertEqual(self.row("status, planned"), ("active", 0))

    def test_another_definition_is_refused_or_left_or_replaces(self):
        self.add(cron="@daily", priority=0)
        self.plan(next_run=1900000000000)
        everything = self.row("*")
        self.refused("it exists with another definition", duly.TaskExists, cron="@daily")
        self.assertEqual(self.add(cron="@hourly", if_absent=True), "unchanged")
        self.assertEqual(self.row("*"), everything)
        self.assertEqual(self.add(cron="@hourly", replace=True), "replaced")
        self.assertEqual(self.row("schedule_value, priority, planned, next_run"), ("@hourly", 1, 0, None))
        self.plan(next_run=1900000000000)
        self.assertEqual(self.add(cron="@hourly", payload=2, replace=True), "replaced")
        self.assertEqual(self.row("payload, planned, next_run"), ("2", 1, 1900000000000))

    def test_what_the_tables_refuse(self):
        self.refused("CHECK constraint failed", name="7 days", manual=True)
        self.refused("CHECK constraint failed", handler="", manual=True)
        self.refused("CHECK constraint failed", manual=True, overlap="sometimes")
        self.refused("CHECK constraint failed", manual=True, concurrency_key="#1")
        self.refused("CHECK constraint failed", manual=True, misfire="run_all")
        self.refused("CHECK constraint failed", manual=True, payload="x" * 262_144)
        self.refused("cannot store TEXT value", manual=True, priority="first")
        self.refused("cannot add task 'digest'", manual=True, priority=object())
        self.refused("cannot add task 'digest'", manual=True, max_attempts=2**70)
        self.refused("cannot add task 'digest'", handler="\ud800", manual=True)
        self.assertEqual(self.plain.execute("SELECT count(*) FROM scheduled_tasks").fetchone(), (0,))

    def test_what_the_client_refuses(self):
        self.refused("exactly one of cron, on, every, delay, at, in_, now and manual, found none")
        self.refused("found every and manual", every="1h", manual=True)
        self.refused("at most one of if_absent and replace", manual=True, if_absent=True, replace=True)
        self.refused("at: expected a time zone", at=datetime(2027, 1, 1))
        self.refused("expected a time zone in starts_at=", cron="@daily", starts_at=datetime(2027, 1, 1))
        self.refused("expected an IANA name", cron="@daily", time_zone=timezone(timedelta(hours=1)))
        self.refused("every: expected a duration", every=timedelta(0))
        self.refused("it is not JSON", manual=True, payload=float("inf"))
        self.refused("it is not JSON", manual=True, payload="\ud800")

    def test_what_no_scheduler_could_read(self):
        for text, more in (
            ("every: expected a timedelta, or a text with a unit such as \"15m\"; for a number of seconds, use every_s",
             {"every": 60}),
            ("use in_seconds", {"in_": 60}),
            ("use at_seconds", {"at": 1804000000}),
            ("at_seconds: expected a time between", {"at_seconds": 1804000000000}),
            ("in_seconds: expected a number of seconds", {"in_seconds": "60"}),
            ("after is not an argument: `in_` runs once, this long from now; `delay` runs again", {"after": "2h"}),
            ("every: expected a duration", {"every": "soon"}),
            ("at: expected a datetime, or a text such as", {"at": "tomorrow"}),
            ("at: expected a time that exists", {"at": "2027-02-30 12:00"}),
            ("at: expected a time that exists", {"at": "2027-02-20 25:00"}),
            ("cron: expected a cron expression of 5 or 6 fields", {"cron": "every day"}),
            ("cron: expected * or 0-59 as minute", {"cron": "60 * * * *"}),
            ("as day of week", {"cron": "0 7 * * mon-fry"}),
            ("as time_zone, found 'Rome'", {"cron": "@daily", "time_zone": "Rome"}),
            ("as time_zone, found 'europe/rome'", {"cron": "@daily", "time_zone": "europe/rome"}),
            ("starts_at: expected a datetime", {"cron": "@daily", "starts_at": 7}),
            ("timeout_ms: expected a duration", {"cron": "@daily", "timeout_ms": "soon"}),
        ):  # fmt: skip
            with self.subTest(more):
                self.refused(text, **more)
        self.assertEqual(self.plain.execute("SELECT count(*) FROM scheduled_tasks").fetchone(), (0,))

    def test_now_and_in_are_the_same_work_whenever_they_are_called(self):
        for more in ({"now": True}, {"in_": "2h"}, {"in_": timedelta(hours=2)}, {"in_seconds": 7200}):
            with self.subTest(more):
                self.assertEqual(self.add(**more), "created")
                kind, value = self.row("schedule_type, schedule_value")
                due = datetime.fromisoformat(value.replace("Z", "+00:00"))
                late = due - datetime.now(timezone.utc) - timedelta(hours=0 if more.get("now") else 2)
                self.assertTrue(kind == "once" and timedelta(minutes=-1) < late < timedelta(seconds=1), value)
                self.plain.execute("UPDATE scheduled_tasks SET schedule_value = '2027-01-01T00:00:00Z'")
                self.assertEqual(self.add(**more), "unchanged")
                self.refused("exists with another definition", duly.TaskExists, priority=0, **more)
                self.assertEqual(self.add(replace=True, **more), "replaced")
                self.plain.execute("DELETE FROM scheduled_tasks")


class Outbox(TasksTest):
    def test_a_task_exists_if_the_transaction_commits(self):
        with sqlite3.connect(self.file) as shop:
            shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        for commits in (False, True):
            shop.execute("BEGIN IMMEDIATE")
            shop.execute("INSERT INTO orders VALUES (7)")
            self.assertEqual(duly.add(shop, name="ship:7", handler="ship", now=True), "created")
            self.assertTrue(shop.in_transaction)
            (shop.commit if commits else shop.rollback)()
            found = self.plain.execute("SELECT count(*) FROM scheduled_tasks, orders").fetchone()
            self.assertEqual(found, (int(commits),))
        shop.close()

    def test_a_refused_task_leaves_the_transaction_as_it_was(self):
        shop = sqlite3.connect(self.file)
        self.addCleanup(shop.close)
        shop.row_factory = lambda cursor, row: {"first": row[0]}
        duly.add(shop, name="a", handler="ship", cron="@daily")
        with self.assertRaises(duly.TaskExists):
            duly.add(shop, name="a", handler="ship", cron="@hourly")
        with self.assertRaises(duly.InvalidTask):
            duly.add(shop, name="", handler="ship", cron="@hourly")
        with self.assertRaises(duly.UnknownTask):
            duly.trigger(shop, "b")
        duly.trigger(shop, "a")
        shop.commit()
        self.assertEqual(self.row("schedule_value, next_run > 0", "a"), ("@daily", 1))

    def test_a_connection_without_transactions(self):
        self.assertEqual(duly.add(self.plain, name="a", handler="ship", manual=True), "created")
        self.assertFalse(self.plain.in_transaction)
        duly.trigger(self.plain, "a")

    def test_another_writer_is_waited_for(self):
        self.plain.execute("BEGIN IMMEDIATE")
        added = []
        adding = threading.Thread(target=lambda: added.append(self.add(manual=True)))
        adding.start()
        self.plain.execute("COMMIT")
        adding.join(fake.SECONDS)
        self.assertEqual(added, ["created"])


class Trigger(TasksTest):
    def test_a_task_becomes_due_now(self):
        now = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
        for status, next_run in (("active", None), ("active", 1900000000000), ("completed", None)):
            self.add(cron="@daily")
            self.plan(status, next_run)
            self.assertEqual(duly.trigger(self.file, "digest"), "digest")
            self.assertEqual(self.row(f"abs(next_run - {now}) < 10000"), (1,))
            self.plain.execute("DELETE FROM scheduled_tasks")
        self.assertEqual(self.plain.execute("SELECT count(*) FROM task_runs").fetchone(), (0,))

    def test_a_task_that_is_due_keeps_its_occurrence(self):
        self.add(cron="@daily")
        self.plan("active", 1700000000000)
        duly.trigger(self.file, "digest")
        self.assertEqual(self.row("next_run, planned"), (1700000000000, 1))
        self.assertEqual(self.plain.execute("SELECT count(*) FROM task_runs").fetchone(), (0,))

    def test_a_payload_or_a_key_adds_a_task_that_runs_once(self):
        self.add(cron="@daily", payload=1, priority=0, concurrency_key="mail", jitter_ms=7, overlap="buffer_all")
        self.plain.execute("UPDATE scheduled_tasks SET status = 'paused'")
        for payload in ([2], [3]):
            self.assertEqual(duly.trigger(self.file, "digest", payload, key="march"), "digest/march")
        columns = "handler, payload, schedule_type, priority, concurrency_key, jitter_ms, overlap, status, planned"
        written = ("mail", "[2]", "once", 0, "mail", 0, "skip", "active", 0)
        self.assertEqual(self.row(columns, "digest/march"), written)
        self.assertEqual(duly.trigger(self.file, "digest", key="april"), "digest/april")
        self.assertEqual(self.row("payload", "digest/april"), ("1",))
        first, second = (duly.trigger(self.file, "digest", payload=4) for _ in range(2))
        self.assertNotEqual(first, second)
        self.assertEqual(self.row("payload", second), ("4",))
        with self.assertRaisesRegex(duly.InvalidTask, "cannot trigger task 'digest': CHECK constraint failed"):
            duly.trigger(self.file, "digest", key="a b")
        with self.assertRaisesRegex(duly.InvalidTask, "it is not JSON"):
            duly.trigger(self.file, "digest", payload=object())
        with self.assertRaises(duly.UnknownTask):
            duly.trigger(self.file, "other", key="march")

    def test_what_cannot_be_triggered(self):
        with self.assertRaisesRegex(duly.UnknownTask, "cannot trigger task 'digest': no task has this name"):
            duly.trigger(self.file, "digest")
        self.add(cron="@daily")
        self.plain.execute("UPDATE scheduled_tasks SET status = 'paused'")
        with self.assertRaisesRegex(duly.InvalidTask, "it is paused: resume it first"):
            duly.trigger(self.file, "digest")
        self.plain.execute("DELETE FROM scheduled_tasks")
        self.add(cron="@daily")
        self.plain.execute("UPDATE scheduled_tasks SET status = 'invalid', invalid_reason = 'no field', planned = 1")
        for key in (None, "march"):
            with self.assertRaisesRegex(duly.InvalidTask, "it is invalid: no field"):
                duly.trigger(self.file, "digest", key=key)


class Files(TasksTest):
    def unusable(self, file, text):
        with self.assertRaises(duly.UnusableDatabase) as caught:
            duly.add(file, name="a", handler="b", manual=True)
        self.assertIn(text, str(caught.exception))

    def test_files_that_are_not_usable(self):
        missing = self.file + "x"
        self.unusable(missing, "no such file; duly creates it")
        self.assertFalse(os.path.exists(missing))
        sqlite3.connect(missing).close()
        with open(missing, "w") as file:
            file.write("no database" * 1000)
        self.unusable(missing, "file is not a database")
        memory = sqlite3.connect(":memory:")
        self.addCleanup(memory.close)
        self.unusable(memory, "no such table: scheduler_meta")
        self.plain.execute("UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version'")
        self.unusable(self.file, "expected tables of version 1, found 2")
        self.plain.execute("DELETE FROM scheduler_meta")
        self.unusable(self.file, "is not that of duly")
