"""The formats that outlive a process: how golden files of each are made, read, and marked as a newer version.

`python tests/golden/formats.py` writes files of the present versions that are missing, and never changes existing ones.
In: test_golden.py.
"""

import asyncio
import hashlib
import hmac
import json
import pathlib
import shutil
import socket
import sqlite3
import struct
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from springtide import _native, errors
from springtide.brain.decide.cluster_state import BrainRules, ClusterState, LiveJobView
from springtide.brain.decide.triggers import Administrator
from springtide.brain.store import rows
from springtide.brain.store import store as brain_store
from springtide.checkpoint.checkpointer import saver
from springtide.checkpoint.format import checkpoint_io, group_model, manifest
from springtide.checkpoint.format.storage import FolderStore
from springtide.data.stream.log import layout, stream
from springtide.dataworker.loader import options
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder, Progress
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.model.tables import Init, OptimSpec, TableSpec
from springtide.domain.spec.job_spec import JobSpec
from springtide.embedding.lookup.table_client import native_spec
from springtide.job.core import events
from springtide.master import main as master
from springtide.master.core.journal import FORMAT as JOURNAL_FORMAT
from springtide.master.core.journal import Journal
from springtide.master.core.record import JobRecord, encode_call
from springtide.rpc.messages import messages
from springtide.rpc.transport import auth, frames
from springtide.server import recovery
from tests.unit.brain.store.test_store import past
from tests.unit.planning import views

FILES = pathlib.Path(__file__).parent / "files"
SECRET = b"golden secret"
SLOTS = 64
TABLES = (
    TableSpec(id=3, name="ids", dim=2, optim=OptimSpec(kind="adagrad", initial_accumulator=0.25)),
    TableSpec(id=7, name="items", dim=4, dtype="bfloat16", optim=OptimSpec(kind="adam"), min_count=2, ttl=100),
    TableSpec(
        id=9, name="fixed", dim=1, dtype="float16", init=Init(kind="normal", b=0.1), optim=OptimSpec(kind="ftrl")
    ),
)


@dataclass(frozen=True)
class GoldenFormat:
    """One format."""

    version: int
    make: Callable[[pathlib.Path], None]
    read: Callable[[pathlib.Path], Any]
    """Return the contents as plain values; may change the files of the folder."""
    newer: Callable[[pathlib.Path], int]
    """Mark the files as those of the next version, which it returns."""


# ---- checkpoints: manifest, segments, slot images ----


def make_checkpoint(folder: pathlib.Path) -> None:
    """A full checkpoint of three tables, and an increment."""
    store = _native.Store(slots=SLOTS, seed=5)
    for table in TABLES:
        store.declare(native_spec(table))
    _train(store, range(12), batch=0)
    cut = store.cut()
    _save(store, folder, None, 0)
    _train(store, range(0, 12, 5), batch=1)
    _save(store, folder, checkpoint_io.read(str(folder), 1), cut)


def _train(store: _native.Store, keys: range, batch: int) -> None:
    ids = np.tile(np.asarray(keys, dtype=np.int64), len(TABLES))
    tables = np.repeat(np.array([table.id for table in TABLES], dtype=np.uint16), len(keys))
    grads = np.concatenate([np.full(len(keys) * table.dim, 0.5, dtype=np.float32) for table in TABLES])
    hyper = [(table.id, _native.Hyper(lr=0.5)) for table in TABLES]
    store.push_once(tables, ids, grads, hyper, [(0, 0, 10 * batch, 10)], clock=batch + 1)


