"""Parse and check resource limits."""

import pytest

from springtide import errors
from springtide.domain.core import resources
from springtide.domain.core.resources import ProcessLimits


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("2G", 2 << 30), ("512m", 512 << 20), ("1.5GiB", 3 << 29), ("64MB", 64 << 20), ("1073741824", 1 << 30)],
)
def test_memory_is_parsed_with_its_unit(text, wanted):
    assert resources.parse_memory(text) == wanted


@pytest.mark.parametrize("text", ["", "G", "2X", "-1G", "two", "1..5G", "nan"])
def test_invalid_memory_is_refused(text):
    with pytest.raises(errors.BadInput, match="such as 512M or 2G"):
        resources.parse_memory(text)


def test_forgotten_unit_is_detected():
    with pytest.raises(errors.BadInput, match="give a unit, such as 2G"):
        ProcessLimits(memory=resources.parse_memory("2"))


@pytest.mark.parametrize("cpu", [0.0, -1.0, 0.001, float("inf"), float("nan")])
def test_invalid_core_counts_are_refused(cpu):
    with pytest.raises(errors.BadInput, match="expected a number of cores from"):
        ProcessLimits(cpu=cpu)


def test_bytes_are_shown_for_people():
    assert [resources.show_memory(number) for number in (12, 2048, 3 << 29, 64 << 20)] == ["12", "2K", "1.5G", "64M"]


def test_limited_worker_uses_no_more_threads_than_its_limit():
    assert resources.size_locally(8, workers=2).threads_per_worker == 4
    assert resources.size_locally(8, workers=2, cpu=1.5).threads_per_worker == 2
    assert resources.size_locally(8, workers=2, cpu=0.5).threads_per_worker == 1
