"""The paper's four ablations of UHM: which hyperparameter, which values, where (section "Ablation Studies").

The figures name few of their panels. The text gives the values, says "five independent runs" for all figures, averages
beta "over all representative tasks from the standard environments", and draws q on "a subset of long-horizon reasoning
tasks" of which it names two. So: the ten standard environments, and for q those two.
"""

from typing import Any, NamedTuple

from uhm import tasks
from uhm.errors import unknown

SEEDS = 5
AGENT = "uhm"
_STANDARD = tuple(environment.name for environment in tasks.SUITES["standard"])


class Ablation(NamedTuple):
    """One hyperparameter with its values, the paper's own among them."""

    name: str
    hyper: str
    values: tuple[Any, ...]
    environments: tuple[str, ...]


ABLATIONS = {
    ablation.name: ablation
    for ablation in (
        Ablation("lambda-schedule", "schedule", (True, False), _STANDARD),
        Ablation("beta", "beta", (0.0, 0.3, 1.0), _STANDARD),
        Ablation("terminal", "terminal", (True, False), _STANDARD),
        Ablation("q", "q", (0.2, 0.1, 1e-8), ("cube-quadruple-play", "puzzle-4x6-play")),
    )
}


def ablation(name: str) -> Ablation:
    if name not in ABLATIONS:
        raise unknown("ablation", name, ABLATIONS, f"Ablations are: {', '.join(ABLATIONS)}.")
    return ABLATIONS[name]
