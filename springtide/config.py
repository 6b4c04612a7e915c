"""Settings: defaults, then the environment (`SPRINGTIDE_*`), then what the code says. Nothing else reads it.

Each field's docstring has its unit and the reason of its default. In: os.environ. Next: worker/job.py and the roles.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process of a job is told. `load()` makes one; nothing else reads the environment."""

    master: str = ""
    """host:port of the job's master. Empty: the script trains alone, on tables in its own process."""
    master_file: str = ""
    """The run's `master.json`, which says where the master is now: members that lose their master look here again."""
    host: str = ""
    """Address by which the others reach this process. Empty: that of the interface which faces the master."""
    node: str = ""
    """Name of the machine: copies of a server's files are kept on another one. Empty: the kernel's id of its boot."""
    scratch: str = ""
    """Folder of this machine for a server's part of checkpoints. Empty: the job's folder where that is seen, else that
    for temporary files. What outlives the process there, as its next life finds it, need not come from elsewhere."""
    member: str = ""
    """Name of this process in its job, such as worker-0. Empty: made from the process id."""
    incarnation: int = 0
    """Which life of that member this process is: one more each time it is started again. Of a master: its term."""
    secret: str = ""
    """Per-job secret, hex: proves membership to master and servers. Empty when alone, or when it is in a file."""
    secret_file: str = ""
    """File with that secret, hex, readable by its owner only: an environment shows up in too many places."""
    tls: str = ""
    """Folder with ca.crt, tls.crt and tls.key of this process: connections of the job are mutual TLS. Empty: plain."""
    plain_groups: bool = False
    """Whether workers of a bsp group may speak among themselves in the clear in a job with TLS: gloo knows no other."""
    brain: str = ""
    """host:port of a brain that plans for many jobs (`springtide brain serve`). Empty: each master plans by itself."""
    brain_secret_file: str = ""
    """File with that brain's secret, hex; its owner hands it to those who may ask."""
    brain_tls: str = ""
    """Folder with ca.crt, tls.crt and tls.key for those who ask a brain that serves with TLS. Empty: in the clear."""
    data: str = ""
    """Data sets of the job's spec, as a JSON object of names to paths or URLs: `job.data` in the script."""
    tables: str = ""
    """What tables are to be by the job's spec, as a JSON object by table: over what the script says."""
    parent: int = 0
    """Process id of the agent that has started this process on its own host: when that ends, this one does. 0: none."""
    arguments: str = ""
    """Arguments of this process, as a JSON list: other users of a machine can read its command lines."""
    brain_database: str = ""
    """URL of a brain's database for `springtide brain serve`: one with a password is better off here than there."""
    seed: int = 0
    """Seed of shuffles and of rows that no one has trained yet."""
    sync: str = "async"
    """How workers agree: async (each at its own pace) or bsp (one step of the whole group at a time)."""
    slots: int = 1024
    """Slots of the job's key space when alone: a power of two from 64 to 65536. In a job the master decides."""
    connect_timeout_s: float = 30.0
    """How long to try to reach a master or a server before giving up: long enough for a server that starts."""
    master_patience_s: float = 60.0
    """How long a member looks for the next master when its own is gone: a restart takes a second or two."""
    request_timeout_s: float = 60.0
    """How long a server may take to answer a pull or a push before it counts as lost: it answers in milliseconds."""
    reconnect_s: float = 5.0
    """How long to try to reach a server again after its connection broke, before the step fails: networks blink."""
    recovery_s: float = 300.0
    """How long a step waits for a lost server to be started again and brought back, where a master sees to that."""
    identities: bool = True
    """Whether pushes name their batches, so that none is applied twice. Off only to measure what that costs: then a
    push whose answer is lost fails the step, and work that is done again counts again."""
    whole_table_bytes: int = 512 << 20
    """Largest table, in bytes, that a script may read whole through `table.weight`. A worker holds such a read in its
    memory; a larger table is refused, and rows are looked up by their ids."""
    shared_memory: bool = True
    """Whether to move rows through shared memory where a server is on this host; TCP otherwise."""
    report_usage: bool = False
    """Whether this process tells the master what it takes, because its agent, on another host, cannot measure it."""
    report_every_s: float = 0.5
    """Seconds between reports to the master: progress bars move at this pace; a report costs some 40 µs."""
    debug: bool = False
    """Whether user errors show their traceback."""


