"""The log in a folder: guarantees for producers, readers and operators."""

import errno
import gc
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from springtide import errors
from springtide.data.stream import stream as streams
from springtide.data.stream.log import heads, layout, stream, writer
from springtide.data.stream.log import reader as log_reader
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.stream import Stream
from springtide.domain.data.streams import PartitionRange


def make(folder: Path, **settings: object) -> stream.LogStream:
    return stream.create(folder, LogSettings(**{"partitions": 2, **settings}))  # type: ignore[arg-type]


def read(log: stream.LogStream, partition: int = 0, offset: int = 0) -> list[tuple[int, bytes]]:
    reader = log.open()
    reader.assign({partition: offset})
    found: list[tuple[int, bytes]] = []
    while chunks := reader.poll(0):
        for chunk in chunks:
            found += zip(chunk.records.offsets.tolist(), chunk.records.bodies(), strict=True)
    return found


def test_log_records_keep_their_offsets_and_times(tmp_path: Path) -> None:
    log: Stream = make(tmp_path / "log")
    producer = log.writer()
    producer.append(0, b"onetwo", np.array([3, 6]))
    producer.flush()
    reader = log.open()
    reader.assign({0: 0, 1: 0})
    (chunk,) = reader.poll(10)
    assert (chunk.partition, chunk.first, chunk.next, chunk.expired) == (0, 0, 2, 0)
    assert chunk.records.bodies() == [b"one", b"two"]
    assert reader.ends() == {0: 2, 1: 0}
    assert reader.poll(0) == []


def test_log_is_opened_by_url_and_other_urls_are_refused_with_a_hint(tmp_path: Path) -> None:
    make(tmp_path / "clicks")
    log = streams.open_stream(f"log://{tmp_path}/clicks")
    assert log.partitions() == 2 and log.url == f"log://{tmp_path}/clicks"
    with pytest.raises(errors.MissingFile, match="springtide produce"):
        streams.open_stream(f"log://{tmp_path}/nowhere")
    with pytest.raises(errors.UnknownName, match="Did you mean 'log'"):
        streams.open_stream("logs:///tmp/x")
    with pytest.raises(errors.BadInput, match="give a URL"):
        streams.open_stream("/tmp/x")
    with pytest.raises(errors.BadInput, match="names no folder"):
        streams.open_stream("log:///tmp/x?partitions=3")
    with pytest.raises(errors.BadInput, match="already"):
        make(tmp_path / "clicks")


def test_job_starts_at_the_earliest_latest_or_a_given_time(tmp_path: Path) -> None:
    log = make(tmp_path / "log", segment_bytes=8)
    producer = log.writer()
    for i in range(10):
        producer.put(1, [b"%03d" % i, b"..."], at=100.0 + i)
    assert log.bounds() == [PartitionRange(0, 0, 0), PartitionRange(1, 0, 20)]
    assert log.bounds("latest") == [PartitionRange(0, 0, 0), PartitionRange(1, 20, 20)]
    assert [log.bounds(at)[1].start for at in ("0", "100", "103.5", "109", "109.5")] == [0, 0, 8, 18, 20]


