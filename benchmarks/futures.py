"""How well models know the future of a policy: UHM's jump, a one-step model rolled out, and GHM's geometric marginal.

    python benchmarks/futures.py [--steps 6000] [--policy-steps 3000] [--json FILE]

The policy is fixed: an agent is trained on `rooms`, and its slow actor with the noise of target smoothing is the policy
pi from then on. UHM, the one-step model of MBTD and GHM are then trained by their agents' own updates, all on the same
data, for the same number of steps, with the actor held still and without behaviour mixing (beta = 0), so that all three
estimate the futures of the same pi. UHM draws its horizons as it does in training, from the winsorized geometric
distribution, at a lambda whose cap is the longest horizon asked for, without the schedule.

The truth is Monte Carlo in `rooms` itself from the same (s, a), which are rows of the data. It ends as the models are
taught: the successor of a goal state is absorbing, and a path stays there.

Printed is the energy distance 2 E|X - Y| - E|X - X'| - E|Y - Y'| between samples and truth for each (s, a), averaged
over them (unbiased, so `truth`, which is Monte Carlo against more Monte Carlo, is about 0), in units of one step's
length. `mixture` draws n from the geometric distribution: uncapped for GHM, which knows nothing else, capped for the
others; each is compared with the truth for the same distribution.
"""

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from uhm import horizons, population, train
from uhm.agents import family, spec_of
from uhm.agents.core import Context
from uhm.data.dataset import Dataset
from uhm.envs import rooms
from uhm.errors import UhmError
from uhm.imagine.distance import energy_distance, pick
from uhm.imagine.models import jump, roll
from uhm.imagine.simulators import Rooms, monte_carlo
from uhm.runs.environment import session
from uhm.train.loop import data_of

CHUNK = 500
TAIL = 1e-4  # of the geometric distribution that the truth for GHM may leave out
NAMES = {"uhm": "UHM", "mbtd": "one-step, rolled out", "ghm": "GHM"}


def learn(name: str, plan: Any, data: Dataset, k: int, steps: int, actor: Any = None, **changes: Any) -> Any:
    """State and hyperparameters of an agent of this family trained alone; a given `actor` stays as it is."""
    kind = family(name)
    config = {f.name: plan.config[f.name] for f in dataclasses.fields(kind.Config)}
    agent = kind.make(kind.Config(**config), spec_of(data, k))
    hyper = dataclasses.replace(kind.Hyper(**plan.hyper), steps=steps, **changes)
    members = population.grid(data.names, [0], {})[:1]
    stacked = population.stack_hyper(hyper, members)
    pop = population.init(agent, members, stacked)
    if actor is not None:
        # The actor moves at multiples of `actor_period`: with the count begun at 1 that is never, so its gradient is
        # 0, Adam leaves it where it is, and its slow copy stays equal to it.
        stacked = dataclasses.replace(stacked, actor_period=jnp.array([1e9]))
        copies = [jax.tree.map(lambda x: jnp.array(x)[None], actor) for _ in range(2)]  # donated buffers must not alias
        params, targets = (
            tree._replace(actor=one) for tree, one in zip((pop.state.params, pop.state.targets), copies, strict=True)
        )
        pop = pop._replace(state=pop.state._replace(params=params, targets=targets, step=jnp.ones(1, jnp.int32)))
    task = data.with_task(np.zeros(1, np.int32))
    for done in range(0, steps, CHUNK):
        pop, _ = population.advance(agent, pop, stacked, task, min(CHUNK, steps - done))
    if not bool(pop.alive[0]):
        raise UhmError(f"{name} diverged.")
    return jax.tree.map(lambda x: x[0], pop.state)


