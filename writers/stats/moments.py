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

    @classmethod
    def of(cls, features: NDArray[Any]) -> "Moments":
        """Measure some frames, [frames, D]."""
        values = features.astype(np.float64)
        if not len(values):
            zeros = np.zeros(values.shape[1])
            return cls(0, zeros, zeros)
        mean = values.mean(axis=0)
        return cls(len(values), mean, ((values - mean) ** 2).sum(axis=0))

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
        distance = other.mean - self.mean
        mean = self.mean + distance * (other.count / count)
        squares = self.squares + other.squares + distance**2 * (self.count * other.count / count)
        return Moments(count, mean, squares)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of the population, [D]; zero if there are no frames."""
        return self.squares / max(1, self.count)

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; Python writes a float so that it reads back as the same one."""
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Moments":
        """Read what `as_json` gave."""
        return cls(int(body["count"]), np.array(body["mean"], np.float64), np.array(body["squares"], np.float64))
