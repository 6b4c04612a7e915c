"""Whatever bytes a file or a message holds: they mean something that can be written again, or raise one of our errors.

Each reader gets files and messages that are correct but for some damage, from the golden files of all formats. Memory
stays within a bound, so that a few bytes cannot claim gigabytes. `SPRINGTIDE_FUZZ_EXAMPLES` sets the examples of each.
"""

import asyncio
import io
import json
import os
import pathlib
import shutil
import sqlite3
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from springtide import _native, errors, file_input
from springtide.brain.decide.cluster_state import BrainRules, ClusterState
from springtide.brain.store import rows
from springtide.brain.store import store as brain_store
from springtide.checkpoint.checkpointer import state_image
from springtide.checkpoint.format import checkpoint_io, group_model, manifest
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import claims
from springtide.data.stream import records
from springtide.data.stream.log import stream
from springtide.dataworker.loader import options
from springtide.dataworker.transport import codec
from springtide.domain.spec import schema
from springtide.export import export_folder
from springtide.master import main as master
from springtide.master.core.journal import Journal
from springtide.rpc.messages import messages
from springtide.rpc.transport import addresses, frames
from springtide.server import recovery, slot_loads
from springtide.telemetry import events as story
from tests.fuzz.mutants import altered, damaged
from tests.golden.formats import FILES, FORMATS, SPEC
from tests.unit.planning import views

