"""Pure. Looks up policies by name: built in, from an installed package, or `module:function`.

`planning.policy.acceptance` wraps each policy, so that a faulty policy cannot harm a job.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

from springtide import errors
from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import acceptance
from springtide.planning.policy.acceptance import Policy
from springtide.planning.policy.springtide_policy import springtide
from springtide.planning.policy.static_policy import static

POLICIES: dict[str, Policy] = {"springtide": springtide, "static": static}
GROUP = "springtide.policies"
Plugin = Callable[..., Any]


def names() -> tuple[str, ...]:
    return names_of(POLICIES, GROUP)


def load(name: str) -> Policy:
    """Return the policy with this name, wrapped by `safe`."""
    return safe(found(name))


def found(name: str) -> Policy:
    return find(name, POLICIES, GROUP, "policy")


def safe(policy: Policy) -> Policy:
    @functools.wraps(policy)
    def checked_policy(view: ClusterView, config: PlanningConfig) -> Decision:
        return acceptance.decide(policy, view, config)

    return checked_policy


def names_of(built_in: Iterable[str], group: str) -> tuple[str, ...]:
    return tuple(sorted({*built_in, *offered(group)}))


def offered(group: str) -> tuple[str, ...]:
    return tuple(sorted({point.name for point in metadata.entry_points(group=group)}))


def find(name: str, built_in: Mapping[str, Plugin], group: str, kind: str) -> Plugin:
    """Return the function with this name. The function is built in, given as `module:function`, or in an installed
    package."""
    if name in built_in:
        return built_in[name]
    if ":" in name:
        return _by_dotted_name(name, kind)
    for point in metadata.entry_points(group=group, name=name):
        try:
            loaded = point.load()
        except (Exception, SystemExit) as error:  # importing a plug-in may raise anything
            package = point.dist.name if point.dist else point.value
            raise errors.BadInput(
                f"{kind} {name!r} of package {package} cannot be loaded from {point.value!r}: {_error_text(error)}; "
                f"reinstall the package or choose another {kind}"
            ) from error
        return _callable(name, loaded, kind)
    raise errors.UnknownName(kind, name, names_of(built_in, group))


def _by_dotted_name(name: str, kind: str) -> Plugin:
    module, _, function = name.partition(":")
    if not module or not function:
        raise errors.BadInput(f"{kind} {name!r}: use module:function, such as my_package.policies:half")
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if not isinstance(error, ImportError):
            raise errors.BadInput(
                f"{kind} {name!r}: module {module} cannot be imported: {_error_text(error)}"
            ) from error
        raise errors.BadInput(
            f"{kind} {name!r}: module {module} cannot be imported ({error}); is its folder on the Python path?"
        ) from error
    if not hasattr(loaded, function):
        known = [name for name, what in vars(loaded).items() if callable(what) and not name.startswith("_")]
        raise errors.UnknownName(f"{kind} in {module}", function, known)
    return _callable(name, getattr(loaded, function), kind)


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"


def _callable(name: str, loaded: object, kind: str) -> Plugin:
    if not callable(loaded):
        raise errors.BadInput(f"{kind} {name!r} is a {type(loaded).__name__}, not a function")
    return loaded
