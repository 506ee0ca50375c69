"""What is in a data set: counts, lengths, ranges, rewards and goal states per task, and a picture."""

from pathlib import Path
from typing import Any

import numpy as np

from uhm.data.available import shortfall
from uhm.data.dataset import Dataset
from uhm.errors import writing
from uhm.tasks import Environment


def describe(data: Dataset, environment: Environment | None = None, split: str = "train") -> dict[str, Any]:
    """Facts about `data` as plain numbers and strings, ready for JSON."""
    observations, actions = np.asarray(data.observations), np.asarray(data.actions)
    ends = np.unique(np.asarray(data.last))
    lengths = np.diff(ends, prepend=-1) - 1
    facts: dict[str, Any] = {
        "transitions": int(lengths.sum()),
        "trajectories": len(ends),
        "trajectory_length": {"min": int(lengths.min()), "mean": float(lengths.mean()), "max": int(lengths.max())},
        "observation": {"size": observations.shape[1], **_range(observations)},
        "action": {"size": actions.shape[1], **_range(actions)},
        "tasks": [_task_facts(data, i, ends) for i in range(len(data.names))],
    }
    if environment is not None:
        facts["environment"] = environment.name
        facts["official_transitions"] = environment.transitions
    # Logs of one's own may well have no ends, and theirs need not be goals.
    without = [task["task"] for task in facts["tasks"] if environment is not None and task["goal_states"] == 0]
    facts["warnings"] = [f"no row of the data solves {', '.join(without)}: nothing shows how"] if without else []
    few = shortfall(facts["transitions"], environment) if environment is not None and split == "train" else ""
    facts["warnings"] += [few] if few else []
    return facts


def _range(values: np.ndarray) -> dict[str, float]:
    return {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "std": float(values.std()),
    }


def _task_facts(data: Dataset, index: int, ends: np.ndarray) -> dict[str, Any]:
    rewards, solved = np.asarray(data.rewards[index]), ~np.asarray(data.masks[index])
    values, counts = np.unique(rewards, return_counts=True)
    if len(values) > 32:  # a user's own continuous rewards
        counts, edges = np.histogram(rewards, bins=16)
        values = edges[:-1]
    labels = [f"{value:g}" for value in values]
    if len(set(labels)) < len(labels):
        labels = [str(value) for value in values]  # as many digits as tell them apart
    reached = np.add.reduceat(solved, np.concatenate([[0], ends[:-1] + 1])) > 0
    return {
        "task": data.names[index],
        "reward_histogram": {label: int(count) for label, count in zip(labels, counts, strict=True)},
        "goal_states": int(solved.sum()),
        "successful_trajectories": int(reached.sum()),
    }


def picture(data: Dataset, path: Path, title: str, maze: bool) -> None:
    """Save a picture: the visited positions with each task's goal states for a maze, else histograms."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    observations = np.asarray(data.observations)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        if maze:
            figure = _coverage(data, observations)
        else:
            figure = Figure(figsize=(11, 6.5), layout="constrained")
            _histograms(figure, data, observations)
        figure.suptitle(f"{title}: {data.size:,} transitions", fontsize=12, fontweight="bold", x=0.02, ha="left")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.15)


def _coverage(data: Dataset, observations: np.ndarray) -> Any:
    from matplotlib.figure import Figure

    xy = observations[:, :2]
    low, high = xy.min(0), xy.max(0)
    aspect = float((high - low)[1] / (high - low)[0])
    figure = Figure(figsize=(8, 7 * aspect + 1.2), layout="constrained")
    axes = figure.subplots()
    # Logarithmic colour: a maze's dead ends are visited a thousand times less than its corridors.
    image = axes.hist2d(*xy.T, bins=(160, max(20, int(160 * aspect))), norm="log", cmap="viridis")[3]
    labels: dict[tuple[float, float], list[str]] = {}
    for index, name in enumerate(data.names):
        at = xy[~np.asarray(data.masks[index])]
        if len(at):  # two tasks may share a goal, and then a circle
            x, y = at.mean(0).tolist()
            labels.setdefault((x, y), []).append(name.rsplit("task", 1)[-1])
    for at, names in labels.items():
        axes.plot(*at, "o", ms=14, mfc="white", mec="black", mew=1.2)
        axes.annotate(",".join(names), at, ha="center", va="center", fontsize=8)
    axes.set(aspect="equal", xlabel="x", ylabel="y")
    figure.colorbar(image, ax=axes, label="rows", shrink=0.8)
    axes.set_title("visited positions; circles: goal states of each task", fontsize=9, loc="left", color="0.35")
    return figure


def _histograms(figure: Any, data: Dataset, observations: np.ndarray) -> None:
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    ranges, acts = top.subplots(1, 2, width_ratios=(2.2, 1))
    quantiles = np.quantile(observations[:: max(1, len(observations) // 20_000)], (0.0, 0.05, 0.5, 0.95, 1.0), axis=0)
    position = np.arange(observations.shape[1])
    ranges.vlines(position, quantiles[0], quantiles[4], color="0.75", lw=2, label="whole range")
    ranges.vlines(position, quantiles[1], quantiles[3], color="C0", lw=4, label="5-95 %")
    ranges.plot(position, quantiles[2], "_", color="black", ms=6, label="median")
    ranges.set(xlabel="observation dimension", title="observations")
    ranges.legend(frameon=False, fontsize=8, ncols=3)
    actions = np.asarray(data.actions)[:: max(1, len(observations) // 50_000)]
    for index in range(actions.shape[1]):
        acts.hist(actions[:, index], bins=50, range=(-1, 1), histtype="step", label=f"a{index}", density=True)
    acts.set(xlabel="action", title="actions", yticks=[])
    acts.legend(frameon=False, fontsize=8)
    for index, axes in enumerate(np.atleast_1d(bottom.subplots(1, len(data.names), sharey=True))):
        facts = _task_facts(data, index, np.unique(np.asarray(data.last)))
        values = [float(value) for value in facts["reward_histogram"]]
        axes.bar(values, list(facts["reward_histogram"].values()), width=0.8, color="C0")
        axes.set(yscale="log", xlabel="reward", title=data.names[index].rsplit("-", 1)[-1])
        axes.set_title(f"{facts['goal_states']:,} goal rows", loc="right", fontsize=7, color="0.35")
    bottom.axes[0].set_ylabel("rows")
