"""procrastinate: a worker with 20 jobs at once for each connection. Jobs that have ended are kept."""

import asyncio
import json
import logging
import sys
import time
from datetime import datetime, timedelta, timezone

import procrastinate

BATCH = 100


async def main(workload, count, connections, folder, database):
    server = {"host": folder, "user": "postgres", "dbname": database}
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(kwargs=server, max_size=4 + 2 * connections))
    done = 0

    @app.task(name="none")
    async def none(n):
        nonlocal done
        done += 1

    tomorrow = {"schedule_at": datetime.now(timezone.utc) + timedelta(days=1)}

    async def add(**options):
        for first in range(0, count, BATCH):
            jobs = [{"n": n} for n in range(first, min(first + BATCH, count))]
            await none.configure(**options).batch_defer_async(*jobs)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        if workload == "drain":
            await add()
            begin = time.perf_counter()
            worker = {"concurrency": 20, "wait": False, "listen_notify": False, "install_signal_handlers": False}
            await asyncio.gather(*(app.run_worker_async(**worker) for _ in range(connections)))
        else:
            done = count
            begin = time.perf_counter()
            if workload == "add-one":
                for n in range(count):
                    await none.configure(**tomorrow).defer_async(n=n)
            else:
                await add(**tomorrow)
        seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "jobs": done}))


logging.disable(logging.ERROR)
workload, count, connections, folder, database = sys.argv[1:]
asyncio.run(main(workload, int(count), int(connections), folder, database))
