"""Manifests survive encoding, any changed byte is detected, and checkpoint chains are valid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.checkpoint.format import manifest
from springtide.domain.model.checkpoints import SlotExtent, Written
from springtide.domain.model.tables import Init, OptimSpec, TableSpec

tables = st.builds(
    TableSpec,
    id=st.integers(0, 100),
    name=st.text(max_size=10),
    dim=st.integers(1, 512),
    init=st.builds(Init, kind=st.sampled_from(["zeros", "uniform"]), a=st.floats(-1, 0), b=st.floats(0, 1)),
    optim=st.builds(OptimSpec, kind=st.sampled_from(["sgd", "adam", "ftrl"]), eps=st.floats(0, 1)),
    ttl=st.integers(0, 2**40),
)
SIZES = st.integers(0, 2**40)


@st.composite
def manifests(draw):
    files = [
        manifest.File(f"server-{n}.0-000001.run1.seg", f"server-{n}.0", draw(SIZES))
        for n in range(draw(st.integers(1, 4)))
    ]
    chains = []
    for _ in range(draw(st.integers(0, 8))):
        chain = []
        for link in range(draw(st.integers(1, 4))):
            number = draw(st.integers(0, len(files) - 1))
            offset = draw(st.integers(0, files[number].size))
            length = draw(st.integers(0, files[number].size - offset))
            identities = (offset, draw(st.integers(0, length)))
            checksum = draw(st.integers(0, 2**64 - 1))
            chain.append(manifest.SlotSegment(number, offset, length, checksum, link == 0, identities))
        chains.append(tuple(chain))
    return manifest.Manifest(
        job=draw(st.text(max_size=20)),
        run=draw(st.text(max_size=20)),
        number=draw(st.integers(1, 10**7)),
        begun_at=draw(st.floats(0, 1e12)),
        completed_at=draw(st.floats(0, 1e12)),
        slots=len(chains),
        seed=draw(st.integers(0, 2**63)),
        tables=tuple(draw(st.lists(tables, max_size=3))),
        progress=manifest.SavedProgress(ledger=draw(st.binary(max_size=100))),
        scripts=manifest.ScriptStates(claims=tuple(draw(st.lists(st.text(max_size=8), max_size=3)))),
        files=tuple(files),
        chains=tuple(chains),
    )


@given(manifests())
def test_manifest_survives_encoding(made):
    assert manifest.decode(manifest.encode(made)) == made
    assert manifest.number_of(made.name) == made.number


@given(manifests(), st.data())
def test_changed_bit_is_detected(made, data):
    content = bytearray(manifest.encode(made))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(errors.BadInput):
        manifest.decode(bytes(content))


@given(manifests(), st.data())
def test_truncated_manifest_is_detected(made, data):
    content = manifest.encode(made)
    with pytest.raises(errors.BadInput):
        manifest.decode(content[: data.draw(st.integers(0, len(content) - 1))])


def test_another_format_is_refused_with_both_numbers(monkeypatch):
    made = manifest.Manifest(job="j", run="run1", number=1, begun_at=0, completed_at=0, slots=0, seed=0)
    monkeypatch.setattr(manifest, "FORMAT", 9)
    content = manifest.encode(made)
    monkeypatch.undo()
    with pytest.raises(errors.BadInput, match=r"format 9, from another version .* this one reads 5"):
        manifest.decode(content)


SLOTS = 6
LIVES = ("server-0.0", "server-1.0", "server-1.1")


@given(st.data())
def test_checkpoint_chains_are_valid_for_any_server_reports(data):
    """Over some checkpoints, of which some are abandoned: chains are legal, and increments follow their own writer."""
    previous = None
    for number in range(1, 6):
        written = []
        for life in LIVES:
            pieces = [
                SlotExtent(
                    slot, slot * 10, 10, number * 100 + slot, data.draw(st.sampled_from([0, number - 1, number - 2]))
                )
                for slot in range(SLOTS)
                if data.draw(st.booleans())
            ]
            pieces = [piece._replace(since=max(0, piece.since)) for piece in pieces]
            name = manifest.segment_name(life, number, "run1")
            written.append(Written(life, name, SLOTS * 10, tuple(pieces)))
        owners = {slot: data.draw(st.sampled_from(LIVES)) for slot in range(SLOTS)}
        covered = manifest.cover(SLOTS, previous, written, owners)
        said = {piece.slot for one in written for piece in one.pieces}
        assert set(range(SLOTS)) - said <= set(covered.missing)
        for slot in set(range(SLOTS)) - set(covered.missing):
            chain = covered.chains[slot]
            lives = {covered.files[segment.file].life for segment in chain}
            assert len(lives) == 1, "increments over another server's image"
            mine = [
                piece
                for one in written
                if one.life == owners[slot]
                for piece in one.pieces
                if piece.slot == slot and manifest.fits(previous, one.life, piece)
            ]
            assert not mine or lives == {owners[slot]}, "the owner's word does not count"
        if covered.missing:
            continue
        previous = manifest.Manifest(
            job="j",
            run="run1",
            number=number,
            begun_at=0,
            completed_at=0,
            slots=SLOTS,
            seed=0,
            files=covered.files,
            chains=covered.chains,
        )
        manifest.check(previous)
