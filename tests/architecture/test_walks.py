"""Check that the two walks on docs/design/index.md show existing modules that use each other."""

import re
import runpy

import pytest

from tests.architecture import sources
from tests.architecture.test_code_limits import module_graph

TOOL = runpy.run_path(str(sources.ROOT / "tools" / "walk_pictures.py"))
MOST = {"sample": 24, "decision": 30}
THREADS = re.compile(r"\b(Thread|ThreadPoolExecutor|to_thread|run_in_executor)\(")


def text(module: str) -> str:
    return (sources.ROOT / "springtide" / (module.replace(".", "/") + ".py")).read_text()


@pytest.mark.parametrize("name", MOST)
def test_walk_is_short_and_each_module_meets_an_earlier_one(name):
    stops, graph = TOOL["WALKS"][name][0], module_graph()
    assert len(stops) <= MOST[name]
    seen = [stops[0].module]
    for stop in stops[1:]:
        assert stop.after in seen, f"{stop.module}: {stop.after} does not come before it"
        one, other = f"springtide.{stop.after}", f"springtide.{stop.module}"
        assert other in graph, f"{other} is no module: change the list in tools/walk_pictures.py"
        if stop.by:
            tied = all(re.search(rf"\b{stop.by}\b", text(module)) for module in (stop.after, stop.module))
        else:
            tied = other in graph[one] or one in graph[other]
        assert tied, f"{stop.after} and {stop.module} no longer meet{f' by {stop.by}' if stop.by else ''}"
        seen.append(stop.module)


@pytest.mark.parametrize("name", MOST)
def test_walk_picture_matches_its_tool(name):
    path = TOOL["FOLDER"] / f"walk-{name}.svg"
    assert path.read_text() == TOOL["picture"](name), "run tools/walk_pictures.py"
    assert f"({path.name})" in (TOOL["FOLDER"] / "index.md").read_text()


def test_scaling_decision_leaves_the_event_loops_once():
    starting = [stop.module for stop in TOOL["DECISION"] if THREADS.search(text(stop.module))]
    assert starting == ["brain.service.advisers"]
