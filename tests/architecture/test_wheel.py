"""What an installed wheel has. One test packs the Python part; the soak test compiles, installs and trains."""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from tests.architecture import sources

PAGE = "springtide/dashboard/static/"
PACK = "import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1], {'wheel.cmake': 'false'})"


@pytest.fixture(scope="module")
def python_part(tmp_path_factory):
    """The wheel without the native core, which takes minutes to compile."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", PACK, folder], cwd=sources.ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        yield {name: wheel.read(name).decode() for name in wheel.namelist()}


def test_wheel_has_every_file_of_the_package_and_nothing_else(python_part):
    packed = {name for name in python_part if ".dist-info/" not in name}
    built = {name for name in packed if name.startswith(PAGE)}
    known = {name for path in sources.tracked() if (name := sources.short(path)).startswith("springtide/")}
    assert packed - built == known and "springtide/py.typed" in packed
    assert built == {sources.short(path) for path in (sources.ROOT / PAGE).rglob("*") if path.is_file()}


def test_wheel_installs_the_command_and_every_extra(python_part):
    of_info = {name.partition(".dist-info/")[2]: text for name, text in python_part.items()}
    module, function = re.search(
        r"^springtide=(\S+?):(\w+)$", of_info["entry_points.txt"].replace(" ", ""), re.M
    ).groups()
    assert callable(getattr(importlib.import_module(module), function))
    page = (sources.ROOT / "docs" / "how-to" / "install.md").read_text().partition("## Extras")[2]
    listed = re.findall(r"^\| `(\w+)` \|", page, flags=re.M)
    assert sorted(re.findall(r"^Provides-Extra: (\w+)$", of_info["METADATA"], flags=re.M)) == sorted(listed)


def test_native_core_is_compiled_for_every_processor_of_its_kind():
    """Kernels for newer instructions are files of their own, chosen at run time."""
    build = (sources.ROOT / "CMakeLists.txt").read_text()
    assert not re.findall(r"-march|-mtune|-mcpu", build)
    special = [line for line in build.splitlines() if re.search(r"-m(avx|fma|sse|bmi)", line)]
    assert special
    for line in special:
        before = build.partition(line)[0].rstrip().splitlines()[-1]
        assert "kernels_avx" in before, f"CMakeLists.txt: {line.strip()} is for more than a file of kernels"


@pytest.mark.soak
@pytest.mark.process
def test_wheel_runs_a_job_on_a_machine_without_a_compiler(tmp_path):
    tools = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([sources.ROOT / "tools" / "build_wheel", tmp_path], cwd=sources.ROOT, env=tools, check=True)
    (wheel,) = tmp_path.glob("springtide-*.whl")
    assert "-manylinux_" in wheel.name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    bin_folder = tmp_path / "venv" / "bin"
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    install = [sys.executable, "-m", "pip", "--python", bin_folder / "python", "install", "-q", "--no-deps", wheel]
    subprocess.run(install, check=True)
    (site / "torch_and_others.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n"
    )  # found after the wheel's own files
    page = (sources.ROOT / "docs/tutorials/first-job.md").read_text()
    script = re.search(r"```python file=train.py\n(.*?)```", page, re.S)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(script[1])

    def command(*words):
        environment = {"PATH": str(bin_folder), "HOME": os.environ["HOME"], "COLUMNS": "80"}
        ran = subprocess.run(
            [bin_folder / "springtide", *words], cwd=tmp_path / "job", env=environment, capture_output=True, text=True
        )
        assert ran.returncode == 0, f"springtide {words}:\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    places = {check["what"]: check["found"] for check in json.loads(command("doctor", "--json"))["checks"]}
    assert pathlib.Path(places["native core"]).is_relative_to(site)
    command("run", "train.py", "--servers", "1", "--workers", "1")
    assert json.loads(command("status", "--json"))["phase"] == "finished"
