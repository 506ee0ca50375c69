"""Runs of a few steps that several test files make, and what two equal runs have in common."""

import json
from pathlib import Path
from typing import Any

from uhm import tasks
from uhm.data.generate import make
from uhm.train import Plan, resolve, start

TASKS = ("rooms-task1", "rooms-task2")
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 16, "eval_episodes": 3}


def make_data(folder: Path) -> Path:
    make(tasks.ROOMS, folder, episodes=20, progress=False)
    return folder


def small_plan(data: Path, agent: str = "rebrac-dagger", what: Any = TASKS, **settings: Any) -> Plan:
    return resolve(agent, what, data_dir=str(data), **{**SMALL, **settings})


def small_run(directory: Path, plan: Plan) -> dict[str, Any]:
    return start(plan, directory)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def outcome(directory: Path) -> dict[str, Any]:
    """Everything that a run found out, without the time it took."""
    summary = json.loads((directory / "summary.json").read_text())
    metrics = lines(directory / "metrics.jsonl")
    # The digest of everything that training changes: optimiser, targets and keys as well as parameters.
    manifest = json.loads((directory / "checkpoints" / str(summary["steps"]) / "manifest.json").read_text())
    return {
        "state": manifest["sha256"],
        "summary": {name: value for name, value in summary.items() if name != "wall_time"},
        "metrics": [{name: value for name, value in line.items() if name != "seconds"} for line in metrics],
        "episodes": sorted(lines(directory / "episodes.jsonl"), key=lambda e: (e["step"], e["member"], e["episode"])),
    }