def _save(store: _native.Store, folder: pathlib.Path, previous: manifest.Manifest | None, cut: int) -> None:
    number = previous.number + 1 if previous else 1
    with checkpoint_io.SegmentWriter(folder, "server-0.0", number, run="golden") as file:
        for slot in range(SLOTS):
            copy = _native.SlotCopy()
            store.copy_slot(slot, cut, copy)
            file.append(slot, copy, since=previous.number if previous else 0)
        written = file.close()
    covered = manifest.cover(SLOTS, previous, [written])
    made = manifest.Manifest(
        job="golden",
        run="golden",
        number=number,
        begun_at=1.0,
        completed_at=2.0,
        slots=SLOTS,
        seed=5,
        tables=TABLES,
        progress=manifest.SavedProgress(samples=20 * number, ledger=msgspec.msgpack.encode(_record().book.note())),
        scripts=manifest.ScriptStates(claims=("weights",), objects={0: {"x": b"y"}}, places={0: EpochPlace(1, 0, 2)}),
        files=covered.files,
        chains=covered.chains,
    )
    checkpoint_io.publish(FolderStore(folder), made)


def read_checkpoint(folder: pathlib.Path) -> Any:
    found = checkpoint_io.latest(str(folder))
    assert found.manifest is not None and not found.troubles, found.troubles
    store = _native.Store(slots=found.manifest.slots, seed=found.manifest.seed)
    recovery.restore(store, str(folder), found.manifest.number, range(found.manifest.slots))
    plain = msgspec.to_builtins(found.manifest, str_keys=True)
    shown = {name: plain[name] for name in ("job", "run", "number", "slots", "seed", "tables", "scripts")}
    return {**shown, "progress": plain["progress"]["samples"], "images": _rows(store)}


def _rows(store: _native.Store) -> Any:
    found: dict[str, Any] = {"applied": [list(map(int, run)) for run in store.applied(0)]}
    for spec in store.tables():
        found[spec.name] = {}
        for slot in range(store.slots):
            keys, values = store.scan(spec.id, slot)
            found[spec.name] |= {str(key): values[at].tolist() for at, key in enumerate(keys.tolist())}
    return found


def newer_checkpoint(folder: pathlib.Path) -> int:
    path = sorted(folder.glob("manifest-*.ckpt"))[-1]
    path.write_bytes(_bumped(path.read_bytes(), 8, "<I"))
    return manifest.FORMAT + 1


def _bumped(content: bytes, at: int, kind: str) -> bytes:
    changed = bytearray(content)
    struct.pack_into(kind, changed, at, struct.unpack_from(kind, changed, at)[0] + 1)
    return bytes(changed)


def make_image(folder: pathlib.Path) -> None:
    store = _native.Store(slots=SLOTS, seed=5)
    for table in TABLES:
        store.declare(native_spec(table))
    _train(store, range(40), batch=0)
    (folder / "slot.image").write_bytes(store.export_slot(1, 0))


def read_image(folder: pathlib.Path) -> Any:
    store = _native.Store(slots=SLOTS, seed=5)
    for table in TABLES:
        store.declare(native_spec(table))
    store.clear_slot(1)
    image = (folder / "slot.image").read_bytes()
    store.import_slot(image)
    assert store.export_slot(1, 0) == image
    return _rows(store)


def newer_image(folder: pathlib.Path) -> int:
    path = folder / "slot.image"
    path.write_bytes(_bumped(path.read_bytes(), 4, "<I"))
    return _image_version() + 1


def _image_version() -> int:
    (version,) = struct.unpack_from("<I", _native.Store(slots=SLOTS).export_slot(0, 0), 4)
    return int(version)


# ---- the journal ----

SPEC = JobSpec(name="golden", workers=2)
CARD = DatasetCard(samples=100, batch_size=5, shard_batches=4)
HOLDER = LeaseHolder(0, 0)
CALLS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("", "apply", (events.RoleJoined(Role(RoleKind.SERVER, 0)), 0.5)),
    ("", "apply", (events.RoleJoined(Role(RoleKind.WORKER, 0)), 1.0)),
    ("", "lease", (HOLDER, CARD, 2, 1.5)),
    ("", "report", (HOLDER, [Progress(0, 0, 10, 20)], 2.0)),
    ("shared", "share", ("key", b"value")),
    ("shared", "claim", ("weights", HOLDER)),
    ("scripts", "remember", (0, {"x": b"y"}, EpochPlace(1, 0, 2))),
    ("", "report", (HOLDER, [Progress(0, 0, 20, 20)], 3.0)),
)


