import pytest

import springtide as st
from springtide import errors
from springtide.data import source
from springtide.data.stream import stream


def test_stream_source_has_a_batch_size_and_no_sample_count():
    opened = source.open_source(st.stream("log:///tmp/x", start=12), batch_size=7)
    assert opened.online is not None and opened.samples is None and opened.batch_size == 7
    assert opened.online.card.start == "12.0" and opened.online.card.until == ""


@pytest.mark.parametrize(
    "given, said",
    [
        ({"start": "erliest"}, "earliest"),
        ({"start": float("nan")}, "start=nan"),
        ({"until": "later"}, "now"),
        ({"decode": 3}, "decode is a int"),
        ({"linger_s": -1}, "linger_s=-1"),
        ({"max_record_bytes": 0}, "max_record_bytes=0"),
        ({"max_lateness_s": -2.0}, "max_lateness_s=-2.0"),
        ({"shuffle": "basick"}, "basic"),
        ({"queue": (5, 5)}, "at most"),
    ],
)
def test_invalid_stream_argument_names_what_was_expected(given, said):
    with pytest.raises(errors.BadInput, match=said):
        st.stream("log:///tmp/x", **given)


@pytest.mark.parametrize("given", [{"shuffle": True}, {"drop_last": True}, {"collate_fn": list}])
def test_options_meaningless_for_a_stream_are_refused(given):
    with pytest.raises(errors.BadInput, match="has no meaning for a stream"):
        source.open_source(st.stream("log:///tmp/x"), **given)


def test_passwords_are_not_in_the_card():
    url = "kafka://user:secret@host:9092,other:9092/topic?sasl.password=x"
    assert st.stream(url).card.url == "kafka://host:9092,other:9092/topic?..."
    assert stream.without_password("log:///tmp/x") == "log:///tmp/x"
