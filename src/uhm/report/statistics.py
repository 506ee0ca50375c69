"""Mean, standard deviation, interquartile mean, and stratified bootstrap intervals.

Scores come as strata: one array per task, one entry per seed. The bootstrap draws seeds with replacement inside every
task, so that no replicate is without a task, and takes the percentiles of the statistic over all replicates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

REPLICATES = 5000
LEVEL = 0.95

Interval = tuple[float, float]
Scores = Float[np.ndarray, " _"]  # tasks need not have the same number of seeds


class Intervals(NamedTuple):
    """95 % intervals of the mean and of the interquartile mean."""

    mean: Interval
    iqm: Interval


def mean(strata: Sequence[Scores]) -> float:
    """The mean over tasks of the mean over seeds: every task counts the same, however many seeds it has."""
    return float(np.mean([np.mean(scores) for scores in strata]))


def std(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def iqm(values: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch"]:
    """The mean of what is left after dropping the lowest and the highest quarter (rounded down) of the last axis."""
    n = values.shape[-1]
    cut = n // 4
    return np.asarray(np.sort(values, axis=-1)[..., cut : n - cut].mean(-1))


def intervals(strata: Sequence[Scores], replicates: int = REPLICATES, seed: int = 0) -> Intervals | None:
    """Stratified percentile bootstrap; None where a task has one seed: it would count as if it never varied."""
    if any(len(scores) < 2 for scores in strata):
        return None
    generator = np.random.default_rng(seed)
    drawn = [scores[generator.integers(len(scores), size=(replicates, len(scores)))] for scores in strata]
    means = np.mean([draw.mean(-1) for draw in drawn], axis=0)
    return Intervals(_percentiles(means), _percentiles(iqm(np.concatenate(drawn, axis=-1))))


def curve_interval(
    strata: Sequence[Float[np.ndarray, "_ steps"]], replicates: int = 1000, seed: int = 0
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]] | None:
    """The interval of the mean at every step. A whole curve is drawn at a time, as it was trained."""
    if any(len(curves) < 2 for curves in strata):
        return None
    generator = np.random.default_rng(seed)
    total = 0.0
    for curves in strata:
        count = len(curves)
        # How often each seed is drawn, divided by the seeds: a mean of a replicate is one product.
        weights = generator.multinomial(count, np.full(count, 1 / count), size=replicates) / count
        total = total + weights @ curves
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(total / len(strata), (tail, 1 - tail), axis=0)
    return low, high


def _percentiles(replicates: Float[np.ndarray, " replicates"]) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(replicates, (tail, 1 - tail))
    return float(low), float(high)
