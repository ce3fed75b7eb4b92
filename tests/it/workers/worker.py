"""The handlers of docs/workers.md, "Testing a client", with the client for Python: functions, or with `async` coroutines."""

import asyncio
import functools
import os
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../clients/python/src"))

import duly  # noqa: E402

ASYNC = "async" in sys.argv


def echo(run):
    return run.payload


def fail(run):
    error, retry = run.payload["error"], run.payload.get("retry", True)
    if retry is False:
        raise duly.GiveUp(error)
    if isinstance(retry, str):
        raise duly.RetryAfter(retry, error)
    raise RuntimeError(error)


def wait(run):
    run.cancelled.wait()
    raise RuntimeError(run.cancelled.reason)


async def wait_async(run):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise RuntimeError(run.cancelled.reason) from None


def finish(run):
    run.progress("waiting")
    run.cancelled.wait()
    return run.cancelled.reason


async def finish_async(run):
    run.progress("waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return run.cancelled.reason


def ignore(run):
    while True:
        time.sleep(3600)


async def ignore_async(run):
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


def progress(run):
    for text in run.payload:
        run.progress(text)


def perform(payload):
    if payload.get("failed"):
        raise RuntimeError("not performed")
    return payload["value"]


def look_up(payload):
    return duly.Performed(payload["found"]) if "found" in payload else None


def effect(run):
    return run.effect(run.payload["key"], lambda: perform(run.payload))


def found(run):
    return run.effect(run.payload["key"], lambda: perform(run.payload), lambda: look_up(run.payload))


async def effect_async(run):
    return await run.effect_async(run.payload["key"], lambda: perform(run.payload))


async def found_async(run):
    return await run.effect_async(run.payload["key"], lambda: perform(run.payload), lambda: look_up(run.payload))


def context(run):
    return {
        "run": run.run_id,
        "attempt": run.attempt,
        "task": run.task,
        "payload": run.payload,
        "scheduled_for": run.scheduled_for.isoformat(),
        "origin": run.origin,
        "idempotency_key": run.idempotency_key,
        "deadline": run.deadline and run.deadline.isoformat(),
    }


def large(run):
    if "progress" in run.payload:
        run.progress("p" * run.payload["progress"])
    if "error" in run.payload:
        raise RuntimeError("e" * run.payload["error"])
    return "r" * run.payload.get("result", 0)


def prints(run):
    print(run.payload, flush=True)
    os.write(1, f"{run.payload}\n".encode())
    run.log("info", run.payload)


def coroutine(function):
    @functools.wraps(function)
    async def run_async(run):
        return function(run)

    return run_async


handlers = {
    "echo": echo, "fail": fail, "wait": wait, "finish": finish, "ignore": ignore, "progress": progress, "effect": effect,
    "found": found, "context": context, "large": large, "print": prints,
}
if ASYNC:
    coroutines = {name: coroutine(function) for name, function in handlers.items()}
    coroutines |= {"wait": wait_async, "finish": finish_async, "ignore": ignore_async, "effect": effect_async, "found": found_async}
    handlers = coroutines
if "application" in sys.argv:
    # What it prints would reach the kit.
    del handlers["print"]
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "duly.py")
    kit = os.path.join(tempfile.gettempdir(), "kit.db")
    arguments = {"concurrency": 8, "program": program, "on_exit": lambda end: os._exit(end.reason != "exit code 0")}

    async def serve():
        async with duly.start(kit, handlers, **arguments):
            await asyncio.Event().wait()

    if ASYNC:
        asyncio.run(serve())
    else:
        with duly.start(kit, handlers, **arguments):
            threading.Event().wait()
else:
    duly.run_worker(handlers, concurrency=8)
