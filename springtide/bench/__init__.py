"""Benchmarks: ours and peers in alternating rounds of one run, ratios and goals last.

In: a name (`springtide bench store --json`). Each name has a module with `bench(options) -> report.Result`, imported
only when asked for. Next: harness.py (rounds), machine.py (is the box idle), report.py (tables and the JSON line).
"""

import ast
import importlib.util
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from springtide import errors

if TYPE_CHECKING:
    from springtide.bench import report

BENCHES = {
    "store": "springtide.bench.store",
    "store-growth": "springtide.bench.store_growth",
    "pull": "springtide.bench.pull",
    "tls": "springtide.bench.tls",
    "straggler": "springtide.bench.straggler",
    "train": "springtide.bench.train",
    "cost-growth": "springtide.bench.cost_growth",
    "dispatch": "springtide.bench.dispatch",
    "master-load": "springtide.bench.master_load",
    "recovery": "springtide.bench.recovery",
    "restore": "springtide.bench.restore",
    "migrate": "springtide.bench.migrate",
    "rescale": "springtide.bench.rescale",
    "hot-server": "springtide.bench.hot_server",
    "exactly-once": "springtide.bench.exactly_once",
    "checkpoint": "springtide.bench.checkpoint",
    "plan": "springtide.bench.plan",
    "fit": "springtide.bench.fit",
    "capacity": "springtide.bench.capacity",
    "autotune": "springtide.bench.autotune",
    "cache": "springtide.bench.cache",
    "reduction": "springtide.bench.reduction",
    "auc": "springtide.bench.auc",
    "auc-xdeepfm": "springtide.bench.auc_xdeepfm",
    "allocate": "springtide.bench.allocate",
    "schedule": "springtide.bench.schedule",
    "dataworkers-walk": "springtide.bench.dataworkers_walk",
    "transfer": "springtide.bench.transfer",
    "dataworkers": "springtide.bench.dataworkers",
    "platforms": "springtide.bench.platforms",
    "online": "springtide.bench.online.closed_loop",
    "stream": "springtide.bench.stream",
    "shuffle": "springtide.bench.shuffle",
    "shuffle-backlog": "springtide.bench.shuffle_backlog",
    "shuffle-burst": "springtide.bench.shuffle_burst",
    "shuffle-800": "springtide.bench.shuffle_800",
}


def purpose(name: str) -> str:
    """What a benchmark measures, in a sentence: the first of its module, which is read and not imported."""
    spec = importlib.util.find_spec(BENCHES[name])
    assert spec is not None and spec.origin is not None
    said = ast.get_docstring(ast.parse(pathlib.Path(spec.origin).read_text())) or ""
    return said.partition("\n\n")[0].replace("\n", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a benchmark is asked for."""

    quick: bool = False
    """Small sizes and few rounds: shows that it runs, proves nothing."""
    delays: Mapping[str, float] = field(default_factory=dict)
    """Seconds that a baseline is taken to need for something that is not run here, by name."""
    ids: pathlib.Path | None = None
    """A file of ids, samples by tables, to take instead of generated ones, where a benchmark is on ids."""
    out: pathlib.Path | None = None
    """Folder for plots; none: `.springtide/bench` in the current folder."""

    @property
    def folder(self) -> pathlib.Path:
        """Where plots go, made when first asked for."""
        folder = self.out or pathlib.Path(".springtide") / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def run(
    name: str,
    *,
    json: bool = False,
    quick: bool = False,
    out: pathlib.Path | None = None,
    delays: Mapping[str, float] | None = None,
    ids: pathlib.Path | None = None,
) -> "report.Result":
    """Measure, print tables (and with `json` one object as the last line), return what was measured."""
    if name not in BENCHES:
        raise errors.UnknownName("benchmark", name, BENCHES)
    from springtide.bench import machine, report

    with machine.Watch(settle_s=0.2 if quick else 3.0) as watch:
        options = Options(quick=quick, out=out, delays=delays or {}, ids=ids)
        result = importlib.import_module(BENCHES[name]).bench(options)
    whole = report.complete(result, name=name, quick=quick, box=watch.box())
    report.show(whole, json=json)
    return whole
