"""Child mode: this process is the application, and starts duly as its child, which hands it the runs of its handlers."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from types import TracebackType
from typing import IO, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Type

from ._session import Session
from .client import AsyncClient, Client, Path
from .errors import ProgramError
from .run import calling
from .worker import Handler, Worker

# The delay before the second start in seconds, doubled for each further one, up to the longest.
_BACKOFF, _LONGEST = 1.0, 60.0
# A life that lasts longer begins a new row of starts.
_PROOF = 60.0
# How often duly looks for what other processes have changed, unless `args` says something else.
_POLL = "200ms"


# The pipes to duly. A process that the application forks closes its copies: duly ends when those of the application are closed.
_pipes: List[IO[bytes]] = []


def _leave_pipes() -> None:
    for pipe in _pipes:
        pipe.close()
    _pipes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_pipes)


class Exit(NamedTuple):
    """Tells that duly has ended although nobody has asked it to."""

    #: "killed by SIGKILL" or "exit code 1".
    reason: str
    #: Seconds until it is started again.
    delay: float


class Application(Client):
    """A running duly, the child of this process."""

    _child: "_Child"

    def stop(self) -> None:
        """Lets runs finish, ends duly, and waits for its end. A handler of its own does not wait: duly waits for that."""
        self._child.stop()
        if not self._child.is_caller():
            self._child.over.wait()

    @property
    def pid(self) -> Optional[int]:
        """The pid of duly, while it runs."""
        return self._child.pid


class AsyncApplication(AsyncClient):
    """As `Application`, for asyncio."""

    _child: "_Child"

    async def stop(self) -> None:
        """Lets runs finish, ends duly, and waits for its end. A handler of its own does not wait: duly waits for that."""
        self._child.stop()
        if not self._child.is_caller():
            await _wait(self._child.over)

    @property
    def pid(self) -> Optional[int]:
        """The pid of duly, while it runs."""
        return self._child.pid


class Starter:
    """What `start` returns: `with` or `async with` starts duly and, at its end, stops it."""

    def __init__(self, db: Path, handlers: Mapping[str, Handler], options: Dict[str, Any]) -> None:
        worker = Worker(options.pop("concurrency"))
        for name, function in handlers.items():
            worker.add_handler(name, function)
        # The application may change its folder later.
        path = os.fspath(db)
        self._db = os.path.abspath(path) if isinstance(path, str) and path and not _is_address(path) else db
        self._worker, self._options = worker, options
        self._application: Optional[Application] = None
        self._async: Optional[AsyncApplication] = None

    def __enter__(self) -> Application:
        application = Application(self._db, self._options["program"])
        application._child = _Child(application.program, application.database, self._worker, self._options, None)
        application._child.start()
        application._child.settled.wait()
        application._child.check()
        self._application = application
        return application

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._application is not None:
            self._application.stop()

    async def __aenter__(self) -> AsyncApplication:
        application = AsyncApplication(self._db, self._options["program"])
        loop = asyncio.get_running_loop()
        application._child = _Child(application.program, application.database, self._worker, self._options, loop)
        application._child.start()
        try:
            await _wait(application._child.settled)
        except BaseException:
            application._child.stop()
            raise
        application._child.check()
        self._async = application
        return application

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._async is not None:
            await self._async.stop()


def start(
    db: Path,
    handlers: Mapping[str, Handler],
    *,
    concurrency: int = 10,
    args: Sequence[str] = (),
    on_exit: Optional[Callable[[Exit], object]] = None,
    program: Optional[str] = None,
    log: Optional[IO[Any]] = None,
) -> Starter:
    """Starts duly as a child of this process, and serves handlers here: `with` or `async with`.

    Plain functions run in threads. Within `async with`, coroutine functions run on the loop of the application.
    `args`: further arguments of `duly run`, such as `--http=127.0.0.1:8629`. `on_exit`: called when duly has ended by
    itself; it is started again. `log`: where duly writes its log, by default standard error.
    """
    options = {"concurrency": concurrency, "args": list(args), "on_exit": on_exit, "program": program, "log": log}
    return Starter(db, handlers, options)


class _Child:
    """The child, started again when it ends; watched by a thread."""

    def __init__(
        self, program: str, database: str, worker: Worker, options: Mapping[str, Any],
        loop: Optional[asyncio.AbstractEventLoop],
    ) -> None:  # fmt: skip
        self._program, self._database, self._worker, self._loop = program, database, worker, loop
        args: List[str] = options["args"]
        polls = any(arg.startswith("--poll") for arg in args)
        self._args = args if polls else ["--poll", _POLL, *args]
        self._on_exit: Optional[Callable[[Exit], object]] = options["on_exit"]
        self._log: Optional[IO[Any]] = options["log"]
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._session: Optional[Session] = None
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._error: Optional[str] = None
        #: The last call of `on_exit`: a loop keeps no task alive.
        self._told: Optional["asyncio.Task[Any]"] = None
        #: It takes runs, or has failed to.
        self.settled = threading.Event()
        #: It has ended, and is not started again.
        self.over = threading.Event()

    @property
    def pid(self) -> Optional[int]:
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        threading.Thread(target=self._supervise, name="duly-child", daemon=True).start()

    def check(self) -> None:
        """Raises the reason why the first start has failed."""
        if self._error is not None:
            raise ProgramError(f"duly did not start: {self._error}; its log says why")

    def stop(self) -> None:
        self._stopping.set()
        with self._guard:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def is_caller(self) -> bool:
        """Whether one of its handlers calls, which has not returned."""
        run, session = calling.get(), self._session
        return run is not None and session is not None and session.has(run)

    def _supervise(self) -> None:
        starts = 0
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    how = self._live()
                except Exception as error:
                    how = f"it cannot be started: {error or type(error).__name__}"
                if not self.settled.is_set():
                    self._error = how
                    return
                if self._stopping.is_set():
                    return
                starts = 1 if time.monotonic() - began >= _PROOF else starts + 1
                delay = min(_BACKOFF * 2 ** (starts - 1), _LONGEST)
                self._tell(Exit(how, delay))
                self._stopping.wait(delay)
        finally:
            self.settled.set()
            self.over.set()

    def _tell(self, end: Exit) -> None:
        if self._on_exit is None:
            sys.stderr.write(f"duly: duly has ended: {end.reason}; it is started again in {end.delay:g} s\n")
        elif self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._call, self._on_exit, end)
            except RuntimeError:
                pass  # the loop is closed
        else:
            self._call(self._on_exit, end)

    def _call(self, on_exit: Callable[[Exit], object], end: Exit) -> None:
        try:
            result = on_exit(end)
            if asyncio.iscoroutine(result):
                if self._loop is None:
                    result.close()
                    raise TypeError("a coroutine function needs `async with`")
                self._told = self._loop.create_task(result)
        except Exception as error:
            sys.stderr.write(f"duly: on_exit failed: {error!r}\n")

    def _live(self) -> str:
        """Starts the child, and returns how it has ended."""
        path = _lock_path(self._database)
        # While this process has the file open, its lock shows that it may run handlers: no scheduler starts their runs.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        idle: Optional[threading.Event] = None
        pipes: List[IO[bytes]] = []
        try:
            _lock(file)
            with self._guard:
                if self._stopping.is_set():
                    return "stopped"
                # A database that has gone since is not made anew: its tasks would be missing.
                create = [] if self.settled.is_set() else ["--create"]
                process = subprocess.Popen(
                    [self._program, "--db", self._database, "run", *create, "--worker", "-", *self._args],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
                    env={**os.environ, "DULY_WORKER_FILE": path},
                    # The signals of a terminal reach the application, which decides.
                    start_new_session=True,
                )  # fmt: skip
                self._process = process
            assert process.stdin is not None and process.stdout is not None
            pipes = [process.stdin, process.stdout]
            _pipes.extend(pipes)
            stdin = process.stdin

            def leave(how: str, reason: Optional[str], running: int) -> None:
                if how == "failed":
                    sys.stderr.write(f"duly: {reason}\n")
                session.close()
                # After a broken rule no message follows: duly ends when its input does.
                try:
                    stdin.close()
                except OSError:
                    pass

            session = Session(
                dict(self._worker._handlers), self._worker.concurrency,
                process.stdout.fileno(), stdin.fileno(), leave, self._loop,
            )  # fmt: skip
            self._session = session
            idle = session.idle
            session.on_welcome = self.settled.set
            session.begin()
            code = process.wait()
            # What it wrote before its end is read first.
            session.end()
            process.stdout.close()
            return _how(code)
        finally:
            self._process = None
            for pipe in pipes:
                _pipes.remove(pipe)
            _release(file, path, idle)


def _release(file: int, path: str, idle: Optional[threading.Event]) -> None:
    """Closes the lock when no handler runs any more."""

    def release() -> None:
        if idle is not None:
            idle.wait()
        os.close(file)
        try:
            os.unlink(path)
        except OSError:
            pass  # duly has moved it

    if idle is None or idle.is_set():
        release()
    else:
        threading.Thread(target=release, name="duly-release", daemon=True).start()


def _lock(file: int) -> None:
    import fcntl  # not on Windows

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_address(database: str) -> bool:
    return database.startswith(("postgres:", "postgresql:"))


def _lock_path(database: str) -> str:
    """Returns the path of a new file on the file system of the folder where duly keeps its locks."""
    folder = os.path.dirname(os.path.realpath(database))
    if _is_address(database):
        state = os.environ.get("XDG_STATE_HOME")
        of_user = "/var/lib/duly" if os.geteuid() == 0 else os.path.expanduser("~/.local/state/duly")
        folder = os.environ.get("DULY_STATE_DIR") or (os.path.join(state, "duly") if state else of_user)
        os.makedirs(folder, 0o700, exist_ok=True)
    return os.path.join(folder, f".duly-application-{os.getpid()}-{uuid.uuid4()}")


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


async def _wait(event: threading.Event) -> None:
    """Waits for an event of another thread."""
    while not event.is_set():
        await asyncio.sleep(0.005)
