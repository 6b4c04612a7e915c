"""The stream commands as a user types them."""

import json
import os
import signal
from pathlib import Path

import pytest

from springtide.cli import app
from springtide.cli.stream import streams
from springtide.data.stream import producer


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert app.main(list(arguments)) == code
    return capsys.readouterr()


def test_log_commands_create_fill_show_and_seal_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"log://{tmp_path}/clicks"
    out, _ = run_command(
        capsys, "produce", url, "--generator", "counter", "--records", "100", "--partitions", "2", "--json"
    )
    facts = json.loads(out.splitlines()[-1])
    assert (facts["records"], facts["partitions"], facts["interrupted"]) == (100, [50, 50], False)
    assert "2 partitions, 100 records, 3.1K" in run_command(capsys, "stream", "info", url)[0]
    facts = json.loads(run_command(capsys, "stream", "info", url, "--json")[0])
    assert [(part["start"], part["end"], part["bytes"]) for part in facts["partitions"]] == [(0, 50, 1600)] * 2
    assert facts["partitions"][0]["oldest_at"] > 1e9 and not facts["sealed"]
    run_command(capsys, "produce", url, "--generator", "clicks", "--records", "30", "--partitions", "3", "--seal")
    out, _ = run_command(capsys, "stream", "info", url, "--rows", "1")
    assert "3 partitions, 130 records" in out and "sealed" in out and "and 2 more" in out
    _, wrong = run_command(capsys, "produce", url, "--generator", "counter", "--records", "1", code=2)
    assert "is sealed" in wrong
    assert max(len(line) for line in out.splitlines()[2:]) <= 80


def test_log_commands_grow_trim_and_seal_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    url = f"log://{tmp_path}/log"
    run_command(
        capsys, "produce", url, "--from", f"{tmp_path}/lines", "--partitions", "1", "--retain-age", "1h", "--raw"
    )
    assert "1 partitions before, 2 now" in run_command(capsys, "stream", "grow", url, "2")[0]
    assert json.loads(run_command(capsys, "stream", "trim", url, "--json")[0]) == {"segments": 0}
    assert "sealed with 2 records" in run_command(capsys, "stream", "seal", url)[0]


def test_stream_usage_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"log://{tmp_path}/log"
    (tmp_path / "binary").write_bytes(b"0,1\n\xb7\xff,2\n")
    (tmp_path / "traffic").write_text("0,1\n1,2\n")
    (tmp_path / "never").write_text("nan,1\n1,2\n")
    for arguments, told in (
        ((), "give either --from FILE or --generator NAME"),
        (("--generator", "cliks"), "Did you mean 'clicks'"),
        (("--generator", "counter", "--rate", "0"), "more than 0"),
        (("--generator", "counter", "--rate", "1", "--trace", "x"), "the trace sets the rate"),
        (("--generator", "counter", "--trace", f"{tmp_path}/none.csv"), "none.csv; expected a CSV file"),
        (("--generator", "counter", "--rate", "nan"), "--rate nan: expected a number"),
        (("--generator", "counter", "--trace", f"{tmp_path}/binary"), "expected a CSV file"),
        (("--generator", "counter", "--trace", f"{tmp_path}/traffic", "--speedup", "nan"), "expected a number"),
        (("--generator", "counter", "--trace", f"{tmp_path}/traffic", "--speedup", "inf"), "speedup inf: expected"),
        (("--generator", "counter", "--trace", f"{tmp_path}/traffic", "--peak", "-1"), "peak -1: expected"),
        (("--generator", "counter", "--speedup", "2", "--day", "0"), "--speedup, --day without --trace"),
        (("--generator", "counter", "--skew", "0"), "skew 0: expected"),
        (("--generator", "counter", "--skew", "nan"), "--skew nan: expected"),
        (("--from", f"{tmp_path}/none"), "there is no file"),
        (("--generator", "counter", "--trace", f"{tmp_path}/never"), "never, line 1: times must rise"),
    ):
        _, wrong = run_command(capsys, "produce", url, *arguments, code=2)
        assert told in wrong and wrong.count("\n") == 1
    for option, value in (("--seed", "-1"), ("--seconds", "nan")):
        assert option in run_command(capsys, "produce", url, "--generator", "counter", option, value, code=2)[1]
    assert not (tmp_path / "log").exists()
    assert "there is no log" in run_command(capsys, "stream", "info", url, code=2)[1]
    assert "there is no log" in run_command(capsys, "stream", "info", f"log://{tmp_path}/binary", code=2)[1]
    _, wrong = run_command(
        capsys, "produce", f"log://{tmp_path}/binary/log", "--generator", "counter", "--records", "1", code=2
    )
    assert "cannot be created" in wrong and wrong.count("\n") == 1


def test_ctrl_c_ends_producing_with_exact_totals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = producer.CounterRecords.take

    def take(self: producer.CounterRecords, first: int, count: int):  # type: ignore[no-untyped-def]
        os.kill(os.getpid(), signal.SIGINT)
        return real(self, first, count)

    monkeypatch.setattr(producer.CounterRecords, "take", take)
    out, _ = run_command(
        capsys, "produce", f"log://{tmp_path}/log", "--generator", "counter", "--seal", "--json", code=130
    )
    facts = json.loads(out.splitlines()[-1])
    assert facts["interrupted"] and facts["records"] == producer.MOST_AT_ONCE and "interrupted" in out
    assert "sealed" not in out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_trace_is_replayed_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hours = "\n".join(f"{hour * 3600},{1000 + hour}" for hour in range(60))
    (tmp_path / "trace.csv").write_text(f"at,count\n{hours}\n")
    out, _ = run_command(
        capsys,
        "produce",
        f"log://{tmp_path}/log",
        "--generator",
        "counter",
        "--trace",
        f"{tmp_path}/trace.csv",
        "--day",
        "1",
        "--speedup",
        "864000",
        "--peak",
        "10000",
        "--json",
    )
    assert 900 < json.loads(out.splitlines()[-1])["records"] <= 1000
    _, wrong = run_command(
        capsys,
        "produce",
        f"log://{tmp_path}/log",
        "--generator",
        "counter",
        "--trace",
        f"{tmp_path}/trace.csv",
        "--day",
        "9",
        code=2,
    )
    assert "has 2.5 days" in wrong


def test_missed_pace_is_reported() -> None:
    done = producer.ProduceReport(records=10, bytes=100, partitions=[10], seconds=2.0, behind_s=3.0)
    assert "3.0 s behind" in streams.describe("log:///x", done, sealed=False)
