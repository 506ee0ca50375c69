"""What the members of a population are called: by what tells them apart."""

from collections.abc import Sequence
from typing import Any

from uhm.population import Member

Setting = tuple[tuple[str, Any], ...]  # hyperparameters in which members of a population differ


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
