"""Adds and triggers tasks through the tables of duly, an interface. The scheduler plans what is written here."""

import os
import sqlite3
import uuid
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from . import _messages
from ._schedule import instant, milliseconds, schedule, zone_name
from .errors import InvalidTask, TaskExists, UnknownTask, UnusableDatabase

Database = Union[str, "os.PathLike[str]", sqlite3.Connection]
_TABLES = "1"
_SQLITE = (3, 37)
_BUSY_SECONDS = 5.0
# What the tables refuse, and what the module of SQLite cannot pass to them.
_REFUSALS = (
    sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError,
    OverflowError, ValueError,
)  # fmt: skip

# What a definition consists of. What is not given has the default of its column.
_DEFINITION = (
    "handler", "payload", "schedule_type", "schedule_value", "time_zone", "starts_at", "ends_at", "only_between", "only_on",
    "except_on", "overlap", "misfire",
    "misfire_grace_ms", "catch_up_limit", "expires_ms", "max_attempts", "backoff_ms", "backoff_cap_ms", "timeout_ms",
    "jitter_ms", "priority", "concurrency_key", "max_starts", "when_limited", "on_dead", "on_success", "on_end", "on_missed", "pause_after_failures",
)  # fmt: skip
_DIFFERS = " OR ".join(f"scheduled_tasks.{column} IS NOT excluded.{column}" for column in _DEFINITION)
# The time at which a task was added is not part of its definition.
_DIFFERS_APART_FROM_TIME = _DIFFERS.replace("scheduled_tasks.schedule_value IS NOT excluded.schedule_value OR ", "")
_SET = ", ".join(f"{column} = excluded.{column}" for column in _DEFINITION)

# A due task keeps its time: a later one would leave the due occurrence behind as missed.
_NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
_RUN_NOW = f"""
    UPDATE scheduled_tasks SET next_run = min(ifnull(next_run, {_NOW}), {_NOW})
     WHERE name = ? AND (status = 'active' OR status = 'completed')"""

# The policies that apply to one occurrence. It is due now, and runs however late it is found.
_COPIED = (
    "expires_ms, max_attempts, backoff_ms, backoff_cap_ms, timeout_ms, priority, concurrency_key, "
    "on_dead, on_success, on_end, on_missed"
)
_RUN_COPY = f"""
    INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value, {_COPIED})
    SELECT ?, handler, ifnull(?, payload), 'once', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), {_COPIED}
      FROM scheduled_tasks WHERE name = ? AND status <> 'invalid'
    ON CONFLICT (name) DO NOTHING"""


