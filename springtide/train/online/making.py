"""Raw records of a batch into what the loop gets: sifted, decoded; what cannot be trained is counted and dead-lettered.

In: runs that feed.py takes for the loop. Out: a batch, or None when none of its records can be trained; and how far the
stream's own time is. Which records are left out depends on them alone (data/stream/sift.py), so everyone decides alike.
"""

import logging
from collections import Counter
from typing import Any

import numpy as np

from springtide.data.stream import sift
from springtide.data.stream.dataset import StreamDataset
from springtide.data.stream.dead_letters import open_dead_letters
from springtide.data.stream.decode import decoder_of
from springtide.data.stream.records import Records
from springtide.data.stream.sift import Letter
from springtide.train.online.use import Use

log = logging.getLogger(__name__)


class Making:
    """Used by the loop's thread."""

    def __init__(self, dataset: StreamDataset, use: Use) -> None:
        self._rules = sift.Rules(
            max_record_bytes=dataset.max_record_bytes, max_lateness_s=dataset.max_lateness_s
        )  # fmt: skip
        self._decoder = decoder_of(dataset.decode or _bodies)
        self._letters = open_dead_letters(dataset.dead_letters)
        self._use = use
        self._said: set[str] = set()
        self.event_s = 0
        """Up to which second of the stream's own time batches were made; never goes back."""

    def batch(self, partition: int, records: Records) -> Any:
        """What the loop gets; None: nothing."""
        made = sift.batch_of(partition, records, self._rules, self._decoder)
        if made.letters:
            self._put_aside(made.letters)
        if made.records:
            # neither a record from the future nor one clock that is wrong makes rows old
            happened = np.minimum(made.event_at, records.appended_at.max())
            self.event_s = max(self.event_s, int(np.median(happened)))
        return made.batch

    def close(self) -> None:
        """No more come."""
        self._letters.close()

    def _put_aside(self, letters: list[Letter]) -> None:
        self._letters.add(letters)
        for why, count in Counter(letter.why for letter in letters).items():
            self._use.refused(why, count)
            if why not in self._said:
                self._said.add(why)
                first = next(letter for letter in letters if letter.why == why)
                log.warning(
                    "partition %d, offset %d: a record is %s (%s) and not trained; others like it are only counted",
                    first.partition, first.offset, why, first.detail or f"{first.size} bytes",
                )  # fmt: skip


def _bodies(bodies: list[bytes]) -> list[bytes]:
    return bodies
