"""`springtide reproduce NAME`: a paper's figures from this code. In: a name. Out: a table, plots, JSON."""

import datetime
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from springtide import errors
from springtide.cli.common import options
from springtide.sim import report
from springtide_lab.reproduce import report as rows
from springtide_lab.reproduce.report import Row

QUICK_JOBS = 30
Write = Callable[[pathlib.Path], list[pathlib.Path]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceOptions:
    """What the user asked for; None: as the paper has it."""

    seeds: int | None = None
    jobs: int | None = None
    quick: bool = False
    ids: str | None = None
    trace: str | None = None
    metrics: tuple[str, ...] = ()


class Reproduction(NamedTuple):
    """One reproduction: seeds, what it says of itself and how it writes pictures come from its function."""

    rows: Callable[[range, ReproduceOptions], tuple[list[Row], dict[str, Any], Write]]
    seeds: int = 3


def reproduce(name: str, wish: ReproduceOptions, *, out: str | None, as_json: bool) -> int:
    if name not in PAPERS:
        raise errors.UnknownName("reproduction", name, PAPERS)
    for option, given, takers in (
        ("--ids", wish.ids, ("herald",)),
        ("--trace", wish.trace, ("goldminer", "kale")),
        ("--metric", next(iter(wish.metrics), None), ("goldminer",)),
        ("--jobs", wish.jobs, ("dlrover-rm", "goldminer")),
    ):
        if given is not None and name not in takers:
            others = " and ".join(takers)
            raise errors.BadInput(
                f"{option} {given}: {name} has no use for it; it is an option of `springtide reproduce {others}`"
            )
    folder = None if out is None else options.made_folder("--out", out)
    if folder is not None:
        report.pyplot()
    chosen = range(wish.seeds or (1 if wish.quick else PAPERS[name].seeds))
    found, said, write = PAPERS[name].rows(chosen, wish)
    remark = " (quick: shows that it runs, proves nothing)" if wish.quick else ""
    of = ", ".join(f"{value} {word}" for word, value in said.items())
    rows.show(found, title=f"{name}: {len(chosen)} seeds, {of}{remark}")
    if folder is not None:
        for path in write(folder):
            print(path, file=sys.stderr)
    if as_json:
        whole = {
            "rows": found,
            "reproduction": name,
            **said,
            "seeds": len(chosen),
            "quick": wish.quick,
            "date": datetime.date.today().isoformat(),
        }
        print(msgspec.json.encode(whole).decode(), flush=True)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _dlrover_rm(seeds: range, wish: ReproduceOptions) -> tuple[list[Row], dict[str, Any], Write]:
    from springtide_lab.reproduce.dlrover_rm import reproduction

    count = wish.jobs or (QUICK_JOBS if wish.quick else 500)
    found, seen = reproduction.rows(seeds, count, say=_say)
    return found, {"jobs": count}, lambda folder: reproduction.write(folder, found, seen, list(seeds))


def _herald(seeds: range, wish: ReproduceOptions) -> tuple[list[Row], dict[str, Any], Write]:
    from springtide_lab.reproduce.herald import preset, reproduction

    size = preset.QUICK if wish.quick else preset.HeraldSize()
    found = reproduction.rows(list(seeds), size, ids=wish.ids, say=_say)
    said: dict[str, Any] = {"iterations": size.iterations}
    if wish.ids is not None:
        said["ids"] = pathlib.Path(wish.ids).name
    return found, said, lambda folder: reproduction.write(folder, found)


def _goldminer(seeds: range, wish: ReproduceOptions) -> tuple[list[Row], dict[str, Any], Write]:
    from springtide_lab.reproduce.goldminer import reproduction
    from springtide_lab.reproduce.goldminer.simulation.trace import JOBS, TracePreset

    preset = TracePreset(jobs=wish.jobs or (QUICK_JOBS if wish.quick else JOBS), trace=wish.trace)
    found = reproduction.rows(seeds, preset, own=wish.metrics, say=_say)
    said: dict[str, Any] = {"jobs": preset.jobs}
    if wish.trace is not None:
        said["trace"] = pathlib.Path(wish.trace).name
    return found, said, lambda folder: reproduction.write(folder, found, preset, seeds[0])


def _kale(seeds: range, wish: ReproduceOptions) -> tuple[list[Row], dict[str, Any], Write]:
    from springtide_lab.reproduce.kale import auc, reproduction

    traces = () if wish.quick and wish.trace is None else reproduction.found_traces(wish.trace)
    preset = reproduction.KalePreset(traces=traces)
    if wish.quick:
        preset = reproduction.KalePreset(
            traces=traces, tuned_on=1, most_settings=4, hours=6, stream=auc.QUICK, processes=1
        )
    found = reproduction.reproduce(seeds, preset, say=_say)
    said: dict[str, Any] = {"traces": [path.name for path in traces]} if traces else {}
    return found.rows, said, lambda folder: reproduction.write(folder, found)


PAPERS: dict[str, Reproduction] = {
    "dlrover-rm": Reproduction(_dlrover_rm),
    "herald": Reproduction(_herald),
    "goldminer": Reproduction(_goldminer, seeds=10),
    "kale": Reproduction(_kale, seeds=20),
}
