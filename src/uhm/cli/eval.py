"""`uhm eval`: the policies of a run, evaluated again and filmed. The run is only read, also while it is training.

Without a simulator policies are judged by logs, and the fit is kept in the run's folder.
"""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from uhm import tasks
from uhm.cli.flags import verb
from uhm.errors import UhmError

if TYPE_CHECKING:
    from uhm.envs.own import Simulator
    from uhm.evaluate import Episode, Policy
    from uhm.train import Restored

_OF_LOGS = ("logs", "fit_steps", "discount")  # flags of judging by logs


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@verb
class Eval:
    """Evaluate all members of a run; with the default seed, in the very episodes that training evaluated in."""

    run: Positional[Path]
    """Directory of the run."""
    episodes: int | None = None
    """Episodes per member (default: 50)."""
    step: str = "last"
    """Which checkpoint: last, best (by its evaluation in training), or a step that was kept."""
    seed: int | None = None
    """Seed of all episodes (default: each member's own, as in training)."""
    env: str | None = None
    """For a run on logs: a Gymnasium id, MODULE:ID, or minari:NAME (default: that of training, or of minari:NAME)."""
    logs: str | None = None
    """For a run on logs without a simulator: judge by FILE.npz or minari:NAME (default: what it learned from)."""
    fit_steps: int | None = None
    """Steps of fitted Q evaluation, which is how logs judge (default: 50000)."""
    discount: float | None = None
    """Discount by which logs judge all members (default: each member's own)."""
    video: bool = False
    """Film one episode per task, and per value where hyperparameters differ, into RUN/videos."""
    json: bool = False
    """Print JSON for machines."""

    def __call__(self) -> int:
        self._check()
        from uhm.cli import eval_logs
        from uhm.envs.own import Simulator
        from uhm.train import load_run
        from uhm.train.choice import as_step

        restored = load_run(self.run, as_step(self.step))
        if not restored.plan.environment.own:
            where = f"{self.run} is evaluated in {restored.plan.environment.name}"
            self._refuse(("env", *_OF_LOGS), f"is for runs on logs: {where}.")
            return self._in(restored, None)
        env = self._simulator(restored)
        if env is not None:
            return self._in(restored, Simulator(env, restored.spec.observation_size, restored.spec.action_size))
        why = "is for simulators, and none is named: leave it out, or give --env."
        self._refuse(("episodes", "seed", "video"), why)
        return eval_logs.evaluate(restored, self.run, self.step, self.logs, self.fit_steps, self.discount, self.json)

    def _in(self, restored: "Restored", simulator: "Simulator | None") -> int:
        """Evaluate in a simulator, the task's or the user's own, and film if that is wanted."""
        from uhm.cli import eval_own
        from uhm.runs.files import plain

        policy, episodes = self._evaluate(restored, simulator)
        if simulator is None:
            report, shown = self._report(restored, episodes), self._show
        else:
            report, shown = eval_own.report(restored, self.run, simulator.name, episodes), eval_own.show
        if not self.json:
            shown(restored, report)
        report["videos"], filmed = self._film(restored, policy, simulator) if self.video else ([], True)
        if self.json:
            print(json.dumps(plain(report), indent=2))  # a member that diverged may expect what is no number
        for path in () if self.json else report["videos"]:
            print(path)
        return 0 if filmed else 1

    def _check(self) -> None:
        for flag in ("episodes", "fit_steps"):
            if getattr(self, flag) is not None and getattr(self, flag) < 1:
                raise UhmError(f"{_flag(flag)} is {getattr(self, flag)}, and must be at least 1.")
        if self.seed is not None and self.seed < 0:
            raise UhmError(f"--seed is {self.seed}, and must not be negative.")
        if self.discount is not None and not 0 < self.discount < 1:
            raise UhmError(f"--discount is {self.discount:g}, and must be in (0, 1).")

    def _simulator(self, restored: "Restored") -> str | None:
        """Where a run on logs is evaluated: as said, as in training, or as Minari knows; None if by logs."""
        name = restored.plan.environment.name
        known = restored.plan.env or (name if name.startswith(tasks.MINARI) else None)
        env = self.env or (known if self.logs is None else None)
        if env is not None:
            instead = "leave out --env" if self.env is not None else f"give --logs {name}"
            self._refuse(_OF_LOGS, f"is for judging by logs, without a simulator: {instead}, or leave it out.")
        return env

    def _refuse(self, flags: tuple[str, ...], why: str) -> None:
        for flag in flags:
            if getattr(self, flag) is not None and getattr(self, flag) is not False:
                raise UhmError(f"{_flag(flag)} {why}")

    @property
    def _episodes(self) -> int:
        return 50 if self.episodes is None else self.episodes

    def _evaluate(self, restored: "Restored", simulator: "Simulator | None") -> "tuple[Policy, list[Episode]]":
        import jax
        from rich.console import Console

        from uhm.evaluate import Evaluator, make_act

        if simulator is not None:
            simulator.check()
        plan, agent, state = restored.plan, restored.agent, restored.state
        members, step, size = plan.members(), int(state.step), restored.spec.observation_size
        policy = make_act(agent.act, state.state, jax.random.key(step), observation_size=size, agent_value=agent.value)
        seeds = [member.seed if self.seed is None else self.seed for member in members]
        wanted = [tasks.task(member.task) for member in members]
        status = Console(stderr=True).status(f"{self._episodes} episodes of each member ...")
        with status, Evaluator(wanted, episodes=self._episodes, simulator=simulator) as evaluator:
            return policy, evaluator.run(policy, seeds=seeds, step=step, discounts=plan.discounts())

    def _report(self, restored: "Restored", episodes: "list[Episode]") -> dict[str, Any]:
        import numpy as np

        from uhm.evaluate.records import means

        plan, state = restored.plan, restored.state
        alive = np.asarray(state.alive)
        members = []
        for index, member in enumerate(plan.members()):
            own = [episode for episode in episodes if episode.member == index]
            members.append(
                {
                    "task": member.task,
                    "seed": member.seed,
                    "hyper": plan.hyper_of(member),
                    **means(own, ("success", "return_", "length", "discounted", "value")),
                    "diverged": not bool(alive[index]),
                }
            )
        found = {name: [m["success"] for m in members if m["task"] == name] for name in plan.tasks}
        return {
            "run": str(self.run),
            "agent": plan.agent,
            "environment": plan.environment.name,
            "step": int(state.step),
            "episodes": self._episodes,
            "success": {name: float(np.mean(values)) for name, values in found.items()},
            "members": members,
        }

    def _show(self, restored: "Restored", report: dict[str, Any]) -> None:
        from uhm.train import progress

        def column(name: str) -> dict[int, float]:
            return {index: member[name] for index, member in enumerate(report["members"])}

        known = all("value" in member for member in report["members"])
        more = {"expected": column("value"), "obtained": column("discounted")} if known else {}
        alive = [not member["diverged"] for member in report["members"]]
        what = f"{self._episodes} episodes at step {report['step']:,}"
        if known:
            what += "; discounted return expected at their start, and obtained"
        about = restored.plan.agent, restored.plan.members(), column("success"), alive, what
        progress.show(progress.table(*about, more=more))

    def _film(self, restored: "Restored", policy: "Policy", simulator: "Simulator | None") -> tuple[list[str], bool]:
        """One film per task and setting, of its first member, and whether all were made; if not, one line says why."""
        import itertools

        import numpy as np

        from uhm.evaluate import record_video

        plan, state = restored.plan, restored.state
        members, paths = plan.members(), []
        firsts = {(member.task, member.hyper): index for index, member in reversed(list(enumerate(members)))}
        for (name, setting), index in sorted(firsts.items(), key=lambda item: item[1]):
            counts = itertools.count()

            def act(observation: Any, index: int = index, counts: Any = counts) -> Any:
                return np.asarray(policy.member(index, observation[None], next(counts)))[0]

            seed = members[index].seed if self.seed is None else self.seed
            words = [tasks.title(name), *(f"{axis}={value}" for axis, value in setting), str(int(state.step))]
            path = self.run / "videos" / f"{'-'.join(words)}.mp4"
            try:
                paths.append(str(record_video(tasks.task(name), act, path, seed=seed, simulator=simulator)))
            except UhmError as error:  # the numbers stand; the other tasks would meet the same wall
                warnings.warn(str(error), stacklevel=2)
                return paths, False
        return paths, True
