"""The one error tree. A message says what, which, got, wanted and what to do next; retrying is a type.

SpringtideError
├── UserError              a mistake the user can mend: shown without a traceback
│   ├── BadInput           a value, shape, dtype or file that does not fit
│   │   ├── NonFiniteGradient   NaN or infinity in a push; nothing of it was applied
│   │   ├── UnknownName    not one of the known names ("did you mean")
│   │   └── MalformedRecord     a line of a data file that cannot be read
│   ├── MissingFile        a path that does not exist (nearest name given)
│   ├── MissingExtra       an optional dependency that is not installed
│   ├── MissingLab         a command of the lab, which is not installed
│   ├── StreamShrunk       a stream that ends before what was read of it
│   ├── StreamReplaced     a stream that was made anew since it was read
│   ├── PortTaken          an address someone else listens on
│   ├── DiskFull           no room to write
│   ├── NotFound           an object that a cluster does not have
│   ├── Forbidden          a cluster does not let this account do it: what to grant
│   ├── ClusterRefused     an object that a cluster does not take as it is
│   └── UserCodeFailed     the training script raised
│       └── UnreadableSample    a sample that the user's data set or collate_fn cannot make; its index is told
├── TemporaryError         worth retrying after `delay_s`
│   ├── GroupChanged       a bsp group that was formed anew meanwhile
│   ├── WrongOwner         a slot that the addressed server does not own (any more)
│   ├── BrainUnreachable   a brain that does not answer in time: the master plans by itself
│   ├── HistoryUnavailable a database of past jobs that cannot be read or written
│   ├── Conflict           another has changed the object meanwhile: read it again
│   │   └── AlreadyThere   an object of that name exists
│   ├── ClusterUnreachable a cluster's API that does not answer: which, and what to check
│   ├── StreamUnreachable  a broker that does not answer: which, after how long, what to check
│   ├── StoreFailed        a store of files that does not answer or refuses: which, what it said, what to check
│   └── PartlyApplied      a push of several batches of which some were applied before; a sum cannot be split
└── JobFailed              the job cannot go on
    ├── ServerUnreachable  a server that does not answer: which, after how long, what to check
    ├── MasterUnreachable  the same of the job's master
    └── Fenced             the job goes on without this process: another has its work
"""

import difflib
from collections.abc import Iterable


class SpringtideError(Exception):
    """Anything Springtide raises on purpose."""


class UserError(SpringtideError):
    """A mistake the user can mend; command lines print it without a traceback."""


class BadInput(UserError, ValueError):
    """A value, shape, dtype or file that does not fit."""


class NonFiniteGradient(BadInput):
    """NaN or infinity in a push; nothing of it was applied."""


class UnknownName(BadInput):
    """A name that is not one of the known ones."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"no {kind} named {name!r}.{hint} Known: {', '.join(names)}.")


class MalformedRecord(BadInput):
    """A record of a data file that cannot be read; the message has the line number."""


class MissingFile(UserError, FileNotFoundError):
    """A path that does not exist."""


class MissingExtra(UserError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, what: str, extra: str, *, then: str = "") -> None:
        also = f", then `{then}`" if then else ""
        super().__init__(f"{what} needs `pip install 'springtide[{extra}]'`{also}")


class MissingLab(UserError, ImportError):
    """A command of the lab, which is not installed."""

    def __init__(self, command: str) -> None:
        super().__init__(
            f"`springtide {command}` needs the lab, a package of its own: `pip install ./lab` in a checkout"
        )


class StreamShrunk(UserError):
    """A partition of a stream ends before what was read of it: made anew, or its data lost."""


class StreamReplaced(UserError):
    """The stream was made anew since the job read it: its offsets mean other records."""


class PortTaken(UserError):
    """An address that another process listens on."""


class DiskFull(UserError):
    """No room to write."""


class NotFound(UserError):
    """A cluster has no such object, or no such kind of object."""


class Forbidden(UserError):
    """A cluster does not let this account do it; the message says what to grant."""


class ClusterRefused(UserError):
    """A cluster does not take an object as it is; the message has its reason."""


class UserCodeFailed(UserError):
    """The training script raised; the message starts with its own error."""


class UnreadableSample(UserCodeFailed):
    """Samples that the user's data set or collate_fn cannot make: `indices` of the data set."""

    def __init__(self, message: str, indices: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.indices = tuple(indices)


class TemporaryError(SpringtideError):
    """Worth retrying after `delay_s` seconds."""

    def __init__(self, message: str, *, delay_s: float = 1.0) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class GroupChanged(TemporaryError):
    """A member of the bsp group is lost, or the group was formed anew: the step under way goes on in the next one."""


class WrongOwner(TemporaryError):
    """A slot that the addressed server does not own."""


class BrainUnreachable(TemporaryError):
    """The brain cannot be reached, did not answer in time, or answered with something that is no advice."""


class HistoryUnavailable(TemporaryError):
    """The database of past jobs cannot be read or written."""


class Conflict(TemporaryError):
    """Another has changed an object of a cluster since it was read: read it again, then decide again."""


class AlreadyThere(Conflict):
    """A cluster has an object of that name already."""


class ClusterUnreachable(TemporaryError):
    """A cluster's API does not answer, or has trouble of its own, for longer than it was asked again."""


class StreamUnreachable(TemporaryError):
    """The broker of a stream has not answered for long, or did not take what was to be appended."""


class StoreFailed(TemporaryError, OSError):
    """A store behind a URL (s3://, gs://) does not answer, or refuses what is asked of it."""


class PartlyApplied(TemporaryError):
    """A push of several batches some of which a slot has applied before; nothing of it was applied to that slot.

    A worker that begins anew sums the same batches as the one that was lost, so it is relaunched.
    """


class JobFailed(SpringtideError):
    """The job cannot go on."""


class ServerUnreachable(JobFailed):
    """A server that cannot be reached or went away."""


class MasterUnreachable(JobFailed):
    """The job's master cannot be reached or went away."""


class Fenced(JobFailed):
    """The master has given this process up and handed its work to another; it should leave quietly."""
