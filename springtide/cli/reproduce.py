"""`springtide reproduce NAME`: a paper's figures from this code. In: a name. Out: a table, plots, JSON."""

import datetime
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from springtide import errors
from springtide.sim import plots, rows
from springtide.sim.rows import Row

QUICK_SEEDS, QUICK_JOBS = 1, 30
Write = Callable[[pathlib.Path], list[pathlib.Path]]


def reproduce(
    name: str, *, seeds: int, jobs: int, quick: bool, out: str | None, as_json: bool, ids: str | None = None
) -> int:
    """Reproduce one paper."""
    if name not in PAPERS:
        raise errors.UnknownName("reproduction", name, PAPERS)
    if ids is not None and name != "herald":
        raise errors.BadInput(f"--ids {ids}: {name} trains on no ids; it is an option of `springtide reproduce herald`")
    if out is not None:
        plots.pyplot()
    chosen = range(QUICK_SEEDS if quick else seeds)
    found, said, write = PAPERS[name](chosen, jobs, quick, ids)
    remark = " (quick: shows that it runs, proves nothing)" if quick else ""
    of = ", ".join(f"{value} {word}" for word, value in said.items())
    rows.show(found, title=f"{name}: {len(chosen)} seeds, {of}{remark}")
    if out is not None:
        for path in write(pathlib.Path(out)):
            print(path, file=sys.stderr)
    if as_json:
        whole = {
            "rows": found, "reproduction": name, **said, "seeds": len(chosen), "quick": quick,
            "date": datetime.date.today().isoformat(),
        }  # fmt: skip
        print(msgspec.json.encode(whole).decode(), flush=True)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _dlrover_rm(
    seeds: Sequence[int], jobs: int, quick: bool, ids: str | None
) -> tuple[list[Row], dict[str, Any], Write]:
    from springtide.sim import reproduction

    count = QUICK_JOBS if quick else jobs
    found, seen = reproduction.rows(seeds, count, say=_say)
    return found, {"jobs": count}, lambda folder: reproduction.write(folder, found, seen, list(seeds))


def _herald(seeds: Sequence[int], jobs: int, quick: bool, ids: str | None) -> tuple[list[Row], dict[str, Any], Write]:
    from springtide.sim.herald import preset, reproduction

    size = preset.QUICK if quick else preset.Size()
    found = reproduction.rows(list(seeds), size, ids=ids, say=_say)
    said: dict[str, Any] = {"iterations": size.iterations}
    if ids is not None:
        said["ids"] = pathlib.Path(ids).name
    return found, said, lambda folder: reproduction.write(folder, found)


PAPERS: dict[str, Callable[[Sequence[int], int, bool, str | None], tuple[list[Row], dict[str, Any], Write]]] = {
    "dlrover-rm": _dlrover_rm,
    "herald": _herald,
}
