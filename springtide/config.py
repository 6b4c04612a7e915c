"""Reads the settings of a process: defaults, then `SPRINGTIDE_*` variables, then overrides from code.

In: os.environ, which no other module reads. Next: worker/job.py and the roles.
"""

import contextlib
import json
import os
import typing
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.core.roles import RoleKind, parse_role

PREFIX = "SPRINGTIDE_"
ARGUMENTS = PREFIX + "ARGUMENTS"


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """Identity of this process in its job, and settings for the host on which it runs."""

    host: str = ""
    """Address at which others reach this process. Empty: the interface that faces the master."""
    node: str = ""
    """Name of the machine, so that a server's files are mirrored on another machine. Empty: the kernel's boot id."""
    scratch: str = ""
    """Local folder for a server's part of checkpoints. Empty: the job's folder if visible, else the folder for
    temporary files. A restarted server reuses the files that it finds there.
    """
    member: str = ""
    """Name of this process in its job, such as worker-0. Empty: made from the process id."""
    incarnation: int = 0
    """Number of restarts of this member; for a master, its term."""
    parent: int = 0
    """Process id of the agent on this host; this process ends with it. 0: none."""
    arguments: str = ""
    """Arguments of this process, as a JSON list. The arguments are in a variable, because other users of the machine
    can read a command line.
    """
    report_usage: bool = False
    """Report CPU and memory to the master, for an agent on another host."""
    report_every_s: float = 0.5
    """Seconds between progress reports to the master; a report costs some 40 µs."""
    debug: bool = False
    """Show tracebacks of user errors."""


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """Secrets and certificates."""

    secret: str = ""
    """Secret of the job, hex: proves membership to master and servers. Empty when alone, or when it is in a file."""
    secret_file: str = ""
    """File with the job's secret, readable by its owner only. A file is safer than `secret`, because an environment is
    visible in many places."""
    tls: str = ""
    """Folder with ca.crt, tls.crt and tls.key of this process, for mutual TLS. Empty: plain TCP."""
    plain_groups: bool = False
    """Let workers of a bsp group use unencrypted gloo connections in a job with TLS, because gloo has no TLS."""


@dataclass(frozen=True, kw_only=True)
class BrainSettings:
    """The brain that plans for many jobs."""

    brain: str = ""
    """host:port of a brain that plans for many jobs (`springtide brain serve`). Empty: each master plans alone."""
    brain_secret_file: str = ""
    """File with the brain's secret, hex."""
    brain_tls: str = ""
    """Folder with ca.crt, tls.crt and tls.key for a brain that serves with TLS. Empty: plain TCP."""
    brain_database: str = ""
    """Database URL for `springtide brain serve`. A URL with a password is safer here than on the command line."""


@dataclass(frozen=True, kw_only=True)
class ScriptSettings:
    """Settings for the training script and its data, tables and pushes."""

    data: str = ""
    """Data sets of the job's spec: a JSON object of names to paths or URLs, seen as `job.data`."""
    tables: str = ""
    """Table settings of the job's spec, a JSON object by table; they override the script."""
    seed: int = 0
    """Seed of shuffles and of untrained rows."""
    sync: str = "async"
    """async (each worker at its own pace) or bsp (all workers in step)."""
    slots: int = 1024
    """Slots of the key space when the script runs alone: a power of two from 64 to 65536. In a job the master decides
    the number."""
    identities: bool = True
    """Name batches in pushes, so that none is applied twice. Turn this setting off only to measure its cost: without
    names, a push whose reply is lost fails the step, and repeated work counts twice.
    """
    whole_table_bytes: int = 512 << 20
    """Largest table, in bytes, that a script may read whole through `table.weight`: the worker holds it in memory."""
    warm_starts: bool = True
    """Fork the workers and servers of `springtide run` from one interpreter that has imported torch. Turn this setting
    off for a script that does not use torch, or that sets variables which torch reads while it loads.
    """
    shared_memory: bool = True
    """Exchange rows with a server on this host through shared memory, not through TCP."""


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """Addresses of the master and the servers, and time limits for connections to them."""

    master: str = ""
    """host:port of the job's master. Empty: the script trains alone, on tables in its own process."""
    master_file: str = ""
    """The run's `master.json`. A member that loses its master reads the new address here."""
    connect_timeout_s: float = 30.0
    """Seconds to wait for a connection to a master or a server; long enough for a server that is still starting."""
    master_patience_s: float = 60.0
    """Seconds to find the next master after a master is lost; a restart usually takes a second or two."""
    request_timeout_s: float = 60.0
    """Seconds that a server may take to answer a pull or push before it counts as lost."""
    reconnect_s: float = 5.0
    """Seconds to reconnect to a server before the step fails."""
    recovery_s: float = 300.0
    """Seconds that a step waits until a lost server is restored."""


@dataclass(frozen=True, kw_only=True)
class Settings(MemberSettings, SecuritySettings, BrainSettings, ScriptSettings, ConnectionSettings):
    """All settings of a process of a job. `load()` creates this object; no other code reads the environment."""


