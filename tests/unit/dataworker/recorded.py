"""Record and split forwards, and run them with what a data worker would send."""

import pickle

import cloudpickle
import torch

from springtide.dataworker.split.recorder import marked_calls, pytree
from springtide.dataworker.split.recorder.call_recorder import CallBook, Recorder
from springtide.dataworker.split.split import split


def record(model, calls):
    """The torch calls of these calls of a model; the last one's with their values."""
    book, logs = CallBook(), []
    names = {id(one): name for name, one in (*model.named_parameters(), *model.named_buffers())}
    for at, (args, kwargs) in enumerate(calls):
        given, _ = pytree.flatten((args, kwargs))
        recorder = Recorder(
            book,
            given,
            known=lambda one: names.get(id(one), ""),
            modules=dict(model.named_modules()),
            keep=at == len(calls) - 1,
        )
        with marked_calls.handled_by(recorder.call_marked), recorder:
            made = model(*args, **kwargs)
        logs.append(recorder.finish())
        del made
    return book, logs


def splitting(model, calls):
    """Split a model's forward from these recorded calls."""
    return split(*record(model, calls))


def sent(divided, call):
    """Crossings that data workers make of a call: stages as unpickled from a package, values as from a message."""
    made, _ = pytree.flatten(call)
    for stage in pickle.loads(cloudpickle.dumps(divided.stages)):
        made = stage.run(made)
        if made is None:
            return None
    return [one.clone() if isinstance(one, torch.Tensor) else one for one in made]


def answered(divided, forward, call, *, crossing=None, check=False):
    """Result of forward with the crossings of data workers, and the replay that answered it."""
    crossing = sent(divided, call) if crossing is None else crossing
    given, _ = pytree.flatten(call)
    copies = {id(one): one.clone() if isinstance(one, torch.Tensor) else one for one in given}
    return divided.answering.run(forward, *call, crossing, pristine=lambda leaf: copies[id(leaf)], check=check)
