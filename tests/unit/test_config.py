import pytest

from springtide import config, errors
from springtide.domain.core.roles import RoleKind


def test_code_overrides_the_environment_and_the_environment_defaults():
    settings = config.load({"seed": 3}, environ={"SPRINGTIDE_SEED": "2", "SPRINGTIDE_SLOTS": "64"})
    assert (settings.seed, settings.slots, settings.sync) == (3, 64, "async")


def test_misspelt_setting_gets_a_hint():
    with pytest.raises(errors.UnknownName, match="Did you mean 'seed'"):
        config.load({"sead": 3}, environ={})


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SPRINGTIDE_SEED": "two"}, "SPRINGTIDE_SEED='two' cannot be read as int"),
        ({"SPRINGTIDE_SEED": "-1"}, "seed=-1: expected a whole number from 0"),
        ({"SPRINGTIDE_SEED": "99999999999999999999"}, "expected a whole number from 0"),
        ({"SPRINGTIDE_DEBUG": "maybe"}, "neither true nor false"),
        ({"SPRINGTIDE_SLOTS": "100"}, "power of two"),
        ({"SPRINGTIDE_SYNC": "bps"}, "Did you mean 'bsp'"),
        ({"SPRINGTIDE_MASTER": "localhost"}, "host:port"),
        ({"SPRINGTIDE_REPORT_EVERY_S": "0"}, "more than 0"),
    ],
)
def test_invalid_value_is_named_with_the_expected_one(environ, words):
    with pytest.raises(errors.BadInput, match=words):
        config.load(environ=environ)


def test_value_of_another_type_in_code_is_refused():
    with pytest.raises(errors.BadInput, match="expected int"):
        config.load({"slots": "64"}, environ={})
    assert config.load({"report_every_s": 2}, environ={}).report_every_s == 2.0


def test_started_processes_keep_the_users_environment_settings(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    found = config.child_environment({"member": "worker-0"}, {"OMP_NUM_THREADS": "1"})
    assert (found["OMP_NUM_THREADS"], found["SPRINGTIDE_MEMBER"]) == ("3", "worker-0")
    assert found["MIMALLOC_PURGE_DELAY"] == config.ALLOCATOR["MIMALLOC_PURGE_DELAY"]
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "10")
    assert config.child_environment({}, {})["MIMALLOC_PURGE_DELAY"] == "10"


def test_process_reads_its_rank_from_its_name_and_refuses_another_roles():
    assert config.own_rank(config.Settings(member="data-worker-12"), RoleKind.DATA_WORKER) == 12
    for name in ("worker-1", "data-worker", "data-worker-x", ""):
        with pytest.raises(errors.BadInput, match=f"SPRINGTIDE_MEMBER='{name}': expected data-worker-RANK"):
            config.own_rank(config.Settings(member=name), RoleKind.DATA_WORKER)
