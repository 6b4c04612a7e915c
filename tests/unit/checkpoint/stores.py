"""Small stores with known rows, and checkpoints of them as servers and a master write them."""

import pathlib
import sys
import tempfile
import time

import numpy as np

from springtide import _native
from springtide.checkpoint.format import checkpoint_io, manifest
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.domain.model.checkpoints import Lineage, Written
from springtide.domain.model.tables import OptimSpec, TableSpec
from springtide.embedding.lookup.table_client import native_spec

SLOTS = 64
RUN = "run1"
CLAIM = RunClaim(run=RUN, job="test")
LINEAGE = Lineage(RUN)
TABLE = TableSpec(id=3, name="ids", dim=4, optim=OptimSpec(kind="adagrad", initial_accumulator=0.25))


def store(slots=SLOTS):
    """A store with one empty table."""
    made = _native.Store(slots=slots, seed=5)
    made.declare(native_spec(TABLE))
    return made


def train(into, keys, value=1.0, batch=None):
    """Push a gradient to each of these keys, optionally under a batch identity."""
    keys = np.asarray(keys, dtype=np.int64)
    tables = np.full(len(keys), TABLE.id, dtype=np.uint16)
    grads = np.full(len(keys) * TABLE.dim, value, dtype=np.float32)
    hyper = [(TABLE.id, _native.Hyper(lr=0.5))]
    if batch is None:
        into.push(tables, keys, grads, hyper)
    else:
        into.push_once(tables, keys, grads, hyper, [batch])


def leave_gaps(into, batches):
    """Push batches with gaps between them, so that each is its own identity range."""
    for batch in range(batches):
        train(into, [], batch=(0, 1, 2 * batch, 1))


def contents(of):
    """All rows by key, and the identities of every slot."""
    rows = {}
    for slot in range(SLOTS):
        keys, values = of.scan(TABLE.id, slot)
        rows.update({int(key): tuple(value.tolist()) for key, value in zip(keys, values, strict=True)})
    return rows, [of.applied(slot) for slot in range(SLOTS)]


def save(
    from_, folder, number, *, previous=None, cut=0, life="server-0.0", ledger=b"ledger", slots=range(SLOTS), run=RUN
):
    """One checkpoint of a whole store, or of some of its slots for `cover`."""
    with checkpoint_io.SegmentWriter(folder, life, number, run=run) as file:
        since = previous.number if previous else 0
        for slot in slots:
            file.append(slot, copy_of(from_, slot, cut), since=since)
        return file.close()


def copy_of(store, slot, cut=0):
    copy = _native.SlotCopy()
    store.copy_slot(slot, cut, copy)
    return copy


def publish(folder, number, written, *, previous=None, ledger=b"ledger", run=RUN, **more):
    """The manifest of what was written."""
    covered = manifest.cover(SLOTS, previous, [written] if isinstance(written, Written) else written)
    assert not covered.missing
    made = manifest.Manifest(
        job="test",
        run=run,
        number=number,
        begun_at=float(number),
        completed_at=number + 0.5,
        slots=SLOTS,
        seed=5,
        tables=(TABLE,),
        progress=manifest.SavedProgress(ledger=ledger),
        files=covered.files,
        chains=covered.chains,
        apart=covered.apart,
        **more,
    )
    checkpoint_io.publish(FolderStore(folder), made)
    return made


def main(slots=256):
    """Print the save time of slots with this many identity ranges: in full, and after a push of 1,000 keys."""
    for ranges in map(int, sys.argv[1:]):
        made = store(slots)
        leave_gaps(made, ranges - 1)
        train(made, range(100_000), batch=(0, 0, 0, 4))
        for cut in (0, made.cut()):
            if cut:
                train(made, range(1000), batch=(0, 0, 4, 4))
            spent = []
            for number in range(1, 16):
                with tempfile.TemporaryDirectory() as folder:
                    began = time.thread_time()
                    written = save(made, pathlib.Path(folder), number, cut=cut, slots=range(slots))
                    spent.append(time.thread_time() - began)
            what = "increment" if cut else "full"
            print(f"{ranges} ranges, {what}: {written.size / 1e6:.2f} MB, {min(spent) * 1e3:.0f} ms of CPU")


if __name__ == "__main__":
    main()
