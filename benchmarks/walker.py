"""Teach an ant to walk in any direction, as OGBench taught the one that its antmaze data were made with.

    python benchmarks/walker.py train ant                  # 400,000 steps; if stopped, the same command goes on
    python benchmarks/walker.py judge                      # how well the one in the package walks
    python benchmarks/walker.py judge ant/ant.npz

OGBench has the recipe: soft actor-critic on `online-ant-v0`, whose reward is how far a step gets in a direction that is
part of the observation and changes every 100 steps; a gradient step for every step of the ant. Eight ants walk at once
here, so policies act up to eight gradient steps late. Each stretch of 20,000 steps begins with new episodes and random
numbers of its own, so that a training that was stopped goes on exactly.

`judge` lets ants walk with the noise that data sets have, as long as their episodes are, and also counts what the
reward does not say: how fast they stray to the side, and how often they end on their backs, where they stay.
"""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from rich.console import Console
from rich.table import Table

from uhm import nets
from uhm.agents.base import stop
from uhm.agents.descent import State, descend, start
from uhm.agents.mopo import Actor
from uhm.data import expert
from uhm.data.npz_write import save
from uhm.errors import UhmError
from uhm.runs.environment import session
from uhm.runs.publish import unnamed

ANTS = 8
STRETCH = 20_000  # steps of all ants together between two checkpoints
OBSERVATION, ACTION = 29, 8  # an ant's without its place, and the direction
EPISODE, TURN = 1000, 100  # steps; those with one direction
BACK = 0.0  # the height of the body's own "up" below which an ant lies on its back

# OGBench's settings of soft actor-critic for this ant.
HIDDEN = (256, 256)
BATCH = 256
RANDOM_STEPS = 10_000
LEARNING_RATE = 1e-4
DISCOUNT = 0.99
ETA = 0.005
TARGET_ENTROPY = -0.5 * ACTION


class Networks(NamedTuple):
    critic: nets.Critic
    actor: Actor
    log_temperature: Float[Array, ""]


class Rows(NamedTuple):
    """Transitions; `masks` is 0 where the ant fell or jumped too high, which ends an episode."""

    observations: Any
    actions: Any
    rewards: Any
    masks: Any
    next_observations: Any


def fresh(key: PRNGKeyArray) -> State:
    key_critic, key_actor = jax.random.split(key)
    critic = nets.Critic(OBSERVATION, ACTION, key_critic, HIDDEN, layer_norm=False)
    actor = Actor(nets.MLP(OBSERVATION, 2 * ACTION, key_actor, HIDDEN, final_scale=0.01))
    return start(Networks(critic, actor, jnp.zeros(())), slow=("critic",))


def update(state: State, batch: Rows, key: PRNGKeyArray) -> tuple[State, dict[str, Array]]:
    """One step of soft actor-critic: no entropy in the critic's target, the smaller of two critics everywhere."""
    key_next, key_actor = jax.random.split(key)
    a_next, _ = state.params.actor.sample(key_next, batch.next_observations)
    value = state.targets.critic(batch.next_observations, a_next).min(0)
    y = stop(batch.rewards + DISCOUNT * batch.masks * value)

    def total(params: Networks) -> tuple[Float[Array, ""], dict[str, Array]]:
        q = params.critic(batch.observations, batch.actions)
        action, log_prob = params.actor.sample(key_actor, batch.observations)
        temperature, entropy = jnp.exp(params.log_temperature), -log_prob.mean()
        critic_loss = jnp.square(q - y).mean()
        actor_loss = -stop(temperature) * entropy - stop(params.critic)(batch.observations, action).min(0).mean()
        temperature_loss = temperature * (stop(entropy) - TARGET_ENTROPY)
        metrics = {"q": q.mean(), "temperature": temperature, "entropy": entropy}
        return critic_loss + actor_loss + temperature_loss, metrics

    return descend(state, total, LEARNING_RATE, ETA)


@partial(jax.jit, donate_argnums=0)
def updates(state: State, batches: Rows, key: PRNGKeyArray) -> tuple[State, dict[str, Array]]:
    """As many steps as `batches` has batches; metrics of the last one."""
    keys = jax.random.split(key, len(batches.rewards))
    state, metrics = jax.lax.scan(lambda state, given: update(state, *given), state, (batches, keys))
    return state, jax.tree.map(lambda x: x[-1], metrics)


