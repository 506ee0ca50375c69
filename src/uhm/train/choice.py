"""Which member of a run is meant, by its task and seed or by its place, and which of its checkpoints."""

import warnings

from uhm import tasks
from uhm.errors import UhmError, unknown
from uhm.train.plan import Plan
from uhm.train.restore import Step


def choose(plan: Plan, task: str | None = None, seed: int | None = None, member: int | None = None) -> int:
    """The place of the first member of a task (default: the run's first) and a seed, or `member`, checked."""
    return _first(plan, task, seed) if member is None else _named(plan, task, seed, member)


def as_step(text: str) -> Step:
    """What `--step` says: last, best or a number."""
    if text == "last" or text == "best":
        return text
    if not text.isdecimal():
        raise UhmError(f"--step is '{text}', and must be last, best or a number.")
    return int(text)


def _first(plan: Plan, task: str | None, seed: int | None) -> int:
    wanted = _task(plan.tasks, task).name
    if seed is not None and seed not in plan.seeds:
        raise UhmError(f"the run has no seed {seed}: its seeds are {', '.join(map(str, plan.seeds))}.")
    seed = plan.seeds[0] if seed is None else seed
    found = [place for place, m in enumerate(plan.members()) if (m.task, m.seed) == (wanted, seed)]
    if len(found) > 1:
        numbers = ", ".join(map(str, found))
        differ = " and ".join(plan.axes)
        warnings.warn(f"members {numbers} differ in {differ}: this is {found[0]}; --member chooses.", stacklevel=4)
    return found[0]


def _named(plan: Plan, task: str | None, seed: int | None, member: int) -> int:
    """A member that was asked for by its place, which says its task and seed."""
    if task is not None or seed is not None:
        raise UhmError("a member has its task and its seed: name the member, or the others.")
    count = len(plan.members())
    if not 0 <= member < count:
        raise UhmError(f"the run has no member {member}: its members are 0 to {count - 1}.")
    return member


def _task(known: tuple[str, ...], wanted: str | None) -> tasks.Task:
    if wanted is None:
        return tasks.task(known[0])
    try:
        found = tasks.task(wanted)
    except UhmError:
        found = None
    if found is None or found.name not in known:
        raise unknown("task of this run", wanted, known, f"It trained on {', '.join(known)}.")
    return found
