"""Creates the certificates of a brain and of its clients, signed by one authority.

In: a folder (`springtide brain serve --tls DIR`). Out: DIR/brain and DIR/master, each with ca.crt, tls.crt and tls.key,
created if missing. Masters receive DIR/master (`Settings.brain_tls`). Next: `rpc.transport.tls` checks both sides. A
client also needs the brain's secret.
"""

import datetime
import os
import pathlib
import shutil

from springtide import errors
from springtide.platforms.agent import credentials
from springtide.rpc.transport import tls

BRAIN, BRAIN_ROLE, ASKING_ROLE = "brain", "brain", "master"


def make(*, at: datetime.datetime) -> dict[str, bytes]:
    return credentials.make(BRAIN, at=at, roles=(BRAIN_ROLE, ASKING_ROLE))


def laid_out(root: pathlib.Path, *, at: datetime.datetime) -> tuple[str, str]:
    """Return the brain's folder and the clients' folder; BadInput if the existing files are unusable."""
    own, asking = (root / role for role in (BRAIN_ROLE, ASKING_ROLE))
    try:
        if not own.exists():
            part = root.with_name(f"{root.name}.{os.getpid()}.part")
            try:
                credentials.lay_out(make(at=at), part)
                # rename both folders at once: a brain killed between two renames would lock its masters out
                part.rename(root)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise errors.BadInput(f"cannot make certificates in {root}: {error.strerror or error}") from error
    found = tls.identity(str(own))
    if found.role != BRAIN_ROLE:
        raise errors.BadInput(f"{own / tls.CERTIFICATE} is for a {found.role}; wanted one for a {BRAIN_ROLE}")
    return str(own), str(asking)
