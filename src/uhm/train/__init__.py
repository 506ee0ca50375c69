"""Train a population and keep everything needed to go on, to look and to compare.

```python
from uhm.train import train

summary = train("uhm", "rooms", seeds=3)
```
"""

import datetime
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from uhm.agents import Spec, spec_of
from uhm.data import Dataset
from uhm.data.available import shortfall
from uhm.errors import UhmError
from uhm.runs import Run, Sink
from uhm.tasks import Task
from uhm.train import progress
from uhm.train.loop import Training, data_of, session
from uhm.train.plan import Plan, resolve
from uhm.train.restore import Restored, build, load_run

__all__ = ["Plan", "Restored", "Training", "load_run", "resolve", "resume", "start", "train"]


def train(
    agent: str = "uhm",
    what: str | Task | Sequence[str | Task] = "rooms",
    *,
    run: Path | str | None = None,
    show: bool = False,
    sinks: Sequence[Sink] = (),
    **settings: Any,
) -> dict[str, Any]:
    """Train `agent` on a task, an environment or some of its tasks, and return the summary; its `run` is where it is.

    `settings` are `seeds`, `steps`, the intervals, and every field of the agent's Config and Hyper; a list of values
    for a hyperparameter is an axis of the population. `run` is the directory to make (default: runs/ and a name).
    """
    plan = resolve(agent, what, **settings)
    directory = Path(run) if run else default_directory(plan)
    # Not in the file: a run may be moved.
    return {**start(plan, directory, show=show, sinks=sinks), "run": str(directory)}


def start(plan: Plan, directory: Path, *, show: bool = False, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """A new run of `plan` in `directory`."""
    ready = _ready(plan)  # before the directory is made: what cannot begin must not leave an empty run behind
    kept = plan.keep_checkpoints
    with Run.create(directory, plan.to_json(), keep=kept, sinks=sinks) as run, session(plan, run, *ready) as training:
        return _finish(training, directory, show)


def resume(directory: Path | str, *, show: bool = False, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Go on with a run that was interrupted, exactly as if it had not been.

    On a GPU exactly means with the program that it began with: see `uhm.runs.programs.keep`, which the command calls.
    """
    directory = Path(directory)
    with Run.open(directory, write=False) as run:
        plan = Plan.from_json(run.config)
    with Run.open(directory, keep=plan.keep_checkpoints, sinks=sinks) as run:
        finished = run.summary()
        if finished is not None and "members" not in finished:
            raise UhmError(f"{directory / 'summary.json'} is damaged: delete it to go on from the last checkpoint.")
        if finished is not None:
            if show:
                _show(plan, finished, f"{directory} is finished; nothing is left to do.")
            return finished
        with session(plan, run, *_ready(plan)) as training:
            training.restore()
            return _finish(training, directory, show)


def _ready(plan: Plan) -> tuple[Dataset, Spec]:
    """The plan's data, of which a batch can be drawn, and their spec. A simulator of the user's own is tried out."""
    dataset = data_of(plan)
    spec = spec_of(dataset, plan.k_max())
    agent, _ = build(plan, spec)
    jax.eval_shape(lambda key: agent.sample.draw(dataset, key), jax.random.key(0))
    if simulator := plan.simulator(dataset.observations.shape[1], dataset.actions.shape[1]):
        simulator.check(float(abs(dataset.actions).max()))
    return dataset, spec


def _finish(training: Training, directory: Path, show: bool) -> dict[str, Any]:
    plan = training.plan
    label = f"{plan.agent} {plan.environment.title}"
    if show:
        _say(f"run: {directory}")  # who is interrupted, or looks at a log, wants to know
        few = shortfall(training.data.size, plan.environment)
        if few and plan.dataset is None and plan.transitions is None:
            _say(f"data: {training.data.size:,} transitions, {few}")
    with progress.bar(label, len(training.members), plan.steps, training.step, show) as update:
        complete = training.go(update)
    if not complete:
        # What Ctrl-C raises anyway, with a message: callers and shells know it as no error of theirs.
        done = f"stopped at step {training.step:,}, all saved"
        raise KeyboardInterrupt(f"{done}: go on with `uhm train --resume {directory}`.")
    summary = training.summary()
    training.run.finish(summary)
    if show:
        training.draw(directory / "picture.png")
        took = f"{plan.steps:,} steps of {len(training.members)} members in {summary['wall_time']:.0f} s"
        _show(plan, summary, f"{took}; run: {directory}; picture: {directory / 'picture.png'}")
    return summary


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(plan: Plan, summary: dict[str, Any], line: str) -> None:
    alive = [not member["diverged"] for member in summary["members"]]
    if not plan.environment.own:
        scores = {index: member["score"] for index, member in enumerate(summary["members"])}
        progress.show(progress.table(plan.agent, plan.members(), scores, alive))
    elif plan.env is not None:
        what = f"{plan.agent} on {plan.environment.title} in {plan.env}: mean of the last three evaluations"
        means = [last_means(member["evaluations"]) for member in summary["members"]]
        progress.show(progress.returns(what, plan.members(), means, alive))
    elif not all(alive):
        print(progress.diverged(alive))
    print(line)  # not through rich, which would break a long path


def last_means(evaluations: Sequence[Mapping[str, float]], last: int = 3) -> dict[str, float]:
    """The means over the last three evaluations of a summary, of what all of them know."""
    some = evaluations[-last:]
    # A mean that was no number was stored as null.
    known = [name for name in some[0] if name != "step" and all(one.get(name) is not None for one in some)]
    return {name: statistics.fmean(one[name] for one in some) for name in known}


def default_directory(plan: Plan) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{plan.agent.removeprefix('module:')}-{plan.environment.title}-{stamp}"
