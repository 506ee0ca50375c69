"""Judge the policies of a run by stored transitions: a fit of `uhm.evaluate.fitted` that can be stopped and resumed.

```python
from uhm.data import load
from uhm.train import load_run
from uhm.train.judge import best, judge

run = load_run("runs/mine")
report = judge(run, load("log.npz"), "runs/mine")
policy = run.policy(best(report["members"]))
```

A fit is a run directory of its own, `RUN/fitted/STEP-DIGEST`. The digest is of all that the fit depends on but its
number of steps: with more steps a finished fit goes on from where it ended.
"""

import dataclasses
import hashlib
import json
import math
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from uhm import population
from uhm.data import Dataset
from uhm.errors import UhmError, writing
from uhm.evaluate import fitted
from uhm.evaluate.fitted import Fit
from uhm.evaluate.policy import make_act
from uhm.interrupts import interruptible
from uhm.population import Population
from uhm.runs import Run, params_sha256
from uhm.runs.environment import versions
from uhm.runs.files import plain
from uhm.train import progress
from uhm.train.loop import advance
from uhm.train.restore import Restored

FOLDER = "fitted"
STEPS = 50_000  # after which 1 % is left of what all values were wrong by (`fitted.ema_rate_of`)
_CHUNK, _SAVE = 1000, 5000  # steps
_SETTLED = 0.8  # of the steps: a fit has settled if what it says there it still says at the end


