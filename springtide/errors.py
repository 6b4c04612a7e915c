"""Error classes of Springtide: mistakes of the user (`UserError`), errors worth a retry, and errors that end the
job.

A message says what happened, to which object, what was found, what was expected, and what to do next.
docs/reference/errors.md describes every class for users.
"""

import difflib
import pathlib
from collections.abc import Iterable


class SpringtideError(Exception):
    """Base class of every error that Springtide raises on purpose."""


class UserError(SpringtideError):
    """A mistake that the user can fix. Command lines print such an error without a traceback."""


class BadInput(UserError, ValueError):
    """An invalid value, shape, dtype or file."""


class OtherVersion(BadInput):
    """A file in a format that this version of Springtide does not read, because a different version wrote the file."""

    def __init__(self, what: str, found: object, reads: object, then: str = "use the version that made it") -> None:
        super().__init__(
            f"{what} has format {found}, from another version of Springtide; this one reads {reads}: {then}"
        )


class NonFiniteGradient(BadInput):
    """NaN or infinity in a push. The server applied no part of the push."""


class UnknownName(BadInput):
    """A name that is not among the known names. The message suggests the nearest known name."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"no {kind} named {name!r}.{hint} Known: {', '.join(names)}.")


class MalformedRecord(BadInput):
    """An unreadable record of a data file. The message has the line number."""


class MissingFile(UserError, FileNotFoundError):
    """A path that does not exist."""


class MissingExtra(UserError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, what: str, extra: str, *, then: str = "") -> None:
        also = f", then `{then}`" if then else ""
        super().__init__(f"{what} needs `pip install 'springtide[{extra}]'`{also}")


class MissingLab(UserError, ImportError):
    """A lab command was called, but the lab is not installed."""

    def __init__(self, command: str) -> None:
        super().__init__(
            f"`springtide {command}` needs the separate package springtide-lab: `pip install ./lab` in a checkout"
        )


class MissingNativeCore(UserError, ImportError):
    """The compiled part of the package, `springtide._native`, is missing or cannot be loaded."""

    def __init__(self, package: str, why: object) -> None:
        clone = pathlib.Path(package).parent
        self.fix = (
            "reinstall a wheel for this Python and machine: pip install --force-reinstall --no-deps springtide-*.whl"
        )
        if (clone / "Makefile").exists():
            self.fix = (
                f"{clone} is a clone without a build: run `make env` in it, or run elsewhere with a wheel installed"
            )
        super().__init__(f"{package} has no native core that Python can load ({why}); {self.fix}")


class StreamShrunk(UserError):
    """A partition of a stream ends before an offset that the job has already read. The stream was recreated, or has
    lost data."""


class StreamReplaced(UserError):
    """The stream was recreated after the job read it. The job's offsets now point to different records."""


class PortTaken(UserError):
    """Another process already listens on this address."""


class DiskFull(UserError):
    """No space is left to write."""


class NotFound(UserError):
    """The cluster has no such object, or no such kind of object."""


class Forbidden(UserError):
    """The cluster or the job denies this operation. The message says which permission or certificate it needs."""


class ClusterRefused(UserError):
    """The cluster rejects an object. The message has the cluster's reason."""


class UserCodeFailed(UserError):
    """The training script raised an exception. The message starts with the text of that exception."""


class UnreadableSample(UserCodeFailed):
    """The user's data set or collate_fn cannot produce some samples. `indices` has the positions of these samples in
    the data set."""

    def __init__(self, message: str, indices: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.indices = tuple(indices)


class TemporaryError(SpringtideError):
    """An error worth retrying."""


class GroupChanged(TemporaryError):
    """The bsp group lost a member or was re-formed. The current step continues in the next group."""


class WrongOwner(TemporaryError):
    """The addressed server does not own this slot."""


class BrainUnreachable(TemporaryError):
    """The brain cannot be reached, did not answer in time, or sent an invalid answer."""


class HistoryUnavailable(TemporaryError):
    """The database of past jobs cannot be read or written."""


class Conflict(TemporaryError):
    """Another client changed a cluster object after we read it. Read the object and decide again."""


class AlreadyThere(Conflict):
    """The cluster already has an object with this name."""


class ClusterUnreachable(TemporaryError):
    """The cluster's API failed or did not answer until the retries ran out."""


class StreamUnreachable(TemporaryError):
    """The broker of a stream has stopped answering, or rejected an append."""


class StoreFailed(TemporaryError, OSError):
    """A store behind a URL (s3://, gs://) does not answer, or refuses a request."""


class PartlyApplied(TemporaryError):
    """A push of several batches, some of which the slot has already applied. The slot applied no part of the push.

    The remedy is to relaunch the worker: a relaunched worker sums the same batches as the lost worker did.
    """


class JobFailed(SpringtideError):
    """The job cannot continue."""


class ServerUnreachable(JobFailed):
    """A server cannot be reached, or its connection closed."""


class MasterUnreachable(JobFailed):
    """The job's master cannot be reached, or its connection closed."""


class Fenced(JobFailed):
    """The master has fenced this process and given its work to another process. This process should exit quietly."""
