"""Detect whether the kernel enforces process limits for this user."""

import pytest

from springtide.domain.core.resources import ProcessLimits
from springtide.platforms.local import process_group


def skip_unless(limits: ProcessLimits) -> None:
    """Skips the test where a group with these limits cannot be made."""
    said: list[str] = []
    groups = process_group.Groups(said.append)
    group = groups.make("probe", limits)
    if group is not None:
        groups.remove(group)
    groups.close()
    if said or group is None:
        pytest.skip(f"limits cannot be tested here: {said or 'no control groups'}")
