"""How often a model imagines that a task has ended, beside how often it does: small UHM agents on a real data set.

    uhm data make puzzle-3x3-play --episodes 60 --data-dir data
    python benchmarks/ends.py puzzle-3x3-play-task2 --data-dir data --predict scaled --flag-scale 1 4

For each kind of model one agent is trained on the CPU in minutes, with lambda at its final value from the first step.
Then, from the successors s' of stored transitions and n steps on: `ends`, how often the model says that the policy has
ended; `stored`, how often the stored trajectory has; `error`, the model's for the stored action, root mean square over
all dimensions, and `change`, what it would be had the model said that nothing changes. `found` is `ends` for those
transitions whose stored future does end. `known` is how often the model says so where it cannot be otherwise: from a
stored state and action that end the task.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from uhm import population, tasks
from uhm.agents import core, family, spec_of
from uhm.data import Dataset, load

HORIZONS, SAMPLES, CHUNK = (1, 2, 4, 7), 4096, 1000


def trained(
    data: Dataset, steps: int, discount: float, flag_weight: float, **config: Any
) -> tuple[Any, core.Hyper, dict[str, float]]:
    """State and hyperparameters of one agent, and its last metrics."""
    kind, k_max = family("uhm"), 8
    agent = kind.make(kind.Config(hidden=(128, 128), batch_size=128, **config), spec_of(data, k_max))
    members = population.grid(data.names, [0], {})
    made = kind.Hyper(alpha=0.3, discount=discount, flag_weight=flag_weight, schedule=False, steps=steps)
    hyper = population.stack_hyper(made, members)
    on_device = data.to_device().with_task(np.zeros(1, np.int32))
    state, metrics = population.init(agent, members, hyper), {}
    for _ in range(max(1, steps // CHUNK)):
        state, metrics = population.advance(agent, state, hyper, on_device, min(steps, CHUNK))
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    return first(state.state), first(hyper), {name: float(value[0]) for name, value in metrics.items()}


def futures(state: Any, hyper: core.Hyper, data: Dataset, n: int) -> list[float]:
    """ends, stored, found, known, error and change after n steps."""
    longest = max(HORIZONS) + 1
    observations, actions = np.asarray(data.observations), np.asarray(data.actions)
    ended = ~np.asarray(data.masks)[0]
    starts = np.asarray(data.starts[: data.counts[longest]]) + 1  # s', which must not have ended itself
    starts = starts[~ended[starts - 1]]
    ends_later = np.any([ended[starts + k - 1] for k in range(1, n + 1)], axis=0)
    some = np.random.default_rng(0).choice(len(starts), SAMPLES)
    context: Any = core.Context(state.targets, None, hyper, jnp.float32(0), jnp.int32(1), "mean")
    sample = jax.jit(lambda key, s, a, n: state.targets.model.sample(key, s, a, n))
    keys = jax.random.split(jax.random.key(0), 4)

    def policy_ends(rows: np.ndarray, key: Any, noise: Any) -> float:
        s = jnp.asarray(observations[rows])
        return float(sample(key, s, context.act(noise, s), jnp.full(len(rows), n))[1].mean())

    rows = starts[some]
    imagined, _ = sample(keys[2], jnp.asarray(observations[rows]), jnp.asarray(actions[rows]), jnp.full(SAMPLES, n))
    error, change = (observations[rows + n] - np.asarray(x) for x in (imagined, observations[rows]))
    size = lambda x: float(np.sqrt(np.square(x).mean()))  # noqa: E731
    over = np.flatnonzero(ended)
    known = sample(keys[1], *(jnp.asarray(x[over]) for x in (observations, actions)), jnp.full(len(over), n))[1].mean()
    found = policy_ends(starts[ends_later], keys[1], keys[3]) if ends_later.any() else float("nan")
    return [
        policy_ends(rows, keys[0], keys[3]),
        float(ends_later.mean()),
        found,
        float(known),
        size(error),
        size(change),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--predict", nargs="+", default=["delta", "scaled"])
    parser.add_argument("--flow-output", nargs="+", default=["velocity", "end"])
    parser.add_argument("--flag-scale", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--flag-weight", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--discount", type=float, default=0.99)
    options = parser.parse_args()
    data = load([tasks.task(options.task)], data_dir=options.data_dir)
    table = Table("model", "n", "ends", "stored", "found", "known", "error", "change", "mean Q", "critic loss")
    for output, predict, scale in itertools.product(options.flow_output, options.predict, options.flag_scale):
        config = {"flow_output": output, "predict": predict, "flag_scale": scale}
        state, hyper, metrics = trained(data, options.steps, options.discount, options.flag_weight, **config)
        for n in HORIZONS:
            ends, stored, found, known, *sizes = futures(state, hyper, data, n)
            row = [
                f"{output}, {predict}, flag {scale:g}",
                str(n),
                f"{ends:.2%}",
                f"{stored:.2%}",
                f"{found:.0%}",
                f"{known:.0%}",
            ]
            row += [f"{size:.3f}" for size in sizes] + [f"{metrics['q_mean']:.0f}", f"{metrics['critic_loss']:.0f}"]
            table.add_row(*row)
            print(*row, flush=True)  # a table comes only at the end
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
