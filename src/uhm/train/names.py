"""What the members of a population are called, by what tells them apart, and which of it is worth a picture."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from uhm.population import Member

Setting = tuple[tuple[str, Any], ...]  # hyperparameters in which members of a population differ
LINES = 10  # in one plot; more of them nobody tells apart
KEY = ("return", "normalised", "success", "q_mean", "critic_loss", "bc_error", "actor_loss", "model_loss")

T = TypeVar("T")


def value(value: Any) -> str:
    """A value as people write it, and never the same for two different ones: 0.1, 30, 1e-08, True."""
    if not isinstance(value, float):
        return str(value)
    brief = f"{value:g}"
    return brief if float(brief) == value else repr(value)


def setting(hyper: Setting) -> str:
    """`alpha=0.03, beta=1`."""
    return ", ".join(f"{name}={value(one)}" for name, one in hyper)


def labels(members: Sequence[Member]) -> list[str]:
    """A name per member of the parts in which they differ, `task2-seed0-alpha0.03`; empty for one alone."""
    many = [len({getattr(member, part) for member in members}) > 1 for part in ("task", "seed")]
    found = []
    for member in members:
        parts = [member.task.rsplit("-", 1)[-1], f"seed{member.seed}"]
        parts = [part for part, wanted in zip(parts, many, strict=True) if wanted]
        found.append("-".join([*parts, *(f"{name}{value(one)}" for name, one in member.hyper)]))
    return found


def settings(members: Sequence[Member]) -> list[Setting]:
    """The different settings, in the order of the members."""
    return list(dict.fromkeys(member.hyper for member in members))


def spread(items: Sequence[T], most: int = LINES) -> list[T]:
    """All of a few; of many the first, the last and as many between them as make `most`, evenly."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def key_metrics(logged: Iterable[str]) -> list[str]:
    """What to look at first of the metrics that a run logged; the first few of an agent of one's own."""
    names = [name for name in logged if name not in ("step", "seconds")]
    return [name for name in KEY if name in names] or names[: len(KEY)]
