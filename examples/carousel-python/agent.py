"""A bot that posts five pictures to each of its chats three times a day: each picture once, even if it is killed.

It is a worker of duly, which starts it (see README.md). It keeps its own tables in the database of duly.
"""

import argparse
import os
import sqlite3
import sys
from contextlib import contextmanager
from datetime import timedelta

import duly

CHATS = ("family", "climbing-club")
PICTURES = 5
# The outbox of a mail program: outside of the database.
NEWS = "news.txt"

TABLES = """
    CREATE TABLE IF NOT EXISTS posts (id INTEGER PRIMARY KEY, chat TEXT, picture TEXT, key TEXT) STRICT;
    CREATE TABLE IF NOT EXISTS finished_keys (key TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
"""


@contextmanager
def database(path):
    """Yields a connection whose transaction is committed at the end, and rolled back after an exception."""
    connection = sqlite3.connect(path, timeout=5, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def post(path, key, chat, picture):
    """Posts a picture, unless an earlier attempt has: its row and its key are committed together."""
    with database(path) as connection:
        new = connection.execute("INSERT INTO finished_keys (key) VALUES (?) ON CONFLICT DO NOTHING", (key,))
        if new.rowcount == 1:
            connection.execute("INSERT INTO posts (chat, picture, key) VALUES (?, ?, ?)", (chat, picture, key))
        return new.rowcount == 1


def carousel(run, pause):
    """Carries out one attempt."""
    chat = run.payload["chat"]
    posted = 0
    for number in range(1, PICTURES + 1):
        # The key is the same in all attempts of the run.
        posted += post(run.database, f"{run.idempotency_key}/{number}", chat, f"picture {number}")
        run.progress(f"{number} of {PICTURES} pictures")
        # Drawing the next picture takes a while. The end of duly interrupts it.
        run.cancelled.wait(pause)
        run.cancelled.raise_if_set()

    # A file takes part in no transaction. The intent is stored first, and if the bot dies here, the file is read.
    news = os.path.join(os.path.dirname(run.database), NEWS)
    run.effect(
        "news",
        lambda: announce(news, run.idempotency_key),
        look_up=lambda: duly.Performed(None) if is_announced(news, run.idempotency_key) else None,
    )
    return {"chat": chat, "posted": posted}


def announce(news, key):
    """Sends the news that a carousel is posted: one line, in one write."""
    file = os.open(news, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, f"{key}\n".encode())
    finally:
        os.close(file)


def is_announced(news, key):
    """Returns whether the news was sent."""
    try:
        with open(news, encoding="utf-8") as lines:
            return f"{key}\n" in lines
    except FileNotFoundError:
        return False


def main():
    options = argparse.ArgumentParser(description="A worker of duly that posts pictures.")
    options.add_argument("--fast", action="store_true", help="a day lasts twenty seconds")
    fast = options.parse_args().fast
    cron = "0,7,14,20,27,34,40,47,54 * * * * *" if fast else "0 9,13,18 * * *"
    pause = 0.3 if fast else 30

    path = os.environ["DULY_DB"]
    with database(path) as connection:
        for statement in TABLES.split(";"):
            connection.execute(statement)
        for chat in CHATS:
            # The code defines the tasks: an equal task is left unchanged, an edited one takes effect.
            duly.add(
                connection,
                name=f"carousel:{chat}",
                handler="carousel",
                payload={"chat": chat},
                cron=cron,
                time_zone="Europe/Rome",
                # One message per chat at a time. Other tasks for the same chat can share the key.
                concurrency_key=f"chat:{chat}",
                # A slow post delays the next one; by default the next one would be skipped, with a row.
                overlap="buffer_all",
                backoff_ms=timedelta(seconds=1) if fast else timedelta(seconds=30),
                replace=True,
            )
    print(f"carousel agent {os.getpid()} is ready", file=sys.stderr, flush=True)
    duly.run_worker({"carousel": lambda run: carousel(run, pause)}, concurrency=len(CHATS))


if __name__ == "__main__":
    main()