def _record() -> JobRecord:
    record = JobRecord(SPEC)
    for part, name, arguments in CALLS:
        getattr(getattr(record, part) if part else record, name)(*arguments)
    return record


def make_journal(folder: pathlib.Path) -> None:
    """A spec, a snapshot, and entries after it."""

    async def write() -> None:
        journal = Journal(folder / "journal.db", term=1, now=1000.0)
        journal.begun_with(msgspec.json.encode(SPEC))
        record = JobRecord(SPEC)
        for number, (part, name, arguments) in enumerate(CALLS):
            change = getattr(getattr(record, part) if part else record, name)
            change(*arguments)
            journal.append(encode_call(change, arguments, {}))
            await journal.committed()
            if number == 3:
                journal.save(record.to_bytes())
        journal.tidy()
        journal.close()

    asyncio.run(write())
    _shrink(folder / "journal.db")


def read_journal(folder: pathlib.Path) -> Any:
    with closing(Journal(folder / "journal.db", term=2, now=5000.0)) as journal:
        snapshot, entries = journal.read()
        assert snapshot and entries
        spec = msgspec.json.decode(journal.begun_with(b""), type=JobSpec)
        record = master.rebuild(spec, snapshot, entries)
        return {
            "began": journal.began,
            "job": record.state.spec.name,
            "workers": record.state.workers,
            "samples": record.book.samples_trained,
            "shared": {key: value.decode() for key, value in record.shared.values.items()},
            "claims": {key: list(holder) for key, holder in record.shared.claims.items()},
            "places": {str(rank): list(place) for rank, place in record.scripts.places.items()},
            "leased_at": record.span.leased_at,
            "trained_at": record.span.trained_at,
        }


def newer_journal(folder: pathlib.Path) -> int:
    """As a newer version could make it: with a table that this one does not know, and without one of ours."""
    with closing(sqlite3.connect(folder / "journal.db")) as file, file:
        file.execute("update head set format = format + 1")
        file.execute("create table more (one integer)")
        file.execute("drop table turns")
    return JOURNAL_FORMAT + 1


def _shrink(path: pathlib.Path) -> None:
    """Move what was written ahead into the file, and make its pages small."""
    with closing(sqlite3.connect(path)) as file:
        for command in ("pragma journal_mode=delete", "pragma page_size=512", "vacuum", "pragma journal_mode=wal"):
            file.execute(command)


# ---- the data plane and the control plane ----

HELLO = struct.Struct("<IHBBQQIIIIQQQHHHHIIQII")


