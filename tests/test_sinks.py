"""What TensorBoard and the like are told of a run: names that tell members apart, and evaluations when they arrive."""

import json
import shutil
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from small_runs import TASKS, lines, make_data, small_plan
from uhm.population import grid
from uhm.runs.sinks import scalars
from uhm.train import names, resume, start

SETTINGS: dict[str, Any] = {"steps": 40, "log_interval": 10, "eval_interval": 20, "checkpoint_interval": 20}
# Tasks vary slowest, then seeds, then hyperparameters.
NAMES = [f"task{task}-seed{seed}-alpha{alpha}" for task in (1, 2) for seed in (0, 1) for alpha in ("0.03", "30")]


class Recorder:
    """A sink that keeps what it was told."""

    def __init__(self):
        self.told = []

    def log(self, step, values):
        self.told.append((step, values))

    def close(self): ...

    def evaluations(self):
        return [(step, values) for step, values in self.told if "eval/step" in values]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    directory, sink = tmp_path_factory.mktemp("runs") / "run", Recorder()
    start(small_plan(data, seeds=2, alpha=[0.03, 30.0], **SETTINGS), directory, sinks=[sink])
    return directory, sink


def test_metrics_are_named_after_members(finished):
    directory, sink = finished
    told = [(step, values) for step, values in sink.told if "eval/step" not in values]
    logged = lines(directory / "metrics.jsonl")
    assert [step for step, _ in told] == [10, 20, 30, 40]
    for (_, values), line in zip(told, logged, strict=True):
        assert values["seconds"] == line["seconds"]
        assert [values[f"critic_loss/{name}"] for name in NAMES] == line["critic_loss"]
        assert all(isinstance(value, float) for value in values.values())


def test_evaluations_come_when_they_are_done(finished):
    directory, sink = finished
    episodes = lines(directory / "episodes.jsonl")
    assert [values["eval/step"] for _, values in sink.evaluations()] == [20, 40]
    steps = [step for step, _ in sink.told]
    assert all(before <= after for before, after in pairwise(steps))  # or Weights & Biases would drop them
    for step, values in sink.evaluations():
        assert values["eval/step"] <= step
        for index, name in enumerate(NAMES):
            own = [e for e in episodes if (e["step"], e["member"]) == (values["eval/step"], index)]
            assert len(own) == 3
            for what in ("success", "return", "discounted", "value"):
                assert values[f"eval/{what}/{name}"] == pytest.approx(np.mean([e[what] for e in own])), what
        assert len(values) == 1 + 4 * len(NAMES)


def test_a_resumed_sink_hears_of_the_evaluation_that_it_forgot(finished, tmp_path):
    """The evaluation of step 20 came after the checkpoint, at a step that is repeated and hidden by TensorBoard."""
    directory, sink = finished
    shutil.copytree(directory, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "40")
    again = Recorder()
    resume(tmp_path / "run", sinks=[again])
    assert [step for step, values in again.told if "eval/step" not in values] == [30, 40]
    assert [values for _, values in again.evaluations()] == [values for _, values in sink.evaluations()]
    assert again.evaluations()[0][0] == 30


def test_one_member_needs_no_name(data, tmp_path):
    sink = Recorder()
    start(small_plan(data, "iql", "rooms-task1", seeds=1, **SETTINGS), tmp_path / "run", sinks=[sink])
    (_, first), (_, evaluated) = sink.told[0], sink.evaluations()[0]
    assert {"critic_loss", "q_mean"} <= first.keys()
    assert {"eval/step", "eval/success", "eval/return", "eval/discounted"} <= evaluated.keys()
    assert not any(name.count("/") > name.startswith("eval/") for name in (*first, *evaluated))


def test_names_say_what_differs_and_nothing_else():
    assert names.labels(grid(["rooms-task1"], [3], {})) == [""]
    assert names.labels(grid(["rooms-task1"], [0, 1], {})) == ["seed0", "seed1"]
    assert names.labels(grid(TASKS, [0], {"schedule": [True, False]})) == [
        *("task1-scheduleTrue", "task1-scheduleFalse", "task2-scheduleTrue", "task2-scheduleFalse")
    ]
    close = names.labels(grid(["a.npz"], [0], {"q": [0.1, 0.1000000001, 1e-8, 30.0]}))
    assert close == ["q0.1", "q0.1000000001", "q1e-08", "q30"]


def test_what_is_no_number_of_a_member_is_left_out_or_numbered():
    values = json.loads('{"loss": [1, null], "odd": [1, 2, 3], "note": "text", "eval": {"step": 5, "success": [0, 1]}}')
    of_loss, of_odd = {"loss/a": 1}, {"odd/0": 1, "odd/1": 2, "odd/2": 3}
    of_eval = {"eval/step": 5, "eval/success/a": 0, "eval/success/b": 1}
    assert dict(scalars(values, ["a", "b"])) == of_loss | of_odd | of_eval
