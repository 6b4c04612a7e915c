import pytest

from springtide import config, errors


def test_code_wins_over_the_environment_and_the_environment_over_defaults():
    settings = config.load({"seed": 3}, environ={"SPRINGTIDE_SEED": "2", "SPRINGTIDE_SLOTS": "64"})
    assert (settings.seed, settings.slots, settings.sync) == (3, 64, "async")


def test_a_misspelt_setting_gets_a_hint():
    with pytest.raises(errors.UnknownName, match="Did you mean 'seed'"):
        config.load({"sead": 3}, environ={})


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SPRINGTIDE_SEED": "two"}, "SPRINGTIDE_SEED='two' cannot be read as int"),
        ({"SPRINGTIDE_DEBUG": "maybe"}, "neither true nor false"),
        ({"SPRINGTIDE_SLOTS": "100"}, "power of two"),
        ({"SPRINGTIDE_SYNC": "bps"}, "Did you mean 'bsp'"),
        ({"SPRINGTIDE_MASTER": "localhost"}, "host:port"),
        ({"SPRINGTIDE_REPORT_EVERY_S": "0"}, "more than 0"),
    ],
)
def test_a_bad_value_is_named_with_what_was_wanted(environ, words):
    with pytest.raises(errors.BadInput, match=words):
        config.load(environ=environ)


def test_a_value_of_another_type_in_code_is_refused():
    with pytest.raises(errors.BadInput, match="wanted int"):
        config.load({"slots": "64"}, environ={})
    assert config.load({"report_every_s": 2}, environ={}).report_every_s == 2.0
