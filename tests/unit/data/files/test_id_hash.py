"""The published hash: stable ids, and the same in Python, JavaScript and C++."""

import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.data.files.id_hash import PADDING, fold, hash_cells, hash_ids

PAGE = (pathlib.Path(__file__).resolve().parents[4] / "docs" / "how-to" / "data-on-disk.md").read_text()
ROW = re.compile(r"^\| `(.+)` \| (-?\d+) \| (\d+) \|$", flags=re.M)
VECTORS = {text: (int(wide), int(folded)) for text, wide, folded in ROW.findall(PAGE)}
TEXTS = [*VECTORS, "", *("é€😀x"[n % 4] * n for n in range(1, 40))]


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.M | re.S).group(1)


def answers(command):
    """The ids that a program prints for the texts, as pairs of a 64-bit id and an id of 1,000."""
    done = subprocess.run(
        command, input="\n".join(TEXTS) + "\n", encoding="utf-8", capture_output=True, check=True, timeout=60
    )
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


def expected():
    return list(zip(hash_ids(TEXTS).tolist(), hash_ids(TEXTS, 1000).tolist(), strict=True))


def test_hash_gives_the_ids_of_the_page():
    assert len(VECTORS) == 8
    for text, ids in VECTORS.items():
        assert (int(hash_ids(text)), int(hash_ids(text, 1000))) == ids


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, to run the JavaScript of the page")
def test_javascript_of_the_page_gives_the_same_ids(tmp_path):
    texts = "for (const t of " + json.dumps(TEXTS) + ") console.log(`${hashId(t)} ${hashId(t, 1000)}`);"
    (tmp_path / "hash.js").write_text(block("js") + texts)
    assert answers(["node", str(tmp_path / "hash.js")]) == expected()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, to build the C++ of the page")
def test_cpp_of_the_page_gives_the_same_ids(tmp_path):
    main = """
        #include <iostream>
        #include <string>
        int main() {
          for (std::string t; std::getline(std::cin, t);) std::cout << hash_id(t) << ' ' << hash_id(t, 1000) << '\\n';
        }"""
    (tmp_path / "hash.cpp").write_text(block("cpp") + main)
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", "hash.cpp", "-o", "hash"], cwd=tmp_path, check=True)
    assert answers([str(tmp_path / "hash")]) == expected()


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1), st.binary(min_size=PADDING, max_size=PADDING))
def test_buffer_cells_hash_like_single_texts(texts, after):
    buffer = np.frombuffer(b"".join(texts) + after, dtype=np.uint8)
    stops = np.cumsum([len(text) for text in texts])
    starts = stops - [len(text) for text in texts]
    assert hash_cells(buffer, starts, stops).tolist() == hash_ids(texts).tolist()


def test_integers_hash_like_their_digits_and_missing_values_are_0():
    assert hash_ids([17, np.int64(-5), 2**70]).tolist() == hash_ids(["17", "-5", str(2**70)]).tolist()
    assert hash_ids([None, "", float("nan")]).tolist() == [0, 0, 0]
    assert hash_ids([["a", "b"], ["c", None]]).shape == (2, 2)
    assert hash_ids([]).tolist() == []


def test_what_has_no_id_is_refused():
    with pytest.raises(errors.BadInput, match=r"cannot hash 0.5, a float: expected strings, integers or None"):
        hash_ids([0.5])
    with pytest.raises(errors.BadInput, match="cannot hash True, a bool"):
        hash_ids([True])
    with pytest.raises(errors.BadInput, match=r"buckets=1: expected a whole number, 2 or more"):
        hash_ids(["a"], 1)


def test_hashes_are_spread_evenly():
    ids = hash_ids([f"{number:x}" for number in range(20_000)])
    assert len(set(ids.tolist())) == 20_000
    counts = np.bincount(fold(ids, 101), minlength=101)
    assert counts[0] == 0
    assert counts[1:].min() > 140
    assert counts[1:].max() < 260


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(2, 1000))
def test_folded_ids_fit_their_table_and_missing_stays_missing(ids, rows):
    folded = fold(np.array(ids, dtype=np.int64), rows)
    assert (folded < rows).all()
    assert ((folded == 0) == (np.array(ids) == 0)).all()
