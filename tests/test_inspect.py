"""What `inspect` says of a data set whose facts are known by construction, and that its pictures are pictures."""

import numpy as np
import pytest

from uhm import cli, tasks
from uhm.data.dataset import make_dataset
from uhm.data.inspect import describe, picture
from uhm.errors import UhmError


@pytest.fixture
def data():
    n = 30
    rng = np.random.default_rng(0)
    rewards = np.full((2, n), -1.0, np.float32)
    rewards[0, [3, 4, 25]] = 0.0
    terminals = np.isin(np.arange(n), (9, 29))
    rows = rng.uniform(size=(n, 2)).astype(np.float32)
    return make_dataset(rows, rows, terminals, rewards, rewards < 0, ("rooms-task1", "rooms-task2"))


def test_facts(data):
    facts = describe(data, tasks.ROOMS)
    assert facts["transitions"] == 28
    assert facts["trajectory_length"] == {"min": 9, "mean": 14.0, "max": 19}
    first, second = facts["tasks"]
    assert first["goal_states"] == 3
    assert first["successful_trajectories"] == 2
    assert first["reward_histogram"] == {"-1": 27, "0": 3}
    assert second["goal_states"] == 0
    assert any("rooms-task2" in warning for warning in facts["warnings"])
    assert any("official size" in warning for warning in facts["warnings"])
    assert facts["observation"]["min"] == pytest.approx(float(np.asarray(data.observations).min()))


def test_a_picture_that_cannot_be_written_is_one_line(data, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UhmError, match=r"cannot write .*file"):
        picture(data, tmp_path / "file" / "picture.png", "rooms", maze=False)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["data", "inspect", "rooms", "--out", "picture.foo"]) == 2
    assert capsys.readouterr().err == "uhm: --out is picture.foo, and must end in .png, .pdf, .svg or .jpg.\n"


@pytest.mark.parametrize("maze", [True, False])
def test_pictures(data, maze, tmp_path):
    path = tmp_path / "deep" / "picture.png"
    picture(data, path, "rooms", maze)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 10_000
