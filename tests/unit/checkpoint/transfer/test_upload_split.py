"""Who copies what to storage: each server its own files, its buddy what it has lost, the master what lies beside it."""

from springtide.checkpoint.format.manifest import File, Manifest
from springtide.checkpoint.transfer.upload import shares


def manifest(*files, apart):
    return Manifest(
        job="j", run="run1", number=1, begun_at=0.0, completed_at=0.0, slots=0, seed=0, files=files, apart=apart
    )


OWN = File("server-0/server-0.0-000001.run1.seg", "server-0.0", 10, "server-1/server-0.0-000001.run1.seg")
ALONE = File("server-2/server-2.0-000001.run1.seg", "server-2.0", 20)
BESIDE = File("server-3.0-000001.run1.seg", "server-3.0", 30)
HALF = File("server-0/server-0.0-000002.run1.seg", "server-0.0", 40, "server-4/server-0.0-000002.run1.seg")
APART = {"server-0": "a", "server-1": "b", "server-2": "b"}


def test_each_file_is_its_own_servers_to_copy():
    found = shares(manifest(OWN, ALONE, BESIDE, HALF, apart=APART), ())
    assert found.of == {"server-0": ((OWN.name, 10),), "server-2": ((ALONE.name, 20),)} and not found.missing


def test_what_a_server_has_lost_is_its_buddys_and_what_nobody_has_is_missing():
    found = shares(manifest(OWN, ALONE, apart=APART), {OWN.name})
    assert found.of == {"server-1": ((OWN.mirror, 10),), "server-2": ((ALONE.name, 20),)}
    found = shares(manifest(OWN, ALONE, apart=APART), {OWN.name, OWN.mirror, ALONE.name})
    assert found.of == {} and found.missing == (OWN.name, ALONE.name)


def test_a_host_is_outlasted_by_files_that_all_see_or_that_are_on_two_machines():
    assert manifest(BESIDE, apart={}).outlasts_a_host
    assert manifest(OWN, HALF, BESIDE, apart=APART).outlasts_a_host
    assert not manifest(OWN, ALONE, apart=APART).outlasts_a_host
    assert not manifest(OWN, apart={"server-0": "a", "server-1": "a"}).outlasts_a_host
