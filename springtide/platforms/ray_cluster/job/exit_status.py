"""Pure. How a role ended whose actor is gone: from Ray's error to a `RoleExit`.

In: `platform`, which lost an actor. Out: an eviction (its node is gone, Ray took the actor away), a kill for want of
memory, or a plain kill.
"""

from springtide.domain.core.roles import Life, RoleExit

OOM = ("running low on memory", "OutOfMemory", "memory pressure", "OOM")
"""In Ray's words, when its memory monitor or the kernel has killed a worker."""


def ended(life: Life, pid: int, *, signal: str) -> RoleExit:
    """It was ended by a signal."""
    return RoleExit(role=life.role, incarnation=life.incarnation, pid=pid, signal=signal)


def unplaced(life: Life, why: str) -> RoleExit:
    """No node took it."""
    return RoleExit(role=life.role, incarnation=life.incarnation, pid=0, unplaced=why)


def of(life: Life, pid: int, error: Exception, *, node_lives: bool) -> RoleExit:
    """Its actor died with it, or cannot be reached any more."""
    oom = node_lives and any(word in str(error) for word in OOM)
    return RoleExit(
        role=life.role, incarnation=life.incarnation, pid=pid, signal="SIGKILL", oom=oom, evicted=not oom
    )  # fmt: skip


def first_line(error: Exception) -> str:
    """The sentence that says most of a Ray error, whose messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if ":" not in line[:16] and len(line) > 20]
    return (telling or lines or [type(error).__name__])[-1][:300]
