"""Which records are trained and which become dead letters, and where those go."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.data.stream import record_filter, records
from springtide.data.stream.decode import Fixed, decoder_of
from springtide.data.stream.log import layout, stream
from springtide.data.stream.record_filter import DeadLetter, FilterRules
from springtide.data.stream.records import Records
from tests.unit.data.stream.made_records import records_of

INTS = Fixed({"x": "i8"})
RULES = FilterRules(max_record_bytes=60, max_lateness_s=10.0)


def sealed(x: int, at: float = 1000.0) -> bytes:
    return records.seal([x.to_bytes(8, "little")], [at])[0]


def broken(x: int) -> bytes:
    whole = bytearray(sealed(x))
    whole[-1] ^= 1
    return bytes(whole)


def test_each_record_is_trained_or_reported_with_a_reason() -> None:
    bodies = [sealed(1), b"z" * 61, sealed(2, at=989.0), broken(3), sealed(4, at=2000.0), b"short", b"12345678"]
    records = records_of(bodies, first=70, appended_at=1000.0)
    made = record_filter.batch_of(3, records, RULES, INTS)
    assert made.batch["x"].tolist() == [1, 4, int.from_bytes(b"12345678", "little")]
    assert made.records == 3 and made.event_at.tolist() == [1000.0, 2000.0, 1000.0]
    assert [(one.partition, one.offset, one.why, one.detail) for one in made.letters] == [
        (3, 71, "oversized", "61 bytes; the limit is 60"),
        (3, 72, "late", "appended 11.000 s after its event time"),
        (3, 73, "corrupt", "its checksum does not match"),
        (3, 75, "corrupt", "it cannot be decoded"),
    ]
    assert made.letters[1].body == sealed(2, at=989.0)


def test_without_limits_only_undecodable_records_are_left_out() -> None:
    records = records_of([sealed(1, at=0.0), b"z" * 61], appended_at=1e9)
    made = record_filter.batch_of(0, records, FilterRules(), INTS)
    assert made.batch["x"].tolist() == [1] and [one.why for one in made.letters] == ["corrupt"]


def test_batch_without_trainable_records_is_none() -> None:
    made = record_filter.batch_of(0, records_of([b"a", b"b"]), RULES, INTS)
    assert made.batch is None and made.records == 0 and len(made.letters) == 2
    assert record_filter.batch_of(0, Records.none(), RULES, INTS).batch is None


def test_records_refused_by_a_user_function_become_dead_letters_with_its_error() -> None:
    decoder = decoder_of(lambda bodies: torch.tensor([int(body) for body in bodies]))
    made = record_filter.batch_of(0, records_of([b"1", b"two", b"3"]), RULES, decoder)
    assert made.batch.tolist() == [1, 3]
    assert made.letters[0].offset == 1 and "invalid literal" in made.letters[0].detail


def test_record_can_be_late_by_its_own_event_time() -> None:
    decoder = Fixed({"at": "f8"}, event_time="at")
    bodies = [np.float64(at).tobytes() for at in (995.0, 5.0)]
    made = record_filter.batch_of(0, records_of(bodies, appended_at=1000.0), RULES, decoder)
    assert made.batch["at"].tolist() == [995.0] and made.letters[0].event_at == 5.0


KINDS = st.sampled_from(["good", "late", "broken", "large", "foreign", "short"])


@settings(max_examples=50, deadline=None)
@given(st.lists(KINDS, max_size=12), st.integers(0, 12))
def test_record_is_classified_the_same_in_any_batch(kinds: list[str], cut: int) -> None:
    makers = {
        "good": lambda i: sealed(i),
        "late": lambda i: sealed(i, at=1.0),
        "broken": broken,
        "large": lambda i: b"l" * 100,
        "foreign": lambda i: b"%08d" % i,
        "short": lambda i: b"s",
    }
    records = records_of([makers[kind](i) for i, kind in enumerate(kinds)], appended_at=1000.0)
    whole = record_filter.batch_of(0, records, RULES, INTS)
    parts = [record_filter.batch_of(0, part, RULES, INTS) for part in (records[:cut], records[cut:])]
    assert (
        whole.letters == [letter for part in parts for letter in part.letters]
        or np.isnan([letter.event_at for letter in whole.letters]).any()
    )
    assert [(one.offset, one.why) for one in whole.letters] == [
        (one.offset, one.why) for part in parts for one in part.letters
    ]
    assert whole.records == sum(part.records for part in parts) == sum(kind in ("good", "foreign") for kind in kinds)
    trained = [x for part in (whole, *parts) if part.batch is not None for x in part.batch["x"].tolist()]
    assert sorted(trained[: whole.records]) == sorted(trained[whole.records :])


def letters(count: int, size: int = 10) -> list[DeadLetter]:
    return [DeadLetter(1, i, "late", "why", 5.0, float("nan"), size, b"\xff" * size) for i in range(count)]


def test_dead_letters_are_written_as_lines_to_a_folder(tmp_path: Path) -> None:
    box = record_filter.DeadLetters(str(tmp_path / "dead"))
    box.add(letters(2))
    box.add(letters(1))
    box.close()
    (path,) = (tmp_path / "dead").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["offset"] for line in lines] == [0, 1, 0] and box.lost == 0
    assert lines[0] == {
        "partition": 1,
        "offset": 0,
        "why": "late",
        "detail": "why",
        "appended_at": 5.0,
        "event_at": None,
        "bytes": 10,
        "body": "/////////////w==",
    }


def test_full_dead_letter_box_counts_lost_letters(tmp_path: Path) -> None:
    one = len(record_filter.line_of(letters(1)[0]))
    box = record_filter.DeadLetters(str(tmp_path), most_bytes=2 * one + 5)
    assert box.why == ""
    box.add(letters(3))
    box.add(letters(3, size=0))
    assert box.lost == 4 and "MiB of letters are the limit for one process" in box.why
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 2 * one


def test_dead_letters_can_go_to_another_stream(tmp_path: Path) -> None:
    log = stream.create(tmp_path / "dead", layout.LogSettings(partitions=1))
    box = record_filter.DeadLetters(f"log://{tmp_path}/dead")
    box.add(letters(2))
    reader = log.open()
    reader.assign({0: 0})
    (chunk,) = reader.poll(0)
    assert [json.loads(body)["offset"] for body in chunk.records.bodies()] == [0, 1]
    log.seal()
    box.add(letters(1))
    assert box.lost == 1 and "sealed" in box.why
    box.close()


def test_invalid_dead_letter_destination_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.BadInput, match="give a folder"):
        record_filter.DeadLetters(str(tmp_path / "file" / "dead"))
    with pytest.raises(errors.MissingFile):
        record_filter.DeadLetters(f"log://{tmp_path}/nowhere")
    nowhere = record_filter.DeadLetters(None)
    nowhere.add(letters(3))
    nowhere.close()
    assert nowhere.lost == 0
