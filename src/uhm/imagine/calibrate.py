"""How far a run's imagined futures are from the true ones, for each horizon, by the energy distance.

In `rooms` and mazes the truth is Monte Carlo from the same (s, a), and the distance of each is averaged over them. An
arm's data hold one future per (s, a), which is no distribution: there the changes s_n - s over many rows are compared,
the model's of some rows with the data's of others. `truth` is truth against more truth, and so about 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from uhm import tasks
from uhm.errors import UhmError
from uhm.imagine import rows
from uhm.imagine.distance import energy_distance, pick
from uhm.imagine.dream import MARGINAL, Dream, check_n
from uhm.runs.files import plain

_STATES = {True: 32, False: 8}  # to average over, in `rooms` and in MuJoCo
_ROWS = 512  # of the data that are compared

Samples = tuple[np.ndarray, np.ndarray, np.ndarray]  # model, truth and more truth, as positions


def calibration(dream: Dream, n: Sequence[int] | None = None, draws: int = 64) -> dict[str, Any] | None:
    """What calibration.json holds; None where there is no truth."""
    asked: tuple[float, ...] = check_n(n) or dream.default_n()
    if dream.view.arm and dream.data is None:
        return None
    if dream.view.arm:
        samples, what = _of_data(dream, check_n(n) or dream.default_n())
    else:
        samples, what = _of_world(dream, check_n(n) or dream.default_n(), draws)
    ours, truth = zip(*((_far(model, true), _far(more, true)) for model, true, more in samples), strict=True)
    if dream.how == MARGINAL:
        asked = (1 / (1 - dream.lam * float(dream.hyper.discount)),)
        what += " n is drawn from the geometric distribution of this mean: the model knows nothing else."
    facts = {
        "task": dream.task.name,
        "agent": dream.plan.agent,
        "seed": dream.seed,
        "member": dream.member,
        "step": dream.step,
        "n": list(asked),
        dream.plan.agent: [value / dream.view.unit_length for value in ours],
        "truth": [value / dream.view.unit_length for value in truth],
        "unit": dream.view.unit,
        "of": dream.view.names,
        "k_max": dream.k_max,
        "beta": dream.beta,
        "mixed": not dream.view.arm and dream.behaviour is not None,
        "marginal": dream.how == MARGINAL,
        "how": what,
    }
    return plain(facts)


def _of_world(dream: Dream, n: tuple[int, ...], draws: int) -> tuple[Iterator[Samples], str]:
    count = _STATES[dream.plan.environment is tasks.ROOMS]
    steps = dream.steps(n)
    states, s, a = dream.visited(count, draws)
    true, more = (dream.monte_carlo(seed, states, a, steps) for seed in (1, 2))
    model = dream.imagine(jax.random.key(3), s, a, steps)
    policy = "the policy" if dream.behaviour is None else f"the policy mixed with the data's actions ({dream.beta:g})"
    what = f"Energy distance to Monte Carlo under {policy}, mean over {count} states that the policy visits."
    return _at_horizons(dream, n, *(dream.view.positions(x) for x in (model, true, more))), what


def _of_data(dream: Dream, n: tuple[int, ...]) -> tuple[Iterator[Samples], str]:
    data = dream.data
    assert data is not None
    steps = dream.steps(n)
    found = rows.candidates(data, steps, np.random.default_rng(5), 3 * _ROWS)
    count = len(found) // 3
    if count < 2:
        raise UhmError(f"the data hold too few rows with {steps} rows after them: ask for smaller n.")
    # Different rows: the two futures of one row would be dependent, and their distance too small.
    apart = [found[i * count : (i + 1) * count] for i in range(3)]
    s = [np.asarray(data.observations[chosen]) for chosen in apart]
    model = dream.imagine(jax.random.key(3), s[0], np.asarray(data.actions[apart[0]]), steps)
    futures = (model, *(rows.futures_of(data, chosen, steps) for chosen in apart[1:]))

    def moved(states: np.ndarray, start: np.ndarray) -> np.ndarray:
        return dream.view.positions(states) - dream.view.positions(start)

    model, true, more = (moved(x, start) for x, start in zip(futures, s, strict=True))
    what = (
        f"Energy distance between the changes s_n - s of the model and of the data, over {count} rows each; "
        "the data's futures are those of its behaviour, not of the policy."
    )
    return _at_horizons(dream, n, model, true, more), what


def _at_horizons(dream: Dream, n: tuple[int, ...], model: Any, true: Any, more: Any) -> Iterator[Samples]:
    """Samples of each horizon asked for; for GHM once, with the truth at horizons of its distribution."""
    if dream.how == MARGINAL:
        drawn = dream.drawn(4, (2, *true.shape[1:-1]))
        yield model[0], np.asarray(pick(true, drawn[0])), np.asarray(pick(more, drawn[1]))
        return
    for k in n:
        yield model[k - 1], true[k - 1], more[k - 1]


def _far(x: np.ndarray, y: np.ndarray) -> float:
    return float(_mean_distance(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)))


@jax.jit
def _mean_distance(x: Any, y: Any) -> Any:
    return energy_distance(x, y).mean()
