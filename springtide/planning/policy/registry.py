"""Pure. Policies by name: built in, of an installed package, or `module:function`.

In: a name from the settings. Out: a function `(ClusterView, PlanningConfig) -> Decision` that harms no job, whatever
the policy behind it does (`planning.policy.sanitize`). Next: a master, the brain or the simulator asks it.
"""

import functools

from springtide import errors
from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import plugins, sanitize
from springtide.planning.policy.baselines.dlrover import dlrover
from springtide.planning.policy.baselines.es import es
from springtide.planning.policy.baselines.optimus import optimus, optimus_one
from springtide.planning.policy.baselines.static import static
from springtide.planning.policy.sanitize import Policy
from springtide.planning.policy.springtide_policy import springtide

POLICIES: dict[str, Policy] = {
    "springtide": springtide,
    "static": static,
    "es": es,
    "optimus": optimus,
    "optimus_one": optimus_one,
    "dlrover": dlrover,
}


def names() -> tuple[str, ...]:
    return tuple(sorted({*POLICIES, *plugins.offered()}))


def load(name: str) -> Policy:
    """The policy of that name, made safe. Built-in names come first, then installed packages'."""
    return safe(found(name))


def found(name: str) -> Policy:
    if name in POLICIES:
        return POLICIES[name]
    if ":" in name:
        return plugins.by_dotted_name(name)
    offered = plugins.by_entry_point(name)
    if offered is None:
        raise errors.UnknownName("policy", name, names())
    return offered


def safe(policy: Policy) -> Policy:
    @functools.wraps(policy)
    def asked(view: ClusterView, config: PlanningConfig) -> Decision:
        return sanitize.decide(policy, view, config)

    return asked
