"""What an evaluation leaves behind: one record per episode, and the scores made of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Episode(NamedTuple):
    """One finished episode. `seed` is the member's, `step` the gradient step of the evaluation.

    `discounted` is the return as the agent discounts it, up to the episode's limit, and `value` what the agent expected
    of it at the first observation; None where the one or the other is not known. Nor is `success` in every simulator of
    a user's own.
    """

    member: int
    task: str
    seed: int
    step: int
    episode: int
    success: float | None
    return_: float
    length: int
    discounted: float | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What is known as plain data, with `return` under its proper name, which Python does not allow as a field."""
        return {name.rstrip("_"): value for name, value in self._asdict().items() if value is not None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Episode":
        """What `to_json` gave. An expectation that was not a number was stored as null."""
        known = {("return_" if name == "return" else name): value for name, value in data.items()}
        return cls(**{"success": None, **known})


def brief(number: float) -> float:
    """Seven digits, which float32 has: there are thousands of records, and the rest would be most of their files."""
    return float(f"{number:.7g}")


def episode_seeds(seed: int, step: int, task: int, episode: int, count: int = 3) -> Sequence[int]:
    """The seeds of one episode's environment: they depend on nothing else, so neither does the episode."""
    return [int(word) for word in np.random.SeedSequence([seed, step, task, episode]).generate_state(count)]


def complete(records: Sequence[Episode], members: int, episodes: int) -> list[Episode]:
    """The records of evaluations that have `episodes` of every member: others are being written, or were cut short."""
    counts = Counter(record.step for record in records)
    return [record for record in records if counts[record.step] >= members * episodes]


def means_by_step(records: Iterable[Episode]) -> dict[int, dict[int, dict[str, float]]]:
    """What each member's episodes have in the mean at each evaluation, members and steps in order.

    `return` always, `success`, `discounted` and `value` where all episodes of the evaluation know them.
    """
    found: dict[int, dict[int, list[Episode]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        found[record.member][record.step].append(record)
    names = ("success", "return_", "discounted", "value")
    return {
        member: {step: means(steps[step], names) for step in sorted(steps)} for member, steps in sorted(found.items())
    }


def means(records: Sequence[Episode], names: Sequence[str]) -> dict[str, float]:
    """The mean of each field that all records know, called as in JSON."""
    columns = {name.rstrip("_"): [getattr(record, name) for record in records] for name in names}
    return {name: float(np.mean(values)) for name, values in columns.items() if None not in values}


def by_step(records: Iterable[Episode], name: str = "success") -> dict[int, dict[int, float]]:
    """The mean of `success` or `return` of each member at each evaluation, members and steps in order."""
    return {m: {step: found[name] for step, found in steps.items()} for m, steps in means_by_step(records).items()}


def score(records: Iterable[Episode], last: int = 3, name: str = "success") -> dict[int, float]:
    """The reported number of each member: the mean over its last three evaluations."""
    return {member: float(np.mean(list(steps.values())[-last:])) for member, steps in by_step(records, name).items()}


def beside(
    lines: Iterable[dict[str, Any]], evaluations: dict[int, dict[int, dict[str, float]]], members: int
) -> list[dict[str, Any]]:
    """The lines of a log with the means of evaluations as further columns, None where a member was not evaluated.

    What an agent logs under the same name, as one of the user's own may, is left out.
    """
    means_of = {name for steps in evaluations.values() for means in steps.values() for name in means}
    found = {line["step"]: {name: line[name] for name in line if name not in means_of} for line in lines}
    for member, steps in evaluations.items():
        for step, means in steps.items():
            line = found.setdefault(step, {"step": step})
            for name, value in means.items():
                line.setdefault(name, [None] * members)[member] = value
    return [found[step] for step in sorted(found)]
