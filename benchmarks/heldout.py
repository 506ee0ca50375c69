"""How well a model knows futures that it was not taught: scores on an environment's validation data.

    uhm data make puzzle-3x3-play --episodes 60 --data-dir data
    python benchmarks/heldout.py puzzle-3x3-play-task4 default predict=delta predict=delta,flag_std=1 --data-dir data

For each variant, named by what is not as by default, one agent is trained with lambda at its final value from the first
step and beta = 1: its model learns the futures of the stored behaviour, which the validation data hold too. Then, n
steps on, or with `--agent ghm`, whose model knows no n, a geometric number of steps with lam gamma for going on:

    score     energy score of the states in units of their spread in the data, E|X - y| - E|X - X'| / 2; it is smallest
              for the true distribution, and one stored future y of each state and action is enough to estimate it;
              of futures in which the task does not end
    nothing   the score of saying that nothing changes
    spread    of samples over the error of their mean, dimension by dimension: 1 if the model is as sure as it may be
    far       how many samples are farther from where they began than nine tenths of the stored futures: 10 % if right
    ends      how often it says that the task has ended by then, from states where it has not; beside it how often the
              stored trajectory has
    found     the same from those states (training data included, as they are few) from which the stored trajectory ends
    known     the same from states where the task has ended, where it cannot be otherwise

A step from a state that is not solved never ends the task, so that at n = 1 nothing is stored to be found. The choice
of how the model codes what it says rests on such numbers and not on success.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from uhm import population, tasks
from uhm.agents import family, spec_of
from uhm.agents.horizon_model import THRESHOLD, HorizonModel
from uhm.data import Dataset, load
from uhm.errors import UhmError
from uhm.imagine.distance import energy_score

HORIZONS, K_MAX, STATES, DRAWS, CHUNK = (1, 2, 4, 8), 8, 1024, 8, 500
LONGEST = 40  # a geometric horizon at lambda 0.8 is longer once in 8,000 times
GEOMETRIC = "N"


class Trajectories(NamedTuple):
    """Rows with enough rows after them, and whether the task has ended at each row."""

    observations: np.ndarray
    actions: np.ndarray
    ended: np.ndarray
    rows: np.ndarray


def trajectories(data: Dataset, longest: int) -> Trajectories:
    rows = np.asarray(data.starts[: data.counts[longest + 1]])
    return Trajectories(np.asarray(data.observations), np.asarray(data.actions), ~np.asarray(data.masks)[0], rows)


class Variant(NamedTuple):
    """The fields of the agent's Config and Hyper that are not as by default."""

    config: dict[str, Any]
    hyper: dict[str, Any]


def settings(variant: str) -> Variant:
    """What a variant such as `predict=delta,flag_std=1` sets."""
    kind, found = family("uhm"), Variant({}, {})
    usual = [{field.name: field.default for field in dataclasses.fields(cls)} for cls in (kind.Config, kind.Hyper)]
    for name, _, value in (part.partition("=") for part in variant.split(",") if part != "default"):
        for fields, chosen in zip(usual, found, strict=True):
            if name in fields:
                chosen[name] = value == "True" if isinstance(fields[name], bool) else type(fields[name])(value)
        if not any(name in fields for fields in usual):
            raise UhmError(f"no setting '{name}': they are {', '.join([*usual[0], *usual[1]])}.")
    return found


