"""Terms of masters on Ray: a number in the run folder, raised before each master is started.

In: `steward`. Out: what `platforms.agent.master_keeper` asks for. There is one steward at a time: its name is taken as
long as it lives, and Ray starts the next one when it is dead.
"""

import os
import pathlib

from springtide import errors
from springtide.telemetry import events


class TermCounter:
    """The number of the newest master of a run."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._path = folder / "term"

    async def next(self) -> int:
        """One more than any before, on disk before anyone uses it."""
        term = self._last() + 1
        part = self._path.with_name("term.part")
        try:
            with open(part, "w", encoding="ascii") as file:
                file.write(str(term))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            raise events.as_disk_error(error, self._path) from error
        return term

    def _last(self) -> int:
        try:
            return int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise errors.JobFailed(f"{self._path} does not hold the number of the last master: {error}") from None
