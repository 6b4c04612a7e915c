"""Lists of members that messages carry: workers that accept batches, data workers of a stage, counts by role."""

from springtide.domain.core.roles import RoleKind
from springtide.rpc.messages.coordination import Shuffler, listed
from springtide.rpc.messages.data_workers import Feeder, Feeders, feeds
from springtide.rpc.messages.types import RoleCount, RoleStatus

FIRST, SECOND = Shuffler("worker-0.0", "host:1"), Shuffler("worker-1.0", "host:2")


def test_same_workers_in_any_order_have_the_same_list_and_digest():
    assert listed([SECOND, FIRST]) == listed([FIRST, SECOND])
    assert listed([SECOND, FIRST]).members == (FIRST, SECOND)


def test_digest_changes_with_a_member_or_its_address():
    lists = ([], [FIRST], [FIRST, SECOND], [FIRST, Shuffler("worker-1.0", "host:3")])
    assert len({listed(members).digest for members in lists}) == len(lists)


def test_digest_is_the_same_in_all_masters_and_never_zero():
    assert listed([]).digest == 1
    assert listed([FIRST]).digest == 143_134_666


def test_trainers_are_fed_by_the_data_workers_of_the_last_stage():
    roster = Feeders(
        epoch=3, wanted=4, members=tuple(Feeder(f"data-{rank}", f"host:{rank}", rank) for rank in range(4))
    )
    assert [member.rank for member in feeds(roster, stage=1, stages=2)] == [0, 2]
    assert [member.rank for member in feeds(roster, stage=0, stages=2)] == [1, 3]


def test_status_counts_processes_by_role():
    status = RoleStatus(workers=RoleCount(1, 2), servers=RoleCount(3, 4), data_workers=RoleCount(5, 6))
    assert [status.of_kind(kind).alive for kind in (RoleKind.WORKER, RoleKind.SERVER, RoleKind.DATA_WORKER)] == [
        1,
        3,
        5,
    ]
