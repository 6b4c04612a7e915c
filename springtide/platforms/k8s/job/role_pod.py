"""Commands in the pod of a role, as `python -m springtide.platforms.k8s.job.role_pod COMMAND`.

`run MODULE ARGS...` runs a role with the submitted code, `code.tgz` of a ConfigMap. `drain` is the preStop hook. The
hook announces the pod's end to the master, and waits until the job no longer needs the pod, but not longer than the
grace period.
"""

import asyncio
import os
import pathlib
import runpy
import sys
import tarfile

from springtide import config, errors
from springtide.domain.core.roles import Role, parse_role
from springtide.platforms.k8s.objects import names
from springtide.rpc.messages import messages
from springtide.rpc.transport import connection

CONNECT_S = 2.0  # seconds to connect; if no master runs, the next master learns from the cluster that the pod has ended
ASK_S = 0.25
WHY = "its pod is being evicted or deleted"


async def drain(settings: config.Settings) -> bool:
    """Announce the pod's end to the master repeatedly, until the master lets the pod go. Return False if no master
    answers."""
    try:
        role, secret = role_of(settings.member), config.job_secret(settings)
        notice = messages.EvictionNotice(role, settings.incarnation, WHY)
        master = await connection.connect(settings.master, secret, within_s=CONNECT_S, certificates=settings.tls)
        try:
            while True:
                reply = await master.ask(notice)
                if not isinstance(reply, messages.EvictionReply) or reply.free:
                    return True
                await asyncio.sleep(ASK_S)
        finally:
            await master.close()
    except errors.SpringtideError as error:
        print(f"drain: {error}", file=sys.stderr)
        return False


def role_of(member: str) -> Role:
    role = parse_role(member)
    if role is None:
        raise errors.BadInput(f"member {member!r} must be a role and its rank, such as server-0")
    return role


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise errors.BadInput(f"the job's code in {archive} cannot be unpacked: {error}; submit it again") from None


def run(module: str, arguments: list[str], folder: pathlib.Path) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(arguments: list[str]) -> int:
    if arguments == ["drain"]:
        return 0 if asyncio.run(drain(config.load())) else 1
    home = pathlib.Path(names.CODE_FOLDER)
    try:
        unpack(pathlib.Path(names.ARCHIVE) / names.CODE_ARCHIVE, home)
    except errors.BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    run(arguments[1], arguments[2:], home)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