def main(
    steps: int = 6_000,
    policy_steps: int = 3_000,
    longest: int = 16,
    pairs: int = 128,
    draws: int = 128,
    task: str = "rooms-task1",
    seed: int = 0,
    data_dir: str | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Train, measure and print."""
    plan = train.resolve("uhm", task, seeds=1, data_dir=data_dir)
    data, console = data_of(plan), Console()
    discount, q = plan.hyper["discount"], plan.hyper["q"]
    # The lambda whose cap is `longest`: q^(1 / longest) / discount, a little less against rounding.
    lam = 0.999 * q ** (1 / longest) / discount
    assert int(horizons.k_max(lam, discount, q)) == longest
    began = time.perf_counter()
    learned = learn("uhm", plan, data, plan.k_max(), policy_steps)
    actor = learned.targets.actor
    alone = {"beta": 0.0, "schedule": False, "lambda_f": lam}
    # The one-step model learns from real transitions alone: MBTD's own rollouts (k = 1: none) would not change it.
    states = {n: learn(n, plan, data, longest if n == "uhm" else 1, steps, actor, **alone) for n in NAMES}
    models = {name: state.targets.model for name, state in states.items()}
    trained = time.perf_counter() - began

    rows = np.asarray(data.starts)
    rows = rows[np.asarray(data.masks)[0, rows]]  # starts that are not at the goal already
    rows = np.random.default_rng(seed).choice(rows, pairs, replace=False)
    goal = rooms.GOALS[int(task.rsplit("task")[-1]) - 1]
    hyper = dataclasses.replace(family("uhm").Hyper(**plan.hyper), **alone)
    policy = Context(learned.targets, None, hyper, jnp.zeros(()), jnp.ones((), jnp.int32), "mean").act
    s, a = (jnp.repeat(jnp.asarray(x)[rows, None], draws, 1) for x in (data.observations, data.actions))
    world, act, at = Rooms(goal), jax.jit(policy), np.asarray(s, np.float64)
    rate = lam * discount
    tail = math.ceil(math.log(TAIL) / math.log(rate))
    truth, again = (monte_carlo(world, act, seed + i, at, a, steps) for i, steps in enumerate((tail, longest)))
    keys = jax.random.split(jax.random.key(seed + 2), 3)
    jumped = jump(models["uhm"], keys[0], s, a, jnp.arange(1, longest + 1))
    rolled = roll(models["mbtd"], policy, keys[1], s, a, longest)
    marginal = jump(models["ghm"], keys[2], s, a, jnp.ones(1, jnp.int32))[0]

    distance = jax.jit(lambda x, y: energy_distance(x, y).mean() / rooms.STEP)
    short = jnp.asarray(truth[:longest], jnp.float32)
    found: list[dict[str, Any]] = []
    for i in range(longest):
        line = {"uhm": jumped[i], "mbtd": rolled[i], "truth": jnp.asarray(again[i], jnp.float32)}
        found.append({"n": i + 1} | {name: float(distance(x, short[i])) for name, x in line.items()})
    n = np.random.default_rng(seed + 3).geometric(1 - rate, (2, pairs, draws))
    capped, uncapped = np.minimum(n, longest), np.minimum(n, tail)
    found.append(
        {
            "n": "mixture",
            "uhm": float(distance(pick(jumped, capped[0]), pick(short, capped[1]))),
            "mbtd": float(distance(pick(rolled, capped[0]), pick(short, capped[1]))),
            "ghm": float(distance(marginal, pick(truth, uncapped[1]).astype(jnp.float32))),
            "truth": float(distance(pick(again, capped[0]).astype(jnp.float32), pick(short, capped[1]))),
        }
    )
    table = Table("n", *NAMES.values(), "truth", "UHM : rolled out", title=f"{task}: energy distance, in steps")
    for line in found:
        cells = [f"{line[name]:.4f}" if name in line else "" for name in (*NAMES, "truth")]
        table.add_row(str(line["n"]), *cells, f"{line['uhm'] / line['mbtd']:.2f}")
    console.print(table)
    console.print(f"lambda {lam:.4f}, {steps} steps each, {pairs} x {draws} samples, trained in {trained:.0f} s")
    if json_file is not None:
        json_file.write_text(json.dumps({"session": session(), "lambda": lam, "steps": steps, "rows": found}, indent=2))


if __name__ == "__main__":
    tyro.cli(main)
