"""A run from outside: its plan, its agent and its parameters, without its data and while it may still be training.

```python
from uhm.train import load_run

run = load_run("runs/mine", step="best")  # run.plan, run.agent, run.state, run.spec
policy, value = run.policy(), run.value()  # functions of observations
model = run.model()  # of a key, observations, actions and a horizon
```
"""

import functools
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from uhm import population
from uhm.agents import Agent, Spec, normalised
from uhm.agents.horizon_model import HorizonModel
from uhm.data import Sampler
from uhm.errors import UhmError
from uhm.evaluate.policy import Policy, make_act
from uhm.evaluate.records import Episode, by_step, complete
from uhm.population import Population
from uhm.runs import Run
from uhm.runs.files import read_json, write_json
from uhm.train.plan import Plan

# What the agent was told about the data: with it a run can be looked at where its data are not.
SPEC = "spec.json"

Step = int | Literal["last", "best"]


class Restored(NamedTuple):
    """`state.step` is the step of the checkpoint; the members of `state.state` are those of `plan.members()`."""

    plan: Plan
    agent: Agent
    state: Population
    spec: Spec

    def policy(self, member: int = 0) -> Callable[[ArrayLike], Any]:
        """The actions of one member, as a function of an observation or of a batch of them; compiled, on the CPU.

        Policies that draw (FQL, MAC) draw anew at every call.
        """
        self._check(member)
        counts = itertools.count()
        return self._of_rows(member, lambda policies, rows: policies.member(member, rows, next(counts)))

    def value(self, member: int = 0) -> Callable[[ArrayLike], Any]:
        """The discounted return that one member expects of its policy, as a function like that."""
        if self.agent.value is None:
            raise UhmError(f"{self.plan.agent} does not say what it expects: it has no `value`.")
        self._check(member)
        return self._of_rows(member, lambda policies, rows: policies.values(member, rows))

    def model(self, member: int = 0) -> Callable[..., tuple[Any, Any]]:
        """One member's model of the future, as a function (key, s, a, n=1) that draws (s_n, ended); compiled.

        The target network's, which the agent itself asks. Any leading axes will do, and `n` is one horizon or one per
        row; GHM's knows none, and MBTD's only the next step. Observations are as they were logged.
        """
        found = getattr(getattr(self.state.state, "targets", None), "model", None)
        if not isinstance(found, HorizonModel):
            raise UhmError(f"{self.plan.agent} has no model of the future.")
        self._check(member)
        one: HorizonModel = jax.tree.map(lambda x: x[member], found)
        into, out = (self.spec.scale, self.spec.unscale) if self.plan.normalise else (jnp.asarray, jnp.asarray)

        @jax.jit
        def draw(key: Any, s: Any, a: Any, n: Any) -> tuple[Any, Any]:
            s_n, ended = one.sample(key, into(s), a, n)
            return out(s_n), ended

        def of(key: Any, s: ArrayLike, a: ArrayLike, n: ArrayLike = 1) -> tuple[Any, Any]:
            s, a, steps = np.asarray(s, np.float32), np.asarray(a, np.float32), np.asarray(n)
            for name, x, size in (("s", s, self.spec.observation_size), ("a", a, self.spec.action_size)):
                if x.shape[-1:] != (size,) or x.shape[:-1] != s.shape[:-1]:
                    raise UhmError(f"{name} has shape {x.shape}, and must be rows of {size} numbers, as many as of s.")
            if steps.shape not in ((), s.shape[:-1]):
                raise UhmError(f"n has shape {steps.shape}: give one horizon, or one for each row of s.")
            if steps.dtype.kind not in "iu" or steps.min(initial=1) < 1:
                raise UhmError(f"n is {n}, and must be whole numbers from 1 on.")
            return draw(key, s, a, np.broadcast_to(steps.astype(np.int32), s.shape[:-1]))

        return of

    def _check(self, member: int) -> None:
        members = len(self.plan.members())
        if not 0 <= member < members:  # JAX would take the last one
            raise UhmError(f"member is {member}, and must be 0 to {members - 1}.")
        if not self.state.alive[member]:
            warnings.warn(f"member {member} diverged: these are its networks from before.", stacklevel=3)

    def _of_rows(self, member: int, ask: Callable[[Policy, np.ndarray], Any]) -> Callable[[ArrayLike], Any]:
        key, agent = jax.random.key(int(self.state.step)), self.agent

        @functools.cache
        def policies(size: int) -> Policy:
            try:
                return make_act(agent.act, self.state.state, key, observation_size=size, agent_value=agent.value)
            except TypeError as error:  # how JAX says that shapes do not fit
                raise UhmError(f"observations have {size} numbers, and those of this run have not.") from error

        def of(observations: ArrayLike) -> Any:
            try:
                rows = np.asarray(observations, np.float32)
            except (TypeError, ValueError) as error:
                raise UhmError(f"observations must be numbers, one row or a batch of rows: {error}.") from error
            if rows.ndim not in (1, 2):
                raise UhmError(f"observations have shape {rows.shape}, and must be one row or a batch of rows.")
            found = ask(policies(rows.shape[-1]), np.atleast_2d(rows))
            return found[0] if rows.ndim == 1 else found

        return of


