"""The futures of a run: its model's samples of s_n from a few states, and the true ones beside them.

The policy pi is the run's slow actor with the noise of target smoothing, which is what the models are taught with. UHM
and GHM besides take the data's action with probability beta (behaviour mixing), so the futures they learn are those of
the mixture. The truth mixes as well where it can, i.e. where the data are there and observations are a few numbers.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from uhm import horizons, tasks
from uhm.agents.core import Context, Hyper
from uhm.agents.horizon_model import HorizonModel
from uhm.data import Dataset
from uhm.data.source import load
from uhm.errors import UhmError
from uhm.imagine import models, rows, simulators, views
from uhm.imagine.distance import pick
from uhm.runs import Run
from uhm.train import Plan, load_run
from uhm.train.choice import choose
from uhm.train.restore import Step

JUMP, ROLL, MARGINAL = "jump", "roll", "marginal"
HOW = {"uhm": JUMP, "mbtd": ROLL, "ghm": MARGINAL}
TAIL = 1e-4  # of the geometric distribution that its truth may leave out
MONTE_CARLO, DATA, NOTHING = "Monte Carlo", "data", "none"  # what the truth is


@dataclasses.dataclass(frozen=True)
class Futures:
    """`model` and `truth` are states [horizons, starts, draws, S] after `horizons` steps from (s, a).

    `truth` is Monte Carlo, or the data's one future per start, or None. For GHM, which knows no n, `model` has a single
    entry and `drawn` [starts, draws] are horizons from its geometric distribution, to pick from `truth`.
    """

    task: str
    agent: str
    seed: int
    step: int
    how: str
    n: tuple[int, ...]  # those asked for
    k_max: int  # the longest horizon that the model has learned
    beta: float  # share of the data's actions that the model is taught with
    mixed: bool  # whether the truth has them as well
    s: np.ndarray
    a: np.ndarray
    model: np.ndarray
    truth: np.ndarray | None
    truth_is: str
    drawn: np.ndarray | None = None

    @property
    def horizons(self) -> np.ndarray:
        return np.arange(1, (len(self.truth) if self.truth is not None else len(self.model)) + 1)

    def true_mixture(self) -> np.ndarray | None:
        """For GHM: the truth [starts, draws, S] at the horizons that were drawn."""
        if self.truth is None or self.drawn is None:
            return None
        paths = np.broadcast_to(self.truth, (*self.truth.shape[:2], self.drawn.shape[1], self.truth.shape[-1]))
        return np.asarray(pick(paths, self.drawn))


class Dream:
    """One member of a run, ready to imagine."""

    def __init__(
        self,
        run: Path | str,
        task: str | None = None,
        seed: int | None = None,
        step: Step = "last",
        mix: bool = True,
        member: int | None = None,
    ):
        with Run.open(Path(run), write=False) as opened:  # what cannot be looked at is said before it is loaded
            plan = Plan.from_json(opened.config)
        how = HOW.get(plan.family.like or plan.agent)
        if how is None:
            raise UhmError(f"{plan.agent} has no model of the future: imagine looks at runs of {', '.join(HOW)}.")
        if plan.environment.own:
            raise UhmError(f"{run} learned from logs, and imagine can draw the states of known environments only.")
        self.plan, self.how = plan, how
        self.member = choose(plan, task, seed, member)
        chosen = plan.members()[self.member]
        self.task, self.seed = tasks.task(chosen.task), chosen.seed
        restored = load_run(run, step)
        population, spec = restored.state, restored.spec
        # Networks and models of a run with `normalise` live in scaled observations; here all else is as observed.
        self._in, self._out = (spec.scale, spec.unscale) if plan.normalise else (_as_it_is, _as_it_is)
        self.step = int(population.step)
        self.state = jax.tree.map(lambda x: x[self.member], population.state)
        self.hyper = dataclasses.replace(plan.family.Hyper(**plan.hyper), **dict(chosen.hyper))
        model = getattr(getattr(self.state, "targets", None), "model", None)
        if not isinstance(model, HorizonModel) or not isinstance(self.hyper, Hyper):
            raise UhmError(f"{plan.agent} has no model of the future that imagine knows: build it on uhm.agents.uhm.")
        progress = self.step / self.hyper.steps if self.hyper.schedule else 1.0
        self.lam = float(horizons.lambda_schedule(progress, self.hyper.lambda_f))
        self.k_max = int(horizons.k_max(self.lam, self.hyper.discount, self.hyper.q))
        context = Context(self.state.targets, None, self.hyper, jnp.zeros(()), jnp.ones((), jnp.int32), "mean")
        self._policy = context.act
        self.act = jax.jit(lambda key, s: context.act(key, self._in(s)))
        self.view = views.view(plan.environment)
        self.beta = 0.0 if self.how == ROLL else float(self.hyper.beta)
        self._mix = mix and self.beta > 0

    @functools.cached_property
    def world(self) -> simulators.Rooms | simulators.Maze:
        return simulators.world(self.task)

    @functools.cached_property
    def data(self) -> Dataset | None:
        """The run's data, or None where they are not any more."""
        try:
            return load([self.task], **self.plan.data_options)
        except UhmError:
            return None

    @functools.cached_property
    def behaviour(self) -> simulators.Behaviour | None:
        """What the truth mixes in."""
        small = self.plan.environment.observation_size <= simulators.Behaviour.LARGEST
        return simulators.Behaviour(self.data, self.beta) if self._mix and small and self.data is not None else None

    def default_n(self) -> tuple[int, ...]:
        """1, 2, 4, ... and the longest horizon that the model has learned."""
        return tuple(sorted({2**i for i in range(self.k_max.bit_length()) if 2**i < self.k_max} | {self.k_max}))

    def tail(self) -> int:
        """The longest horizon of the geometric distribution, but for a rest that does not matter."""
        return max(1, math.ceil(math.log(TAIL) / math.log(max(self.lam * self.hyper.discount, TAIL))))

    def steps(self, n: tuple[int, ...]) -> int:
        """How far the truth has to go."""
        return self.tail() if self.how == MARGINAL else max(n)

    def imagine(self, key: Any, s: Any, a: Any, steps: int) -> np.ndarray:
        """The model's states [horizons, *batch, S] after 1 .. `steps` steps; GHM's only one."""
        model = self.state.targets.model
        s, a = jnp.asarray(self._in(s)), jnp.asarray(a)
        if self.how == ROLL:
            return np.asarray(self._out(models.roll(model, self._policy, key, s, a, steps)))
        n = jnp.arange(1, (1 if self.how == MARGINAL else steps) + 1)
        return np.asarray(self._out(models.jump(model, key, s, a, n)))

    def futures(self, n: Sequence[int] | None = None, starts: int = 4, draws: int = 128) -> Futures:
        n = check_n(n) or self.default_n()
        for name, value, least in (("starts", starts, 1), ("draws", draws, 2)):
            if value < least:
                raise UhmError(f"{name} is {value}, and must be at least {least}.")
        steps = self.steps(n)
        if self.view.arm:
            s, a, truth, truth_is = self._from_data(steps, starts)
        else:
            states, s, a = self.visited(starts, draws)
            truth, truth_is = self.monte_carlo(0, states, a, steps), MONTE_CARLO
            s, a = s[:, 0], a[:, 0]
        return Futures(
            task=self.task.name,
            agent=self.plan.agent,
            seed=self.seed,
            step=self.step,
            how=self.how,
            n=n,
            k_max=self.k_max,
            beta=self.beta,
            mixed=self.behaviour is not None,
            s=s,
            a=a,
            model=self.imagine(jax.random.key(1), repeat(draws, s), repeat(draws, a), steps),
            truth=truth,
            truth_is=truth_is,
            drawn=self.drawn(0, (starts, draws)) if self.how == MARGINAL else None,
        )

    def visited(self, starts: int, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The world's states, what is observed in them and the policy's actions there, each `draws` times."""
        place = self.view.things[0].of
        states, s = simulators.visited(self.world, self.act, 0, starts, self.k_max, place)
        a = self._best(s)
        return repeat(draws, states), repeat(draws, s), repeat(draws, a)

    def _best(self, s: np.ndarray) -> np.ndarray:
        """The slow actor's actions, without noise."""
        return np.asarray(self.state.targets.actor(jnp.asarray(self._in(s))))

    def monte_carlo(self, seed: int, states: np.ndarray, a: np.ndarray, steps: int, pure: bool = False) -> np.ndarray:
        """The truth; `pure` is that of the policy alone."""
        behaviour = None if pure else self.behaviour
        return simulators.monte_carlo(self.world, self.act, seed, states, a, steps, behaviour)

    def drawn(self, seed: int, shape: tuple[int, ...]) -> np.ndarray:
        """Horizons from GHM's geometric distribution."""
        found = np.random.default_rng(seed).geometric(1 - self.lam * float(self.hyper.discount), shape)
        return np.minimum(found, self.tail())

    def _from_data(self, steps: int, starts: int) -> tuple[Any, Any, Any, str]:
        if self.data is None:
            s = views.table(self.task, starts).starts
            return s, self._best(s), None, NOTHING
        chosen = rows.eventful(self.data, self.view, steps, starts, 0)
        s, a = (np.asarray(x[chosen]) for x in (self.data.observations, self.data.actions))
        return s, a, rows.futures_of(self.data, chosen, steps)[:, :, None], DATA


def _as_it_is(observations: Any) -> Any:
    return observations


def check_n(n: Sequence[int] | None) -> tuple[int, ...]:
    """The horizons in order, each once."""
    for one in n or ():
        if isinstance(one, bool) or not isinstance(one, int | np.integer) or one < 1:
            raise UhmError(f"n is {one}, and must be a whole number of at least 1.")
    return tuple(sorted({int(one) for one in n or ()}))


def repeat(draws: int, rows: np.ndarray) -> np.ndarray:
    """Each row `draws` times, along a second axis."""
    return np.repeat(rows[:, None], draws, 1)
