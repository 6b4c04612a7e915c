"""How long a store is waited for that neither answers nor fails: a network that swallows packets, a mount that hangs.

In: `moved`, called whenever the store has answered (`checkpoint.format.storage.Remote.moved`). Out: one call with the
reason when it has not for too long. Time alone does not count, however large the files are: only time without any
answer. Next: `checkpoint.transfer.upload` and `checkpoint.transfer.upload_part` say it in their line and end, so that
whoever waits for a copy at the end of the data does not wait for ever.
"""

import os
import threading
import time
from collections.abc import Callable

SILENCE_S = 600.0
"""An answer is due for each 8 MiB; the longest is that for a whole file which must be on a slow disk."""
LOOKS = 60
"""In so many parts of that time it is looked at."""


class Patience:
    """With one store."""

    def __init__(self, silence_s: float = SILENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._silence_s, self._clock = silence_s, clock
        self._heard = clock()

    def moved(self) -> None:
        """The store has answered."""
        self._heard = self._clock()

    def trouble(self) -> str:
        """Why nobody should wait any longer; empty: it is not so."""
        if self._clock() - self._heard <= self._silence_s:
            return ""
        return f"the store has neither answered nor failed for {self._silence_s:g} s; look whether it can be reached"

    def watch(self, give_up: Callable[[str], object], rest: Callable[[float], object] = time.sleep) -> None:
        """Look until it is lost; then say so once."""
        while not (why := self.trouble()):
            rest(self._silence_s / LOOKS)
        give_up(why)

    def guard(self, line: Callable[[str], str]) -> None:
        """In a thread: when it is lost, print the line made of the reason and end the process, whatever it hangs in."""

        def give_up(why: str) -> None:
            print(line(why), flush=True)
            os._exit(1)

        threading.Thread(target=self.watch, args=(give_up,), daemon=True).start()
