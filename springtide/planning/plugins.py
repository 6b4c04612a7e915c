"""Pure. Policies of others: found by entry point or by dotted name. It loads their code and calls none of it.

In: a name. Out: a function `(ClusterView, PlanningConfig) -> Decision`. Next: `planning.policies` wraps it.

A package offers policies in its pyproject.toml; see docs/design/policies.md and examples/policy_plugin.

    [project.entry-points."springtide.policies"]
    half = "half_policy:half"
"""

import importlib
from importlib import metadata

from springtide import errors
from springtide.planning.validated import Policy

GROUP = "springtide.policies"


def offered() -> tuple[str, ...]:
    """Names that installed packages offer."""
    return tuple(sorted({point.name for point in metadata.entry_points(group=GROUP)}))


def by_entry_point(name: str) -> Policy | None:
    """The policy of that name which an installed package offers."""
    for point in metadata.entry_points(group=GROUP, name=name):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            package = point.dist.name if point.dist else point.value
            raise errors.BadInput(
                f"policy {name!r} of package {package} cannot be loaded from {point.value!r}: {error}; "
                "reinstall the package or choose another policy"
            ) from error
        return _callable(name, loaded)
    return None


def by_dotted_name(name: str) -> Policy:
    """The policy `module:function`."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise errors.BadInput(f"policy {name!r}: wanted module:function, such as my_package.policies:half")
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise errors.BadInput(
            f"policy {name!r}: module {module} cannot be imported ({error}); is its folder on the Python path?"
        ) from error
    if not hasattr(loaded, function):
        known = [each for each, what in vars(loaded).items() if callable(what) and not each.startswith("_")]
        raise errors.UnknownName(f"policy in {module}", function, known)
    return _callable(name, getattr(loaded, function))


def _callable(name: str, loaded: object) -> Policy:
    if not callable(loaded):
        raise errors.BadInput(f"policy {name!r} is a {type(loaded).__name__}; wanted a function of a view and a config")
    return loaded