EXAMPLES = int(os.environ.get("SPRINGTIDE_FUZZ_EXAMPLES", "15"))
MEMORY = 96 << 20  # bytes; the inputs have some kB
often = settings(max_examples=EXAMPLES, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
"""Examples are small already. To make a failing one smaller takes minutes."""


def golden(name: str) -> pathlib.Path:
    return FILES / f"{name}-{FORMATS[name].version}"


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """No test takes more than this at any moment, of what Python and NumPy allocate."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MEMORY, f"{peak / 2**20:.0f} MiB"


def judge(read: Callable[[], Any]) -> Any:
    """What was read, or None if it was refused by an error of ours."""
    try:
        return read()
    except errors.SpringtideError as error:
        assert str(error)
        return None


REQUESTS = [
    messages.JoinServer(1, 22, birth=7),
    messages.Heartbeat(progress=(), slots=b"123"),
    messages.ScaleRequest(2, 3),
    messages.ScriptError(1, "error", "trace"),
]


@often
@given(st.data(), st.sampled_from(REQUESTS))
def test_messages(data: st.DataObject, request: Any) -> None:
    body = msgspec.msgpack.encode(messages.RequestFrame(1, request))
    decoder = msgspec.msgpack.Decoder(messages.RequestFrame)
    plain = msgspec.msgpack.decode(body)
    tried = [data.draw(damaged(body)), msgspec.msgpack.encode(data.draw(altered(plain)))]
    for content in tried:
        found = judge(partial(frames.unpack, content, decoder))
        if found is not None:
            again = msgspec.msgpack.encode(found)
            assert msgspec.msgpack.encode(frames.unpack(again, decoder)) == again


@often
@given(st.data(), st.sampled_from(["challenge", "answer"]))
def test_handshakes(data: st.DataObject, which: str) -> None:
    content = data.draw(damaged((golden("control") / f"{which}.frame").read_bytes()))
    decoder = msgspec.msgpack.Decoder(messages.Handshake)

    async def read() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await frames.read(reader, decoder, limit=frames.MAX_HANDSHAKE_BYTES)

    try:
        judge(lambda: asyncio.run(read()))
    except EOFError:
        assert not content


HEAD = struct.Struct("<8sIIQ")


def sealed(body: bytes) -> bytes:
    """A manifest's head for a body that was changed."""
    return HEAD.pack(b"ST-CKPT\n", manifest.FORMAT, zlib.crc32(body), len(body)) + body


@often
@given(st.data())
def test_manifests(data: st.DataObject) -> None:
    content = (golden("checkpoint") / "manifest-000002.ckpt").read_bytes()
    body = content[HEAD.size :]
    plain = msgspec.msgpack.decode(body, strict=False)
    for tried in (
        data.draw(damaged(content)),
        sealed(data.draw(damaged(body))),
        sealed(msgspec.msgpack.encode(data.draw(altered(plain)))),
    ):
        found = judge(partial(manifest.decode, tried))
        if found is not None:
            assert manifest.decode(manifest.encode(found)) == found


@often
@given(st.data())
def test_checkpoints(data: st.DataObject) -> None:
    """A folder with one damaged file: a server restores it, an older checkpoint of it, or says why not."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(shutil.copytree(golden("checkpoint"), folder, dirs_exist_ok=True))
        path = place / data.draw(st.sampled_from(sorted(path.name for path in place.iterdir())))
        content = path.read_bytes()
        if path.suffix == ".ckpt" and data.draw(st.booleans()):
            plain = msgspec.msgpack.decode(content[HEAD.size :], strict=False)
            path.write_bytes(sealed(msgspec.msgpack.encode(data.draw(altered(plain)))))
        else:
            path.write_bytes(data.draw(damaged(content)))
        found = judge(lambda: checkpoint_io.latest(folder, range(4)))
        if found is not None and found.manifest is not None:
            store = _native.Store(slots=64, seed=5)
            judge(lambda: recovery.restore(store, folder, found.manifest.number, range(4)))
            judge(lambda: checkpoint_io.verify(FolderStore(place), found.manifest, range(found.manifest.slots)))


@often
@given(st.data())
def test_slot_images(data: st.DataObject) -> None:
    content = data.draw(damaged((golden("slot-image") / "slot.image").read_bytes()))
    store = _native.Store(slots=64, seed=5)
    judge(lambda: store.import_slot(content))
    judge(lambda: _native.image_facts(np.frombuffer(content, np.uint8)))


@often
@given(st.data(), st.sampled_from(["log.json", "p00000/*.index", "p00000/*.data"]))
def test_logs(data: st.DataObject, which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(shutil.copytree(golden("log"), folder, dirs_exist_ok=True))
        path = next(place.glob(which))
        if data.draw(st.booleans()):  # damage after the log was checked, as in an older segment
            judge(lambda: stream.LogStream(place))
        if which == "log.json" and data.draw(st.booleans()):
            path.write_text(json.dumps(data.draw(altered(json.loads(path.read_text()))), default=repr))
        else:
            path.write_bytes(data.draw(damaged(path.read_bytes())))
        judge(lambda: read_log(place))


def read_log(place: pathlib.Path) -> int:
    log = stream.LogStream(place)
    reader = log.open()
    reader.assign({part.partition: part.start for part in log.bounds()})
    chunks = [chunk for _ in range(4) for chunk in reader.poll(0.0)]
    count = sum(len(body) for chunk in chunks for body in chunk.records.bodies())
    log.bounds("1.5")
    reader.close()
    return count


@often
@given(st.data())
def test_journals(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(shutil.copytree(golden("journal"), folder, dirs_exist_ok=True)) / "journal.db"
        if data.draw(st.booleans()):
            path.write_bytes(data.draw(damaged(path.read_bytes())))
        else:
            table = data.draw(st.sampled_from(["snapshot", "turns", "spec"]))
            with closing(sqlite3.connect(path)) as file, file:
                (body,) = file.execute(f"select body from {table}").fetchone()
                plain = msgspec.msgpack.decode(body, strict=False) if table != "spec" else None
                changed = data.draw(damaged(body)) if plain is None else data.draw(altered(plain))
                new = changed if isinstance(changed, bytes) else msgspec.msgpack.encode(changed)
                file.execute(f"update {table} set body = ?", (new,))
        judge(lambda: asyncio.run(read_journal(path)))


async def read_journal(path: pathlib.Path) -> None:
    log = story.EventLog(path.with_name("events.jsonl"))
    with closing(log), closing(Journal(path, term=2, now=0.0)) as journal:
        master.open_service(SPEC, log, journal)


@often
@given(st.data())
def test_databases(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(shutil.copytree(golden("brain"), folder, dirs_exist_ok=True)) / "history.db"
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        judge(lambda: read_database(path))


def read_database(path: pathlib.Path) -> Any:
    with closing(brain_store.open_store(str(path))) as store:
        rows.restore_live(ClusterState(BrainRules(capacity=views.AMPLE)), store.live(), at=6.0)
        return store.history()


@often
@given(st.data())
def test_states(data: st.DataObject) -> None:
    """Of a bsp group, an elastic loader and a checkpointer."""
    folder = golden("states")
    group = (folder / "group.msgpack").read_bytes()
    found = judge(lambda: group_model.decode(data.draw(damaged(group))))
    assert found is None or group_model.decode(msgspec.msgpack.encode(found)) == found
    packed = np.array(group_model.rows_of(group))
    packed.view(np.uint8).reshape(-1)[data.draw(st.integers(0, 600))] ^= data.draw(st.integers(1, 255))
    judge(lambda: group_model.body_of(packed))
    kind = {"unit": "samples", "samples": 100, "shuffle": True}
    state = json.loads((folder / "loader.json").read_text())
    judge(lambda: options.read(data.draw(altered(state)), kind))
    planned = state_image.plan_image({"a": torch.arange(6.0), "b": [1, "x"]}, step=3, sequence=1)
    index = msgspec.msgpack.encode(data.draw(altered(msgspec.msgpack.decode(planned.index))))
    head = msgspec.structs.replace(planned.head, index_bytes=len(index), index_crc=zlib.crc32(index))
    content = state_image.saver.encode_head(head) + index
    content = content.ljust(head.image_bytes, b"\0")
    judge(lambda: state_image.read_image(io.BytesIO(data.draw(st.just(content) | damaged(content)))))


JOB = b"""\
apiVersion: springtide.dev/v1alpha1
kind: ElasticJob
metadata: {name: clicks}
spec:
  script: train.py
  args: ["--epochs", "3"]
  workers: {count: 2, cpu: 1.5, memory: 4G}
  servers: {count: 1}
  checkpoints: {everyS: 60}
"""


@often
@given(st.data(), st.sampled_from(["job.yaml", "job.json"]))
def test_specs(data: st.DataObject, name: str) -> None:
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        plain = yaml.safe_load(JOB)
        content = json.dumps(plain).encode() if name.endswith("json") else JOB
        if data.draw(st.booleans()):
            content = json.dumps(data.draw(altered(plain)), default=repr).encode()
        else:
            content = data.draw(damaged(content))
        path.write_bytes(content)
        job = judge(lambda: schema.from_plain(file_input.parse(path, file_input.read(path, what="a job"))))
        if job is not None:
            assert schema.from_plain(schema.to_plain(job)) == job


@often
@given(st.data())
def test_batches(data: st.DataObject) -> None:
    """Headers of data workers' batches, and records that workers exchange."""
    batch = {"x": torch.arange(12).reshape(3, 4), "y": [torch.ones(2), "text", 5], "z": (None, 1.5)}
    packed = codec.pack(batch)
    header, payload = bytes(packed.header), bytearray(packed.size)
    plain = msgspec.msgpack.decode(header)
    for tried in (data.draw(damaged(header)), msgspec.msgpack.encode(data.draw(altered(plain)))):
        judge(partial(codec.unpack, tried, payload))
    ends = np.array([3, 5])
    sent = records.Records(
        np.frombuffer(b"abcde", np.uint8), np.array([0, 3]), ends, np.array([7, 9]), np.array([1.0, 2.0])
    ).to_bytes()
    found = judge(lambda: records.from_bytes(data.draw(damaged(sent))))
    assert found is None or records.from_bytes(found.to_bytes()).bodies() == found.bodies()
    judge(lambda: slot_loads.unpack(data.draw(damaged(np.arange(6, dtype="<i8").tobytes())), 64))


@often
@given(st.data())
def test_small_files(data: st.DataObject) -> None:
    """The master's address, a claim, the story of a run, the card of an export."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        addresses.write_master(place / "master.json", addresses.MasterLocation(term=3, pid=7, address="host:1"))
        content = (place / "master.json").read_bytes()
        (place / "master.json").write_bytes(data.draw(damaged(content)))
        judge(lambda: addresses.read_master(place / "master.json"))
        claim = msgspec.json.encode(claims.RunClaim(run="run", job="job", at=5.0, master=claims.ProcessId(7, 9)))
        (place / "claim-000001.json").write_bytes(data.draw(damaged(claim)))
        judge(lambda: claims.all_of(FolderStore(place)))
        (place / "events.jsonl").write_bytes(data.draw(damaged(b'{"at": 1.5, "event": "joined", "role": "x"}\n' * 2)))
        judge(lambda: story.read(place / "events.jsonl"))
        card = {"version": 2, "job": "j", "number": 1, "samples": 5, "made_at": 1.0, "tables": [], "format": "npz"}
        (place / "export-000001").mkdir()
        (place / "export-000001" / "export.json").write_bytes(data.draw(damaged(json.dumps(card).encode())))
        judge(lambda: export_folder.read_card(str(place), 1))