def make_wire(folder: pathlib.Path) -> None:
    """The hello that a client sends: the first frame of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = threading.Thread(target=_call, args=(port,))
        client.start()
        with listener.accept()[0] as sock:
            (folder / "hello.frame").write_bytes(_exactly(sock, HELLO.size + 32))
        client.join()


def _call(port: int) -> None:
    with suppress(errors.SpringtideError):
        _native.RemoteBackend(
            hosts=["127.0.0.1"],
            ports=[port],
            secret=SECRET,
            server_of_slot=[0] * SLOTS,
            epoch=3,
            rank=2,
            incarnation=1,
            generation=4,
            connect_timeout_s=0.01,
            request_timeout_s=5.0,
            shared_memory=False,
        )


def _exactly(sock: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = sock.recv(size - len(content))
        assert more, f"the connection ended after {len(content)} of {size} bytes"
        content += more
    return content


def read_wire(folder: pathlib.Path) -> Any:
    """A server answers the hello with a challenge that is correct for this secret."""
    hello = (folder / "hello.frame").read_bytes()
    answer, body = _answer_to(hello)
    if answer[13]:
        raise errors.JobFailed(body.decode())
    expected = hmac.digest(SECRET, b"springtide server" + hello[HELLO.size :] + body[:32], hashlib.sha256)
    assert answer[2] == 2 and body[32:] == expected
    fields = HELLO.unpack(hello[: HELLO.size])
    return {"version": fields[1], "kind": fields[2], "generation": fields[6], "epoch": fields[7], "rank": fields[8]}


def _answer_to(hello: bytes) -> tuple[tuple[int, ...], bytes]:
    given = _native.ServerOptions()
    given.secret = SECRET
    server = _native.Server(_native.Store(slots=SLOTS), given)
    try:
        with socket.create_connection(server.start()) as sock:
            sock.sendall(hello)
            header = HELLO.unpack(_exactly(sock, HELLO.size))
            return header, _exactly(sock, header[5])
    finally:
        server.stop(0.0)


def newer_wire(folder: pathlib.Path) -> int:
    path = folder / "hello.frame"
    path.write_bytes(_bumped(path.read_bytes(), 4, "<H"))
    return _wire_version() + 1


def _wire_version() -> int:
    return _answer_to(b"?" * HELLO.size)[0][1]


CHALLENGE, ANSWER = b"c" * auth.NONCE_BYTES, b"a" * auth.NONCE_BYTES


def make_control(folder: pathlib.Path) -> None:
    """The two frames that begin a connection, from the listener and from the caller."""
    (folder / "challenge.frame").write_bytes(frames.pack(messages.HandshakeChallenge(messages.VERSION, CHALLENGE)))
    proof = auth.proof(SECRET, "caller", CHALLENGE, ANSWER)
    (folder / "answer.frame").write_bytes(frames.pack(messages.HandshakeAnswer(messages.VERSION, ANSWER, proof)))


def read_control(folder: pathlib.Path) -> Any:
    """A listener with the golden nonce accepts the golden answer."""
    challenge, answer = ((folder / f"{name}.frame").read_bytes() for name in ("challenge", "answer"))
    decoder = msgspec.msgpack.Decoder(messages.Handshake)
    asked, said = (frames.unpack(frame[frames.LENGTH.size :], decoder) for frame in (challenge, answer))
    assert isinstance(asked, messages.HandshakeChallenge) and isinstance(said, messages.HandshakeAnswer)
    with mock.patch.object(auth.secrets, "token_bytes", lambda _: CHALLENGE):
        asyncio.run(_accept(answer))
    return {"versions": [asked.version, said.version], "nonces": [asked.nonce.decode(), said.nonce.decode()]}


async def _accept(answer: bytes) -> None:
    reader, writer = asyncio.StreamReader(), mock.Mock(drain=mock.AsyncMock())
    reader.feed_data(answer)
    await auth.challenge(reader, writer, SECRET, 1)


def newer_control(folder: pathlib.Path) -> int:
    for name in ("challenge", "answer"):
        path = folder / f"{name}.frame"
        content = msgspec.msgpack.decode(path.read_bytes()[frames.LENGTH.size :])
        content["version"] += 1
        path.write_bytes(frames.pack(content))
    return messages.VERSION + 1


# ---- log folders, the brain's database, and small states ----


def make_log(folder: pathlib.Path) -> None:
    log = stream.create(folder, layout.LogSettings(partitions=2, segment_bytes=40))
    writer = log.writer()
    for number in range(6):
        writer.put(number % 2, [b"record %d" % number, b"more"])
    writer.close()
    log.seal()
    (folder / "heads").unlink()
    (folder / "lock").unlink()


def read_log(folder: pathlib.Path) -> Any:
    log = stream.LogStream(folder)
    reader = log.open()
    reader.assign({place.partition: place.start for place in log.bounds()})
    found: dict[str, list[Any]] = {}
    for chunks in iter(lambda: reader.poll(0.0), []):
        for chunk in chunks:
            bodies = [body.decode() for body in chunk.records.bodies()]
            found.setdefault(str(chunk.partition), []).extend(zip(chunk.records.offsets.tolist(), bodies, strict=True))
    reader.close()
    return {"sealed": log.sealed, "records": {key: [list(pair) for pair in found[key]] for key in sorted(found)}}


def newer_log(folder: pathlib.Path) -> int:
    path = folder / "log.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "format": layout.FORMAT + 1, "compression": {"kind": "new"}}))
    return layout.FORMAT + 1


def make_brain(folder: pathlib.Path) -> None:
    with closing(brain_store.open_store(str(folder / "history.db"))) as store:
        store.remember(past())
        store.remember(past("deep", finished=False, ended_at=2000.0, shape=None, throughput=None, facts=None))
        live = LiveJobView(view=views.running(), epoch=3, seen_at=5.0, administrator=Administrator(period_s=1.0))
        store.keep_live([rows.live_row(live)])
    _shrink(folder / "history.db")


def read_brain(folder: pathlib.Path) -> Any:
    with closing(brain_store.open_store(str(folder / "history.db"))) as store:
        history = store.history()
        council = ClusterState(BrainRules(capacity=views.AMPLE))
        bad = rows.restore_live(council, store.live(), at=6.0)
        assert not bad and not history.unreadable
        jobs = [msgspec.to_builtins(job, str_keys=True) for job in history.jobs]
        return {"jobs": jobs, "live": {name: job.epoch for name, job in council.jobs.items()}}


def newer_brain(folder: pathlib.Path) -> int:
    with closing(sqlite3.connect(folder / "history.db")) as file, file:
        file.execute("update schema_version set version = version + 1")
        file.execute("drop table live_jobs")
    return brain_store.VERSION + 1


def make_states(folder: pathlib.Path) -> None:
    """A bsp group's model, the head of a checkpointer's image, and the state of an elastic loader."""
    place = group_model.GroupPosition(3, 1, 2, [3])
    saved = group_model.SavedGroup(1, place, [("torch.float32", [2], bytes(8))], [{"lr": 0.5}], [])
    (folder / "group.msgpack").write_bytes(msgspec.msgpack.encode(saved))
    (folder / "state.head").write_bytes(saver.encode_head(saver.ImageHead(10, 20, 3, 7, 99)))
    kind = {"unit": "samples", "samples": 100, "shuffle": True}
    (folder / "loader.json").write_text(json.dumps(options.written(kind, options.LoaderPosition(1, 40), 11)))


def read_states(folder: pathlib.Path) -> Any:
    kind = {"unit": "samples", "samples": 100, "shuffle": True}
    place, seed = options.read(json.loads((folder / "loader.json").read_text()), kind)
    head = saver.decode_head((folder / "state.head").read_bytes())
    group = group_model.decode((folder / "group.msgpack").read_bytes())
    return {
        "loader": [list(place), seed],
        "head": msgspec.to_builtins(head),
        "group": [msgspec.to_builtins(group.place), len(group.dense), group.plan],
    }


def newer_states(folder: pathlib.Path) -> int:
    path = folder / "group.msgpack"
    saved = msgspec.msgpack.decode(path.read_bytes())
    path.write_bytes(msgspec.msgpack.encode({"format": group_model.FORMAT + 1, "tensors": len(saved)}))
    return group_model.FORMAT + 1


FORMATS = {
    "brain": GoldenFormat(brain_store.VERSION, make_brain, read_brain, newer_brain),
    "checkpoint": GoldenFormat(manifest.FORMAT, make_checkpoint, read_checkpoint, newer_checkpoint),
    "control": GoldenFormat(messages.VERSION, make_control, read_control, newer_control),
    "journal": GoldenFormat(JOURNAL_FORMAT, make_journal, read_journal, newer_journal),
    "log": GoldenFormat(layout.FORMAT, make_log, read_log, newer_log),
    "slot-image": GoldenFormat(_image_version(), make_image, read_image, newer_image),
    "states": GoldenFormat(group_model.FORMAT, make_states, read_states, newer_states),
    "wire": GoldenFormat(_wire_version(), make_wire, read_wire, newer_wire),
}
CONTENTS = "contents.json"


def main() -> None:
    for name, form in FORMATS.items():
        folder = FILES / f"{name}-{form.version}"
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        form.make(folder)
        with tempfile.TemporaryDirectory() as copy:
            contents = form.read(pathlib.Path(shutil.copytree(folder, copy, dirs_exist_ok=True)))
        (folder / CONTENTS).write_text(json.dumps(contents, indent=1, default=repr) + "\n")
        print(f"{folder}: {sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())} bytes")


if __name__ == "__main__":
    main()
