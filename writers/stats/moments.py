"""Mean and variance that can be merged, in float64.

Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances (1979). Sums of squares
would lose the variance of features whose mean is large beside it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """Of the frames seen so far: how many, their mean, and the sum of squared distances from it, [D] each."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    rest: NDArray[np.float64]
    """What rounding took from the mean: means of 1e6 that differ by 1e-6 would else be told apart by chance."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Moments":
        """Measure some frames, [frames, D]."""
        if not len(values):
            zeros = np.zeros(values.shape[1])
            return cls(0, zeros, zeros, zeros)
        mean = values.mean(axis=0)
        distances = values - mean
        rest = distances.mean(axis=0)
        return cls(len(values), mean, ((distances - rest) ** 2).sum(axis=0), rest)

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both.

        Example:
            >>> halves = Moments.of(np.array([[1.0], [2.0]])), Moments.of(np.array([[6.0]]))
            >>> halves[0].merge(halves[1]).variance.round(6).tolist()
            [4.666667]
        """
        if not other.count:
            return self
        if not self.count:
            return other
        count = self.count + other.count
        distance = (other.mean - self.mean) + (other.rest - self.rest)
        step = distance * (other.count / count)
        mean, lost = _exact_sum(self.mean, step)
        squares = self.squares + other.squares + distance**2 * (self.count * other.count / count)
        return Moments(count, mean, squares, self.rest + lost)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of the population, [D]; zero if there are no frames."""
        return self.squares / max(1, self.count)

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; Python writes a float so that it reads back as the same one."""
        return {
            "count": self.count,
            "mean": self.mean.tolist(),
            "squares": self.squares.tolist(),
            "rest": self.rest.tolist(),
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Moments":
        """Read what `as_json` gave."""
        mean, squares, rest = (np.array(body[name], np.float64) for name in ("mean", "squares", "rest"))
        return cls(int(body["count"]), mean, squares, rest)


def _exact_sum(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a sum and what its rounding lost (Knuth, The Art of Computer Programming, volume 2, 4.2.2)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