def load_run(directory: Path | str, step: Step | str = "last") -> Restored:
    """The run in `directory` as of a checkpoint: the last one, the best evaluated one, or that of a step."""
    if not (step in ("last", "best") or (isinstance(step, int) and not isinstance(step, bool))):
        raise UhmError(f"step is {step!r}, and must be 'last', 'best' or a whole number.")
    with Run.open(Path(directory), write=False) as run:
        plan = Plan.from_json(run.config)
        wanted = _best(run, plan) if step == "best" else None if step == "last" else int(step)
        if not run.steps():
            raise UhmError(f"{directory} has no checkpoint yet.")
        spec = _read_spec(run)
        agent, hyper = build(plan, spec)
        blank = jax.eval_shape(lambda: population.init(agent, plan.members(), hyper))
        found = run.restore(blank, wanted)
    if found is None:  # the last one went away since we looked, with the run
        raise UhmError(f"{directory} has no checkpoint any more.")
    return Restored(plan, agent, found[1], spec)


def build(plan: Plan, spec: Spec) -> tuple[Agent, Any]:
    """The plan's agent, and the hyperparameters of all members."""
    kind = plan.family
    config = kind.Config(**plan.config)

    def make(config: Any, spec: Spec) -> Agent:
        agent = kind.make(config, spec)
        if not isinstance(agent.sample, Sampler):  # a plain function could neither be scaled nor read from the host
            raise UhmError(
                f"`sample` of {plan.agent} is no uhm.data.Sampler: take transitions(n), or Sampler(draw, gather)."
            )
        return agent

    agent = normalised(make, config, spec) if plan.normalise else make(config, spec)
    return agent, population.stack_hyper(kind.Hyper(**plan.hyper), plan.members())


def keep_spec(run: Run, spec: Spec) -> Spec:
    """The spec of the run's data, stored with the run the first time; refuses other data after that."""
    if not (run.directory / SPEC).exists():
        write_json(run.directory / SPEC, {name: np.asarray(value).tolist() for name, value in spec._asdict().items()})
        return spec
    stored = _read_spec(run)
    # Not bit by bit: sums depend on the processor, and what counts is that the program gets the numbers it began with.
    for name, value in spec._asdict().items():
        before = getattr(stored, name)
        if np.shape(value) != np.shape(before) or not np.allclose(value, before, rtol=1e-4, atol=1e-6):
            raise UhmError(f"the data are not those that {run.directory} began with: {name} differs.")
    return stored


def _read_spec(run: Run) -> Spec:
    values = read_json(run.directory / SPEC)
    if set(values) != set(Spec._fields):
        raise UhmError(f"cannot read {run.directory / SPEC}: it was made by another version.")
    arrays: dict[str, Any] = {name: np.array(v, np.float32) for name, v in values.items() if isinstance(v, list)}
    return Spec(**{**values, **arrays})


def _best(run: Run, plan: Plan) -> int:
    """The stored checkpoint whose own parameters had the highest mean success, or return in a simulator of the user's
    own, the later of two equal ones."""
    episodes = [Episode.from_json(record) for record in run.episodes()]
    found: dict[int, list[float]] = {}
    for steps in by_step(complete(episodes, len(plan.members()), plan.eval_episodes), plan.measure).values():
        for at, value in steps.items():
            found.setdefault(at, []).append(value)
    rated = {at: float(np.mean(found[at])) for at in run.steps() if at in found}
    if not rated:
        raise UhmError(f"no checkpoint in {run.directory} was evaluated yet: take the last one.")
    return max(rated, key=lambda at: (rated[at], at))
