"""Pure. Policies of others: found by entry point or by dotted name. It loads their code and calls none of it.

In: a name. Out: a function `(ClusterView, PlanningConfig) -> Decision`. Next: `planning.policy.registry` wraps it.
Other kinds of plug-ins are found the same way, under an entry point group of their own
(`planning.dataworkers.cluster.metrics`).

A package offers policies in its pyproject.toml; see docs/design/policies.md and examples/policy_plugin.

    [project.entry-points."springtide.policies"]
    half = "half_policy:half"
"""

import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

from springtide import errors

GROUP = "springtide.policies"
Plugin = Callable[..., Any]


def offered(group: str = GROUP) -> tuple[str, ...]:
    return tuple(sorted({point.name for point in metadata.entry_points(group=group)}))


def by_entry_point(name: str, group: str = GROUP, kind: str = "policy") -> Plugin | None:
    """The policy, or what else is of that kind, of that name which an installed package offers."""
    for point in metadata.entry_points(group=group, name=name):
        try:
            loaded = point.load()
        except (Exception, SystemExit) as error:  # whatever its module does when it is imported
            package = point.dist.name if point.dist else point.value
            raise errors.BadInput(
                f"{kind} {name!r} of package {package} cannot be loaded from {point.value!r}: {_said(error)}; "
                f"reinstall the package or choose another {kind}"
            ) from error
        return _callable(name, loaded, kind)
    return None


def by_dotted_name(name: str, kind: str = "policy") -> Plugin:
    module, _, function = name.partition(":")
    if not module or not function:
        raise errors.BadInput(f"{kind} {name!r}: wanted module:function, such as my_package.policies:half")
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if not isinstance(error, ImportError):
            raise errors.BadInput(f"{kind} {name!r}: module {module} cannot be imported: {_said(error)}") from error
        raise errors.BadInput(
            f"{kind} {name!r}: module {module} cannot be imported ({error}); is its folder on the Python path?"
        ) from error
    if not hasattr(loaded, function):
        known = [each for each, what in vars(loaded).items() if callable(what) and not each.startswith("_")]
        raise errors.UnknownName(f"{kind} in {module}", function, known)
    return _callable(name, getattr(loaded, function), kind)


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"


def _callable(name: str, loaded: object, kind: str) -> Plugin:
    if not callable(loaded):
        raise errors.BadInput(f"{kind} {name!r} is a {type(loaded).__name__}; wanted a function")
    return loaded
