"""Pure. Decides whether data workers pay off for a job, from a baseline without them.

In: measured intervals without data workers, then the speed with them. Next: `tuner` starts tuning, continues, or turns
data workers off.
"""

from springtide.domain.data.data_workers import FeedSeen
from springtide.planning.dataworkers.tuning.trainer_cores import speed
from springtide.planning.dataworkers.tuning.tuner_state import CHANGED, LEAST_SHARE, WORTH, TrainerBehaviour


def unfed(seen: FeedSeen) -> TrainerBehaviour:
    return TrainerBehaviour(speed(seen), seen.own_share)


def fed(seen: FeedSeen) -> TrainerBehaviour:
    """Return the behaviour of a job with data workers: the possible speed, because tuning changes the rest."""
    return TrainerBehaviour(seen.capable_per_s / max(seen.trainers, 1), 0.0)


def may_pay(found: TrainerBehaviour) -> bool:
    """Return True if data workers could take over enough of the time."""
    return found.own_share >= LEAST_SHARE


def pays(found: TrainerBehaviour, seen: FeedSeen) -> bool:
    """Return True if the job is faster with data workers by at least the factor WORTH."""
    return speed(seen) >= WORTH * found.per_s


def is_another(was: TrainerBehaviour, now: TrainerBehaviour) -> bool:
    """Return True if the program behaves differently than at the last conclusion."""
    if was.per_s > 0 and not 1.0 / CHANGED <= now.per_s / was.per_s <= CHANGED:
        return True
    return now.own_share >= CHANGED * was.own_share + LEAST_SHARE / 2 and may_pay(now)
