"""Pure. A brain's names for jobs: two masters may have jobs of one name, and a policy must tell them apart.

In: a job's own name, and the key that says which run it is. Out: one name a key, the same after every restart. Next:
the council knows jobs by it; answers are turned back into the master's own words.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from springtide.domain.plan.advice import Advice

MARK = "@"


class JobNames:
    """Names by key. The key alone says which job it is: its name may change between its submission and its start."""

    def __init__(self) -> None:
        self._by_digest: dict[str, str] = {}

    def of(self, job: str, key: str) -> str:
        """`job@1a2b3c4d5e6f7a8b`, as the key was first seen with; the name alone where its master says no key."""
        if not key:
            return job
        digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        return self._by_digest.setdefault(digest, f"{job}{MARK}{digest}")

    def restore(self, names: Iterable[str]) -> None:
        for name in names:
            _, mark, digest = name.rpartition(MARK)
            if mark:
                self._by_digest.setdefault(digest, name)

    def forget(self, name: str) -> None:
        self._by_digest.pop(name.rpartition(MARK)[2], None)


def own_words(advice: Advice, job: str) -> Advice:
    return advice if advice.plan is None else replace(advice, plan=replace(advice.plan, job=job))