@jax.jit
def explore(actor: Actor, observations: Array, key: PRNGKeyArray) -> Array:
    return actor.sample(key, observations)[0]


class Ant:
    """An ant that is told to walk in random directions; episodes begin by themselves."""

    def __init__(self, rng: np.random.Generator, ends: bool = True):
        import ogbench.online_locomotion  # noqa: F401  (registers the ant)

        self._env: Any = gymnasium.make("online-ant-v0", disable_env_checker=True).unwrapped
        self._rng, self._ends = rng, ends
        self._begin()

    def step(self, action: np.ndarray) -> tuple[float, float, bool, np.ndarray]:
        """How far it got ahead and to the side in metres, whether it fell, and what it saw then."""
        before = self._env.data.qpos[:2].copy()
        seen, _, fell, _, _ = self._env.step(action)
        moved, aside = self._env.data.qpos[:2] - before, np.array([-self._direction[1], self._direction[0]])
        ahead, side = float(moved @ self._direction), float(moved @ aside)
        self._steps += 1
        if self._steps % TURN == 0:
            self._turn()
        then = np.concatenate([seen, self._direction]).astype(np.float32)
        self.observation = then
        if self._ends and (fell or self._steps == EPISODE):
            self._begin()
        return ahead, side, bool(fell), then

    @property
    def on_its_back(self) -> bool:
        """By the quaternion (w, x, y, z) of its body."""
        _, x, y, _ = self._env.data.qpos[3:7]
        return bool(1 - 2 * (x**2 + y**2) < BACK)

    def _begin(self) -> None:
        self._steps = 0
        self._turn()
        seen, _ = self._env.reset(seed=int(self._rng.integers(2**31)))
        self.observation = np.concatenate([seen, self._direction]).astype(np.float32)

    def _turn(self) -> None:
        direction = self._rng.normal(size=2)
        self._direction = direction / np.linalg.norm(direction)


def blank(steps: int) -> Rows:
    sizes = ((OBSERVATION,), (ACTION,), (), (), (OBSERVATION,))
    return Rows(*(np.zeros((steps, *size), np.float32) for size in sizes))


def stretch(state: State, rows: Rows, done: int, until: int, seed: int) -> tuple[State, dict[str, Array]]:
    """Fill `rows` from `done` to `until` and learn from all up to there; all randomness is of `seed` and `done`."""
    rng, key = np.random.default_rng([seed, done]), jax.random.fold_in(jax.random.key(seed), done)
    ants = [Ant(each) for each in rng.spawn(ANTS)]
    metrics: dict[str, Array] = {}
    for first in range(done, until, ANTS):
        key, key_act, key_learn = jax.random.split(key, 3)
        here, now = slice(first, first + ANTS), np.stack([ant.observation for ant in ants])
        if first < RANDOM_STEPS:
            actions = rng.uniform(-1, 1, (ANTS, ACTION)).astype(np.float32)
        else:
            actions = np.asarray(explore(state.params.actor, now, key_act))
            drawn = rng.integers(first, size=(ANTS, BATCH))
            state, metrics = updates(state, Rows(*(column[drawn] for column in rows)), key_learn)
        # While these are simulated, the update above is computed.
        ahead, _, fell, then = zip(*(ant.step(action) for ant, action in zip(ants, actions, strict=True)), strict=True)
        new = Rows(now, actions, np.array(ahead), 1 - np.array(fell, np.float32), np.stack(then))
        for column, values in zip(rows, new, strict=True):
            column[here] = values
    return state, metrics


def policy_file(path: Path, actor: Actor) -> None:
    """The actor without its noise, in the format of `uhm.data.expert`."""
    arrays: dict[str, np.ndarray] = {"activation": np.array("gelu")}
    for k, layer in enumerate(actor.mlp.layers):
        size = ACTION if k == len(HIDDEN) else None  # of the last layer the means
        arrays |= {f"w{k}": np.asarray(layer.weight)[:, :size], f"b{k}": np.asarray(layer.bias)[:size]}
    save(path, arrays)


