"""The program duly: where it is, and what it answers."""

import json
import os
import re
import shutil
import site
import sysconfig
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

from . import _messages
from ._schedule import Zone, instant, milliseconds, schedule, zone_name
from .errors import Error, InvalidTask, ProgramError, TaskExists, UnknownRun, UnknownTask, UnusableDatabase

_UNKNOWN_TASK = re.compile(r"(there is )?no task\b|unknown task")
_UNKNOWN_RUN = re.compile(r"there is no run\b|unknown run")
_EXISTS = re.compile(r"already exists|exists with|another payload|differs in")
# The arguments of a task beside its schedule, with the options of the command line.
_OPTIONS = {
    "only_between": "only-between", "only_on": "only-on", "except_on": "except",
    "overlap": "overlap", "misfire": "misfire", "misfire_grace_ms": "misfire-grace",
    "catch_up_limit": "catch-up-limit", "expires_ms": "expires", "max_attempts": "max-attempts",
    "backoff_ms": "backoff", "backoff_cap_ms": "backoff-cap", "timeout_ms": "timeout", "jitter_ms": "jitter",
    "priority": "priority", "concurrency_key": "key", "max_starts": "max-starts", "when_limited": "when-limited", "on_dead": "on-dead",
    "on_success": "on-success", "on_end": "on-end", "on_missed": "on-missed",
    "pause_after_failures": "pause-after-failures",
}  # fmt: skip
_SCHEDULES = (
    "cron", "on", "every", "delay", "at", "in_", "now", "manual", "every_seconds", "delay_seconds", "at_seconds",
    "in_seconds", "after",
)  # fmt: skip
_OF_TYPE = {"cron": "--cron", "calendar": "--on", "interval": "--every", "delay": "--after", "once": "--at"}


def find_program() -> str:
    """Returns the program duly: that of this package, else DULY_BIN, else that on the PATH. Raises `ProgramError`."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Where pip puts the program beside this package: with `--user`, in an environment or for the system, and with `--target`.
    is_of_user = here == site.getusersitepackages()
    scripts = sysconfig.get_path("scripts", f"{os.name}_user") if is_of_user else sysconfig.get_path("scripts")
    for folder in (scripts, os.path.join(here, "bin")):
        own = os.path.join(folder, "duly.exe" if os.name == "nt" else "duly")
        if os.access(own, os.X_OK):
            return own
    found = os.environ.get("DULY_BIN") or shutil.which("duly")
    if not found:
        raise ProgramError("no program duly: install a package that holds it, set DULY_BIN, or put it on the PATH")
    return found


class Request:
    """One call of the program."""

    def __init__(
        self, what: str, arguments: List[str], payload: Optional[bytes] = None, may_fail: bool = False
    ) -> None:
        self.what = what
        self.arguments = arguments
        self.payload = payload or b""
        #: An exit code of 1 with an answer is none of the call: the run has failed.
        self.may_fail = may_fail

    def answer(self, program: str, code: int, out: bytes, err: bytes) -> Any:
        """Returns the JSON that the program printed, or raises its error."""
        if code == 0 or (self.may_fail and code == 1 and out):
            return json.loads(out) if out else None
        # The first paragraph: the usage follows.
        said = err.decode("utf-8", "replace").strip().split("\n\n")[0]
        said = said[len("error: ") :] if said.startswith("error: ") else said
        said = said or f"{program} ended with exit code {code}"
        raise _kind(code, said)(said if said.startswith("cannot ") else f"cannot {self.what}: {said}")


def _kind(code: int, said: str) -> Type[Error]:
    if code == 4:
        return UnusableDatabase
    if _UNKNOWN_TASK.match(said):
        return UnknownTask
    if _UNKNOWN_RUN.match(said):
        return UnknownRun
    return TaskExists if _EXISTS.search(said) else InvalidTask


def added(name: str, handler: str, payload: object, given: Mapping[str, Any]) -> Request:
    """Returns the request that adds a task."""
    what = f"add task {name!r}"
    options: Dict[str, Any] = dict(given)
    unknown = set(options) - set(_OPTIONS) - set(_SCHEDULES) - _OTHERS
    if unknown:
        raise TypeError(f"cannot {what}: {sorted(unknown)[0]} is no part of a task")
    zone: Zone = options.get("time_zone")
    named = {key: options.get(key) or None if key in ("now", "manual") else options.get(key) for key in _SCHEDULES}
    kind, value, is_moving = schedule(what, named, zone)
    arguments = ["add", f"--handler={handler}", "--payload=-"]
    if kind == "manual":
        arguments.append("--manual")
    elif is_moving:
        arguments.append(_moving(what, options))
    else:
        arguments.append(f"{_OF_TYPE[kind]}={value}")
    if zone is not None:
        arguments.append(f"--tz={zone_name(what, zone)}")
    for key in ("starts_at", "ends_at"):
        if options.get(key) is not None:
            instant(what, key, options[key])
            arguments.append(f"--{key.replace('_', '-')}={options[key].isoformat()}")
    for key, option in _OPTIONS.items():
        given_value = options.get(key)
        if given_value is None:
            continue
        if key.endswith("_ms"):
            length = milliseconds(what, key, given_value)
            given_value = f"{length}ms" if length else "0"
        arguments.append(f"--{option}={given_value}")
    arguments += [f"--{key.replace('_', '-')}" for key in ("if_absent", "replace") if options.get(key)]
    return Request(what, [*arguments, name], _json(what, payload))


_OTHERS = {"time_zone", "starts_at", "ends_at", "if_absent", "replace"}


def _moving(what: str, options: Mapping[str, Any]) -> str:
    if options.get("now"):
        return "--now"
    given = options.get("in_")
    if isinstance(given, str):
        return f"--in={given}"
    length = round(options["in_seconds"] * 1000) if given is None else milliseconds(what, "in_", given)
    return f"--in={length}ms"


def triggered(name: str, payload: object, key: Optional[str], wait: bool) -> Request:
    """Returns the request that triggers a task."""
    what = f"trigger task {name!r}"
    arguments = ["trigger"]
    own = None if payload is None else _json(what, payload)
    arguments += ["--payload=-"] if own is not None else []
    arguments += [f"--key={key}"] if key is not None else []
    arguments += ["--wait"] if wait else []
    return Request(what, [*arguments, "--", _named(name)], own, wait)


def about(command: str, which: object, *arguments: str) -> Request:
    """Returns a request about a task or a run."""
    return Request(f"{command} {which!r}", [command, *arguments, "--", _named(which)])


def history(
    name: Optional[str], status: Optional[str], since: object, limit: Optional[int]
) -> Request:
    """Returns the request for runs."""
    arguments = ["history"]
    arguments += [f"--status={status}"] if status is not None else []
    if since is not None:
        arguments.append(f"--since={since.isoformat() if hasattr(since, 'isoformat') else since}")
    arguments += [f"--number={limit}"] if limit is not None else []
    return Request("list runs", arguments if name is None else [*arguments, "--", _named(name)])


def _named(which: object) -> str:
    if isinstance(which, bool) or not isinstance(which, (str, int)) or which == "":
        raise TypeError(f"expected a name, found {which!r}")
    return str(which)


def _json(what: str, payload: object) -> bytes:
    try:
        return _messages.to_json(payload)
    except _messages.NotJson as error:
        raise InvalidTask(f"cannot {what}: its payload is not JSON: {error}") from error


def command(program: str, database: str, request: Request) -> Tuple[str, ...]:
    """Returns the command line of a request."""
    return (program, "--json", "--db", database, *request.arguments)
