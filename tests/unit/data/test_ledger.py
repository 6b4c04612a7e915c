"""Every shard goes todo -> leased -> done; the tail waits; cards must agree."""

import dataclasses

import pytest

from springtide import errors
from springtide.data import ledger
from springtide.data.ledger import Book, Nothing
from springtide.domain.samples import DatasetCard

CARD = DatasetCard(samples=100, batch_size=10, shard_batches=4, epochs=2)  # 3 shards an epoch: 40, 40, 20


def test_shards_are_handed_out_in_order_of_the_epochs():
    book = Book(workers=1)
    grants = [book.lease(0, CARD) for _ in range(6)]
    assert [(g.shard, g.epoch, g.index, g.count) for g in grants] == [
        (0, 0, 0, 40), (1, 0, 1, 40), (2, 0, 2, 20), (3, 1, 0, 40), (4, 1, 1, 40), (5, 1, 2, 20),
    ]  # fmt: skip


def test_an_idle_worker_waits_while_another_holds_a_shard():
    book = Book(workers=2)
    for _ in range(6):
        grant = book.lease(0, CARD)
    assert book.lease(1, CARD) is Nothing.WAIT
    assert book.lease(0, CARD) is Nothing.END  # the rest is its own: no one to wait for
    for shard in range(6):
        book.finish(0, shard)
    assert book.lease(1, CARD) is Nothing.END
    assert book.totals() == ledger.Totals(total=6, leased=0, done=6)
    assert grant.shard == 5


def test_done_twice_does_no_harm_and_done_by_another_is_refused():
    book = Book(workers=2)
    book.lease(0, CARD)
    with pytest.raises(errors.BadInput, match="worker-1 reports shard 0 as done, but worker-0 holds it"):
        book.finish(1, 0)
    book.finish(0, 0)
    book.finish(0, 0)
    with pytest.raises(errors.BadInput, match="nobody holds it"):
        book.finish(0, 4)
    with pytest.raises(errors.BadInput, match="no such shard"):
        book.finish(0, 99)
    assert book.totals().done == 1


def test_a_second_pass_goes_on_with_new_numbers():
    book = Book(workers=1)
    for shard in range(6):
        book.lease(0, CARD)
        book.finish(0, shard)
    second = book.lease(0, dataclasses.replace(CARD, first_epoch=2))
    assert (second.shard, second.epoch) == (6, 2)
    assert book.epochs == 4


def test_workers_with_different_data_are_told_so():
    book = Book(workers=2)
    book.lease(0, CARD)
    with pytest.raises(
        errors.BadInput, match="worker-1 shows a data set with samples=99, other workers one with samples=100"
    ):
        book.lease(1, dataclasses.replace(CARD, samples=99))


def test_an_empty_data_set_is_over_at_once():
    assert Book(workers=1).lease(0, DatasetCard(samples=0, batch_size=10)) is Nothing.END


def test_in_lockstep_every_rank_gets_every_shard():
    book, card = Book(workers=2), dataclasses.replace(CARD, in_step=True)
    first = [book.lease(rank, card) for rank in (0, 1)]
    assert first[0] == first[1]
    book.finish(0, 0)
    assert book.totals() == ledger.Totals(total=6, leased=1, done=0)
    book.finish(1, 0)
    book.finish(1, 0)
    assert book.totals() == ledger.Totals(total=6, leased=0, done=1)
    with pytest.raises(errors.BadInput, match="its next one is 1"):
        book.finish(0, 2)
    while isinstance(grant := book.lease(0, card), ledger.Grant):
        book.finish(0, grant.shard)
    assert grant is Nothing.END