def keep(path: Path, state: State, rows: Rows, done: int, seed: int) -> None:
    leaves = {f"state{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    asked = {"seed": np.array(seed), "steps": np.array(len(rows.rewards))}
    save(path, asked | leaves | {f"rows{i}": column[:done] for i, column in enumerate(rows)})


def restore(path: Path, state: State, rows: Rows, seed: int) -> tuple[State, int]:
    """The state as it was kept; `rows` are filled in place. Also how many there are."""
    with np.load(path, allow_pickle=False) as file:
        for name, asked in (("seed", seed), ("steps", len(rows.rewards))):
            if file[name] != asked:
                raise UhmError(f"{path} is of --{name} {file[name]}, not {asked}: train in another folder.")
        done = len(file["rows0"])
        for i, column in enumerate(rows):
            column[:done] = file[f"rows{i}"]
        leaves = [jnp.asarray(file[f"state{i}"]) for i in range(len(jax.tree.leaves(state)))]
    return jax.tree.unflatten(jax.tree.structure(state), leaves), done


def train(folder: Path, steps: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made_by = unnamed(session())
    kept, policy = folder / "training.npz", folder / "ant.npz"
    rows, state, done, begun = blank(steps), fresh(jax.random.key(seed)), 0, time.monotonic()
    if kept.exists():
        state, done = restore(kept, state, rows, seed)
    left = steps - done
    while done < steps:
        until = min(done + STRETCH, steps)
        state, metrics = stretch(state, rows, done, until, seed)
        done = until
        keep(kept, state, rows, done, seed)
        ahead = 10 * rows.rewards[max(done - STRETCH, 0) : done].mean()  # ten steps are a second
        rest = (time.monotonic() - begun) * (steps - done) / (left - (steps - done))
        said = ", ".join(f"{name} {float(value):.2f}" for name, value in metrics.items())
        print(f"{done:,} of {steps:,}: {ahead:.2f} m/s while exploring; {said}; {rest / 60:.0f} min left", flush=True)
    policy_file(policy, state.params.actor)
    facts = {"steps": steps, "seed": seed, "walks": judge(policy), "session": made_by}
    (folder / "ant.json").write_text(json.dumps(facts, indent=1) + "\n")


def judge(path: Path, episodes: int = 20) -> dict[str, dict[str, float]]:
    """How ants walk by the policy at `path` for each noise that data sets have, without the end that a fall is."""
    policy, found = expert.load(path, OBSERVATION, ACTION), {}
    for noise in (0.0, 0.2, 1.0):
        rngs = np.random.default_rng(0).spawn(episodes)
        walks = np.array([_walk(Ant(rng, ends=False), policy, noise, rng) for rng in rngs])
        ahead, aside, back = walks.mean((0, 1)).tolist()
        at_end = float(walks[:, -1, 2].mean())
        found[str(noise)] = {"ahead": 10 * ahead, "aside": 10 * aside, "back": back, "at_end": at_end}
    return found


def _walk(ant: Ant, policy: Any, noise: float, rng: np.random.Generator) -> list[tuple[float, float, bool]]:
    walked = []
    for _ in range(EPISODE):
        action = np.clip(policy(ant.observation) + rng.normal(0, noise, ACTION), -1, 1)
        ahead, side, _, _ = ant.step(action)
        walked.append((ahead, abs(side), ant.on_its_back))
    return walked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("folder", type=Path)
    training.add_argument("--steps", type=int, default=400_000, help=f"of all {ANTS} ants together")
    training.add_argument("--seed", type=int, default=0)
    judging = verbs.add_parser("judge")
    judging.add_argument("policy", type=Path, nargs="?", default=expert.ANT)
    judging.add_argument("--episodes", type=int, default=20)
    args = parser.parse_args()
    if args.verb == "train":
        if args.steps < ANTS or args.steps % ANTS:
            parser.error(f"--steps must be a multiple of {ANTS}, one for each ant")
        try:
            train(args.folder, args.steps, args.seed)
        except UhmError as error:
            sys.exit(str(error))
        return
    table = Table("noise", "ahead (m/s)", "aside (m/s)", "on its back", "at the end", box=None)
    for noise, walk in judge(args.policy, args.episodes).items():
        shares = (f"{walk[name]:.1%}" for name in ("back", "at_end"))
        table.add_row(noise, *(f"{walk[name]:.2f}" for name in ("ahead", "aside")), *shares)
    Console().print(table)


if __name__ == "__main__":
    main()
