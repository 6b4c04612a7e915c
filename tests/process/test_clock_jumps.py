"""The wall clock of a whole job jumps a day ahead, then two back: every record is trained once."""

import pathlib
import shutil
import subprocess

import pytest

from tests.process import stream_counting
from tests.process.test_stream_jobs import appending, check, job_of

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

DAY_S = 86_400


@pytest.fixture
def shifted_clock(tmp_path):
    """Environment of a job's processes, and the file with their clock offset in seconds."""
    library, file = tmp_path / "clock_shift.so", tmp_path / "shift"
    source = pathlib.Path(__file__).with_name("clock_shift.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    file.write_text("0")
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(file)}, file


def jump(file, seconds):
    """At once for all."""
    part = file.with_suffix(".part")
    part.write_text(str(seconds))
    part.replace(file)


@pytest.mark.timeout(400)
def test_clock_jumps_and_role_kills_train_every_record_once(tmp_path, shifted_clock):
    told, file = shifted_clock
    producer = stream_counting.Producer(tmp_path, partitions=3)
    producer.append(500)
    with job_of(tmp_path, environment=told) as job:
        with appending(producer, 40):
            for term, (seconds, role) in enumerate(((DAY_S, "worker-1"), (-DAY_S, "server-0"), (0, "worker-0")), 2):
                before = len(producer.records)
                job.until(lambda status, before=before: status.samples > before and status.checkpoints.number)
                jump(file, seconds)
                before = len(producer.records)
                job.until(lambda status, before=before: status.samples > before)
                assert job.kill("master")
                job.until(lambda status, term=term, role=role: status.master.term == term and role in job.pids())
                assert job.kill(role)
        producer.seal()
        status = job.wait()
    check(tmp_path, status, producer)
    ages = [event["at"] for event in job.story]
    assert max(ages) - min(ages) > DAY_S, "the clock of the job did not jump"
