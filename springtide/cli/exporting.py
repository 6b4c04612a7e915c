"""`springtide export --every`: exports of a job again and again.

In: a job's checkpoints. Out: exports at a URL (export/following.py), a line for each on standard output. What goes
wrong here is no trouble for the job.
"""

import re
import signal
import sys
import threading

from springtide import errors
from springtide.checkpoint.places import place_of

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
AGAIN_S = 5.0  # after one that failed


def seconds(text: str) -> float:
    """A duration such as 90, 30s, 5m or 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if found is None or float(found[1]) <= 0:
        raise errors.BadInput(f"{text!r} is no duration: wanted seconds, or a number with s, m, h or d, such as 5m")
    return float(found[1]) * UNITS[found[2]]


def follow(
    where: str, url: str, *, every_s: float, format: str = "safetensors", ended: threading.Event | None = None
) -> int:  # fmt: skip
    """Export what is newest every so often, until told to end by a signal or the event; then once more."""
    from springtide.export import files
    from springtide.export.following import Following

    following = Following(place_of(where), url, format=files.format_named(format))
    ended = ended or threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    wait_s, said = every_s, ""
    while True:
        last = ended.wait(wait_s)
        try:
            card = following.once()
            wait_s, said = every_s, ""
        except (errors.BadInput, OSError) as error:  # a checkpoint that was deleted while it was read: there is a newer
            if str(error) != said:
                print(f"no export: {error}", file=sys.stderr, flush=True)
            card, wait_s, said = None, min(every_s, AGAIN_S), str(error)
        if card is not None:
            what = "whole" if card.since is None else f"since {card.since}"
            print(f"export {card.number} ({what}): {card.rows:,} rows, {card.samples:,} samples trained", flush=True)
        if last:
            return 1 if said else 0
