"""ε of a run: how much its noised sums reveal of one client. Opacus computes it (its PRV accountant).

The mechanism of a release is a Poisson-sampled Gaussian: every client takes part with probability `rate`, and the sum
of the clipped updates gets noise of `noise` times the clipping norm. Neighbours differ by one client, in or out.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from math import log, sqrt
from typing import Any

from ..errors import ConfigError

TOLERANCE = 0.005  # of ε, relative; but no more than MOST_ERROR
MOST_ERROR = 0.01
SLACK = 1e-3  # of δ, for the accountant's own error
MOST_NOISE = 1e4


class Accountant:
    """ε after a number of equal releases. What Opacus has computed for many serves fewer as well."""

    def __init__(self, rate: float, noise: float, delta: float, releases: int) -> None:
        self._rate, self._noise, self._delta = rate, noise, delta
        self._planned = releases
        self._table: dict[int, float] = {0: 0.0}
        self._prv: Any = None
        self._error = MOST_ERROR

    def epsilon(self, releases: int) -> float:
        """An upper bound of ε(δ) after so many releases, within a hundredth of the accountant's estimate."""
        if releases not in self._table:
            self._table[releases] = self._computed(releases)
        return self._table[releases]

    def _computed(self, releases: int) -> float:
        prv, slack = _opacus(), self._delta * SLACK
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of logarithms at a rate of 1, and of orders of Rényi's divergence
            if self._prv is None or releases > self._planned:
                self._planned = max(releases, self._planned)
                # One release has the smallest ε, and its error must be small beside it.
                one = self._discretized(prv, 1, MOST_ERROR).compute_epsilon(self._delta, slack, MOST_ERROR)[1]
                self._error = min(MOST_ERROR, max(TOLERANCE * float(one), MOST_ERROR / 50))
                self._prv = self._discretized(prv, self._planned, self._error)
            composed = prv.compose_heterogeneous(dprvs=[self._prv], num_self_compositions=[releases])
            return max(0.0, float(composed.compute_epsilon(self._delta, slack, self._error)[2]))

    def _discretized(self, prv: Any, releases: int, error: float) -> Any:
        """The privacy loss of one release on a mesh that is fine enough for so many (Gopi et al., 2021)."""
        loss, slack = prv.PoissonSubsampledGaussianPRV(self._rate, self._noise), self._delta * SLACK
        size = prv.compute_safe_domain_size(
            prvs=[loss], max_self_compositions=[releases], eps_error=error, delta_error=slack
        )
        domain = prv.Domain.create_aligned(-size, size, error / sqrt(releases * log(12 / slack) / 2))
        return prv.discretize(prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max), domain)


@lru_cache(64)
def noise_for(epsilon: float, delta: float, rate: float, releases: int) -> float:
    """The smallest noise, to four digits, with which so many releases cost at most `epsilon`."""

    def cost(noise: float) -> float:
        return Accountant(rate, noise, delta, releases).epsilon(releases)

    low, high = 0.0, 1.0
    while cost(high) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise ConfigError(
                f"epsilon {epsilon:g} with delta {delta:g} is out of reach: it needs noise above {high:g}."
            )
    if not low:
        low = high / 2
        while cost(low) <= epsilon and low > 0.01:
            low, high = low / 2, low
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return float(f"{high + 5e-5 * high:.4g}")


def _opacus() -> Any:
    """Opacus's accountant, or an error that says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants.analysis import prv
    except ImportError as error:
        raise ConfigError(
            "differential privacy needs an accountant: pip install 'fedsparsify[privacy]', which installs Opacus."
        ) from error
    return prv
