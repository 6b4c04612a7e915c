"""Pure. A brain's names for jobs: two masters may have jobs of one name, and a policy must tell them apart.

In: a job's own name, and the key that says where it runs. Out: one name, the same after every restart. Next: the
council knows jobs by it; answers are turned back into the master's own words.
"""

import hashlib
from dataclasses import replace

from springtide.domain.advice import Advice


def name_of(job: str, key: str) -> str:
    """`job@1a2b3c4d`, or the name alone where its master says no key."""
    return f"{job}@{hashlib.blake2b(key.encode(), digest_size=4).hexdigest()}" if key else job


def own_words(advice: Advice, job: str) -> Advice:
    """The advice as the job's master knows it."""
    return advice if advice.plan is None else replace(advice, plan=replace(advice.plan, job=job))
