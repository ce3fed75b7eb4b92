"""Clients that ask the program duly: every rule is that of the command line, on files and on servers."""

import asyncio
import os
import subprocess
from datetime import datetime
from typing import Any, Dict, List, Optional, Union

from . import _program
from ._program import Request
from .errors import ProgramError

Row = Dict[str, Any]
Path = Union[str, "os.PathLike[str]"]


class _Database:
    """What both clients share: the database, and the program."""

    def __init__(self, db: Path, program: Optional[str] = None) -> None:
        self.database = os.fspath(db)
        if not isinstance(self.database, str) or not self.database:
            raise TypeError(f"expected a path or an address of a database, found {db!r}")
        self.program = program or _program.find_program()


class Client(_Database):
    """A database, through the program. Each call starts it, and returns what it prints: rows with the names of columns."""

    def add(self, *, name: str, handler: str, payload: object = None, **options: Any) -> Row:
        """Adds a task, with the arguments of `duly.add`. The database is created if there is none."""
        row: Row = self._ask(_program.added(name, handler, payload, options))
        return row

    def trigger(
        self, name: str, payload: object = None, key: Optional[str] = None, *, wait: bool = False,
        timeout: Optional[float] = None,
    ) -> Row:  # fmt: skip
        """Opens a run of a task, and returns it. `key`: an idempotency key: the first request with it opens the run.

        `wait`: returns when the run has ended, whatever its end. `timeout`: in seconds; then `TimeoutError`, and the
        run goes on.
        """
        row: Row = self._ask(_program.triggered(name, payload, key, wait), timeout)
        return row

    def cancel(self, run: Union[str, int]) -> Row:
        """Cancels a run, by its id, or all unfinished runs of a task."""
        row: Row = self._ask(_program.about("cancel", run))
        return row

    def pause(self, name: str) -> Row:
        """Pauses a task."""
        row: Row = self._ask(_program.about("pause", name))
        return row

    def resume(self, name: str) -> Row:
        """Resumes a paused task."""
        row: Row = self._ask(_program.about("resume", name))
        return row

    def remove(self, name: str, *, cancel: bool = False) -> Row:
        """Deletes a task with its history. `cancel`: its unfinished runs are cancelled first."""
        row: Row = self._ask(_program.about("remove", name, *(["--cancel"] if cancel else [])))
        return row

    def list(self) -> List[Row]:
        """Returns the tasks."""
        rows: List[Row] = self._ask(Request("list tasks", ["list"]))
        return rows

    def show(self, name: str) -> Row:
        """Returns a task, with its next occurrences and last runs."""
        row: Row = self._ask(_program.about("show", name))
        return row

    def history(
        self, name: Optional[str] = None, *, status: Optional[str] = None, since: Union[str, datetime, None] = None,
        limit: Optional[int] = None,
    ) -> "List[Row]":  # fmt: skip
        """Returns runs with their results, newest first; at most `limit`, 20 by default."""
        rows: List[Row] = self._ask(_program.history(name, status, since, limit))
        return rows

    def _ask(self, request: Request, timeout: Optional[float] = None) -> Any:
        command = _program.command(self.program, self.database, request)
        try:
            done = subprocess.run(command, input=request.payload, capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"cannot {request.what}: it has not ended within {timeout} s") from None
        except OSError as error:
            raise ProgramError(f"cannot {request.what}: cannot start {self.program}: {error}") from error
        return request.answer(self.program, done.returncode, done.stdout, done.stderr)


class AsyncClient(_Database):
    """As `Client`, for asyncio. A call that is cancelled ends the program that it has started."""

    async def add(self, *, name: str, handler: str, payload: object = None, **options: Any) -> Row:
        """Adds a task, as `Client.add`."""
        row: Row = await self._ask(_program.added(name, handler, payload, options))
        return row

    async def trigger(
        self, name: str, payload: object = None, key: Optional[str] = None, *, wait: bool = False,
        timeout: Optional[float] = None,
    ) -> Row:  # fmt: skip
        """Opens a run of a task, as `Client.trigger`."""
        asked = self._ask(_program.triggered(name, payload, key, wait))
        try:
            row: Row = await asyncio.wait_for(asked, timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"cannot trigger task {name!r}: it has not ended within {timeout} s") from None
        return row

    async def cancel(self, run: Union[str, int]) -> Row:
        """Cancels runs, as `Client.cancel`."""
        row: Row = await self._ask(_program.about("cancel", run))
        return row

    async def pause(self, name: str) -> Row:
        """Pauses a task."""
        row: Row = await self._ask(_program.about("pause", name))
        return row

    async def resume(self, name: str) -> Row:
        """Resumes a paused task."""
        row: Row = await self._ask(_program.about("resume", name))
        return row

    async def remove(self, name: str, *, cancel: bool = False) -> Row:
        """Deletes a task, as `Client.remove`."""
        row: Row = await self._ask(_program.about("remove", name, *(["--cancel"] if cancel else [])))
        return row

    async def list(self) -> List[Row]:
        """Returns the tasks."""
        rows: List[Row] = await self._ask(Request("list tasks", ["list"]))
        return rows

    async def show(self, name: str) -> Row:
        """Returns a task, with its next occurrences and last runs."""
        row: Row = await self._ask(_program.about("show", name))
        return row

    async def history(
        self, name: Optional[str] = None, *, status: Optional[str] = None, since: Union[str, datetime, None] = None,
        limit: Optional[int] = None,
    ) -> "List[Row]":  # fmt: skip
        """Returns runs with their results, as `Client.history`."""
        rows: List[Row] = await self._ask(_program.history(name, status, since, limit))
        return rows

    async def _ask(self, request: Request) -> Any:
        command = _program.command(self.program, self.database, request)
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise ProgramError(f"cannot {request.what}: cannot start {self.program}: {error}") from error
        try:
            out, err = await process.communicate(request.payload)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
            raise
        return request.answer(self.program, process.returncode or 0, out, err)
