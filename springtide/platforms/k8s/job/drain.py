"""What a pod does before it is told to end: `python -m springtide.platforms.k8s.job.drain`, its preStop hook.

In: the environment of the pod's role (`config`). Out: an end of the hook, upon which the kubelet sends SIGTERM. It
tells the master that the pod goes, and waits until the job needs nothing more of it: a worker has finished its batch, a
server's slots are with its peers. How long it may wait is the pod's own time to end; the kubelet sees to that. A pod
that the master itself lets go is free at once, and so is one whose master does not answer.
"""

import asyncio
import sys

from springtide import config, errors
from springtide.domain.core.roles import Role, parse_role
from springtide.rpc.messages import messages
from springtide.rpc.transport import connection

CONNECT_S = 2.0  # a master that is away cannot be told; its next one hears of the end
ASK_S = 0.25
WHY = "its pod is being evicted or deleted"


async def drain(settings: config.Settings, why: str = WHY) -> bool:
    """Announce the pod's end to the master until it may go; False if no master answers."""
    try:
        role, secret = role_of(settings.member), config.job_secret(settings)
        asked = messages.EvictionNotice(role, settings.incarnation, why)
        master = await connection.connect(settings.master, secret, within_s=CONNECT_S, certificates=settings.tls)
    except errors.SpringtideError as error:
        print(f"drain: {error}", file=sys.stderr)
        return False
    try:
        while True:
            answer = await master.ask(asked)
            if not isinstance(answer, messages.EvictionReply) or answer.free:
                return True
            await asyncio.sleep(ASK_S)
    except errors.SpringtideError as error:
        print(f"drain: {error}", file=sys.stderr)
        return False
    finally:
        await master.close()


def role_of(member: str) -> Role:
    role = parse_role(member)
    if role is None:
        raise errors.BadInput(f"member {member!r}: wanted a role and its rank, such as server-0")
    return role


def main() -> int:
    return 0 if asyncio.run(drain(config.load())) else 1


if __name__ == "__main__":
    sys.exit(main())
