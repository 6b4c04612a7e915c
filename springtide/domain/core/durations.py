"""Pure. Lengths of time as people write them: 90s, 20m, 1.5h.

In: words of a command line or a spec. Out: seconds. For `domain.spec.elastic_job`, `cli` and `launch.spec.resolve`.
"""

import re

from springtide import errors

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(what: str, text: str) -> float:
    """A time such as 90s, 20m, 1.5h; `what` names it in the error."""
    found = _TIME.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise errors.BadInput(f"{what} {text}: wanted a time above 0, such as 90s, 20m or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]