def add(
    db: Database,
    *,
    name: str,
    handler: str,
    payload: object = None,
    cron: Optional[str] = None,
    on: Optional[str] = None,
    every: Union[str, timedelta, None] = None,
    delay: Union[str, timedelta, None] = None,
    at: Union[str, datetime, None] = None,
    in_: Union[str, timedelta, None] = None,
    now: bool = False,
    manual: bool = False,
    every_seconds: Optional[float] = None,
    delay_seconds: Optional[float] = None,
    at_seconds: Optional[float] = None,
    in_seconds: Optional[float] = None,
    after: None = None,
    time_zone: Union[str, tzinfo, None] = None,
    starts_at: Optional[datetime] = None,
    ends_at: Optional[datetime] = None,
    only_between: Optional[str] = None,
    only_on: Optional[str] = None,
    except_on: Optional[str] = None,
    overlap: Optional[str] = None,
    misfire: Optional[str] = None,
    misfire_grace_ms: Union[int, str, timedelta, None] = None,
    catch_up_limit: Optional[int] = None,
    expires_ms: Union[int, str, timedelta, None] = None,
    max_attempts: Optional[int] = None,
    backoff_ms: Union[int, str, timedelta, None] = None,
    backoff_cap_ms: Union[int, str, timedelta, None] = None,
    timeout_ms: Union[int, str, timedelta, None] = None,
    jitter_ms: Union[int, str, timedelta, None] = None,
    priority: Optional[int] = None,
    concurrency_key: Optional[str] = None,
    max_starts: Optional[str] = None,
    when_limited: Optional[str] = None,
    on_dead: Optional[str] = None,
    on_success: Optional[str] = None,
    on_end: Optional[str] = None,
    on_missed: Optional[str] = None,
    pause_after_failures: Optional[int] = None,
    if_absent: bool = False,
    replace: bool = False,
) -> str:
    """Adds a task. Returns "created", "unchanged" or "replaced".

    `db` is the path of the database, or an open connection to it. On a connection, the task is part of the transaction
    of the application, which commits it: an outbox. Begin that transaction with `BEGIN IMMEDIATE` if it reads first.

    Exactly one schedule: `cron`, `on` (such as "every 2 weeks on mon at 09:00"), `every` (an interval), `delay` (again, this long after the end of each run), `at`
    (once), `in_` (once, this long from now), `now` (once) or `manual` (only when it is triggered). Durations are texts
    with units, or a `timedelta`; `every_seconds` and so on take numbers. A `datetime` without an offset is a local time
    in `time_zone`, which is then required; so is a text, in UTC by default. The other arguments are the columns of
    `scheduled_tasks`, described in schema.sql; `None` is the default of the column. Columns in milliseconds also take
    a `timedelta` or a text with units.

    A task of this name with the same definition is left unchanged. If it differs: `TaskExists`; with `if_absent` it is
    left unchanged; with `replace` it gets this definition. The time that `now` and `in_` stand for is not part of the
    definition, but `replace` moves the task to it. Wrong values raise `InvalidTask`.
    """
    if if_absent and replace:
        raise InvalidTask(f"cannot add task {name!r}: expected at most one of if_absent and replace, found both")
    request = f"add task {name!r}"
    kind, value, is_moving = schedule(
        request,
        {
            "cron": cron, "on": on, "every": every, "delay": delay, "at": at, "in_": in_, "now": now or None,
            "manual": manual or None, "every_seconds": every_seconds, "delay_seconds": delay_seconds,
            "at_seconds": at_seconds, "in_seconds": in_seconds, "after": after,
        },
        time_zone,
    )  # fmt: skip
    columns: Dict[str, Any] = {
        "name": name,
        "handler": handler,
        "payload": _payload(name, payload),
        "schedule_type": kind,
        "schedule_value": value,
        "time_zone": zone_name(request, time_zone),
        "starts_at": instant(request, "starts_at", starts_at),
        "ends_at": instant(request, "ends_at", ends_at),
        "only_between": only_between,
        "only_on": only_on,
        "except_on": except_on,
        "overlap": overlap,
        "misfire": misfire,
        "misfire_grace_ms": milliseconds(request, "misfire_grace_ms", misfire_grace_ms),
        "catch_up_limit": catch_up_limit,
        "expires_ms": milliseconds(request, "expires_ms", expires_ms),
        "max_attempts": max_attempts,
        "backoff_ms": milliseconds(request, "backoff_ms", backoff_ms),
        "backoff_cap_ms": milliseconds(request, "backoff_cap_ms", backoff_cap_ms),
        "timeout_ms": milliseconds(request, "timeout_ms", timeout_ms),
        "jitter_ms": milliseconds(request, "jitter_ms", jitter_ms),
        "priority": priority,
        "concurrency_key": concurrency_key,
        "max_starts": max_starts,
        "when_limited": when_limited,
        "on_dead": on_dead,
        "on_success": on_success,
        "on_end": on_end,
        "on_missed": on_missed,
        "pause_after_failures": pause_after_failures,
    }
    given = {column: value for column, value in columns.items() if value is not None}
    marks = ", ".join("?" * len(given))
    insert = f"INSERT INTO scheduled_tasks ({', '.join(given)}) VALUES ({marks}) ON CONFLICT (name) "
    values = tuple(given.values())
    with _connection(db) as connection:
        # The write comes first: a transaction that has read cannot write after another program has.
        if _write(connection, request, insert + "DO NOTHING", values):
            return "created"
        if if_absent:
            return "unchanged"
        if replace:
            changed = _write(connection, request, insert + f"DO UPDATE SET {_SET} WHERE {_DIFFERS}", values)
            return "replaced" if changed else "unchanged"
        # Changes nothing, and counts whether the definitions differ.
        differs = _DIFFERS_APART_FROM_TIME if is_moving else _DIFFERS
        if _write(connection, request, insert + f"DO UPDATE SET failure_count = failure_count WHERE {differs}", values):
            raise TaskExists(
                f"cannot add task {name!r}: it exists with another definition; choose another name, or pass "
                "replace=True or if_absent=True"
            )
        return "unchanged"


