"""What an evaluation leaves behind: one record per episode, and the scores made of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Episode(NamedTuple):
    """One finished episode. `seed` is the member's, `step` the gradient step of the evaluation.

    `discounted` is the return as the agent discounts it, up to the episode's limit, and `value` what the agent expected
    of it at the first observation; None where the one or the other is not known.
    """

    member: int
    task: str
    seed: int
    step: int
    episode: int
    success: float
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
        return cls(**{("return_" if name == "return" else name): value for name, value in data.items()})


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

    `success` always, `discounted` and `value` where all episodes of the evaluation know them.
    """
    found: dict[int, dict[int, list[Episode]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        found[record.member][record.step].append(record)
    names = ("success", "discounted", "value")
    return {
        member: {step: means(steps[step], names) for step in sorted(steps)} for member, steps in sorted(found.items())
    }


def means(records: Sequence[Episode], names: Sequence[str]) -> dict[str, float]:
    """The mean of each field that all records know, called as in JSON."""
    columns = {name.rstrip("_"): [getattr(record, name) for record in records] for name in names}
    return {name: float(np.mean(values)) for name, values in columns.items() if None not in values}


def success_by_step(records: Iterable[Episode]) -> dict[int, dict[int, float]]:
    """Mean success of each member at each evaluation, members and steps in order."""
    means = means_by_step(records)
    return {member: {step: found["success"] for step, found in steps.items()} for member, steps in means.items()}


def score(records: Iterable[Episode], last: int = 3) -> dict[int, float]:
    """The reported number of each member: its mean success over the last three evaluations."""
    by_step = success_by_step(records)
    return {member: float(np.mean(list(steps.values())[-last:])) for member, steps in by_step.items()}
