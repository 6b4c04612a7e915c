"""Run a program in a prepared job: by itself, or with batches from data workers."""

import struct

import cloudpickle

from springtide import errors
from springtide.data import source as sources
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import BatchName
from tests.unit.worker import watched


class Run:
    """One program whose data worker batches are made here, from a pickled copy, and packed as messages."""

    def __init__(self, program, monkeypatch, *, fed, job=None):
        """`program`: makes one, with `model`, `data`, `optimizer()`, `before`, `loss` and `after`."""
        self.fed, self.number = fed, 0
        self.program = program()
        self.package = self.made = None
        monkeypatch.setattr(
            sources.SampleSource, "read", lambda source, indices, *, tolerant=False: map(self.read, indices)
        )
        self.job = job or watched.join(master="", seed=1)
        optimizer = self.program.optimizer()
        self.model, self.optimizer, self.batches = self.job.prepare(
            self.program.model,
            optimizer,
            self.program.data,
            batch_size=self.program.batch_size,
            epochs=self.program.epochs,
            shuffle=False,
        )
        self.splitting = self.job._splitting
        if fed:
            self.splitting.watch()

    @property
    def wrong(self):
        return self.splitting.received.wrong

    def read(self, indices):
        if not len(indices):
            return None
        self.number += 1
        if self.fed and self.splitting.ready and self.made is None:
            try:
                self.made = self.splitting.make()
            except errors.BadInput:  # a job does without data workers then
                self.fed = False
                return self.splitting.received.own(indices)
            self.package = cloudpickle.loads(cloudpickle.dumps(self.made.pipeline))
        if self.package is None or self.wrong:
            return self.splitting.received.own(indices)
        name = BatchName(0, 0, self.number, len(indices))
        tree = self.ask(indices, name, self.splitting.received.asks(name))
        return self.splitting.received.receive(tree, indices, name, ask=self.ask)

    def ask(self, indices, name, leaves):
        """Make a batch as a data worker does, with these leaves, and send it as a message."""
        tree = self.package.stages[0].run.keeping(indices, leaves)
        for stage in self.package.stages[1:]:
            tree = stage.run(tree)
        message = codec.pack(tree).copied()
        return codec.unpack(message.header, message.keep[0], self.made.types)

    def run(self):
        """Losses, the final model, and all other results of the program."""
        losses = []
        for number, batch in enumerate(self.batches):
            self.program.before(number)
            self.optimizer.zero_grad()
            loss = self.program.loss(self.model, batch)
            loss.backward()
            self.optimizer.step()
            self.program.after(number)
            losses.append(loss.item())
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        return losses, state, self.program.outside()

    @property
    def told(self):
        """Describe the outcome of the split for a failure message."""
        forward = self.splitting._forward
        used = (forward.split_calls, forward.whole_calls) if forward is not None else None
        return f"{self.made.summary if self.made is not None else 'not made'}; {used}; {self.wrong}"


def difference(ours, theirs):
    """Describe how two runs differ; empty if they are bit-identical."""
    for at, (one, other) in enumerate(zip(ours[0], theirs[0], strict=True)):
        if struct.pack("d", one) != struct.pack("d", other):
            return f"loss {at} is {one}, not {other}"
    for name, value in theirs[1].items():
        if not same_bits(ours[1][name], value):
            return f"{name} differs"
    return "" if all(map(same_bits, ours[2], theirs[2])) else "what is kept outside differs"


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
