"""Pure. How far planning has come with a job. Next: `domain.plan.view` shows it, `domain.plan.plan` says which one
begins.
"""

from enum import StrEnum


class PlanningStage(StrEnum):
    """Stages in their order; a job with a good warm start begins with the last but one."""

    WAITING = "waiting"
    """Nothing of it runs yet."""
    SAMPLING = "sampling"
    """It runs small, to be measured."""
    OPTIMIZING = "optimizing"
    """It has been measured and gets its size."""
    ADJUSTING = "adjusting"
    """It has its size; what is wrong with it is mended."""
