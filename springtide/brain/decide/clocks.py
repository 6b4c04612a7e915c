"""Pure. Views of many masters by one clock. Each master counts seconds in its own way; a policy compares them.

In: a view, and by how much the brain's clock is ahead of its master's. Out: the same view by the brain's clock.
"""

from dataclasses import replace

from springtide.domain.plan.view import JobView


def shifted(view: JobView, by: float) -> JobView:
    return replace(
        view,
        submitted_at=view.submitted_at + by,
        started_at=None if view.started_at is None else view.started_at + by,
        last_change_at=None if view.last_change_at is None else view.last_change_at + by,
        profiles=tuple(replace(profile, at=profile.at + by) for profile in view.profiles),
    )
