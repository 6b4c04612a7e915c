"""Pure. Settings of a generated click log. Next: `population` and `truth`."""

from dataclasses import dataclass

from springtide import errors
from springtide.domain.core.validation import holds_numbers

SMALL_FIELDS: tuple[int, ...] = (
    *(20_000, 5_000),
    *(40, 60, 24, 200, 300, 7, 1_000, 500, 100, 10, 20, 2_000),
    *(100, 50, 5_000, 400, 30, 12, 30, 80, 500, 2_000, 1_000, 50),
)
"""Cardinalities of 26 fields: users, items, then item attribute, user attribute and context in turn."""

RANK_FIELDS: tuple[int, ...] = (*SMALL_FIELDS, 300, 100, 50, 20, 500, 40, 60, 10, 200, 25, 100)
"""Cardinalities of 37 fields, for the multi-task ranker."""


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """Settings of a click log. Equal specs make equal logs."""

    seed: int = 0
    """Seed of ids, counters, truth and labels."""
    cardinalities: tuple[int, ...] = SMALL_FIELDS
    """Number of ids of each field. Field 0 is the user, 1 the item; then item attribute, user attribute, context in
    turn.
    """
    dense: int = 13
    """Number of counters; the first four depend on the user."""
    zipf: float = 1.05
    """Exponent of the power law of ids: higher is more skewed, 0 is uniform."""
    taste: float = 0.9
    """Probability that a user takes the better match of two popular items; 0.5 means no preference."""
    click_rate: float = 0.25
    """Share of clicks, also with label noise; with drift, the share at the start of the log."""
    conversion_rate: float = 0.1
    """Share of conversions among clicks."""
    label_noise: float = 0.0
    """Share of labels replaced by a coin of the same rate, which lowers the best AUC."""
    field_strength: float = 1.2
    """Standard deviation of the logit contribution of all fields together."""
    interaction_strength: float = 0.7
    """Standard deviation of the logit contribution of the match between user and item."""
    dense_strength: float = 0.5
    """Standard deviation of the logit contribution of the counters."""
    drift_per_hour: float = 0.0
    """Speed of change of the truth: after h hours its correlation with the start is exp(-(drift h)^2 / 2); 0 for no
    drift.
    """
    events_per_s: float = 1000.0
    """Events per second of event time: sample i happens at i / events_per_s."""
    history: int = 20
    """Longest history of a user, for models with attention."""

    def __post_init__(self) -> None:
        wants = [
            (isinstance(self.seed, int), "seed", "a whole number"),
            (len(self.cardinalities) >= 3, "cardinalities", "at least 3 fields: user, item, item attribute"),
            (min(self.cardinalities, default=0) >= 2, "cardinalities", "at least 2 ids a field"),
            (max(self.cardinalities, default=0) < 2**31, "cardinalities", "fewer than 2**31 ids a field"),
            (self.dense >= 0, "dense", "0 or more"),
            (0 <= self.zipf <= 4, "zipf", "0 to 4"),
            (0.5 <= self.taste <= 1, "taste", "0.5 to 1"),
            (0 < self.click_rate < 1, "click_rate", "between 0 and 1"),
            (0 < self.conversion_rate < 1, "conversion_rate", "between 0 and 1"),
            (0 <= self.label_noise <= 1, "label_noise", "0 to 1"),
            (self.drift_per_hour >= 0, "drift_per_hour", "0 or more"),
            (self.events_per_s > 0, "events_per_s", "above 0"),
            (self.history >= 1, "history", "1 or more"),
        ]
        for fits, name, wanted in wants:
            if not fits:
                raise errors.BadInput(f"click log: {name} is {getattr(self, name)!r}, wanted {wanted}")
