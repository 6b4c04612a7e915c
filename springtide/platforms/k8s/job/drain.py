"""preStop hook of a pod: drains its role before SIGTERM (`python -m springtide.platforms.k8s.job.drain`).

The hook announces the pod's end to the master and waits until the job no longer needs the pod, at most for its grace
period. It returns at once if the master itself ended the pod, or if no master replies.
"""

import asyncio
import sys

from springtide import config, errors
from springtide.domain.core.roles import Role, parse_role
from springtide.rpc.messages import messages
from springtide.rpc.transport import connection

CONNECT_S = 2.0  # an absent master cannot be told; its successor learns of the exit
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
