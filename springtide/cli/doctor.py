"""`springtide doctor`: checks that this machine has everything that training needs, and suggests fixes."""

import importlib
import importlib.metadata
import os
import pathlib
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from springtide import errors
from springtide.cli.common.options import JsonOnly, verb
from springtide.cli.common.render import print_result


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Result of one check."""

    what: str
    state: str
    """ok, slow (works, but could be faster) or missing."""
    found: str
    fix: str = ""


@verb("springtide doctor --json")
def doctor(as_json: JsonOnly = False) -> int:
    """Check that this machine has everything that training needs; suggest fixes for what is missing, and print versions
    for bug reports.
    """
    findings = [check() for check in CHECKS]
    marks = {"ok": "ok     ", "slow": "slow   ", "missing": "MISSING"}
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.state]}  {finding.what:<14} {finding.found}")
        lines += [f"{'':25}fix: {finding.fix}"] if finding.fix else []
    missing = [finding.what for finding in findings if finding.state == "missing"]
    lines += ["", "everything needed is here" if not missing else f"missing: {', '.join(missing)}"]
    print_result(lines, {"ok": not missing, "checks": findings}, as_json)
    return 3 if missing else 0


def check_python() -> HostCheck:
    return HostCheck("python", "ok", f"{platform.python_version()} ({sys.executable})")


def check_system() -> HostCheck:
    cores = len(os.sched_getaffinity(0))
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return HostCheck("machine", "ok", f"{platform.platform()}, {cores} cores, {memory_gb:.0f} GiB")


def check_springtide() -> HostCheck:
    from springtide import __file__ as where
    from springtide import __version__

    return HostCheck("springtide", "ok", f"{__version__} ({pathlib.Path(where).parent})")


def check_native() -> HostCheck:
    try:
        native = importlib.import_module("springtide._native")
    except ImportError as error:
        fix = errors.MissingNativeCore(str(pathlib.Path(__file__).parents[1]), error).fix
        return HostCheck("native core", "missing", str(error), fix)
    return HostCheck("native core", "ok", str(native.__file__))


def check_torch() -> HostCheck:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        fix = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
        return HostCheck("torch", "missing", str(error), fix)
    return HostCheck("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")


def check_packages() -> HostCheck:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "msgspec", "typer", "rich")]
    return HostCheck("packages", "ok", ", ".join(versions))


def check_compiler() -> HostCheck:
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return HostCheck("compiler", "ok", found or "none; only torch.compile and building from source need one")


def check_huge_pages() -> HostCheck:
    path = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        text = path.read_text().strip()
    except OSError as error:
        return HostCheck("huge pages", "slow", f"cannot tell: {error.strerror}", "none on this system")
    if "[never]" in text:
        fix = f"echo madvise | sudo tee {path}"
        return HostCheck("huge pages", "slow", "off: lookups in large tables take twice as long", fix)
    return HostCheck("huge pages", "ok", text)


def check_ports() -> HostCheck:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]):
            port = server.getsockname()[1]
    except OSError as error:
        fix = "check the loopback interface (`ip link set lo up`) and the sandbox's rules"
        return HostCheck("ports", "missing", f"127.0.0.1 cannot be used: {error}", fix)
    return HostCheck("ports", "ok", f"127.0.0.1 accepts connections (tried {port})")


def check_limits() -> HostCheck:
    from springtide.domain.core.resources import ProcessLimits
    from springtide.platforms.local import process_group
    from springtide.telemetry.host import control_groups

    if why := process_group.why_not(ProcessLimits(cpu=1.0, memory=1 << 30)):
        return HostCheck("limits", "slow", f"--cpu and --memory have no effect: {why}", process_group.HINT)
    return HostCheck("limits", "ok", f"control groups, version {control_groups.find_hierarchy().version}")


def check_run_folder() -> HostCheck:
    folder = pathlib.Path.cwd()
    free_gb = shutil.disk_usage(folder).free / 2**30
    if not os.access(folder, os.W_OK):
        fix = "run in a folder that you may write to, or give --logs DIR"
        return HostCheck("run folder", "missing", f"{folder} cannot be written to", fix)
    if free_gb < 1:
        fix = "free some space, or give --logs DIR on another disk"
        return HostCheck("run folder", "slow", f"{folder}: only {free_gb:.2f} GiB free", fix)
    return HostCheck("run folder", "ok", f"{folder}: {free_gb:.0f} GiB free")


CHECKS: tuple[Callable[[], HostCheck], ...] = (
    check_springtide,
    check_python,
    check_system,
    check_native,
    check_torch,
    check_packages,
    check_compiler,
    check_huge_pages,
    check_ports,
    check_limits,
    check_run_folder,
)