def trained(
    name: str, data: Dataset, steps: int, hidden: tuple[int, ...], batch_size: int, variant: Variant
) -> HorizonModel:
    """The slow model of one agent."""
    kind = family(name)
    agent = kind.make(kind.Config(hidden=hidden, batch_size=batch_size, **variant.config), spec_of(data, K_MAX))
    members = population.grid(data.names, [0], {})
    usual: dict[str, Any] = {"beta": 1.0, "schedule": False, "steps": steps}
    hyper = population.stack_hyper(kind.Hyper(**usual | variant.hyper), members)
    on_device, state = data.with_task(np.zeros(1, np.int32)), population.init(agent, members, hyper)
    for _ in range(max(1, steps // CHUNK)):
        state, _ = population.advance(agent, state, hyper, on_device, min(steps, CHUNK))
    return jax.tree.map(lambda x: x[0], state.state.targets.model)


def horizons(n: int | str, size: int, going_on: float) -> np.ndarray:
    """The horizons of `size` futures: n, or geometric ones."""
    if n == GEOMETRIC:
        return np.minimum(np.random.default_rng(0).geometric(1 - going_on, size), LONGEST)
    return np.full(size, n)


def scores(
    samples: np.ndarray, truth: np.ndarray, start: np.ndarray, unit: np.ndarray
) -> tuple[float, float, float, float]:
    """Energy score of `samples` [states, draws, S] of `truth`, that of `start`, spread over error, and share of far."""
    x, y, s = samples / unit, truth / unit, start / unit
    draws, score = x.shape[1], energy_score(jnp.asarray(x), jnp.asarray(y)).mean()
    # Of n samples of the truth the mean is off by (n + 1) / n of the truth's variance.
    spread, error = x.var(1, ddof=1).mean(0), np.square(x.mean(1) - y).mean(0) * draws / (draws + 1)
    moves = error > 1e-8
    ratio = float(np.sqrt(spread[moves] / error[moves]).mean())
    moved = np.linalg.norm(s - y, axis=-1)
    far = np.linalg.norm(x - s[:, None], axis=-1) > np.quantile(moved, 0.9)
    return float(score), float(moved.mean()), ratio, float(far.mean())


def futures(
    model: HorizonModel, own: Trajectories, taught: Trajectories, unit: np.ndarray, n: int | str, variant: Variant
) -> list[float]:
    """score, nothing, spread, far, ends, stored, found, known after n steps."""
    usual = family("uhm").Hyper
    threshold = variant.hyper.get("flag_threshold", THRESHOLD)
    going_on = variant.hyper.get("lambda_f", usual.lambda_f) * variant.hyper.get("discount", usual.discount)
    known = 1 if n == GEOMETRIC else int(n)
    sample = jax.jit(lambda key, s, a: model.sample(key, s, a, known, threshold))
    draw, *keys = jax.random.split(jax.random.key(known), 4)
    on, taught_on = (horizons(n, len(data.rows), going_on) for data in (own, taught))

    def share(key: Any, data: Trajectories, rows: np.ndarray) -> float:
        if not len(rows):
            return float("nan")
        some = np.resize(np.random.default_rng(known).permutation(rows), STATES * DRAWS)  # one size, one program
        return float(np.asarray(sample(key, data.observations[some], data.actions[some])[1]).mean())

    def ends_later(data: Trajectories, on: np.ndarray) -> np.ndarray:
        return np.any([data.ended[data.rows + k] & (k < on) for k in range(on.max())], axis=0)

    places = np.random.default_rng(known).choice(np.flatnonzero(~ends_later(own, on)), STATES, replace=False)
    rows = own.rows[places]
    many = jnp.repeat(jnp.asarray(rows), DRAWS)
    states = np.asarray(sample(draw, own.observations[many], own.actions[many])[0]).reshape(STATES, DRAWS, -1)
    alive = own.rows[~own.ended[own.rows]]
    reaching = taught.rows[~taught.ended[taught.rows] & ends_later(taught, taught_on)]
    return [
        *scores(states, own.observations[rows + on[places]], own.observations[rows], unit),
        share(keys[0], own, alive),
        float(ends_later(own, on)[~own.ended[own.rows]].mean()),
        share(keys[1], taught, reaching),
        share(keys[2], taught, taught.rows[taught.ended[taught.rows]]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("variants", nargs="*", default=["default", "predict=delta", "predict=absolute", "flag_std=1"])
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--agent", choices=("uhm", "ghm"), default="uhm")
    options = parser.parse_args()
    task = tasks.task(options.task)
    data = load([task], data_dir=options.data_dir)
    counts = (GEOMETRIC,) if options.agent == "ghm" else HORIZONS
    longest = LONGEST if options.agent == "ghm" else K_MAX
    taught = trajectories(data, longest)
    own = trajectories(load([task], data_dir=options.data_dir, split="val"), longest)
    unit = np.maximum(spec_of(data, K_MAX).observation_std, 0.01)
    table = Table("model", "n", "score", "nothing", "spread", "far", "ends", "stored", "found", "known")
    for name, variant in [(name, settings(name)) for name in options.variants]:
        model = trained(options.agent, data, options.steps, tuple(options.hidden), options.batch_size, variant)
        for n in counts:
            score, nothing, spread, *shares = futures(model, own, taught, unit, n, variant)
            row = [name, str(n), f"{score:.3f}", f"{nothing:.3f}", f"{spread:.2f}"]
            row += [f"{share:.{places}%}" for share, places in zip(shares, (1, 2, 2, 0, 0), strict=True)]
            table.add_row(*row)
            print(*row, flush=True)  # a table comes only at the end
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
