"""What roles take, by the agent's word or their own."""

from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.master.core.usages import STALE_S, UsageTable

SERVER, WORKER = Role(RoleKind.SERVER, 0), Role(RoleKind.WORKER, 1)


def taking(role, memory, incarnation=0):
    return RoleUsage(role=role, incarnation=incarnation, memory=memory)


def test_a_role_speaks_for_itself_where_the_agent_sees_nothing():
    usages = UsageTable()
    usages.looked(())
    usages.heard(SERVER, 2, taking(WORKER, 5), at=1.0)
    assert usages.now(at=2.0) == {SERVER: taking(SERVER, 5, 2)}, "and for nobody else"


def test_the_agents_word_goes_first():
    usages = UsageTable()
    usages.heard(SERVER, 0, taking(SERVER, 5), at=1.0)
    usages.heard(WORKER, 0, taking(WORKER, 7), at=1.0)
    usages.looked((taking(SERVER, 6),))
    assert usages.now(at=1.0) == {SERVER: taking(SERVER, 6), WORKER: taking(WORKER, 7)}


def test_who_has_ended_or_is_silent_takes_nothing():
    usages = UsageTable()
    usages.heard(SERVER, 1, taking(SERVER, 5, 1), at=1.0)
    usages.heard(WORKER, 0, taking(WORKER, 7), at=1.0)
    usages.gone(SERVER, 0)
    assert set(usages.now(at=1.0)) == {SERVER, WORKER}, "an earlier life's end is not this one's"
    usages.gone(SERVER, 1)
    assert set(usages.now(at=1.0)) == {WORKER}
    assert usages.now(at=1.1 + STALE_S) == {}


def test_a_role_that_was_not_asked_says_nothing():
    usages = UsageTable()
    usages.heard(SERVER, 0, None, at=1.0)
    assert usages.now(at=1.0) == {}
