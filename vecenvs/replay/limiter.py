"""The ratio between samples and inserts."""

from __future__ import annotations

from vecenvs.arguments import parse_int, parse_number


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
        self.tolerance = tolerance or 0.0
        self.inserts = 0
        self.samples = 0

    def may_insert(self, stored: int) -> bool:
        """Check whether a fragment may be inserted now.

        Args:
            stored: the number of stored transitions.

        Returns:
            True if it may, as it always may where too few are stored to sample any.
        """
        return stored < self.min_size or self._due() <= self.tolerance

    def may_sample(self, stored: int) -> float:
        """Compute how many samples may be drawn now.

        Args:
            stored: the number of stored transitions.

        Returns:
            The number of samples, `inf` without a limit.
        """
        if stored < self.min_size:
            return 0
        return float("inf") if self.samples_per_insert is None else max(self._due() + self.tolerance, 0)

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

    def restore(self, inserts: int) -> None:
        """Go on with stored transitions: with a ratio, as if it had been kept so far; else samples count from 0.

        Args:
            inserts: the number of transitions ever inserted.
        """
        self.inserts, self.samples = inserts, 0
        self.samples = max(int(self._due()), 0)

    def _due(self) -> float:
        """Return how many samples are due and not drawn, 0 without a ratio."""
        ratio = self.samples_per_insert
        return 0.0 if ratio is None else (self.inserts - self.min_size) * ratio - self.samples