def test_sealed_log_has_final_ends_and_refuses_appends(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    producer = log.writer()
    producer.put(0, [b"last"])
    log.seal()
    assert log.bounds() == [PartitionRange(0, 0, 1, True), PartitionRange(1, 0, 0, True)]
    with pytest.raises(errors.BadInput, match="sealed"):
        producer.put(0, [b"more"])
    with pytest.raises(errors.BadInput, match="sealed"):
        log.grow(3)
    assert read(stream.LogStream(tmp_path / "log")) == [(0, b"last")]


def test_partitions_are_added_while_producers_and_readers_run(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    other = stream.LogStream(tmp_path / "log")
    producer = other.writer()
    with pytest.raises(errors.BadInput, match="partitions 0 to 1, not 2"):
        producer.put(2, [b"x"])
    log.grow(4)
    producer.put(3, [b"x"])
    assert other.partitions() == 4 and read(log, 3) == [(0, b"x")]
    with pytest.raises(errors.BadInput, match="cannot shrink"):
        log.grow(1)


def test_two_producers_append_alternately_without_loss(tmp_path: Path) -> None:
    log = make(tmp_path / "log", segment_bytes=50)
    producers = [log.writer(), stream.LogStream(tmp_path / "log").writer()]
    for i in range(40):
        producers[i % 2].put(0, [b"record %d" % i])
    assert read(log) == [(i, b"record %d" % i) for i in range(40)]


def test_records_read_before_stay_valid_when_their_segment_is_deleted(tmp_path: Path) -> None:
    log = make(tmp_path / "log", segment_bytes=40, retain_bytes=40)
    producer = log.writer()
    producer.put(0, [b"the first of all"])
    reader = log.open()
    reader.assign({0: 0})
    (chunk,) = reader.poll(0)
    for _ in range(20):
        producer.put(0, [b"0123456789" * 3])
    start = log.bounds()[0].start
    assert start > 1 and len(layout.bases(tmp_path / "log" / "p00000")) < 5
    assert chunk.records.bodies() == [b"the first of all"]
    (chunk,) = reader.poll(0, most=1)
    assert (chunk.first, chunk.next, chunk.expired) == (1, start + 1, start - 1)


def test_old_records_expire_without_new_ones(tmp_path: Path) -> None:
    log = make(tmp_path / "log", retain_s=60.0)
    producer = log.writer()
    producer.put(0, [b"a", b"b"], at=1000.0)
    assert producer.trim(at=1050.0) == 0
    assert producer.trim(at=1061.0) == 1
    assert log.bounds()[0] == PartitionRange(0, 2, 2)
    producer.put(0, [b"c"], at=1070.0)
    assert read(log) == [(2, b"c")]


def test_segments_expire_by_age_or_size_except_the_active_one() -> None:
    segments = [layout.SegmentSize(10, 5.0), layout.SegmentSize(10, 6.0), layout.SegmentSize(10, 7.0)]
    cases = ((None, None, 0), (10, None, 2), (11, None, 1), (20, None, 1), (0, None, 2), (None, 1.0, 2), (20, 2.5, 1))
    for retain_bytes, retain_s, gone in cases:
        assert layout.too_many(segments, retain_bytes=retain_bytes, retain_s=retain_s, at=8.0) == gone


def test_append_on_a_full_disk_fails_without_a_partial_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(tmp_path / "log")
    producer = log.writer()
    producer.put(0, [b"fits"])
    real, calls = os.pwrite, []

    def full(handle: int, view: memoryview, position: int) -> int:
        calls.append(position)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "no space")
        return real(handle, view, position)

    monkeypatch.setattr(writer.os, "pwrite", full)
    with pytest.raises(errors.DiskFull, match="nothing was appended"):
        producer.put(0, [b"does not"])
    monkeypatch.undo()
    producer.put(0, [b"fits again"])
    assert read(log) == [(0, b"fits"), (1, b"fits again")]


def test_producer_of_many_partitions_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MOST_OPEN", 3)
    log = make(tmp_path / "log", partitions=12)
    producer = log.writer()
    before = len(os.listdir("/proc/self/fd"))
    for i in range(36):
        producer.put(i % 12, [b"%d" % i])
    assert len(os.listdir("/proc/self/fd")) <= before + 9
    producer.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert read(log, 5) == [(0, b"5"), (1, b"17"), (2, b"29")]


def test_mapping_is_released_with_its_last_reference(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    log.writer().put(0, [b"x" * 100])
    reader = log.open()
    reader.assign({0: 0})
    (chunk,) = reader.poll(0)
    data = str(tmp_path / "log" / "p00000")
    assert data in Path("/proc/self/maps").read_text()
    with pytest.raises(ValueError, match="read-only"):
        chunk.records.payload[0] = 1
    body = chunk.records.structs(np.dtype("S100"))
    reader.close()
    del reader, chunk
    gc.collect()
    assert data in Path("/proc/self/maps").read_text() and body is not None and body[0] == b"x" * 100
    del body
    gc.collect()
    assert data not in Path("/proc/self/maps").read_text()


def test_pages_already_read_are_released_but_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "KEPT_BYTES", 2**20)
    log = make(tmp_path / "log")
    producer = log.writer()
    for i in range(24):
        producer.put(0, [bytes([i]) * 2**20])
    reader = log.open()
    reader.assign({0: 0})
    chunks = []
    while found := reader.poll(0, most=1):
        chunks += found
        np.sum(found[0].records.joined())
    assert _resident(str(tmp_path / "log" / "p00000")) <= 4 * 2**20
    assert [chunk.records.payload[chunk.records.starts[0]] for chunk in chunks] == list(range(24))


def _resident(path: str) -> int:
    """Resident bytes of this process that are pages of files with this prefix."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef" and "-" in line.split()[0]:
            ours = path in line
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_large_append_is_remapped(tmp_path: Path) -> None:
    log = make(tmp_path / "log", segment_bytes=1000)
    producer = log.writer()
    producer.put(0, [b"small"])
    reader = log.open()
    reader.assign({0: 0})
    reader.poll(0)
    producer.put(0, [b"y" * 3_000_000])
    producer.put(0, [b"z" * 1001] * 2)
    found = [body for chunk in reader.poll(0) + reader.poll(0) for body in chunk.records.bodies()]
    assert [len(body) for body in found] == [3_000_000, 1001, 1001]


def test_reader_polls_all_partitions_in_turn(tmp_path: Path) -> None:
    log = make(tmp_path / "log", partitions=3)
    producer = log.writer()
    for partition, count in enumerate((100, 100, 2)):
        producer.put(partition, [b"x"] * count)
    reader = log.open()
    reader.assign({0: 0, 1: 0, 2: 0})
    assert [(chunk.partition, len(chunk.records)) for chunk in reader.poll(0, 30)] == [(0, 10), (1, 10), (2, 2)]
    assert [chunk.partition for chunk in reader.poll(0, 1)] == [0]
    assert [chunk.partition for chunk in reader.poll(0, 1)] == [1]
    assert [chunk.partition for chunk in reader.poll(0, 1)] == [0]


def test_records_with_invalid_ends_are_refused(tmp_path: Path) -> None:
    producer = make(tmp_path / "log").writer()
    for ends in ([2], [5, 4], [-1, 3]):
        with pytest.raises(errors.BadInput, match="ends must rise"):
            producer.append(0, b"abcd"[: max(ends) - 1], np.array(ends))
    producer.append(0, b"", np.array([], np.int64))


def test_invalid_log_settings_are_refused(tmp_path: Path) -> None:
    for wrong in (
        {"partitions": 0},
        {"segment_bytes": 0},
        {"retain_bytes": -1},
        {"sync": "never"},
        {"partitions": 10**6},
    ):
        with pytest.raises(errors.BadInput):
            make(tmp_path / "log", **wrong)
    (tmp_path / "log.json").write_text("{}")
    with pytest.raises(errors.BadInput, match="not the settings file of a log"):
        layout.load(tmp_path)
    (tmp_path / "log.json").write_text('{"format": 9, "partitions": 1}')
    with pytest.raises(errors.BadInput, match="format 9"):
        layout.load(tmp_path)


def test_invalid_offsets_are_refused(tmp_path: Path) -> None:
    reader = make(tmp_path / "log").open()
    for wrong in ({2: 0}, {0: -1}):
        with pytest.raises(errors.BadInput, match="cannot be read"):
            reader.assign(wrong)


def test_damaged_index_is_reported_and_left_unchanged(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    log.writer().put(0, [b"x"])
    path = tmp_path / "log" / "p00000" / f"{0:020d}.index"
    path.write_bytes(b"nonsense" + path.read_bytes()[8:])
    (tmp_path / "log" / "heads").write_bytes(b"")
    with pytest.raises(errors.BadInput, match="damaged"):
        stream.LogStream(tmp_path / "log")


def test_sync_with_every_append_forces_bytes_before_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path / "log", sync="append")
    producer = log.writer()
    producer.put(0, [b"x"])
    calls: list[str] = []
    pwrite, fsync = os.pwrite, os.fsync
    monkeypatch.setattr(writer.os, "pwrite", lambda *given: (calls.append("write"), pwrite(*given))[1])
    monkeypatch.setattr(writer.os, "fsync", lambda handle: (calls.append("force"), fsync(handle))[1])
    producer.put(0, [b"y"])
    assert calls == ["write", "force", "write", "force"]


def test_heads_of_an_earlier_boot_are_ignored(tmp_path: Path) -> None:
    log = make(tmp_path / "log", segment_bytes=10)
    producer = log.writer()
    for i in range(5):
        producer.put(0, [b"record %d" % i])
    producer.close()
    (tmp_path / "log" / "heads").unlink()
    again = stream.LogStream(tmp_path / "log")
    assert again.bounds() == log.bounds()
    assert again._heads.rows[0, heads.BYTES] == log._heads.rows[0, heads.BYTES] == 40
    assert len(read(again)) == 5


def test_log_keeps_its_id_and_a_recreated_one_has_another(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    log.grow(3)
    log.seal()
    assert log.id and stream.LogStream(tmp_path / "log").id == log.id
    shutil.move(tmp_path / "log", tmp_path / "moved")
    assert stream.LogStream(tmp_path / "moved").id == log.id
    assert make(tmp_path / "log").id not in ("", log.id)


def test_log_recreated_during_reading_is_an_error(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    shutil.rmtree(tmp_path / "log")
    assert len(log.bounds()) == 2, "what is left of it can still be read"
    make(tmp_path / "log")
    with pytest.raises(errors.StreamReplaced, match=f"recreated while it was read: its id was {log.id}"):
        log.bounds()


def test_offset_beyond_the_end_means_lost_records(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    log.writer().put(0, [b"one", b"two"])
    log.open().assign({0: 2, 1: 0})
    with pytest.raises(errors.StreamShrunk, match=r"partition 0 .* ends at 2, but the job has read up to 3"):
        log.open().assign({0: 3, 1: 0})


def test_log_of_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "log")
    (tmp_path / "log" / "log.json").write_text('{"format": 1, "partitions": 2}')
    with pytest.raises(errors.BadInput, match=r"format 1, from another version .* this one reads 2"):
        stream.LogStream(tmp_path / "log")
