"""`springtide reproduce NAME`: a paper's figures from this code. In: a name. Out: a table, plots, JSON."""

import datetime
import pathlib
import sys

import msgspec

from springtide import errors
from springtide.sim import plots, reproduction, rows

PAPERS = ("dlrover-rm",)
QUICK_SEEDS, QUICK_JOBS = 1, 30


def reproduce(name: str, *, seeds: int, jobs: int, quick: bool, out: str | None, as_json: bool) -> int:
    """Reproduce one paper."""
    if name not in PAPERS:
        raise errors.UnknownName("reproduction", name, PAPERS)
    if out is not None:
        plots.pyplot()
    chosen, count = (range(QUICK_SEEDS), QUICK_JOBS) if quick else (range(seeds), jobs)
    found, seen = reproduction.rows(chosen, count, say=lambda line: print(line, file=sys.stderr, flush=True))
    remark = " (quick: shows that it runs, proves nothing)" if quick else ""
    rows.show(found, title=f"{name}: {len(chosen)} seeds, days of {count} jobs{remark}")
    if out is not None:
        for path in reproduction.write(pathlib.Path(out), found, seen, list(chosen)):
            print(path, file=sys.stderr)
    if as_json:
        said = {
            "rows": found, "reproduction": name, "jobs": count, "seeds": len(chosen), "quick": quick,
            "date": datetime.date.today().isoformat(),
        }  # fmt: skip
        print(msgspec.json.encode(said).decode(), flush=True)
    return 0
