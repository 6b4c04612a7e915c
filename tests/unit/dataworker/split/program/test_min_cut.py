"""The chosen cut saves the trainer most, compared with every possible cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from springtide.dataworker.split.program import min_cut
from springtide.dataworker.split.program.min_cut import CutNode


def cost(values, moved):
    """The trainer's cost of a cut: seconds that stay and bytes that cross; None for an impossible cut."""
    by_name = {value.name: value for value in values}
    here = {value.name for value in values if value.place == "data"} | moved
    if any(name not in here for name in moved for name in by_name[name].inputs):
        return None
    names = min_cut.crossing(values, frozenset(moved))
    if any(by_name[name].bytes is None for name in names):
        return None
    stay = [value for value in values if value.place == "either" and value.name not in moved]
    return sum(map(min_cut.stays_cost, stay)) + sum(min_cut.crossing_cost(by_name[name]) for name in names)


@st.composite
def programs(draw):
    values = [
        CutNode(name=f"in{i}", inputs=(), bytes=draw(st.integers(1, 5000)), seconds=0, place="data") for i in range(2)
    ]
    for at in range(draw(st.integers(1, 7))):
        names = [value.name for value in values]
        inputs = tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))
        stateful = any(v.place == "trainer" for v in values if v.name in inputs)
        place = "trainer" if stateful or draw(st.integers(0, 4)) == 0 else "either"
        size = draw(st.none() | st.integers(1, 5000)) if place == "either" else 0
        values.append(
            CutNode(name=f"n{at}", inputs=inputs, bytes=size, seconds=draw(st.integers(0, 5000)) * 1e-9, place=place)
        )
    loose = tuple(v.name for v in values if v.place == "either" and not any(v.name in o.inputs for o in values))
    sizes = {v.name: v for v in values}
    ends = tuple(name for name in loose if sizes[name].bytes is not None)
    return [*values, CutNode(name="out", inputs=ends, bytes=0, seconds=0, place="trainer")]


@given(programs())
def test_chosen_cut_has_the_least_cost(values):
    free = [value.name for value in values if value.place == "either"]
    choices = [set(names) for size in range(len(free) + 1) for names in itertools.combinations(free, size)]
    costs = [paid for moved in choices if (paid := cost(values, moved)) is not None]
    if costs:
        assert cost(values, set(min_cut.minimum(values))) == min(costs)


def chain(*sizes, seconds=1e-6):
    values = [CutNode(name="ids", inputs=(), bytes=sizes[0], seconds=0, place="data")]
    for at, size in enumerate(sizes[1:]):
        values.append(CutNode(name=f"n{at}", inputs=(values[-1].name,), bytes=size, seconds=seconds, place="either"))
    return [*values, CutNode(name="table", inputs=(values[-1].name,), bytes=0, seconds=0, place="trainer")]


def test_everything_moves_if_it_sends_no_more_than_the_inputs():
    chosen = min_cut.choose(chain(800, 400, 800))
    assert chosen.moved == {"n0", "n1"} and chosen.crossing == ("n1",) and chosen.bytes == 800


def test_value_cheaper_to_compute_than_to_send_stays_with_the_trainer():
    chosen = min_cut.choose(chain(800_000, 80_000, 8_000_000))
    assert chosen.moved == {"n0"} and chosen.crossing == ("n0",) and chosen.bytes == 80_000
    assert "minimum cut" in chosen.why and "8000000 bytes" in chosen.why


def test_slow_computation_moves_even_if_it_sends_more():
    chosen = min_cut.choose(chain(800, 400, 800_000, seconds=1e-2))
    assert chosen.moved == {"n0", "n1"} and "worth" in chosen.why


def test_view_read_only_by_the_trainer_is_not_sent_beside_its_base():
    values = [
        CutNode(name="ids", inputs=(), bytes=8000, seconds=0, place="data"),
        CutNode(name="hash", inputs=("ids",), bytes=800, seconds=1e-3, place="either"),
        CutNode(name="column", inputs=("hash",), bytes=400, seconds=0, place="either", view=True),
        CutNode(name="table", inputs=("hash", "column"), bytes=0, seconds=0, place="trainer"),
    ]
    chosen = min_cut.choose(values)
    assert chosen.moved == {"hash"} and chosen.crossing == ("hash",)


def test_columns_of_an_input_are_viewed_by_the_trainer_and_not_sent():
    values = [CutNode(name="ids", inputs=(), bytes=8000, seconds=0, place="data")]
    for column in range(10):
        name = f"column{column}"
        values.append(CutNode(name=name, inputs=("ids",), bytes=800, seconds=1e-6, place="either", view=True))
        values.append(CutNode(name=f"table{column}", inputs=(name,), bytes=0, seconds=0, place="trainer"))
    chosen = min_cut.choose(values)
    assert not chosen.moved and chosen.crossing == ("ids",) and "only views" in chosen.why
    values.insert(1, CutNode(name="hash", inputs=("ids",), bytes=8000, seconds=1e-4, place="either"))
    values.append(CutNode(name="more", inputs=("hash",), bytes=0, seconds=0, place="trainer"))
    assert min_cut.choose(values).moved == {"hash"}


def test_program_without_movable_calls_says_so():
    values = [
        CutNode(name="x", inputs=(), bytes=8, seconds=0, place="data"),
        CutNode(name="linear", inputs=("x",), bytes=8, seconds=1, place="trainer"),
    ]
    chosen = min_cut.choose(values)
    assert not chosen.moved and chosen.crossing == ("x",) and chosen.why == "nothing can move"
