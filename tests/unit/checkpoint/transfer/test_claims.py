"""One run owns a checkpoint place; another is refused unless it resumes from there."""

import os
import subprocess
import threading

import msgspec
import pytest

from springtide import errors
from springtide.checkpoint.format import storage
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import claims
from springtide.checkpoint.transfer.claims import RunClaim
from tests.unit.checkpoint import stores

SCHEMES = ["folder", "file", "memory"]


def place_at(tmp_path, scheme="folder"):
    folder = tmp_path / "place"
    return storage.FolderStore(folder) if scheme == "folder" else storage.UrlStore(f"{scheme}://{folder}")


def claim(run, **more):
    return RunClaim(run=run, job="counts", host="elsewhere", **more)


def owner(place):
    found = claims.all_of(place)
    return found[max(found)]


@pytest.fixture
def process():
    """A process that lives until the test ends it."""
    with subprocess.Popen(["sleep", "1000"]) as sleeping:
        yield sleeping
        sleeping.kill()


def kept_by(pid, run="run1"):
    """A claim of a local run whose master is this process and whose agent is gone."""
    return RunClaim(
        run=run,
        job="counts",
        host="here",
        space=claims._process_space(),
        master=claims._process(pid),
        agent=claims.ProcessId(os.getpid(), 1),
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_second_run_is_refused_and_told_which_run_holds_the_claim(tmp_path, scheme):
    place, first = place_at(tmp_path, scheme), claim("run1")
    assert claims.take(place, first) == claims.take(place, first) == "claim-000001.json"
    with pytest.raises(errors.BadInput, match=r"belongs to run run1 of job 'counts' \(on elsewhere.* --checkpoint-url"):
        claims.take(place, claim("run2"), option="--checkpoint-url")
    assert claims.all_of(place) == {1: first}, "the first one's is as it was"


def test_one_of_several_simultaneous_runs_claims_the_place(tmp_path):
    for attempt in range(20):
        folder, start, won, refused = tmp_path / f"{attempt}", threading.Barrier(4), [], []

        def begin(run, folder=folder, start=start, won=won, refused=refused):
            start.wait()
            try:
                claims.take(storage.FolderStore(folder), claim(run))
                won.append(run)
            except errors.BadInput:
                refused.append(run)

        threads = [threading.Thread(target=begin, args=(f"run{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1 and len(refused) == 3 and owner(storage.FolderStore(folder)).run == won[0]


def test_next_master_of_a_run_still_owns_its_place(tmp_path):
    place = place_at(tmp_path)
    claims.take(place, claim("run1", at=1.0))
    assert claims.take(place, claim("run1", at=2.0)) == "claim-000001.json"
    assert owner(place).at == 2.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_resuming_run_takes_over_the_place_for_good(tmp_path, scheme):
    place = place_at(tmp_path, scheme)
    claims.take(place, claim("run1"))
    made = stores.publish(tmp_path / "place", 7, stores.save(stores.store(), tmp_path / "place", 7))
    if scheme == "memory":
        place.write(made.name, (tmp_path / "place" / made.name).read_bytes())
    with pytest.raises(errors.BadInput, match=r"has checkpoints of another run.* --resume"):
        claims.take(place, claim("run2"))
    with pytest.raises(errors.BadInput, match=r"has checkpoints of another run.* --resume"):
        claims.take(place, claim("run2", resumed_run="run0"))
    assert claims.take(place, claim("run2", resumed_run="run1")) == "claim-000002.json"
    with pytest.raises(errors.BadInput, match="was taken over by run run2 of job 'counts'"):
        claims.take(place, claim("run1"))
    assert owner(place).run == "run2"
    assert claims.take(place, claim("run3", resumed_run="run1")) == "claim-000003.json", "run2 left no checkpoint"


def test_running_run_is_not_taken_over_and_a_killed_one_is(tmp_path, process, monkeypatch):
    monkeypatch.setattr(claims, "PATIENCE_S", 0.2)
    place = place_at(tmp_path)
    claims.take(place, kept_by(process.pid))
    stores.publish(tmp_path / "place", 7, stores.save(stores.store(), tmp_path / "place", 7))
    follower = claim("run2", resumed_run="run1")
    with pytest.raises(errors.BadInput, match=f"process {process.pid}, since .* still runs"):
        claims.take(place, follower)
    process.kill()
    process.wait()
    assert claims.take(place, follower) == "claim-000002.json"


def test_place_without_checkpoints_is_free_once_its_run_is_over(tmp_path, process):
    place, mine = place_at(tmp_path), kept_by(process.pid)
    claims.take(place, mine)
    process.kill()
    process.wait()
    assert claims.take(place, claim("run2")) == "claim-000002.json"
    claims.release(place, "run1")
    assert owner(place).run == "run2", "another's is not given up"
    claims.release(place, "run2")
    assert owner(place).run == "run1"


def test_run_whose_agent_lives_is_not_over(tmp_path, process):
    living = claims._process(os.getpid())
    place, first = place_at(tmp_path), kept_by(process.pid)
    claims.take(place, RunClaim(run="run1", job="counts", space=first.space, master=first.master, agent=living))
    process.kill()
    process.wait()
    with pytest.raises(errors.BadInput, match="may still run"):
        claims.take(place, claim("run2"))


def test_place_with_checkpoints_stays_claimed_after_its_run(tmp_path):
    place = place_at(tmp_path)
    claims.take(place, claim("run1"))
    stores.publish(tmp_path / "place", 7, stores.save(stores.store(), tmp_path / "place", 7))
    claims.release(place, "run1")
    assert owner(place).run == "run1"


def test_unreadable_claim_counts_as_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "PATIENCE_S", 0.2)
    place = place_at(tmp_path)
    place.write("claim-000001.json", b"")
    with pytest.raises(errors.BadInput, match=r"claim-000001.json there cannot be read.* delete that file"):
        claims.take(place, claim("run1"))


def test_deleted_claim_is_recreated_unless_another_run_has_the_place(tmp_path):
    place = place_at(tmp_path)
    claims.take(place, claim("run1"))
    stores.publish(tmp_path / "place", 7, stores.save(stores.store(), tmp_path / "place", 7))
    place.remove("claim-000001.json")
    assert claims.take(place, claim("run1")) == "claim-000001.json"


def test_old_damaged_claim_causes_no_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(claims.time, "sleep", lambda _: pytest.fail("nothing is to be waited for"))
    place = place_at(tmp_path)
    place.write("claim-000001.json", b"")
    place.write("claim-000002.json", msgspec.json.encode(claim("run2")))
    assert claims.take(place, claim("run2")) == "claim-000002.json"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_process_of_another_user_hidden_by_proc_may_still_run(tmp_path, process, monkeypatch):
    first = kept_by(process.pid)
    monkeypatch.setattr(claims, "_process", lambda pid: None)
    assert first.is_over(), "a process that we could signal would be shown"
    child = os.fork()
    if not child:
        os.setresuid(65534, 65534, 65534)
        os._exit(0 if first.is_running() and not first.is_over() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def claimed(folder, run):
    """The name of a claim of that run."""
    return claims.take(FolderStore(folder), RunClaim(run=run, job="job"))


def test_server_that_finds_its_runs_claim_shares_the_folder(tmp_path):
    claim = claimed(tmp_path / "job", "run1")
    assert claims.find_disk(str(tmp_path / "job"), "run1", claim) == claims.CheckpointDisk(tmp_path / "job")
    assert claims.find_disk(str(tmp_path / "nowhere"), "run1", "") == claims.CheckpointDisk(tmp_path / "nowhere"), (
        "none was written"
    )


@pytest.mark.parametrize("other", ["gone", "of another"])
def test_server_without_the_claim_uses_a_private_folder_on_a_named_machine(tmp_path, other):
    claim, elsewhere = claimed(tmp_path / "job", "run1"), tmp_path / "elsewhere"
    if other == "of another":
        assert claimed(elsewhere, "run2") == claim, "another run's claim has the same name"
    disk = claims.find_disk(str(elsewhere), "run1", claim, scratch=str(tmp_path / "scratch"))
    assert disk.folder == tmp_path / "scratch" / "run1" and disk.folder.is_dir()
    assert disk.node == claims.machine() != ""
    assert claims.find_disk(str(elsewhere), "run1", claim, scratch=str(tmp_path / "scratch"), node="n1").node == "n1"


def test_machine_without_a_writable_folder_is_told_what_to_set(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.BadInput, match="SPRINGTIDE_SCRATCH"):
        claims.find_disk(str(tmp_path / "nowhere"), "run1", "claim", scratch=str(tmp_path / "file"))


def test_folder_of_another_user_under_our_name_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(claims.tempfile, "gettempdir", lambda: str(tmp_path))
    assert claims.find_disk(str(tmp_path / "nowhere"), "run1", "claim").folder.is_dir()
    mine = os.getuid()
    (tmp_path / f"springtide-{mine}").rename(tmp_path / f"springtide-{mine + 1}")
    monkeypatch.setattr(claims.os, "getuid", lambda: mine + 1)
    with pytest.raises(errors.BadInput, match="belongs to another user"):
        claims.find_disk(str(tmp_path / "nowhere"), "run1", "claim")
