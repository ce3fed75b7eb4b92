"""A bot whose library owns the process. Reminders are tasks of duly, its child."""

import asyncio
import os
import subprocess
import sys

import duly
from gateway import Gateway


async def main(file):
    gateway = Gateway()

    async def remind(run):
        # Once, however often the run is retried. A post of which nobody knows whether it was sent is not repeated.
        return await run.effect_async("post", lambda: gateway.post(run.payload["to"], run.payload["text"]))

    def on_exit(end):
        print(f"duly has ended ({end.reason}); again in {end.delay} s", file=sys.stderr)

    log = None if os.environ.get("BOT_LOG") == "1" else subprocess.DEVNULL
    async with duly.start(file, {"remind": remind}, concurrency=4, on_exit=on_exit, log=log) as d:

        async def on_message(text):
            command, *words = text.split(" ")
            if command == "remind":
                to, delay, *rest = words
                name = f"remind/{to}/{'-'.join(rest)}"
                try:
                    task = await d.add(name=name, handler="remind", payload={"to": to, "text": " ".join(rest)}, in_=delay)
                    await gateway.post(to, f"I will remind you at {task['schedule_value']}")
                except duly.Error as error:
                    await gateway.post(to, f"no: {error}")
            elif command == "list":
                for task in await d.list():
                    await gateway.post("list", f"{task['name']} {task['status']} {task['next_run'] or '-'}")
            elif command == "forget":
                try:
                    await d.remove(words[0])
                except duly.Error as error:
                    await gateway.post("forget", f"no: {error}")

        await gateway.run(on_message)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "bot.db"))
