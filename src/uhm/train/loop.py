"""The training loop: scanned chunks on the device, and between them logging, checkpoints and evaluation.

At a step the order is: log, wait for the evaluation before, save, begin the next evaluation. A checkpoint therefore
implies that everything logged up to it is on disk, but for the evaluation of that very step, which a resumed run makes
again from the restored parameters. Randomness depends on member and step alone, so a resumed run is the same run.
"""

import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np

from uhm import population, tasks
from uhm.agents import Agent, Spec
from uhm.data import Dataset, batches
from uhm.data.source import data_directory, find, generated, load, provide
from uhm.envs.own import normalised_returns
from uhm.errors import UhmError
from uhm.evaluate import Episode, Evaluator, beside, by_step, complete, make_act, means_by_step, score
from uhm.evaluate.records import means
from uhm.interrupts import interruptible
from uhm.population import Population
from uhm.runs import Run, params_sha256
from uhm.runs.environment import versions
from uhm.train import names, progress
from uhm.train.plan import Plan
from uhm.train.restore import build, keep_spec

_HOST_STEPS = 50  # steps of batches that are on their way to the device at once, where the data stay on the host


class _Lost(Exception):
    """The user does not want to wait for an evaluation. What was trained is saved."""


class Training:
    """One run in progress."""

    def __init__(self, plan: Plan, run: Run, evaluator: Evaluator | None, dataset: Dataset, spec: Spec):
        self.plan, self.run, self.evaluator, self.spec = plan, run, evaluator, spec
        self.members = plan.members()
        run.name_members(names.labels(self.members))
        self.agent, self.hyper = build(plan, spec)
        columns = np.array([member.column for member in self.members], np.int32)
        self.data = dataset.with_task(columns)
        run.remember("data", about_data(plan, dataset))
        self.state = population.init(self.agent, self.members, self.hyper)
        self.step = 0
        self.seconds = 0.0  # of training, over all sessions
        self.pending: Future[list[Episode]] | None = None
        self.untold: list[Episode] = []  # an evaluation that is recorded, and the sinks know nothing of
        self.stopped = threading.Event()  # the user wants to stop
        self.latest = ""  # what the last evaluation said, in a few words
        self.thread = ThreadPoolExecutor(1, "uhm-evaluation")

    def restore(self) -> None:
        """Go back to the newest intact checkpoint, or to the start where there is none."""
        found = self.run.restore(self.state)
        if found is not None:
            self.step, self.state = found
        self.run.rewind(self.step)
        self.seconds = max((line["seconds"] for line in self.run.metrics()), default=0.0)
        episodes = [Episode.from_json(record) for record in self.run.episodes()]
        whole = complete(episodes, len(self.members), self.plan.eval_episodes)
        latest = max((episode.step for episode in whole), default=0)
        if len(whole) < len(episodes):  # a kill cut the last one short
            self.run.drop_episodes_after(latest)
        newest = [episode for episode in whole if episode.step == latest]
        self._note(newest)
        if self._evaluates_at(self.step) and latest != self.step:
            self._begin_evaluation()
        elif latest == self.step:
            self.untold = newest  # sinks were told at a later step, and forget that when steps are repeated

    def go(self, update: progress.Update) -> bool:
        """Train to the end; False if the user asked to stop, after saving what there is."""
        with interruptible(signal.SIGINT) as self.stopped:
            try:
                while self.step < self.plan.steps and not self.stopped.is_set():
                    self._chunk()
                    update(self.step, self.latest)
                self._finish_evaluation()  # also before saving, or a resumed run would never make up for it
            except _Lost:
                return False
            if self.step < self.plan.steps:
                self.run.save(self.step, self.state, block=True)
                return False
        return True

    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds."""
        episodes = [Episode.from_json(record) for record in self.run.episodes()]
        scores, found = score(episodes, name=self.plan.measure), evaluations(self.plan, episodes)
        alive = np.asarray(self.state.alive)
        params = getattr(self.state.state, "params", self.state.state)
        return {
            "agent": self.plan.agent,
            "environment": self.plan.environment.name,
            "steps": self.step,
            "total_steps": self.step * len(self.members),
            "wall_time": self.seconds,
            "device": jax.devices()[0].device_kind,
            "versions": versions(),
            "members": [
                {
                    "agent": self.plan.agent,
                    "task": member.task,
                    "seed": member.seed,
                    "hyper": self.plan.hyper_of(member),
                    "score": scores.get(index),  # none of logs, where there is nothing to evaluate in
                    "evaluations": [{"step": at, **means} for at, means in found.get(index, {}).items()],
                    "diverged": not bool(alive[index]),
                    "params_sha256": params_sha256(jax.tree.map(lambda x, i=index: x[i], params)),
                }
                for index, member in enumerate(self.members)
            ],
        }

    def draw(self, path: Path) -> None:
        """Save a picture of the run so far."""
        from uhm.train import picture

        title = f"{self.plan.agent} on {self.plan.environment.title}"
        episodes = [Episode.from_json(record) for record in self.run.episodes()]
        if self.plan.environment.own:
            log = beside(self.run.metrics(), evaluations(self.plan, episodes), len(self.members))
            picture.draw_metrics(path, title, self.members, log, np.asarray(self.state.alive).tolist())
            return
        rooms = self.plan.environment is tasks.ROOMS
        walks = picture.walk_rooms(self.agent, self.state.state, self.members) if rooms else None
        picture.draw(path, title, self.members, episodes, walks)

    def _chunk(self) -> None:
        start = time.perf_counter()
        # Chunks end at multiples of the log interval whatever the run was resumed from, so the programs are the same.
        steps = min(self.plan.log_interval - self.step % self.plan.log_interval, self.plan.steps - self.step)
        before = np.asarray(self.state.alive)
        self.state, metrics = advance(self.agent, self.state, self.hyper, self.data, steps)
        values = {name: np.asarray(value).tolist() for name, value in jax.device_get(metrics).items()}
        self.step += steps
        self.seconds += time.perf_counter() - start
        self.run.log(self.step, {"seconds": self.seconds, **values})
        self._tell_sinks()
        self._report_frozen(before, np.asarray(self.state.alive))
        evaluates = self._evaluates_at(self.step)
        saves = self._due(self.plan.checkpoint_interval)
        if evaluates or saves or (self.pending is not None and self.pending.done()):
            self._finish_evaluation()
        if saves:
            self.run.save(self.step, self.state)
        if evaluates:
            self._begin_evaluation()

    def _due(self, interval: int) -> bool:
        """Whether a multiple of `interval` was passed in the last chunk, or the run has ended."""
        passed = self.step // interval > (self.step - self.plan.log_interval) // interval
        return self.step > 0 and (passed or self.step == self.plan.steps)

    def _evaluates_at(self, step: int) -> bool:
        return self.evaluator is not None and step == self.step and self._due(self.plan.eval_interval)

    def _begin_evaluation(self) -> None:
        """Copy the policies and let another thread evaluate them while training goes on."""
        assert self.evaluator is not None
        size = self.spec.observation_size
        key, value = jax.random.key(self.step), self.agent.value
        policy = make_act(self.agent.act, self.state.state, key, observation_size=size, agent_value=value)
        about = {"seeds": [member.seed for member in self.members], "discounts": self.plan.discounts()}
        self.pending = self.thread.submit(self.evaluator.run, policy, step=self.step, **about)

    def _finish_evaluation(self) -> None:
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        try:
            self._wait(pending)
            episodes = pending.result()
        except (UhmError, KeyboardInterrupt) as error:
            # A simulator of the user's own may fail after hours: that costs an evaluation and no training.
            self.run.save(self.step, self.state, block=True)
            if isinstance(error, KeyboardInterrupt):
                raise _Lost from error
            done = f"the {self.step:,} steps until then are saved, `uhm train --resume` goes on from there"
            raise UhmError(f"{str(error).rstrip('.')}; {done}.") from error
        self.run.log_episodes(episode.to_json() for episode in episodes)
        self.untold = episodes
        self._tell_sinks()
        self._note(episodes)
        rated = [rating for steps in by_step(episodes, self.plan.measure).values() for rating in steps.values()]
        self.run.rate(episodes[0].step, float(np.mean(rated)))

    def _wait(self, pending: Future[list[Episode]]) -> None:
        told = False
        while not pending.done():
            if self.stopped.is_set() and not told:
                told = True
                warnings.warn("waiting for the evaluation that is under way; interrupt again to lose it.", stacklevel=2)
            wait([pending], timeout=0.2)

    def _tell_sinks(self) -> None:
        """Tell of an evaluation that came, at the step of now: some sinks drop what belongs to an earlier one."""
        if not self.untold:
            return
        own: list[list[Episode]] = [[] for _ in self.members]
        for episode in self.untold:
            own[episode.member].append(episode)
        found = [means(records, ("success", "return_", "discounted", "value")) for records in own]
        values = {name: [one.get(name) for one in found] for name in dict.fromkeys(n for one in found for n in one)}
        self.run.tell(self.step, {"eval": {"step": self.untold[0].step, **values}})
        self.untold = []

    def _note(self, episodes: list[Episode]) -> None:
        """Remember what one evaluation said."""
        rated = {m: next(iter(steps.values())) for m, steps in by_step(episodes, self.plan.measure).items()}
        self.latest = progress.latest(self.members, rated, self.plan.measure)

    def _report_frozen(self, before: np.ndarray, after: np.ndarray) -> None:
        for index in np.flatnonzero(before & ~after):
            member = self.members[index]
            warnings.warn(
                f"member {index} ({member.task}, seed {member.seed}, {dict(member.hyper)}) diverged before step "
                f"{self.step} and was frozen{'; the others go on' if after.any() else ''}.",
                stacklevel=2,
            )


def advance(agent: Agent, state: Population, hyper: Any, data: Dataset, steps: int) -> tuple[Population, Any]:
    """`steps` updates of every member, wherever the data are."""
    if not data.on_host:
        return population.advance(agent, state, hyper, data, steps)
    keys = population.sample_keys(state, steps)
    pieces = [keys[start : start + _HOST_STEPS] for start in range(0, steps, _HOST_STEPS)]
    total = None
    # The next piece is gathered while the device works on this one.
    for piece, gathered in zip(pieces, batches(agent.sample, data, pieces), strict=True):
        state, metrics = population.advance_on(agent, state, hyper, gathered)
        share = {name: value * (len(piece) / steps) for name, value in metrics.items()}
        total = {name: value + (total[name] if total else 0.0) for name, value in share.items()}
    return state, total


@contextmanager
def session(plan: Plan, run: Run, dataset: Dataset, spec: Spec) -> Iterator[Training]:
    """A training with its evaluator, which ends with it."""
    spec = keep_spec(run, spec)
    with _evaluator(plan, spec) as evaluator:
        training = Training(plan, run, evaluator, dataset, spec)
        try:
            yield training
        finally:
            training.thread.shutdown(wait=False, cancel_futures=True)


def _evaluator(plan: Plan, spec: Spec) -> AbstractContextManager[Evaluator | None]:
    if not plan.evaluated:
        return nullcontext()
    wanted = [tasks.task(member.task) for member in plan.members()]
    simulator = plan.simulator(spec.observation_size, spec.action_size)
    return Evaluator(wanted, episodes=plan.eval_episodes, simulator=simulator)


def evaluations(plan: Plan, episodes: list[Episode]) -> dict[int, dict[int, dict[str, float]]]:
    """`means_by_step`, in Minari's simulators with normalised returns where these are known."""
    found = means_by_step(episodes)
    means = [one for steps in found.values() for one in steps.values()]
    scores = None if plan.env is None else normalised_returns(plan.env, [one["return"] for one in means])
    for one, value in zip(means, scores or [], strict=False):
        one["normalised"] = value
    return found


def about_data(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """How many transitions there are, and whether those of a known environment were generated, not OGBench's files."""
    if plan.environment.own:
        return {"transitions": dataset.size}
    paths = find(plan.environment, data_directory(plan.data_dir), dataset=plan.dataset)
    return {"transitions": dataset.size, "generated": generated(paths)}


def data_of(plan: Plan) -> Dataset:
    """The plan's data; those of the embedded default are made if they are not there."""
    if plan.dataset is None:
        provide(plan.environment, data_directory(plan.data_dir))
    return load([tasks.task(name) for name in plan.tasks], **plan.data_options)