def load(overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None) -> Settings:
    """Read settings from the environment, apply `overrides`, and check every value."""
    environ = os.environ if environ is None else environ
    types = typing.get_type_hints(Settings)
    values: dict[str, Any] = {}
    for field in fields(Settings):
        text = environ.get(PREFIX + field.name.upper())
        if text is not None:
            values[field.name] = parse(PREFIX + field.name.upper(), text, types[field.name])
    for name, value in (overrides or {}).items():
        if name not in types:
            raise errors.UnknownName("setting", name, types)
        values[name] = check_type(name, value, types[name])
    return check(Settings(**values))


ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "1000"}
"""Environment for torch builds that use mimalloc (64-bit ARM): return free memory to the system after 1000 ms. With
mimalloc's default of 10 ms, every batch or step would fault its pages in again."""


def live_variables() -> MutableMapping[str, str]:
    return os.environ


def child_environment(
    settings: Mapping[str, str], others: Mapping[str, str], given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a child's environment. Later sources override earlier sources: `others` (defaults for other programs),
    this process's environment, `given` (from the spec), `settings`.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    known = {field.name for field in fields(Settings)}
    for name in settings:
        if name not in known:
            raise errors.UnknownName("setting", name, known)
    own |= given or {}
    return {**ALLOCATOR, **others, **own, **{PREFIX + name.upper(): value for name, value in settings.items()}}


def become(environment: Mapping[str, str]) -> None:
    """Replace this process's environment, in a process that `fork_server` has just forked."""
    os.environ.clear()
    os.environ.update(environment)


@contextlib.contextmanager
def default_environment(given: Mapping[str, str]) -> Iterator[None]:
    """Set variables of other libraries for the `with` block, unless the user has set them."""
    added = {name: value for name, value in given.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def with_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return an environment with a child's arguments in a variable, because arguments may contain credentials (see
    `own_arguments`)."""
    return {**os.environ, ARGUMENTS: json.dumps(list(arguments))}


def own_arguments(given: Sequence[str]) -> list[str]:
    """Return the arguments from the environment; return `given` if the environment has none. Remove the arguments from
    the environment, so that children do not inherit them.
    """
    text = os.environ.pop(ARGUMENTS, None)
    return list(given) if text is None else [str(argument) for argument in json.loads(text)]


def variables() -> dict[str, str]:
    """Return a copy of the environment, which may hold secrets."""
    return dict(os.environ)


def variable(name: str) -> str:
    """Return the value of another program's variable, such as KUBECONFIG; empty if unset."""
    return os.environ.get(name, "")


@contextlib.contextmanager
def lent(name: str, value: str) -> Iterator[None]:
    """Set a variable while the block runs, for a library that reads only the environment."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def parse(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
        if text.lower() not in known:
            raise errors.BadInput(f"{name}={text!r} is neither true nor false; set it to 1 or 0")
        return known[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise errors.BadInput(f"{name}={text!r} cannot be read as {kind.__name__}") from None


def check_type(name: str, value: Any, kind: type) -> Any:
    """Reject a value of the wrong type. An int is accepted for a float."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise errors.BadInput(f"setting {name!r} is {value!r} ({type(value).__name__}), expected {kind.__name__}")
    return value


def check(settings: Settings) -> Settings:
    if settings.sync not in ("async", "bsp"):
        raise errors.UnknownName("sync mode", settings.sync, ["async", "bsp"])
    validation.number(settings.seed, "seed", validation.SEED)
    slots = settings.slots
    if not 64 <= slots <= 65536 or slots & (slots - 1):
        raise errors.BadInput(f"slots={slots}: expected a power of two from 64 to 65536, such as 1024")
    validation.number(settings.whole_table_bytes, "whole_table_bytes", "a whole number of bytes")
    for name in ("reconnect_s", "recovery_s"):
        if getattr(settings, name) < 0:
            raise errors.BadInput(f"{name}={getattr(settings, name)}: expected seconds, or 0 for never")
    for name in ("connect_timeout_s", "master_patience_s", "request_timeout_s", "report_every_s"):
        if getattr(settings, name) <= 0:
            raise errors.BadInput(f"{name}={getattr(settings, name)}: expected seconds, more than 0")
    for name in ("master", "brain"):
        if getattr(settings, name) and ":" not in getattr(settings, name):
            raise errors.BadInput(f"{name}={getattr(settings, name)!r}: expected host:port, such as 10.0.0.5:7700")
    return settings


def own_rank(settings: Settings, kind: RoleKind) -> int:
    """Return the rank in this process's member name, and check that its role is `kind`."""
    role = parse_role(settings.member)
    if role is None or role.kind is not kind:
        raise errors.BadInput(f"{PREFIX}MEMBER={settings.member!r}: expected {kind}-RANK, such as {kind}-0")
    return role.rank


def job_secret(settings: Settings) -> bytes:
    if settings.secret_file:
        return read_secret(settings.secret_file, "the job's secret")
    return _from_hex(settings.secret, "the job's secret", PREFIX + "SECRET")


def read_secret(path: str, what: str) -> bytes:
    try:
        with open(path, encoding="ascii") as file:
            return _from_hex(file.read().strip(), what, path)
    except (OSError, UnicodeDecodeError) as error:
        raise errors.BadInput(f"cannot read {what} from {path}: {error}") from error


def _from_hex(text: str, what: str, source: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise errors.BadInput(f"{what} in {source} is not hex; let Springtide make it") from None
