"""The data's own futures: the rows n steps later in the same trajectory, one for each start."""

import numpy as np
from jaxtyping import Float, Int

from uhm.data import Dataset
from uhm.errors import UhmError
from uhm.imagine.views import View

_CANDIDATES = 20_000


def candidates(data: Dataset, steps: int, rng: np.random.Generator, count: int) -> Int[np.ndarray, " rows"]:
    """Up to `count` different rows with `steps` rows after them, in random order."""
    counts = np.asarray(data.counts)
    if steps >= len(counts) or not counts[steps]:
        raise UhmError(f"no trajectory of the data goes on for {steps} steps: ask for smaller n.")
    index = rng.choice(int(counts[steps]), min(count, int(counts[steps])), replace=False)
    return np.asarray(data.starts)[index]


def futures_of(data: Dataset, rows: Int[np.ndarray, " rows"], steps: int) -> Float[np.ndarray, "steps rows S"]:
    """The observations 1 .. `steps` rows later."""
    return np.asarray(data.observations[rows[None] + np.arange(1, steps + 1)[:, None]])


def eventful(data: Dataset, view: View, steps: int, count: int, seed: int) -> Int[np.ndarray, " rows"]:
    """`count` rows after which much happens: each kind of event in turn, and a new trajectory while there is one."""
    rows = candidates(data, steps, np.random.default_rng(seed), _CANDIDATES)
    now, then = np.asarray(data.observations[rows]), np.asarray(data.observations[rows + steps])
    moved = [np.linalg.norm(thing.of(then) - thing.of(now), axis=-1) for thing in (*view.things, *view.slides)]
    events = moved[1:]  # the gripper always moves
    if view.buttons:
        events.append((view.lit(then) != view.lit(now)).sum(-1).astype(float))
    last, chosen, used = np.asarray(data.last)[rows], [], np.zeros(len(rows), bool)
    for turn in range(count):
        score = np.where(used, -1.0, events[turn % len(events)])
        chosen.append(int(score.argmax()))
        used |= last == last[chosen[-1]]
        if used.all():
            used[:] = False
            used[chosen] = True
    return rows[chosen]
