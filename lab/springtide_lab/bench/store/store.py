"""Tables alone and behind the public module, against the bare bound and against peers.

In: store_probe.py (native tables against a loop that reads one index cell and then the row) and store_modules.py
(lookup, backward and update through `st.EmbeddingBags` against nn.EmbeddingBag and FBGEMM). Out: five goals.
"""

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, report
from springtide_lab.bench.store import store_modules, store_probe


def bench(options: Options) -> report.Result:
    """Both halves; the goals are the worst of all cases."""
    cases = [store_probe.measure(case, quick=options.quick) for case in store_probe.cases(quick=options.quick)]
    modules = store_modules.measure(quick=options.quick)
    goals = (
        report.goal("lookup_vs_probe_gather", report.worst([case.lookup for case in cases]), target=0.6),
        report.goal("update_vs_probe_scatter", report.worst([case.update for case in cases]), target=0.5),
        *(
            report.goal(f"vs_{peer}", modules.worst(peer), target=target, why=modules.why.get(peer, ""))
            for peer, target in store_modules.TARGETS.items()
        ),
    )
    rows = [
        row(case.name, case.rates["ours lookup"], case.lookup, case.rates["ours update"], case.update) for case in cases
    ]
    rows += [
        row(f"{name}, {t} thread{'s' if t > 1 else ''}", figure, ratio) for name, t, figure, ratio in modules.rows()
    ]
    return report.Result(
        goals=goals,
        rounds=cases[0].rounds,
        columns=("case (M rows/s; ratio to the peer)", "lookup", "ratio", "update", "ratio"),
        rows=tuple(rows),
        notes=(
            "Tables: ours against the bare loop. Modules: lookup + backward + update, peers' own rate first.",
            *modules.notes(),
        ),
        versions=modules.versions,
        details={"cases": {case.name: case.rates for case in cases}, "modules": modules.figures()},
    )


def row(
    name: str,
    lookup: float,
    lookup_ratio: harness.Ratio | None,
    update: float | None = None,
    update_ratio: harness.Ratio | None = None,
) -> tuple[str | float | None, ...]:
    """One line of the table."""
    first = lookup_ratio.value if lookup_ratio else None
    return (name, lookup, first, update, update_ratio.value if update_ratio else None)
