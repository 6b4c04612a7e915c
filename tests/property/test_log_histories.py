"""The log against a model: producers, crashes, reboots, retention and readers in any order.

The model keeps every record that `append` returned for, by offset. What a reader finds must be that; what it does not
find must be what retention has deleted or what a dead machine had not yet forced to disk.
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from springtide.data.stream.log import heads, layout, stream
from springtide.data.stream.log.layout import WIDTH
from springtide.data.stream.log.reader import LogReader
from springtide.data.stream.log.writer import LogWriter

SEGMENT = 64
MEMORY = "/dev/shm"  # where forcing to disk takes no time
PARTITIONS = st.integers(0, 4)
PRODUCERS = st.integers(0, 1)


class LogHistories(RuleBasedStateMachine):
    """Two producers, one reader, and the model."""

    @initialize(partitions=st.integers(1, 3), retain=st.sampled_from([60, 150, None]))
    def make(self, partitions: int, retain: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="log-histories-", dir=MEMORY if os.path.isdir(MEMORY) else None))
        self.log = stream.create(
            self.folder, layout.LogSettings(partitions=partitions, segment_bytes=SEGMENT, retain_bytes=retain)
        )
        self.kept: list[dict[int, tuple[bytes, float]]] = [{} for _ in range(partitions)]
        self.ends = [0] * partitions
        self.at = 1_000.0
        self.serial = 0
        self.read_to = [0] * partitions
        self.sealed = self.died = False
        self._open()

    def _open(self) -> None:
        self.log = stream.LogStream(self.folder)
        self.writers: list[LogWriter] = [self.log.writer(), self.log.writer()]
        self.reader: LogReader = self.log.open()
        self.reader.assign(dict(enumerate(self.read_to)))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for writer in self.writers:
                writer.close()
            shutil.rmtree(self.folder)

    def _bodies(self, sizes: list[int]) -> list[bytes]:
        self.serial += 1
        return [(b"%d.%d;" % (self.serial, i)).ljust(size, b".")[:size] for i, size in enumerate(sizes)]

    @precondition(lambda self: not self.sealed)
    @rule(which=PRODUCERS, partition=PARTITIONS, sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5))
    def append(self, which: int, partition: int, sizes: list[int]) -> None:
        partition %= len(self.kept)
        bodies = self._bodies(sizes)
        self.at += 1
        self.writers[which].put(partition, bodies, at=self.at)
        first = self.ends[partition]
        self.kept[partition].update({first + i: (body, self.at) for i, body in enumerate(bodies)})
        self.ends[partition] += len(bodies)

    @precondition(lambda self: not self.sealed)
    @rule(which=PRODUCERS, partition=PARTITIONS, appends=st.integers(3, 12))
    def burst(self, which: int, partition: int, appends: int) -> None:
        for i in range(appends):
            self.append(which, partition, [20 + i])

    @precondition(lambda self: not self.sealed)
    @rule(partition=PARTITIONS, sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5), part=st.floats(0, 1))
    def a_producer_dies_while_it_appends(self, partition: int, sizes: list[int], part: float) -> None:
        """It wrote its bytes and some index entries; none of its records was appended."""
        partition %= len(self.kept)
        folder = layout.partition_folder(self.folder, partition)
        base = layout.bases(folder)[-1]
        payload = b"".join(self._bodies(sizes))
        with layout.index_path(folder, base).open("r+b") as index, layout.data_path(folder, base).open("r+b") as data:
            count = layout.whole(index.fileno())
            end = int(layout.entries(index.fileno(), count - 1, 1)["end"][0]) if count else 0
            os.pwrite(data.fileno(), payload, end)
            new = np.zeros(len(sizes), layout.ENTRY)
            new["end"] = np.cumsum(sizes) + end
            new["records"][-1] = len(sizes)
            torn = new.tobytes()
            os.pwrite(index.fileno(), torn[: min(int(part * len(torn)), len(torn) - WIDTH)], WIDTH * (1 + count))

    @rule(data=st.data())
    def the_machine_dies(self, data: st.DataObject) -> None:
        """Of the newest segments' files any part may be lost; closed segments were forced to disk."""
        self.died = True
        told = data.draw(st.booleans(), label="where partitions ended is still known")
        for writer in self.writers:
            writer.close()
        for partition, kept in enumerate(self.kept):
            folder = layout.partition_folder(self.folder, partition)
            base = layout.bases(folder)[-1]
            count = self.ends[partition] - base
            left = data.draw(st.integers(0, count), label="entries left")
            size = layout.data_path(folder, base).stat().st_size
            bytes_left = data.draw(st.integers(0, size), label="bytes left")
            with layout.index_path(folder, base).open("r+b") as index:
                whole = layout.entries(index.fileno(), 0, count)
                index.truncate(WIDTH * (1 + left))
            with layout.data_path(folder, base).open("r+b") as file:
                if data.draw(st.booleans(), label="as long as it was"):
                    file.seek(bytes_left)
                    file.write(bytes(size - bytes_left))
                else:
                    file.truncate(bytes_left)
            closed = [i + 1 for i in np.flatnonzero(whole["records"]).tolist() if i < left]
            sound = [i for i in closed if int(whole["end"][i - 1]) <= bytes_left]
            good = sound[-1] if sound else 0
            for lost in range(base + good, self.ends[partition]):
                kept.pop(lost, None)
            if not told:
                self.ends[partition] = base + (closed[-1] if closed else 0)
                self.read_to[partition] = min(self.read_to[partition], self.ends[partition])
        if told:
            with (self.folder / "heads").open("r+b") as file:
                file.seek(len(heads.MAGIC))
                file.write(b"another boot")
        else:
            (self.folder / "heads").unlink()
        self._open()

    @precondition(lambda self: not self.sealed and len(self.kept) < 5)
    @rule()
    def grow(self) -> None:
        self.log.grow(len(self.kept) + 1)
        self.kept.append({})
        self.ends.append(0)
        self.read_to.append(0)
        self.reader.assign(dict(enumerate(self.read_to)))

    @rule(most=st.integers(1, 9))
    def read_on(self, most: int) -> None:
        for chunk in self.reader.poll(0, most):
            assert chunk.first == self.read_to[chunk.partition] < chunk.next
            self._compare(chunk.partition, chunk.first, chunk.next, chunk.records, chunk.expired)
            self.read_to[chunk.partition] = chunk.next

    def _compare(self, partition, first, end, records, expired) -> None:  # type: ignore[no-untyped-def]
        kept = self.kept[partition]
        start = self.log.bounds()[partition].start
        wanted = [(i, *kept[i]) for i in range(max(first, start), end) if i in kept]
        assert (
            list(zip(records.offsets.tolist(), records.bodies(), records.appended_at.tolist(), strict=True)) == wanted
        )
        assert expired == max(0, min(end, start) - first)

    @precondition(lambda self: not self.sealed)
    @rule(really=st.integers(0, 9))
    def seal(self, really: int) -> None:
        if really == 0:
            self.log.seal()
            self.sealed = True

    @invariant()
    def a_new_reader_finds_all_that_is_kept(self) -> None:
        if not hasattr(self, "log"):
            return
        bounds = self.log.bounds()
        assert [seen.end for seen in bounds] == self.ends
        assert all(seen.final == self.sealed for seen in bounds)
        fresh = self.log.open()
        fresh.assign({seen.partition: 0 for seen in bounds})
        at = [0] * len(bounds)
        while chunks := fresh.poll(0, 1000):
            for chunk in chunks:
                self._compare(chunk.partition, at[chunk.partition], chunk.next, chunk.records, chunk.expired)
                at[chunk.partition] = chunk.next
        assert at == self.ends

    @invariant()
    def retention_keeps_what_it_promises(self) -> None:
        if not hasattr(self, "log"):
            return
        promised = layout.load(self.log.folder).retain_bytes
        rows = self.log._heads.rows[: len(self.kept)]
        for partition, seen in enumerate(self.log.bounds()):
            left = sum(len(body) for i, (body, _) in self.kept[partition].items() if i >= seen.start)
            assert left == rows[partition, heads.BYTES]
            if promised is None:
                assert seen.start == 0
            elif seen.start > 0:
                gone = [len(body) for i, (body, _) in self.kept[partition].items() if i < seen.start]
                assert not gone or left >= promised or self.died  # a machine that dies keeps no promise


TestLogHistories = LogHistories.TestCase
TestLogHistories.settings = settings(max_examples=10, stateful_step_count=25, deadline=None, derandomize=True)
