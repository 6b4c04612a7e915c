"""Certificates of a brain: its own, and one that it hands to those who may ask, all of one authority made for it.

In: a folder (`springtide brain serve --tls DIR`). Out: DIR/brain and DIR/master, each with ca.crt, tls.crt and tls.key,
made where there are none. Masters are given the second (`Settings.brain_tls`). Next: `rpc.transport.tls` checks both
sides; who asks must know the brain's secret besides.
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
    """The brain's own folder and that of those who ask. BadInput where what is there is of no use."""
    own, asking = (credentials.folder_of(root, role) for role in (BRAIN_ROLE, ASKING_ROLE))
    try:
        if not own.exists():
            part = root.with_name(f"{root.name}.{os.getpid()}.part")
            try:
                credentials.lay_out(make(at=at), part)
                part.rename(root)  # both or none: a brain that was killed in between would shut its masters out
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise errors.BadInput(f"cannot make certificates in {root}: {error.strerror or error}") from error
    found = tls.identity(str(own))
    if found.role != BRAIN_ROLE:
        raise errors.BadInput(f"{own / tls.CERTIFICATE} is for a {found.role}; wanted one for a {BRAIN_ROLE}")
    return str(own), str(asking)
