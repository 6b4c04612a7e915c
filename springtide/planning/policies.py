"""Pure. Policies by name: built in, of an installed package, or `module:function`.

In: a name from the settings. Out: a function `(ClusterView, PlanningConfig) -> Decision` that harms no job, whatever
the policy behind it does (`planning.validated`). Next: a master, the brain or the simulator asks it.
"""

import functools

from springtide import errors
from springtide.domain.plan import Decision
from springtide.domain.planning import PlanningConfig
from springtide.domain.view import ClusterView
from springtide.planning import plugins, validated
from springtide.planning.baselines.dlrover import dlrover
from springtide.planning.baselines.es import es
from springtide.planning.baselines.optimus import optimus, optimus_one
from springtide.planning.baselines.static import static
from springtide.planning.deciding import springtide
from springtide.planning.validated import Policy

POLICIES: dict[str, Policy] = {
    "springtide": springtide, "static": static, "es": es, "optimus": optimus, "optimus_one": optimus_one,
    "dlrover": dlrover,
}  # fmt: skip


def names() -> tuple[str, ...]:
    """All that can be called by a plain name."""
    return tuple(sorted({*POLICIES, *plugins.offered()}))


def load(name: str) -> Policy:
    """The policy of that name, made safe. Built-in names come first, then installed packages'."""
    return safe(found(name))


def found(name: str) -> Policy:
    """The policy as it was written."""
    if name in POLICIES:
        return POLICIES[name]
    if ":" in name:
        return plugins.by_dotted_name(name)
    offered = plugins.by_entry_point(name)
    if offered is None:
        raise errors.UnknownName("policy", name, names())
    return offered


def safe(policy: Policy) -> Policy:
    """The same policy, whose decisions can be carried out."""

    @functools.wraps(policy)
    def asked(view: ClusterView, config: PlanningConfig) -> Decision:
        return validated.decide(policy, view, config)

    return asked
