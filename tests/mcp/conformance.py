"""Drives `duly mcp` with the official Python client of the Model Context Protocol: `DULY_BIN=duly python3 conformance.py`.

Both kinds of versions, every tool, errors, cancellation, two requests at once, and 1 MB of junk before the first request.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import anyio
from mcp import Client, MCPError, StdioServerParameters

DULY = os.environ["DULY_BIN"]
SCOPE = "agent:anna/"
TOOLS = [
    "list_tasks", "show_task", "preview", "history", "run_output", "check", "schedule_task", "trigger_task", "retry_run", "pause_task",
    "resume_task", "cancel_run", "cancel_task",
]
JUNK = "{ head -c 1000000 /dev/zero | tr '\\0' x; echo; cat; } | "


def options(home: Path) -> list[str]:
    allow = ["--allow", "add,trigger,pause,cancel,remove", "--scope", SCOPE, "--handlers", "remind"]
    return ["--db", str(home / "agent.db"), "mcp", *allow, "--tz", "Europe/Rome", "--max-tasks", "20"]


async def done(client: Client, tool: str, **arguments: object) -> dict:
    """Calls a tool that must do what it is asked."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, f"{tool}: {result.content}"
    assert result.content[0].text, tool
    assert isinstance(result.structured_content["next"], list), tool
    return result.structured_content


async def refused(client: Client, tool: str, says: str, **arguments: object) -> None:
    result = await client.call_tool(tool, arguments)
    assert result.is_error and says in result.content[0].text, f"{tool}: {result.content}"


async def every_tool(client: Client) -> None:
    listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == TOOLS
    name = SCOPE + "water"
    preview = await done(client, "preview", schedule="every weekday at 7:30")
    assert preview["schedule"]["value"] == "30 7 * * 1-5" and len(preview["occurrences"]) == 5
    task = {"name": name, "schedule": "every weekday at 7:30", "handler": "remind", "payload": {"text": "water"}}
    assert (await done(client, "schedule_task", **task, dry_run=True))["dry_run"]
    assert (await done(client, "schedule_task", **task))["change"] == "added"
    assert (await done(client, "schedule_task", **task))["change"] == "unchanged"
    assert [one["name"] for one in (await done(client, "list_tasks"))["tasks"]] == [name]
    run = (await done(client, "trigger_task", name=name, key="one"))["run"]
    assert (await done(client, "run_output", run=run))["run"]["status"] == "queued"
    await done(client, "cancel_run", run=run)
    assert (await done(client, "retry_run", run=run))["run"] > run
    await done(client, "pause_task", name=name)
    shown = await done(client, "show_task", name=name)
    assert shown["task"]["status"] == "paused" and shown["events"]
    why = await done(client, "history", name=name, around="13:00")
    assert why["reasons"]
    assert (await done(client, "history"))["runs"]
    await done(client, "resume_task", name=name)
    assert "problems" in await done(client, "check")
    await done(client, "cancel_task", name=name)
    assert (await done(client, "list_tasks"))["tasks"] == []


async def errors(client: Client) -> None:
    await refused(client, "show_task", "there is no task", name="payroll")
    await refused(client, "preview", "arguments.count", schedule="@daily", count=1000)
    await refused(client, "preview", "arguments.schedule", schedule="x" * 1_000_000)
    await refused(client, "schedule_task", "handler: expected one of remind", name=SCOPE + "x", schedule="@daily", handler="command")
    for call in (client.call_tool("rm", {}), client.read_resource("file:///etc/passwd")):
        try:
            await call
        except MCPError as error:
            assert error.error.code == -32602, error
        else:
            raise AssertionError("expected an error")
    resources = await client.list_resources()
    assert [str(one.uri) for one in resources.resources] == ["duly://reference"]
    assert "remind" in (await client.read_resource("duly://reference")).contents[0].text


async def at_once(client: Client) -> None:
    """A cancelled request leaves its place to others: there are only 16. Meanwhile, other requests are answered."""
    name = SCOPE + "wait"
    await done(client, "schedule_task", name=name, schedule="manual", handler="remind", payload=None)
    run = (await done(client, "trigger_task", name=name))["run"]
    for _ in range(20):
        with anyio.move_on_after(0.05):
            await client.call_tool("run_output", {"run": run, "wait_seconds": 60})
            raise AssertionError("the run has not ended")
    ended: list[str] = []

    async def wait() -> None:
        ended.append((await done(client, "run_output", run=run, wait_seconds=60))["run"]["status"])

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(wait)
            assert len((await done(client, "list_tasks"))["tasks"]) == 1 and ended == []
            await done(client, "cancel_run", run=run)
    assert ended == ["cancelled", "cancelled"]
    await done(client, "cancel_task", name=name)


async def main() -> None:
    for mode, version in (("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28"), ("auto", "2026-07-28")):
        for junk in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder)
                words = [DULY, *options(home)]
                if junk:
                    quoted = " ".join(f"'{word}'" for word in words)
                    words = ["sh", "-c", JUNK + quoted]
                server = StdioServerParameters(command=words[0], args=words[1:])
                async with Client(server, mode=mode) as client:
                    assert client.protocol_version == version, client.protocol_version
                    await every_tool(client)
                    await errors(client)
                    await at_once(client)
                subprocess.run([DULY, "--db", str(home / "agent.db"), "doctor"], check=True, stdout=subprocess.DEVNULL)
            print(f"passed: the Python client, {mode}: {version}{', after 1 MB of junk' if junk else ''}")


anyio.run(main)
