"""Run benchmarks: Springtide and peers in alternating rounds of one run, compared by ratios and goals.

In: a name (`springtide bench store --json`). Each name stands for a function `(options) -> report.Result`. Its module
is imported only when the name is requested. Next: bench/core/harness.py (rounds, state of the machine),
bench/core/report.py (tables and the JSON line).
"""

import ast
import importlib.util
import pathlib
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from springtide import errors

BENCHES = {  # the module of each benchmark; the function to call is `bench`, or the name after a colon
    "store": "springtide_lab.bench.store.store",
    "store-growth": "springtide_lab.bench.store.store:growth_bench",
    "pull": "springtide_lab.bench.store.pull",
    "tls": "springtide_lab.bench.store.pull:tls",
    "straggler": "springtide_lab.bench.faults.straggler",
    "train": "springtide_lab.bench.train.train",
    "cost-growth": "springtide_lab.bench.train.cost_growth",
    "dispatch": "springtide_lab.bench.control.dispatch",
    "master-load": "springtide_lab.bench.control.dispatch:master_load",
    "recovery": "springtide_lab.bench.faults.recovery",
    "restore": "springtide_lab.bench.faults.restore",
    "migrate": "springtide_lab.bench.faults.migrate",
    "rescale": "springtide_lab.bench.faults.rescale",
    "hot-server": "springtide_lab.bench.faults.hot_server",
    "exactly-once": "springtide_lab.bench.train.train:exactly_once",
    "checkpoint": "springtide_lab.bench.faults.checkpoint",
    "plan": "springtide_lab.bench.control.plan",
    "fit": "springtide_lab.bench.control.fit",
    "capacity": "springtide_lab.bench.stream.capacity",
    "autotune": "springtide_lab.bench.control.autotune",
    "cache": "springtide_lab.bench.cache.cache",
    "gpu": "springtide_lab.bench.train.gpu",
    "reduction": "springtide_lab.bench.train.reduction",
    "auc": "springtide_lab.bench.train.auc",
    "auc-xdeepfm": "springtide_lab.bench.train.auc:xdeepfm",
    "allocate": "springtide_lab.bench.cache.allocate",
    "schedule": "springtide_lab.bench.cache.schedule",
    "dataworkers-walk": "springtide_lab.bench.dataworkers.dataworkers_walk",
    "transfer": "springtide_lab.bench.dataworkers.transfer",
    "dataworkers": "springtide_lab.bench.dataworkers.dataworkers",
    "platforms": "springtide_lab.bench.control.platforms",
    "online": "springtide_lab.bench.stream.online_day",
    "stream": "springtide_lab.bench.stream.stream",
    "shuffle": "springtide_lab.bench.stream.shuffle",
    "shuffle-backlog": "springtide_lab.bench.stream.shuffle:backlog",
    "shuffle-burst": "springtide_lab.bench.stream.shuffle:burst",
    "shuffle-800": "springtide_lab.bench.stream.shuffle:many_partitions",
}


def purpose(name: str) -> str:
    """Return the first sentence of a benchmark's docstring, without importing the module."""
    module, _, function = BENCHES[name].partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(pathlib.Path(spec.origin).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    docstring = ast.get_docstring(functions[function] if function else tree) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a benchmark run."""

    quick: bool = False
    """Small sizes and few rounds, only to check that the benchmark works."""
    restart_s: float = 0.0
    """Seconds that a cluster needs in addition to stop and restart a job; some benchmarks compare with such a
    restart."""
    ids: pathlib.Path | None = None
    """For benchmarks of id streams: a file of ids (samples by tables) to use instead of generated ids."""
    out: pathlib.Path | None = None
    """Folder for plots; None is `.springtide/bench` in the current folder."""

    @property
    def folder(self) -> pathlib.Path:
        folder = self.out or pathlib.Path(".springtide") / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def listing() -> str:
    """Return all names with their purpose, in lines of at most 80 columns."""
    lines = ["springtide bench NAME, of these:"]
    for name in BENCHES:
        wrapped = textwrap.wrap(purpose(name), width=60)
        lines += [f"  {label:<17} {words}" for label, words in zip([name, *[""] * len(wrapped)], wrapped, strict=False)]
    return "\n".join([*lines, "Goals and the last figures: docs/benchmarks.md"])


def restart_delay(delays: Iterable[str]) -> float:
    """Return the seconds of the last `stop-restart=SECONDS`; raise UnknownName for any other baseline."""
    found = 0.0
    for text in delays:
        name, _, seconds = text.partition("=")
        if name != "stop-restart":
            raise errors.UnknownName("delay", name, ["stop-restart"])
        try:
            found = float(seconds)
        except ValueError:
            raise errors.BadInput(f"--delay {text}: expected NAME=SECONDS, such as stop-restart=60") from None
    return found


def run(
    name: str,
    *,
    json: bool = False,
    quick: bool = False,
    out: pathlib.Path | None = None,
    delays: Iterable[str] = (),
    ids: str | None = None,
) -> None:
    """Run a benchmark and print its tables; with `json`, print one JSON object as the last line."""
    if name not in BENCHES:
        raise errors.UnknownName("benchmark", name, BENCHES)
    from springtide_lab.bench.core import harness, report

    options = Options(
        quick=quick, out=out, restart_s=restart_delay(delays), ids=pathlib.Path(ids) if ids is not None else None
    )
    with harness.Watch(settle_s=0.2 if quick else 3.0) as watch:
        module, _, function = BENCHES[name].partition(":")
        result = getattr(importlib.import_module(module), function or "bench")(options)
    report.show(report.complete(result, name=name, quick=quick, box=watch.box()), json=json)
