"""Check that modules declared pure do no I/O, and that deciding modules declare it (layers: see pyproject.toml)."""

import ast
import re
import tomllib

from tests.architecture import sources

IO_MODULES = {
    "asyncio",
    "concurrent",
    "fcntl",
    "http",
    "io",
    "kubernetes",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "psutil",
    "random",
    "ray",
    "requests",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "torch",
    "urllib",
    "uuid",
    "springtide._native",
    "springtide.config",
    "springtide.platforms",
    "springtide.rpc",
    "springtide.telemetry",
}
DECIDES = ("springtide.domain", "springtide.planning", "springtide.job")
DECIDING_MODULES = (
    "springtide.data.ledger",
    "springtide.data.peer_shuffle",
    "springtide.data.shards",
    "springtide.embedding.placement",
    "springtide.checkpoint.format.manifest",
    "springtide.dataworker.feed.dispatch",
)


def name_of(path):
    parts = path.relative_to(sources.ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def touches(imported, banned):
    return {name for name in imported for bad in banned if name == bad or name.startswith(bad + ".")}


def decides(module):
    return any(module == p or module.startswith(p + ".") for p in (*DECIDES, *DECIDING_MODULES))


def test_module_declared_pure_is_pure():
    """It imports no I/O, except modules declared pure or empty packages."""
    modules = {name_of(path): path for path in sources.python("springtide")}
    pure = {name for name, path in modules.items() if sources.docstring(path).startswith("Pure.")}
    empty = {name for name, path in modules.items() if path.stem == "__init__" and not sources.imports(path)}

    def harmless(name):
        return name in pure | empty or (name not in modules and name.rpartition(".")[0] in pure)

    for path in sources.python("springtide"):
        if sources.docstring(path).startswith("Pure."):
            bad = {name for name in touches(sources.imports(path), IO_MODULES) if not harmless(name)}
            assert not bad, f"{sources.short(path)} says it is pure and imports {sorted(bad)}"


def test_deciding_modules_declare_that_they_are_pure():
    silent = [
        sources.short(path)
        for path in sources.python("springtide")
        if decides(name_of(path)) and not sources.docstring(path).startswith("Pure.")
    ]
    assert not silent, f"the docstring must begin with 'Pure.': {silent}"


def test_import_contract_names_every_deciding_module():
    contracts = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (forbidden,) = [
        contract for contract in contracts if contract["name"].startswith("Decisions do no input or output")
    ]
    existing = {name_of(path) for path in sources.python("springtide")}
    wanted = {module for module in (*DECIDES, *DECIDING_MODULES) if module in existing}
    assert wanted <= set(forbidden["source_modules"])


def test_only_config_reads_the_environment():
    readers = [
        sources.short(path)
        for path in sources.python("springtide")
        if name_of(path) != "springtide.config"
        and any(word in path.read_text() for word in ("os.environ", "os.getenv", "from os import environ"))
    ]
    assert not readers, f"settings come from springtide/config.py: {readers}"


def test_only_allowed_modules_unpickle():
    found = [
        sources.short(path)
        for path in sources.python("springtide")
        if touches(sources.imports(path), {"pickle", "cloudpickle", "dill", "marshal", "shelve"})
    ]
    # the user's own code, sealed by the job's secret, in the job's own folder; never from a socket
    allowed = ["springtide/dataworker/processes/job_package.py"]
    assert found == allowed, f"pickle elsewhere in the package: {found}"


def calls_of(path, *names):
    """Calls of these functions, as written: `eval`, `torch.load`."""
    text = path.read_text()
    if not any(f"{name}(" in text for name in names):
        return []  # parsing every file would take ten seconds
    tree = ast.parse(text)
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in names]


def test_only_the_users_script_is_evaluated():
    found = [sources.short(path) for path in sources.python("springtide") if calls_of(path, "eval", "exec")]
    assert found == ["springtide/worker/runner.py"], f"eval or exec elsewhere in the package: {found}"
    unsafe = [
        sources.short(path)
        for path in sources.python("springtide")
        for call in calls_of(path, "torch.load")
        if not any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in call.keywords)
    ]
    assert not unsafe, f"torch.load unpickles without weights_only=True: {unsafe}"


def test_security_page_names_existing_tests():
    named = re.findall(r"`((?:tests|cpp)/[^`]+)`", (sources.ROOT / "SECURITY.md").read_text())
    assert len(named) > 20
    missing = [path for path in named if not (sources.ROOT / path).is_file()]
    assert not missing, f"SECURITY.md names tests that do not exist: {missing}"


def test_shared_memory_is_unnamed_so_a_crash_leaves_none():
    given = {"multiprocessing.shared_memory", "posix_ipc", "sysv_ipc"}
    found = [path for path in sources.python("springtide") if touches(sources.imports(path), given)]
    rooms = ("springtide/dataworker", "springtide/embedding", "springtide/server", "springtide/worker")
    sharing = [path for path in sources.python("springtide") if sources.short(path).startswith(rooms)]
    found += [path for path in sharing if '"/dev/shm' in path.read_text()]
    found += [path for path in sources.native() if any(mark in path.read_text() for mark in ("shm_open", "shmget"))]
    assert not found, f"shared memory with a name: {[sources.short(path) for path in found]}"


def test_native_core_uses_python_only_in_its_bindings():
    for path in sources.native():
        if "bindings" not in path.parts:
            text = path.read_text()
            for header in ("Python.h", "nanobind/", "torch/", "pybind11/"):
                assert f"<{header}" not in text and f'"{header}' not in text, f"{sources.short(path)} includes {header}"
