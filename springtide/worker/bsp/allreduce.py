"""All-reduces the dense gradients of a bsp group over gloo or NCCL, in one flat bucket per data type.

In: worker/step/bsp_step.py, once per step. Out: the group's gradient in every `p.grad`, and a `GroupVerdict`, which
sums the flags of all ranks. From these sums, all ranks make the same decision without another message. Ranks find each
other through the master (`GroupStore`), because torch's TCPStore listens on all interfaces without authentication.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

from springtide import errors
from springtide.rpc.messages.coordination import MeetRequest
from springtide.worker.link.clients import GroupClient
from springtide.worker.link.optimizer import set_option

MEETING = datetime.timedelta(seconds=60)  # a rank that does not connect within this time counts as dead
# A rank that does not take part within this time counts as dead. A step takes only a fraction of this time.
TIMEOUT = datetime.timedelta(minutes=5)
DIGITS = 4  # bytes of a digest; for up to 128 ranks, the sum of a byte's squares is exact in float32
FLAGS = ("flush", "empty", "last", "go", "stop", "paper")
FIXED = len(FLAGS) + 2 + 2 * DIGITS


def form_group(store: Any, *, rank: int, workers: int, host: str) -> Any:
    """Connect all ranks over `store`, separate from the user's torch.distributed group. Return None for a group of one
    rank."""
    if workers == 1:
        return None
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = MEETING
    try:
        group = distributed.ProcessGroupGloo(store, rank, workers, options)
        group._set_default_timeout(TIMEOUT)
    except RuntimeError as error:
        raise errors.GroupChanged(f"the group's members could not connect:  {reason_of(error)}") from None
    return group


def reason_of(error: RuntimeError) -> str:
    return (str(error).partition("] ")[2] or str(error)).partition(". This")[0]


@contextlib.contextmanager
def noticing_loss() -> Iterator[None]:
    """Raise `GroupChanged` if gloo loses a rank within the block."""
    try:
        yield
    except RuntimeError as error:
        raise errors.GroupChanged(f"a member of the group is lost: {reason_of(error)}") from None


def broadcast(group: Any, tensor: torch.Tensor, root: int) -> None:
    if group is not None and tensor.numel():
        with noticing_loss():
            group.broadcast(tensor, root).wait()


class Reducer:
    """Averages gradients over the group, weighted by each rank's share of the batch."""

    def __init__(self, params: Sequence[nn.Parameter], group: Any, *, words: int = 0) -> None:
        """Create the buckets. `words` is how many header numbers are sent with the gradients."""
        self.params = list(params)
        self.group = group
        self.nccl: Any = None
        """Communicator (`worker.bsp.nccl.NcclGroup`) that sums buckets on its device; None if gloo sums all."""
        self.elder: int | None = None
        """The rank whose hyperparameters all ranks use, because learning-rate schedules lag behind on a rank that
        joined late.
        """
        self.words = [0.0] * words
        """This rank's header numbers. `reduce` sends these numbers."""
        self.sums: list[float] = list(self.words)
        """Sums of the header numbers over all ranks after a `reduce`, in float32 precision."""
        self._skip = False
        self._make_buckets()

    def _make_buckets(self) -> None:
        device = self.params[0].device if self.params else torch.device("cpu")
        by_kind: dict[tuple[torch.dtype, torch.device], list[int]] = {(torch.float32, device): []}
        for index, param in enumerate(self.params):
            if not param.is_floating_point():
                raise errors.BadInput(
                    f"a parameter of dtype {param.dtype} cannot be trained; expected a floating-point type"
                )
            by_kind.setdefault((param.dtype, param.device), []).append(index)
        self._kinds = self._kinds_now()
        self._members = list(by_kind.values())
        self._buckets = [
            self._bucket(dtype, device, members, self.words if not number else ())
            for number, ((dtype, device), members) in enumerate(by_kind.items())
        ]

    @property
    def device(self) -> torch.device:
        """Device of the parameters, or the CPU if they are on several devices."""
        devices = {param.device for param in self.params}
        return devices.pop() if len(devices) == 1 else torch.device("cpu")

    def leave(self) -> None:
        """Close the connections, so that the other ranks notice that this rank has left."""
        if self.nccl is not None:
            self.nccl.abort()
        self.group = self.nccl = None

    def _kinds_now(self) -> list[tuple[torch.dtype, torch.device]]:
        return [(param.dtype, param.device) for param in self.params]

    def follow_moves(self) -> None:
        """Create new buckets if the user has moved the model, for example with `model.to("cuda")` after
        `job.prepare`."""
        if self._kinds != self._kinds_now():
            self._make_buckets()

    def load(self, *, share: float, skip: bool) -> None:
        self._skip = skip
        if self.group is None:  # the only rank trains with its own gradients
            return
        self.follow_moves()
        grads = [param.grad for param in self.params]
        for members, bucket in zip(self._members, self._buckets, strict=True):
            bucket.flat.zero_()
            for index, view in zip(members, bucket.views, strict=True):
                grad = grads[index]
                if grad is not None:
                    view.copy_(grad.to_dense() if grad.is_sparse else grad)
            bucket.flat.mul_(share)
        self._load_flags(skip, [[grads[index] is not None for index in members] for members in self._members])

    def _load_flags(self, skip: bool, present: Sequence[Sequence[bool]]) -> None:
        self._skip = skip
        for bucket, here in zip(self._buckets, present, strict=True):
            words = self.words if bucket is self._buckets[0] else ()
            bucket.flags.copy_(torch.tensor([skip, *words, *here], device="cpu"))
            bucket.own.copy_(bucket.flat)

    def reduce(self) -> bool:
        """Replace each `p.grad` with the gradient of the group. Return True if any rank wants to skip the step.

        If a rank has no gradient for a parameter, it contributes zero. If no rank has a gradient for it, the
        parameter gets no gradient. Raise `GroupChanged` if a member is lost.
        """
        if self.group is None:
            self.sums = list(self.words)
            return self._skip
        if self._sum(lambda bucket: bucket.flat):
            return True
        self.deal()
        return False

    def _sum(self, part: Callable[["Bucket"], torch.Tensor]) -> bool:
        """All-reduce a part of every bucket, with the current header numbers. Return True if any rank wants to skip the
        step."""
        for bucket in self._buckets:
            bucket.flat.copy_(bucket.own)
            if bucket is self._buckets[0] and self.words:
                bucket.flags[1 : 1 + len(self.words)] = torch.tensor(self.words, device="cpu")
            if self.nccl is not None and bucket.flat.device == self.nccl.device:
                self.nccl.allreduce(part(bucket))
            elif self.group is not None:
                with noticing_loss():
                    self.group.allreduce([part(bucket)]).wait()
        self.sums = self._buckets[0].flags[1 : 1 + len(self.words)].tolist()
        return bool(self._buckets[0].flags[0])

    def deal(self) -> None:
        for members, bucket in zip(self._members, self._buckets, strict=True):
            present = bucket.flags[-len(members) :].tolist() if members else []
            for index, view, ranks in zip(members, bucket.views, present, strict=True):
                if ranks:
                    self.params[index].grad = view.clone()  # copy the gradient, because the next step reuses the bucket

    def follow(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """If a rank has joined late, use the learning rates and weight decays of the leader."""
        if self.group is None or self.elder is None:
            return
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        known = [(group, name) for group in groups for name in ("lr", "weight_decay") if name in group]
        numbers = torch.tensor([float(group[name]) for group, name in known], dtype=torch.float64, device="cpu")
        broadcast(self.group, numbers, self.elder)
        for (group, name), number in zip(known, numbers.tolist(), strict=True):
            set_option(group, name, number)

    def _bucket(self, dtype: torch.dtype, device: torch.device, members: list[int], words: Sequence[float]) -> "Bucket":
        sizes = [self.params[index].numel() for index in members]
        flag_count = 1 + len(members) + len(words)
        flat = torch.zeros(sum(sizes) + flag_count, dtype=dtype, device=device)
        *parts, flags = torch.split(flat, [*sizes, flag_count])
        shapes = (self.params[index].shape for index in members)
        return Bucket(
            flat, torch.zeros_like(flat), [part.view(shape) for part, shape in zip(parts, shapes, strict=True)], flags
        )


class Bucket(NamedTuple):
    """Gradients of one data type and device in one flat tensor, followed by the flags."""

    flat: torch.Tensor
    own: torch.Tensor
    """Copy of the values that this rank contributes to the sum."""
    views: list[torch.Tensor]
    flags: torch.Tensor
    """Three parts. First, the number of ranks that skip; second, the sums of the header numbers (first bucket only);
    third, for each parameter, the number of ranks with a gradient.
    """


@dataclass(slots=True, kw_only=True)
class RankWords:
    """Flags that one rank sends."""

    flush: bool = False
    """True if all rows must be on the servers after this step."""
    empty: bool = False
    """True if the step trains no batch and only flushes rows."""
    last: bool = False
    """True if this rank has no further batch. Ranks learn at different times that a job stops."""
    ready: bool = False
    """True if this rank has found where the modules read their ids."""
    go: bool = False
    """The lowest rank requests to start scheduling batches."""
    stop: bool = False
    """The lowest rank requests to stop scheduling batches."""
    paper: bool = False
    """The lowest rank requests to simulate schedules of the next batches, in order to measure their cost."""
    effort: int = 0
    """Search effort of the schedule, set by the lowest rank."""
    digest: int = 0
    """32-bit digest of the next batch and its schedule; 0 if the batch is not scheduled."""
    refused: frozenset[int] = field(default_factory=frozenset)
    """Tables with ids that are unknown before forward()."""


@dataclass(slots=True, kw_only=True)
class GroupVerdict(RankWords):
    """The combined flags of all ranks: `ready` is True if all ranks set it, and every other flag is True if any rank
    sets it.
    """

    torn: bool = False
    """True if only some of the ranks train a batch in this step."""
    alike: bool = True
    """True if all ranks have the same digest."""


def words_needed(tables: Sequence[int]) -> int:
    return FIXED + len(tables)


def encode_words(words: RankWords, tables: Sequence[int]) -> list[float]:
    digits = [words.digest >> 8 * place & 0xFF for place in range(DIGITS)]
    flags = (getattr(words, name) for name in FLAGS)
    numbers = (*flags, not words.ready, words.effort, *digits, *(digit * digit for digit in digits))
    return [float(number) for number in (*numbers, *(table in words.refused for table in tables))]


def decode_words(sums: Sequence[float], tables: Sequence[int], ranks: int) -> GroupVerdict:
    """Decode the sums of the header numbers. The digests of n ranks are equal if, for every byte, n times the sum of
    squares equals the square of the sum."""
    flags = dict(zip(FLAGS, sums, strict=False))
    unready, effort = sums[len(FLAGS) : len(FLAGS) + 2]
    digits, squares = sums[FIXED - 2 * DIGITS : FIXED - DIGITS], sums[FIXED - DIGITS : FIXED]
    return GroupVerdict(
        **{name: total > 0 for name, total in flags.items()},
        ready=unready == 0,
        effort=int(effort),
        refused=frozenset(table for table, many in zip(tables, sums[FIXED:], strict=True) if many),
        torn=0 < flags["empty"] < ranks,
        alike=all(ranks * square == digit * digit for digit, square in zip(digits, squares, strict=True)),
    )


class GroupStore(distributed.Store):  # type: ignore[misc, name-defined]
    """Values of one generation of a bsp group, in the form of a torch store. The store implements only the operations
    that gloo and NCCL use."""

    def __init__(self, master: GroupClient, generation: int, **given: str) -> None:
        """Open the store. `given` has values of this rank, which are sent together with the first address that gloo
        sets."""
        super().__init__()
        self._master, self._generation = master, generation
        self._given = {key: value.encode() for key, value in given.items()}
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self._given[key] = bytes(value)
        self._meet()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._known[key]

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Block until other ranks have set these keys. Raise `GroupChanged` as soon as the master knows that they will
        not arrive.
        """
        if missing := tuple(key for key in keys if key not in self._known):
            self._meet(*missing)

    def values(self, prefix: str, ranks: int) -> list[str]:
        """Return the values that the ranks have set under this prefix and their rank number."""
        keys = [f"{prefix}{rank}" for rank in range(ranks)]
        self.wait(keys)
        return [self._known[key].decode() for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        """Return True if this process knows these keys. torch's NCCL calls this method, and the method never waits."""
        return all(key in self._known for key in keys)

    def _meet(self, *wanted: str) -> None:
        self._known = self._master.meet(MeetRequest(self._generation, self._given, wanted))
