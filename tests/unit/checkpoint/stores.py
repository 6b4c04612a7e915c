"""Small stores with known rows, and checkpoints of them as servers and a master would write these."""

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


def store():
    """A store with one empty table."""
    made = _native.Store(slots=SLOTS, seed=5)
    made.declare(native_spec(TABLE))
    return made


def train(into, keys, value=1.0, batch=None):
    """Push a gradient to each of these keys, under the name of a batch if there is one."""
    keys = np.asarray(keys, dtype=np.int64)
    tables = np.full(len(keys), TABLE.id, dtype=np.uint16)
    grads = np.full(len(keys) * TABLE.dim, value, dtype=np.float32)
    hyper = [(TABLE.id, _native.Hyper(lr=0.5))]
    if batch is None:
        into.push(tables, keys, grads, hyper)
    else:
        into.push_once(tables, keys, grads, hyper, [batch])


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
            file.append(slot, image_of(from_, slot, cut), since=since)
        return file.close()


def image_of(store, slot, cut=0):
    """Writes the image of a slot where it is told to, as a `SegmentWriter` wants it."""

    def write(file, at):
        copy = _native.SlotCopy()
        store.copy_slot(slot, cut, copy)
        assert copy.write_on(file, at)
        return copy.size, copy.checksum, copy.full

    return write


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