def load(overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment, lay `overrides` over it and check every value."""
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
"""Where torch allocates with mimalloc (64-bit ARM): memory that is free goes back to the system after a second, in ms.
After 10, which is the default, every batch or step would have its pages put in anew."""


def live_variables() -> MutableMapping[str, str]:
    return os.environ


def child_environment(
    settings: Mapping[str, str], others: Mapping[str, str], given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a child's environment: `others` (defaults for other programs), then ours, then `given` (the spec), then
    `settings`.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    known = {field.name for field in fields(Settings)}
    for name in settings:
        if name not in known:
            raise errors.UnknownName("setting", name, known)
    own |= given or {}
    return {**ALLOCATOR, **others, **own, **{PREFIX + name.upper(): value for name, value in settings.items()}}


def become(environment: Mapping[str, str]) -> None:
    """Replace this process's environment; a fork of `platforms.local.fork_server` starts so."""
    os.environ.clear()
    os.environ.update(environment)


def with_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return an environment that carries a child's arguments, which may hold credentials (see `own_arguments`)."""
    return {**os.environ, ARGUMENTS: json.dumps(list(arguments))}


def own_arguments(given: Sequence[str]) -> list[str]:
    """Return the arguments passed through the environment, else `given`, and hide them from children."""
    text = os.environ.pop(ARGUMENTS, None)
    return list(given) if text is None else [str(each) for each in json.loads(text)]


def variables() -> dict[str, str]:
    """Return a copy of the environment; it may hold secrets."""
    return dict(os.environ)


def variable(name: str) -> str:
    """Return another program's variable, such as KUBECONFIG; empty if unset."""
    return os.environ.get(name, "")


@contextlib.contextmanager
def lent(name: str, value: str) -> Iterator[None]:
    """Set a variable while the block runs, for a library that takes no argument for it."""
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
    """Refuse a value of the wrong type; an int is fine for a float."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise errors.BadInput(f"setting {name!r} is {value!r} ({type(value).__name__}), wanted {kind.__name__}")
    return value


def check(settings: Settings) -> Settings:
    if settings.sync not in ("async", "bsp"):
        raise errors.UnknownName("sync mode", settings.sync, ["async", "bsp"])
    validation.number(settings.seed, "seed", validation.SEED)
    slots = settings.slots
    if not 64 <= slots <= 65536 or slots & (slots - 1):
        raise errors.BadInput(f"slots={slots}: wanted a power of two from 64 to 65536, such as 1024")
    validation.number(settings.whole_table_bytes, "whole_table_bytes", "a whole number of bytes")
    for name in ("reconnect_s", "recovery_s"):
        if getattr(settings, name) < 0:
            raise errors.BadInput(f"{name}={getattr(settings, name)}: wanted seconds, or 0 for never")
    for name in ("connect_timeout_s", "master_patience_s", "request_timeout_s", "report_every_s"):
        if getattr(settings, name) <= 0:
            raise errors.BadInput(f"{name}={getattr(settings, name)}: wanted seconds, more than 0")
    for name in ("master", "brain"):
        if getattr(settings, name) and ":" not in getattr(settings, name):
            raise errors.BadInput(f"{name}={getattr(settings, name)!r}: wanted host:port, such as 10.0.0.5:7700")
    return settings


def own_rank(settings: Settings, kind: RoleKind) -> int:
    """Return the rank in this process's member name, and check that its role is `kind`."""
    role = parse_role(settings.member)
    if role is None or role.kind is not kind:
        raise errors.BadInput(f"{PREFIX}MEMBER={settings.member!r}: wanted {kind}-RANK, such as {kind}-0")
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
