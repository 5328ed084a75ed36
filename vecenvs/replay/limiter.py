"""How fast samples may be drawn for what is inserted, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vecenvs.arguments import parse_int, parse_number

_RATIOS = (int, float, type(None))


class RateLimiter:
    """Keeps `samples` near `samples_per_insert` times the transitions inserted after the first `min_size`.

    With due = (inserts - min_size) * samples_per_insert: samples go at most `tolerance` beyond due; an insert is let in
    unless samples lag more than `tolerance` behind due (one that is let in counts as a whole, so due may pass that by
    one fragment). Since those two cannot both hold back a sample of up to 2 * tolerance, nothing stops for good.

    Nothing is sampled before `min_size` transitions are stored. With samples_per_insert=None that is all.
    """

    def __init__(
        self, samples_per_insert: float | None = None, min_size: int = 1, tolerance: float | None = None
    ) -> None:
        for name, value in (("samples_per_insert", samples_per_insert), ("tolerance", tolerance)):
            if value is not None:
                parse_number(name, value)
        if samples_per_insert is not None and not samples_per_insert > 0:
            raise ValueError(f"samples_per_insert must be more than 0, or None for no limit: {samples_per_insert!r}")
        if samples_per_insert is not None and (tolerance is None or not tolerance > 0):
            raise ValueError(f"with samples_per_insert a tolerance of more than 0 samples is needed, not {tolerance!r}")
        self.samples_per_insert = samples_per_insert
        self.min_size = parse_int("min_size", min_size, 1)
        self.tolerance = tolerance
        self.inserts = 0
        self.samples = 0

    def may_insert(self) -> bool:
        """Tell whether a fragment may come in now."""
        if self.samples_per_insert is None or self.tolerance is None or self.inserts < self.min_size:
            return True
        return self._due(self.samples_per_insert) - self.samples <= self.tolerance

    def may_sample(self, stored: int) -> float:
        """Tell how many samples may be drawn now, `stored` transitions being there; `inf` without a limit."""
        if stored < self.min_size:
            return 0
        if self.samples_per_insert is None or self.tolerance is None:
            return float("inf")
        return max(self._due(self.samples_per_insert) + self.tolerance - self.samples, 0)

    def inserted(self, n: int) -> None:
        """Count n transitions."""
        self.inserts += n

    def sampled(self, n: int) -> None:
        """Count n samples; a negative n takes back samples that were not used."""
        self.samples += n

    def state(self) -> dict[str, Any]:
        """The two counts, and the ratio they have kept, for a checkpoint."""
        return {"inserts": self.inserts, "samples": self.samples, "samples_per_insert": self.samples_per_insert}

    @staticmethod
    def check_state(state: Any) -> None:
        """Refuse, by ValueError, what `state` cannot have given."""
        counts = [state.get(name) for name in ("inserts", "samples")] if isinstance(state, Mapping) else [None]
        ratio = state.get("samples_per_insert") if isinstance(state, Mapping) else None
        if not all(type(count) is int and abs(count) < 2**63 for count in counts) or type(ratio) not in _RATIOS:
            raise ValueError("a rate limiter's state is two counts and a ratio")

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the counts of a checkpoint; of one with another ratio only the inserts, as if this had been kept.

        Else whoever goes on with a limit after a run without would pay back all that was sampled.
        """
        if state.get("samples_per_insert", self.samples_per_insert) == self.samples_per_insert:
            self.inserts, self.samples = int(state["inserts"]), int(state["samples"])
        else:
            self.settle(int(state["inserts"]))

    def settle(self, stored: int) -> None:
        """Begin with `stored` transitions, as if the ratio had been kept so far."""
        self.inserts = stored
        self.samples = max(int(self._due(self.samples_per_insert or 0.0)), 0)

    def _due(self, samples_per_insert: float) -> float:
        return (self.inserts - self.min_size) * samples_per_insert
