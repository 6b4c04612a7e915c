"""What users see: public names, import time, and docs pages that list everything they should."""

import functools
import importlib
import inspect
import re
import runpy
import subprocess
import sys
import tomllib

import pytest

import springtide
from springtide import errors
from springtide.platforms.agent import run_plan
from springtide.platforms.local import fork_server
from springtide_lab.bench import BENCHES
from tests.architecture import sources

HEAVY = {
    "torch",
    "numpy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "ray",
    "kubernetes",
    "rich",
    "typer",
    "scipy",
    "sqlalchemy",
    "springtide._native",
}


def modules_after(statement):
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=sources.ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_springtide_loads_neither_torch_nor_anything_heavy():
    loaded = modules_after("import springtide")
    assert not loaded & HEAVY
    assert len(loaded - modules_after("pass")) < 40


@pytest.mark.parametrize("role", ["master.main", "server.__main__", "platforms.agent", "cli.app"])
def test_role_starts_without_optional_packages(role):
    """Each costs every start, and every restart of a master, a tenth of a second to two."""
    assert not modules_after(f"import springtide.{role}") & (HEAVY - {"numpy", "typer", "springtide._native"})


def test_fork_server_preimports_no_module_run_as_main():
    """Python warns of it in the log of every worker that is forked, which a user sees among the script's own lines."""
    seen: set[str] = set()
    ahead = [name for name in fork_server.IMPORTS if name.startswith("springtide.")]
    while ahead:
        name = ahead.pop()
        path = sources.ROOT / f"{name.replace('.', '/')}.py"
        if name not in seen and path.is_file():
            seen.add(name)
            ahead += sources.imports(path, begins=True)
    assert len(seen) > 100
    assert not seen & set(run_plan.MODULES.values())


def test_public_names_are_sorted_and_each_has_one_home():
    assert springtide.__all__ == sorted(springtide.__all__)
    assert set(springtide.__all__) == set(springtide._HOME)
    for name, home in springtide._HOME.items():
        assert hasattr(importlib.import_module(home), name), f"{home} has no {name}"


def test_every_error_has_its_entry_on_the_errors_page():
    page = (sources.ROOT / "docs" / "reference" / "errors.md").read_text()
    listed = set(re.findall(r"^## `(\w+)`$", page, flags=re.M))
    defined = {
        name for name, thing in vars(errors).items() if inspect.isclass(thing) and thing.__module__ == errors.__name__
    }
    assert listed == defined


def test_every_dependency_has_its_reason_on_the_page():
    project = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {re.match(r"[A-Za-z0-9._-]+", requirement).group().lower() for requirement in wanted}
    page = (sources.ROOT / "docs" / "design" / "dependencies.md").read_text()
    explained = {name.lower() for name in re.findall(r"^\| `([A-Za-z0-9._-]+)`", page, flags=re.M)}
    assert names <= explained, f"no reason given for {sorted(names - explained)}"
    assert explained <= names, f"explained but not used: {sorted(explained - names)}"


def test_links_between_pages_resolve():
    broken = []
    for page in [p for p in sources.tracked() if p.suffix == ".md"]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            other = page.parent / target if target else page
            if re.match(r"[a-z]+:", target):
                continue
            if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
                broken.append(f"{sources.short(page)} -> {target}#{anchor}")
    assert not broken, broken


@functools.cache
def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, flags=re.M)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_two_clicks_from_the_readme():
    docs = sources.ROOT / "docs"
    readme = (sources.ROOT / "README.md").read_text()
    assert "(docs/index.md)" in readme and "(docs/design/index.md)" in readme
    fronts = [docs / "index.md", docs / "design" / "index.md"]
    linked = {
        (front.parent / target).resolve()
        for front in fronts
        for target in re.findall(r"\]\(([^)#\s]+)", front.read_text())
    }
    pages = [page for page in sources.tracked() if page.suffix == ".md" and docs in page.parents]
    lost = [sources.short(page) for page in pages if page not in linked and page != fronts[0]]
    assert not lost, f"link these from docs/index.md or docs/design/index.md: {lost}"


def test_every_name_that_users_are_shown_is_on_the_api_page():
    """Specs and policies have pages of their own."""
    listed, module = set(), ""
    api = (sources.ROOT / "docs" / "reference" / "api.md").read_text()
    for heading, name in re.findall(r"^(?:## `([\w.]+)`|    options: {heading: (\w+),.*)$", api, flags=re.M):
        module = heading or module
        listed.add(f"{module}.{name}" if name else module)
    pages = [*(sources.ROOT / "docs").rglob("*.md"), *(sources.ROOT / "examples").glob("*.py")]
    for page in [sources.ROOT / "README.md", *pages]:
        for package, names in re.findall(r"^from (springtide(?:\.[\w.]*)?) import (.+)$", page.read_text(), flags=re.M):
            for name in names.split(", ") if not package.startswith("springtide.domain.") else ():
                shown = f"{package}.{name}"
                assert shown in listed or any(known.startswith(f"{shown}.") for known in listed), f"{page}: {shown}"


def test_version_is_written_once():
    project = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == springtide.__version__


def test_every_benchmark_is_listed_on_the_page():
    page = (sources.ROOT / "docs" / "benchmarks.md").read_text()
    assert not (silent := [name for name in BENCHES if f"`{name}`" not in page.partition("## Figures")[0]]), silent


GENERATED = {
    "reference/settings": ("settings_page", "page"),
    "reference/spec": ("spec_page", "page"),
    "benchmarks": ("bench_page", "page"),
    "reference/api": ("api_page", "page"),
    "reference/commands": ("reference_pages", "commands_page"),
    "reference/events": ("reference_pages", "events_page"),
    "reference/metrics": ("reference_pages", "metrics_page"),
}


@pytest.mark.parametrize("page", GENERATED)
def test_generated_pages_match_their_tool(page):
    tool, function = GENERATED[page]
    text = runpy.run_path(str(sources.ROOT / "tools" / f"{tool}.py"))[function]()
    assert (sources.ROOT / "docs" / f"{page}.md").read_text() == text, f"run tools/{tool}.py"


PICTURES = runpy.run_path(str(sources.ROOT / "tools" / "explanation_pictures.py"))


@pytest.mark.parametrize("name", PICTURES["PICTURES"])
def test_pictures_match_their_tool_and_are_shown(name):
    path = PICTURES["FOLDER"] / f"{name}.svg"
    assert path.read_text() == PICTURES["picture"](name), "run tools/explanation_pictures.py"
    assert f"({path.name})" in path.with_suffix(".md").read_text()
