"""APScheduler with its SQLAlchemyJobStore: ten threads, a commit for each job. A job's row is deleted when its handler is
handed to a thread; nothing is kept of an outcome. See ../README.md."""

import json
import sqlite3
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from sqlalchemy import create_engine, event

UNAVAILABLE = 3
LONG_AGO = datetime(2025, 1, 1, tzinfo=timezone.utc)
PATIENCE = 900
WAL = ["journal_mode = WAL"]

calls = 0
lock = threading.Lock()


def nothing():
    global calls
    with lock:
        calls += 1


class Filler(BaseScheduler):
    """Only adds. A paused BackgroundScheduler runs what is due when it is shut down."""

    def wakeup(self):
        pass

    def shutdown(self, wait=True):
        super().shutdown(wait)


def engine_for(file, pragmas):
    engine = create_engine(f"sqlite:///{file}")

    @event.listens_for(engine, "connect")
    def configure(connection, _):
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    return engine


def started(kind, engine):
    """Returns a scheduler that has started and is paused."""
    scheduler = kind(jobstores={"default": SQLAlchemyJobStore(engine=engine)}, timezone=timezone.utc)
    scheduler.start(paused=True)
    return scheduler


def add(to, due, count):
    for _ in range(count):
        to.add_job(nothing, "date", run_date=due, misfire_grace_time=None)


def stored(file):
    connection = sqlite3.connect(file)
    try:
        return connection.execute("SELECT count(*) FROM apscheduler_jobs").fetchone()[0]
    finally:
        connection.close()


class Watch:
    def __init__(self):
        self.cpu, self.begin = time.process_time(), time.perf_counter()

    def end(self):
        return time.perf_counter() - self.begin, time.process_time() - self.cpu


def drain(file, pragmas, count):
    filling = engine_for(file, pragmas + ["synchronous = OFF"])
    add(started(Filler, filling), LONG_AGO, count)
    filling.dispose()
    assert stored(file) == count, "all of them are stored"

    engine = engine_for(file, pragmas)
    scheduler = started(BackgroundScheduler, engine)
    watch = Watch()
    scheduler.resume()
    deadline = time.monotonic() + PATIENCE
    # The last row is deleted after the last handler is handed over.
    while calls < count or stored(file) > 0:
        assert time.monotonic() < deadline, f"{calls} of {count} in time"
        time.sleep(0.001)
    cost = watch.end()
    assert calls == count, "each once"
    return cost, engine, scheduler


def add_one(file, pragmas, count):
    engine = engine_for(file, pragmas)
    scheduler = started(BackgroundScheduler, engine)
    watch = Watch()
    add(scheduler, datetime.now(timezone.utc) + timedelta(days=1), count)
    cost = watch.end()
    assert stored(file) == count, "all of them are stored"
    return cost, engine, scheduler


def main():
    workload, count, level, file = sys.argv[1:]
    pragmas = {"normal": WAL + ["synchronous = NORMAL"], "full": WAL + ["synchronous = FULL"], "shipped": []}[level]
    if workload == "add-batch":
        print("APScheduler has no call that adds several jobs", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    (seconds, cpu), engine, scheduler = {"drain": drain, "add-one": add_one}[workload](file, pragmas, int(count))
    connection = engine.raw_connection()
    read = lambda name: connection.execute(f"PRAGMA {name}").fetchone()[0]
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu,
                "jobs": int(count),
                "journal_mode": read("journal_mode"),
                "synchronous": read("synchronous"),
                "sqlite": sqlite3.sqlite_version,
            }
        )
    )
    connection.close()
    scheduler.shutdown()


main()
