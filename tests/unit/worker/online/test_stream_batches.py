"""Untrainable records become dead letters; unkept letters are logged once and counted."""

import numpy as np

from springtide.data.stream.record_filter import DeadLetters
from springtide.data.stream.records import Records
from springtide.data.stream.stream import stream
from springtide.worker.online.stream_batches import RecordDecoder
from springtide.worker.online.usage_report import StreamMeter


def test_full_dead_letter_box_is_logged_once_and_unkept_records_counted(tmp_path, caplog):
    use = StreamMeter()
    making = RecordDecoder(stream("log:///x", max_record_bytes=1, dead_letters=str(tmp_path)), use)
    making._letters = DeadLetters(str(tmp_path), most_bytes=300)
    ends = np.arange(2, 9, 2, dtype=np.int64)
    records = Records(np.zeros(8, np.uint8), ends - 2, ends, np.arange(4), np.zeros(4))
    for _ in range(3):
        assert making.batch(0, records).batch is None
    found, (letters,) = use.report([]), tmp_path.iterdir()
    kept = len(letters.read_text().splitlines())
    assert found.oversized == 12 and kept >= 1 and found.unkept == 12 - kept
    assert caplog.text.count("dead letters are only counted from now on, not stored") == 1
    assert found.unkept_why == making._letters.why and "the limit for one process" in found.unkept_why
