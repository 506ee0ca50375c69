"""Runs on logs, evaluated in a simulator of one's own."""

import json
import sys

import gymnasium
import numpy as np
import pytest

from uhm import cli
from uhm.errors import UhmError
from uhm.evaluate import own
from uhm.train import train

MODULE = """
import gymnasium
import numpy as np


class Line(gymnasium.Env):
    '''A point on a line, moved by half the action within [-4, 4]; it pays what it is moved by, and ends beyond 3.'''

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-4.0, 4.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(0, 0.5)
        return np.array([self.x]), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.x += float(action[0]) / 2
        return np.array([self.x]), float(action[0]) / 2, self.x > 3, False, {"success": self.x > 3}


gymnasium.register("Line-v0", Line, max_episode_steps=6)
"""


@pytest.fixture
def line(tmp_path, monkeypatch):
    (tmp_path / "line_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "line_module:Line-v0"
    gymnasium.registry.pop("Line-v0", None)
    sys.modules.pop("line_module", None)


def test_episodes_by_hand(line):
    """An action of 1/4 is 1 in the box, so a step of 1/2: six of them end within the limit, not at the goal."""
    make = own.simulator(line)
    settings = {"seed": 3, "step": 5, "discount": 0.5, "sizes": (1, 1)}
    found = own.episodes(make, lambda rows: np.full((len(rows), 1), 0.25), None, 20, **settings)
    assert [record["episode"] for record in found] == list(range(20))
    assert {record["length"] for record in found} <= {6}
    assert all(record["return"] == 3.0 for record in found)
    assert found[0]["discounted"] == pytest.approx(0.5 * (2 - 0.5**5))
    # From x = u + 3 in [3, 3.5] on it has arrived; steps of 2 arrive sooner.
    assert all(record["success"] == 1.0 for record in found)
    fast = own.episodes(make, lambda rows: np.ones((len(rows), 1)), lambda rows: 10 * rows[:, 0], 3, **settings)
    assert [record["length"] for record in fast] == [2, 2, 2]
    starts = [record["value"] / 10 for record in fast]
    assert len(set(starts)) == 3
    assert all(0 <= start <= 0.5 for start in starts)
    again = own.episodes(make, lambda rows: np.ones((len(rows), 1)), lambda rows: 10 * rows[:, 0], 1, **settings)
    assert again == fast[:1]  # whatever ran beside it
    backwards = own.episodes(make, lambda rows: -np.ones((len(rows), 1)), None, 2, **settings)
    assert [(record["length"], record["return"], record["success"]) for record in backwards] == [(6, -12.0, 0.0)] * 2


@pytest.fixture
def run(tmp_path):
    """Trained on logs in which every action is 1/2."""
    x = np.random.default_rng(0).uniform(0, 3, (60, 1))
    ends = np.arange(60) % 10 == 9
    own_logs = {"observations": x, "actions": np.full((60, 1), 0.5), "rewards": np.ones(60), "terminals": ends}
    np.savez(tmp_path / "log.npz", allow_pickle=False, **own_logs)
    settings = {"hidden": (16,), "batch_size": 16, "steps": 300, "learning_rate": 1e-2, "alpha": [10.0, 20.0]}
    train("rebrac-dagger", str(tmp_path / "log.npz"), run=tmp_path / "run", **settings)
    return tmp_path / "run"


@pytest.mark.slow
def test_the_verb(run, line, capsys):
    assert cli.run(["eval", str(run), "--env", line, "--episodes", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [member["hyper"]["alpha"] for member in report["members"]] == [10.0, 20.0]
    for member in report["members"]:
        assert member["length"] == 3.0  # half of the box is 2, and half of that a step: beyond 3 after three
        assert member["return"] == pytest.approx(3.0, abs=0.2)
        assert member["success"] == 1.0
        assert len(member["episodes"]) == 3
    assert cli.run(["eval", str(run), "--env", line, "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "rebrac-dagger on log: 2 episodes in line_module:Line-v0 at step 300; discounted return expected" in said
    for flags, message in (
        (["--env", "Nothing-v9"], "cannot make the environment 'Nothing-v9'"),
        (["--env", "no_such_module:X-v0"], "cannot make the environment 'no_such_module:X-v0'"),
        (["--env", "CartPole-v1"], "the environment's observations have 4 numbers, the run's 1"),
        (["--env", line, "--video"], "--video films known environments only"),
        (["--env", line, "--logs", "log.npz"], "--logs is for judging by logs, without a simulator: leave out --env"),
        (
            ["--env", line, "--fit-steps", "9"],
            "--fit-steps is for judging by logs, without a simulator: leave out --env",
        ),
    ):
        assert cli.run(["eval", str(run), *flags]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1


def test_other_spaces_are_refused(line):
    with pytest.raises(UhmError, match=r"actions are Discrete\(2\), and must be a box"):
        own.episodes(own.simulator("CartPole-v1"), len, None, 1, seed=0, step=0, discount=1.0, sizes=(4, 1))


def test_an_environment_without_a_limit_is_cut(line, monkeypatch):
    monkeypatch.setattr(own, "LIMIT", 4)

    def unlimited():
        env = own.simulator(line)().unwrapped
        env.spec = None
        return env

    with pytest.warns(UserWarning, match="sets no limit: its episodes are cut after 4 steps"):
        found = own.episodes(
            unlimited, lambda rows: np.zeros((len(rows), 1)), None, 1, seed=0, step=0, discount=1.0, sizes=(1, 1)
        )
    assert found[0]["length"] == 4
