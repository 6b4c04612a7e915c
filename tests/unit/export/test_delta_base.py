"""`--since`: by the number of an export, or by how far the job was."""

import pytest

from springtide import errors
from springtide.export import delta_base, export_folder


def card(number, *, samples=0, step=0):
    return export_folder.ExportCard(
        job="train",
        number=number,
        samples=samples,
        step=step,
        made_at=0.0,
        format="safetensors",
        tables=(),
        dense_crc=0,
    )


@pytest.mark.parametrize(
    ("text", "meant"), [("7", ("export", 7)), ("step:500", ("step", 500)), ("samples:1_000_000", ("samples", 10**6))]
)
def test_a_number_is_an_export_and_a_word_says_what_else(text, meant):
    assert delta_base.parse(text) == delta_base.DeltaBase(*meant)


@pytest.mark.parametrize("text", ["", "steps:4", "step:", "-1", "samples:x", "7.5"])
def test_anything_else_is_refused_with_what_was_wanted(text):
    with pytest.raises(errors.BadInput, match=r"wanted the number of an export, such as 7.*samples:1000000, step:500"):
        delta_base.parse(text)


def test_the_newest_export_that_was_made_by_then_is_built_on():
    cards = [card(9, samples=900), card(7, samples=700), card(4, samples=400)]
    assert delta_base.base(delta_base.parse("samples:700"), cards, before=10) == 7
    assert delta_base.base(delta_base.parse("samples:899"), cards, before=10) == 7
    assert delta_base.base(delta_base.parse("samples:5000"), cards, before=9) == 7
    assert delta_base.base(delta_base.parse("step:50"), [card(3, step=60), card(2, step=40)], before=4) == 2


def test_a_moment_before_all_exports_names_those_there_are():
    with pytest.raises(errors.MissingFile, match=r"no export was made by then; there: 4 \(samples 400\)"):
        delta_base.base(delta_base.parse("samples:399"), [card(4, samples=400)], before=9)
    with pytest.raises(errors.MissingFile, match=r"there: none"):
        delta_base.base(delta_base.parse("step:1"), [], before=9)


def test_an_async_job_has_no_steps():
    with pytest.raises(errors.BadInput, match=r"of no step: .* Say samples:N"):
        delta_base.base(delta_base.parse("step:500"), [card(4, samples=400)], before=9)
