"""`springtide run` for its user: output, exit status and files."""

import json
import re
import socket

import pytest

from tests.process import running

pytestmark = pytest.mark.process


def test_two_servers_and_two_workers_train_every_shard(tmp_path):
    running.script(tmp_path, running.loop())
    with running.springtide("run", "train.py", "--servers", "2", "--workers", "2", "--json", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, out
    assert out[0].startswith("job train finished in ")
    result = json.loads(out[-1])
    assert (result["samples"], result["data"]["shards_done"], result["data"]["shards_total"]) == (2000, 100, 100)
    logs = {path.name for path in (tmp_path / ".springtide/runs/train/logs").iterdir()}
    assert logs == {"master.log", "server-0.log", "server-1.log", "worker-0.log", "worker-1.log"}
    assert [e["phase"] for e in running.events(tmp_path) if e["event"] == "phase"] == ["running", "finished"]
    assert not (tmp_path / ".springtide/runs/train/secret").exists()


def test_bsp_ranks_train_the_same_shards(tmp_path):
    running.script(tmp_path, running.loop(body=running.MEET))
    with running.springtide("run", "train.py", "--workers", "2", "--sync", "bsp", "--json", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, out
    result = json.loads(out[-1])
    assert (result["samples"], result["data"]["shards_done"]) == (2000, 100)  # a sample counts once for both ranks


def test_script_sees_the_environment_of_plain_python(tmp_path):
    (tmp_path / "own_module.py").write_text("ANSWER = 42\n")
    told = "__name__, sys.argv, own_module.ANSWER, 'torch' in sys.modules"
    running.script(tmp_path, f"import sys, own_module\nprint({told}, flush=True)\n{running.loop()}")
    with running.springtide("run", "train.py", "--", "--epochs", "3", folder=tmp_path, cold=True) as job:
        assert job.wait_for("__main__") == "__main__ ['train.py', '--epochs', '3'] 42 False"
        assert job.finish()[0] == 0


def test_user_error_is_the_first_line(tmp_path):
    body = f"if welcome.rank == 1:\n    raise ValueError('no such column: age')\n{running.MEET}"
    running.script(tmp_path, running.loop(body=body))
    with running.springtide("run", "train.py", "--workers", "2", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 1
    line = 1 + (tmp_path / "train.py").read_text().splitlines().index("        raise ValueError('no such column: age')")
    assert out[0] == f"ValueError: no such column: age (train.py:{line})"
    assert not any("Traceback" in each for each in (*out, *job.said))
    log = (tmp_path / ".springtide/runs/train/logs/worker-1.log").read_text()
    assert "Traceback (most recent call last)" in log and "runpy" not in log
    assert f"logs    {'.springtide/runs/train/logs'}" in out


def test_debug_shows_the_traceback(tmp_path):
    running.script(tmp_path, "import nothing_of_this_name\n")
    with running.springtide("run", "train.py", "--debug", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 1
    assert out[0] == "ModuleNotFoundError: No module named 'nothing_of_this_name' (train.py:1)"
    assert "Traceback (most recent call last):" in out


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("def broken(:\n    pass\n", "SyntaxError: invalid syntax (train.py:1)"),
        ("import sys\nsys.exit('no data')\n", "SystemExit: no data (train.py:2)"),
        ("print('hello')\n", "worker-0: the script ended without calling st.join()"),
    ],
)
def test_script_that_cannot_train_prints_the_reason_first(tmp_path, text, first):
    running.script(tmp_path, text)
    with running.springtide("run", "train.py", "--workers", "1", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 1 and out[0].startswith(first)


@pytest.mark.soak
def test_script_that_never_joins_is_stopped_after_the_timeout(tmp_path):
    running.script(tmp_path, "import threading\nthreading.Event().wait()\n")
    with running.springtide("run", "train.py", "--timeout", "15", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 1
    assert out[0].startswith("worker-0: the script has not called st.join() within 15 s.")


def test_missing_script_suggests_the_nearest_name(tmp_path):
    running.script(tmp_path, "")
    with running.springtide("run", "trian.py", folder=tmp_path) as job:
        job.wait_for("error: no script trian.py. Did you mean train.py?")
        assert job.finish() == (2, [])


def test_port_in_use_is_named(tmp_path):
    running.script(tmp_path, "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running.springtide("run", "train.py", "--port", str(port), folder=tmp_path) as job:
            job.wait_for(f"error: port {port} on 127.0.0.1 is taken by another process")
            assert job.finish()[0] == 2


TELLS_AND_WAITS = """if not trained:
    import os, time
    print('at', master_link.config.load().master, flush=True)
    while not os.path.exists('go-on'):
        time.sleep(0.01)"""


def test_garbage_on_the_masters_port_does_not_harm_the_job(tmp_path):
    running.script(tmp_path, running.loop(body=TELLS_AND_WAITS))
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        host, port = job.wait_for("at 127.0.0.1:").removeprefix("at ").split(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b""):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(garbage)
        (tmp_path / "go-on").touch()
        assert job.finish()[0] == 0


def test_live_view_is_shown_on_a_terminal_and_honours_no_color(tmp_path):
    running.script(tmp_path, running.loop(body="print('leased', lease.shard)", samples=100))
    shown = running.on_a_terminal("run", "train.py", folder=tmp_path, NO_COLOR="1", SPRINGTIDE_WARM_STARTS="0")
    assert "leased 0" in shown and "samples/s" in shown
    assert "\x1b[?25l" in shown  # the cursor is hidden while the view is redrawn in place
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7])m", shown), "a colour in spite of NO_COLOR"
    assert "job train finished in " in shown