def judge(
    restored: Restored,
    data: Dataset,
    run: Path | str,
    *,
    steps: int = STEPS,
    discount: float | None = None,
    starts: Float[np.ndarray, "members rows S"] | None = None,
    show: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """What each member's policy is worth by `data`: `fitted` and `spread`, and beside them what its agent `expected`
    and how far `apart` its actions are from those in the data.

    The data have the columns of the run's tasks. `discount` is for all members (default: each one's own), `starts` are
    start states of every member (default: the first rows of the data's trajectories), `settings` fields of
    `fitted.Config`, `learning_rate` and `ema_rate`. The fit is kept in the folder `run`; a finished one is only read.
    """
    fit, config = _fit(restored, data, steps, discount, starts, settings)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
    directory = Path(run) / FOLDER / f"{int(restored.state.step)}-{digest}"
    if (directory / "summary.json").exists():
        with Run.open(directory, write=False) as finished:
            summary = finished.summary()
        if summary is not None and summary["fit_steps"] >= steps:
            return summary
    with writing(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
    made = (directory / "config.json").exists()
    with Run.open(directory, keep=1) if made else Run.create(directory, config, keep=1) as kept:
        state, step = _train(restored, fit, kept, steps, show)
        summary = _summary(restored, fit, state, step, kept)
        kept.finish(summary)
    return plain(summary)  # as it will be read again


def best(members: Sequence[dict[str, Any]]) -> int | None:
    """The place of the member whose fitted value is highest, less one spread; of `members` that `judge` reported.

    None if there is none to choose, or if values cannot be compared, being of different tasks or discounts.
    """
    sound = [place for place, member in enumerate(members) if not member["diverged"] and member["fitted"] is not None]
    if not sound or len({(member["task"], member["discount"]) for member in members}) > 1:
        return None
    return max(sound, key=lambda place: members[place]["fitted"] - members[place]["spread"])


def _fit(
    restored: Restored,
    data: Dataset,
    steps: int,
    discount: float | None,
    starts: np.ndarray | None,
    settings: dict[str, Any],
) -> tuple[Fit, dict[str, Any]]:
    """The fit, and what it is in plain data."""
    plan, spec = restored.plan, restored.spec
    _check(restored, data, steps, discount)
    members = plan.members()
    discounts = plan.discounts() if discount is None else [discount] * len(members)
    rates = {name: settings.pop(name) for name in ("learning_rate", "ema_rate") if name in settings}
    # Networks and batches are those of the run, as far as its agent has them.
    usual = {name: plan.config[name] for name in ("hidden", "batch_size") if name in plan.config}
    config = fitted.Config(**{**usual, **settings})
    if config.critics < 2:
        raise UhmError(f"critics are {config.critics}, and must be at least 2: the spread is theirs.")
    of = (restored.agent, restored.state.state, spec, members, data, discounts, config)
    fit = fitted.fit_of(*of, starts=starts, **rates)
    what = {
        "agent": plan.agent,
        "step": int(restored.state.step),
        "policies": params_sha256(fit.hyper.policy),
        "members": [[member.task, member.column, member.seed] for member in members],
        "logs": _digest(*(getattr(data, name) for name in ("observations", "actions", "rewards", "masks", "last"))),
        "starts": _digest(fit.starts),
        "fit": dataclasses.asdict(config),
        "discount": list(map(float, discounts)),
        **{name: np.asarray(getattr(fit.hyper, name)).tolist() for name in ("learning_rate", "ema_rate")},
    }
    return fit, what


def _check(restored: Restored, data: Dataset, steps: int, discount: float | None) -> None:
    plan, spec = restored.plan, restored.spec
    if steps < 1:
        raise UhmError(f"the steps of the fit are {steps}, and must be at least 1.")
    if discount is None and "discount" not in plan.hyper:
        raise UhmError(f"{plan.agent} has no discount: say by which one to judge.")
    if discount is not None and not 0 < discount < 1:
        raise UhmError(f"the discount is {discount:g}, and must be in (0, 1).")
    for kind, size in (("observations", spec.observation_size), ("actions", spec.action_size)):
        here = getattr(data, kind).shape[1]
        if here != size:
            raise UhmError(f"{kind} of these logs have {here} numbers, those of the run {size}.")
    if not plan.environment.own and data.names[: len(plan.tasks)] != plan.tasks:  # rewards are taken by their place
        raise UhmError(
            f"these data are of {', '.join(data.names)}, and the run is of {', '.join(plan.tasks)}: load those."
        )


def _train(restored: Restored, fit: Fit, run: Run, steps: int, show: bool) -> tuple[Population, int]:
    """The population after `steps` steps, or more if it had gone further; KeyboardInterrupt where the user stops it."""
    state, step = population.init(fit.agent, fit.members, fit.hyper), 0
    found = run.restore(state)
    if found is not None:
        step, state = found
    run.rewind(step)
    seconds = max((line["seconds"] for line in run.metrics()), default=0.0)
    chunk = max(1, min(_CHUNK, steps // 10))
    label = f"fitted Q, {restored.plan.agent}"
    with (
        progress.bar(label, len(fit.members), steps, step, show) as update,
        interruptible(signal.SIGINT) as stopped,
    ):
        while step < steps and not stopped.is_set():
            begin = time.perf_counter()
            # Chunks end at multiples of their length whatever was resumed, so the programs are the same.
            more = min(chunk - step % chunk, steps - step)
            state, metrics = advance(fit.agent, state, fit.hyper, fit.data, more)
            estimates = np.asarray(fit.estimates(state, fit.hyper, fit.starts))
            step, seconds = step + more, seconds + time.perf_counter() - begin
            values = {name: np.asarray(value) for name, value in jax.device_get(metrics).items()}
            values |= {"fitted": estimates.mean(-1), "spread": fitted.spread(estimates)}
            run.log(step, {"seconds": seconds, **values})
            if step // _SAVE > (step - more) // _SAVE or step == steps:
                run.save(step, state)
            update(step, "")
    if step < steps:
        run.save(step, state, block=True)
        raise KeyboardInterrupt(f"stopped at step {step:,} of {steps:,}, all saved: the same command goes on.")
    return state, step


def _summary(restored: Restored, fit: Fit, state: Population, step: int, run: Run) -> dict[str, Any]:
    plan, data = restored.plan, fit.data
    estimates = np.asarray(fit.estimates(state, fit.hyper, fit.starts))
    means, spreads = estimates.mean(-1), fitted.spread(estimates)
    trained, alive = np.asarray(restored.state.alive), np.asarray(state.alive)
    lines, expected = run.metrics(), _expected(restored, fit)
    early = [line for line in lines if line["step"] <= _SETTLED * step]
    units, members, stored = np.asarray(fit.hyper.unit).tolist(), [], {}
    apart = np.asarray(fit.apart(state, fit.hyper)).tolist()
    for index, (member, discount) in enumerate(zip(plan.members(), run.config["discount"], strict=True)):
        told = {"fitted": float(means[index]), "spread": float(spreads[index])}
        known = alive[index] and all(map(math.isfinite, told.values()))
        before = {name: early[-1][name][index] for name in told} if early and known else None
        members.append(
            {
                "task": member.task,
                "seed": member.seed,
                "hyper": plan.hyper_of(member),
                "discount": discount,
                "diverged": not trained[index],
                **({} if expected is None else {"expected": expected[index]}),
                **(told if known else dict.fromkeys(told)),
                "apart": apart[index],
                "critics": estimates[index].tolist() if known else None,
                "moved": None if before is None else _moved(before, told, units[index]),
            }
        )
        if (member.task, discount) not in stored:
            found = fitted.stored(data, member.column, discount)
            stored[member.task, discount] = {"task": member.task, "discount": discount, **found._asdict()}
    return {
        "agent": plan.agent,
        "environment": plan.environment.title,
        "step": int(restored.state.step),
        "fit_steps": step,
        "starts": len(np.unique(fit.starts[0], axis=0)),
        "wall_time": max((line["seconds"] for line in lines), default=0.0),
        "device": jax.devices()[0].device_kind,
        "versions": versions(),
        "stored": list(stored.values()),
        "members": members,
    }


def _moved(before: dict[str, float], now: dict[str, float], unit: float) -> float:
    """By what part of the estimate's size it or its spread moved, whichever moved more.

    The size is at least a tenth of the unit: an estimate near 0 may come from either side. The spread counts because
    critics begin far apart, and their mean may be steady before they have met.
    """
    return max(abs(now[name] - before[name]) for name in now) / max(abs(now["fitted"]), unit / 10)


def _expected(restored: Restored, fit: Fit) -> list[float] | None:
    """What the members' own agents expect of their policies at the same start states, by their own discounts."""
    agent, state = restored.agent, restored.state
    if agent.value is None:
        return None
    key, size = jax.random.key(int(state.step)), restored.spec.observation_size
    policies = make_act(agent.act, state.state, key, observation_size=size, agent_value=agent.value)
    return [float(np.mean(policies.values(index, rows))) for index, rows in enumerate(fit.starts)]


def _digest(*arrays: Any) -> str:
    """Of their bytes, in blocks: some are mapped files."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.shape} {array.dtype}".encode())
        for start in range(0, len(array), 1 << 18):
            sha.update(np.ascontiguousarray(array[start : start + (1 << 18)]).data)
    return sha.hexdigest()
