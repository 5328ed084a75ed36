"""The ratio between samples and inserts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vecenvs.arguments import parse_int, parse_number

_RATIOS = (int, float, type(None))


class RateLimiter:
    """Keeps `samples` near `samples_per_insert` times the transitions inserted after the first `min_size`.

    Let due = (inserts - min_size) * samples_per_insert. A sample is allowed up to `tolerance` beyond due. An insert is
    allowed while samples are at most `tolerance` behind due; it counts as a whole, so due may exceed the limit by one
    fragment. For batches of up to 2 * tolerance the two rules never block both sides.

    Args:
        samples_per_insert: the ratio, more than 0; None limits nothing but `min_size`.
        min_size: nothing is sampled before this many transitions are stored.
        tolerance: in samples, more than 0; required with `samples_per_insert`.

    Raises:
        ValueError: an argument is out of range.
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
        """Check whether a fragment may be inserted now.

        Returns:
            True if it may.
        """
        if self.samples_per_insert is None or self.tolerance is None or self.inserts < self.min_size:
            return True
        return self._due(self.samples_per_insert) - self.samples <= self.tolerance

    def may_sample(self, stored: int) -> float:
        """Compute how many samples may be drawn now.

        Args:
            stored: the number of stored transitions.

        Returns:
            The number of samples, `inf` without a limit.
        """
        if stored < self.min_size:
            return 0
        if self.samples_per_insert is None or self.tolerance is None:
            return float("inf")
        return max(self._due(self.samples_per_insert) + self.tolerance - self.samples, 0)

    def inserted(self, n: int) -> None:
        """Count inserted transitions.

        Args:
            n: their number.
        """
        self.inserts += n

    def sampled(self, n: int) -> None:
        """Count samples.

        Args:
            n: their number; a negative one subtracts samples that were not used.
        """
        self.samples += n

    def state(self) -> dict[str, Any]:
        """Return both counts and their ratio, for a checkpoint."""
        return {"inserts": self.inserts, "samples": self.samples, "samples_per_insert": self.samples_per_insert}

    @staticmethod
    def check_state(state: Any) -> None:
        """Check a state that was read from a checkpoint.

        Args:
            state: the state.

        Raises:
            ValueError: `RateLimiter.state` cannot have returned it.
        """
        counts = [state.get(name) for name in ("inserts", "samples")] if isinstance(state, Mapping) else [None]
        ratio = state.get("samples_per_insert") if isinstance(state, Mapping) else None
        if not all(type(count) is int and abs(count) < 2**63 for count in counts) or type(ratio) not in _RATIOS:
            raise ValueError("a rate limiter's state is two counts and a ratio")

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the counts of a checkpoint.

        If it has another ratio, samples are counted as if this limiter's ratio had been kept: a run without a limit
        may have drawn far more samples than this limiter allows.

        Args:
            state: what `state` returned.
        """
        if state.get("samples_per_insert", self.samples_per_insert) == self.samples_per_insert:
            self.inserts, self.samples = int(state["inserts"]), int(state["samples"])
        else:
            self.settle(int(state["inserts"]))

    def settle(self, stored: int) -> None:
        """Begin with some transitions, and with samples as if the ratio had been kept.

        Args:
            stored: the number of transitions.
        """
        self.inserts = stored
        self.samples = max(int(self._due(self.samples_per_insert or 0.0)), 0)

    def _due(self, samples_per_insert: float) -> float:
        return (self.inserts - self.min_size) * samples_per_insert