def trigger(db: Database, name: str, payload: object = None, key: Optional[str] = None) -> str:
    """Requests a run of a task now: the scheduler opens it within a second. Returns the name of the task that runs.

    Without `payload` and `key` the task itself becomes due, by its `next_run`. The run counts as an occurrence: the
    overlap policy applies to it, and the time of a task that runs once moves to now. A task that is due already is left
    unchanged.

    With a `payload` or a `key`, a task that runs once is added, named NAME/KEY, with the handler and the policies of
    the task, also if that is paused. A key that was used adds nothing. Without a `concurrency_key` it does not wait for
    runs of the task.

    Raises `UnknownTask`, or `InvalidTask` if the task is invalid, or has to run itself and is paused.
    """
    copy = None if payload is None and key is None else f"{name}/{uuid.uuid4() if key is None else key}"
    own = None if payload is None else _payload(name, payload)
    with _connection(db) as connection:
        if copy is None:
            if _write(connection, f"trigger task {name!r}", _RUN_NOW, (name,)):
                return name
        elif _write(connection, f"trigger task {name!r}", _RUN_COPY, (copy, own, name)):
            return copy
        rows = _rows(connection, "SELECT status, invalid_reason FROM scheduled_tasks WHERE name = ?", name)
    if not rows:
        raise UnknownTask(f"cannot trigger task {name!r}: no task has this name")
    status, reason = rows[0]
    if status == "invalid":
        raise InvalidTask(f"cannot trigger task {name!r}: it is invalid: {reason}")
    if copy is not None:
        return copy
    raise InvalidTask(f"cannot trigger task {name!r}: it is paused: resume it first, or pass a payload or a key")


def _write(connection: sqlite3.Connection, request: str, statement: str, values: Tuple[Any, ...]) -> bool:
    """Executes a statement on one task. Returns whether it changed a row."""
    try:
        return connection.execute(statement, values).rowcount == 1
    except _REFUSALS as error:
        if isinstance(error, sqlite3.ProgrammingError) and "bind" not in str(error):
            raise  # a closed connection, or one of another thread
        raise InvalidTask(f"cannot {request}: {error}; schema.sql describes the columns") from error


def _rows(connection: sqlite3.Connection, query: str, *values: object) -> List[Tuple[Any, ...]]:
    """Returns rows as tuples, whatever the rows of the connection of the application are."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor.execute(query, values).fetchall()


@contextmanager
def _connection(db: Database) -> Iterator[sqlite3.Connection]:
    """Yields a connection to tables of duly: that of the application, or one with a transaction of its own."""
    if sqlite3.sqlite_version_info < _SQLITE:
        raise UnusableDatabase(f"the tables of duly need SQLite 3.37 or newer, found {sqlite3.sqlite_version}")
    if isinstance(db, sqlite3.Connection):
        _check(db, "the database")
        yield db
        return
    path = os.path.abspath(os.fspath(db))
    if not os.path.isfile(path):
        raise UnusableDatabase(f"cannot open {path!r}: no such file; duly creates it")
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        _check(connection, repr(path))
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        # Without the COMMIT this rolls back.
        connection.close()


def _check(connection: sqlite3.Connection, shown: str) -> None:
    """Raises `UnusableDatabase` unless the file holds the tables of this version."""
    marks = "SELECT key, value FROM scheduler_meta WHERE key = 'program' OR key = 'schema_version'"
    try:
        found = dict(_rows(connection, marks))
    except sqlite3.DatabaseError as error:
        if "no such table" not in str(error) and "not a database" not in str(error):
            raise
        reason = f"{error}; duly creates its tables when it first opens a file"
        raise UnusableDatabase(f"cannot use {shown}: {reason}") from error
    if found.get("program") != "duly":
        raise UnusableDatabase(f"cannot use {shown}: its table scheduler_meta is not that of duly")
    if found.get("schema_version") != _TABLES:
        version = found.get("schema_version")
        raise UnusableDatabase(f"cannot use {shown}: expected tables of version {_TABLES}, found {version}")


def _payload(name: str, payload: object) -> str:
    try:
        return _messages.to_json(payload).decode("utf-8")
    except _messages.NotJson as error:
        raise InvalidTask(f"cannot use the payload for task {name!r}: it is not JSON: {error}") from error
