"""What `inspect` says of a data set whose facts are known by construction, and that its pictures are pictures."""

import json
import re

import numpy as np
import pytest

from uhm import cli, tasks
from uhm.data.dataset import make_dataset
from uhm.data.generate import make
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


def test_validation_data_are_meant_to_be_few(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["data", "make", "rooms", "--data-dir", "data"]) == 0
    assert cli.run(["data", "inspect", "rooms", "--split", "val", "--data-dir", "data"]) == 0
    assert "official size" not in capsys.readouterr().out
    assert (tmp_path / "rooms-val.png").exists() and not (tmp_path / "rooms.png").exists()


def test_rewards_that_are_nearly_the_same_are_all_counted(tmp_path, capsys):
    rows, rewards = np.zeros((20, 2), np.float32), 1e6 + np.arange(20) / 4
    path = tmp_path / "log.npz"
    np.savez(path, observations=rows, actions=rows, rewards=rewards, terminals=np.arange(20) == 19)
    assert cli.run(["data", "inspect", str(path), "--out", str(tmp_path / "log.png"), "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["tasks"]
    assert len(facts["reward_histogram"]) == 20
    assert all(float(value) in rewards for value in facts["reward_histogram"])


def test_logs_of_ones_own_need_not_end(data, tmp_path, capsys):
    assert describe(data)["warnings"] == []
    rows = np.zeros((20, 2), np.float32)
    np.savez(tmp_path / "log.npz", observations=rows, actions=rows, rewards=rows[:, 0], terminals=np.arange(20) == 19)
    assert cli.run(["data", "inspect", str(tmp_path / "log.npz"), "--out", str(tmp_path / "log.png")]) == 0
    said = capsys.readouterr().out
    assert "ended in" in said and "solve" not in said


def test_a_picture_that_cannot_be_written_is_one_line(data, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UhmError, match=r"cannot write .*file"):
        picture(data, tmp_path / "file" / "picture.png", "rooms", maze=False)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["data", "inspect", "rooms", "--out", "picture.foo"]) == 2
    assert capsys.readouterr().err == "uhm: --out is picture.foo, and must end in .png, .pdf, .svg or .jpg.\n"


def test_the_default_makes_its_own_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["data", "inspect", "--data-dir", "data"]) == 0
    assert "rooms: 100,000 transitions" in capsys.readouterr().out
    assert (tmp_path / "rooms.png").exists()


def test_check_writes_nothing_and_says_what_would(tmp_path, capsys):
    assert cli.run(["data", "check", "rooms", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "`uhm data make rooms`" in said
    assert "uhm data get" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small(tmp_path):
    make(tasks.ROOMS, tmp_path, episodes=20)
    return tmp_path


def test_list_counts_what_is_here(small, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["data", "list", "paper", "rooms", "--data-dir", str(small)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"rooms .* 100,000 +2,000\n", said)
    assert re.search(r"scene-play .* 1,000,000 +-\n", said)
    (small / "scene-play-v0.npz").write_text("no npz")
    assert cli.run(["data", "list", "scene-play", "--data-dir", str(small)]) == 0
    assert re.search(r"scene-play .* 1,000,000 +unreadable\n", capsys.readouterr().out)
    assert cli.run(["data", "list", "--json", "--data-dir", str(small)]) == 0
    here = {row["environment"]: row["transitions_here"] for row in json.loads(capsys.readouterr().out)}
    assert here["rooms"] == 2000
    assert here["scene-play"] is None
    assert here["puzzle-3x3-play"] == 0


def test_check_says_when_data_are_few(small, capsys):
    assert cli.run(["data", "check", "--data-dir", str(small)]) == 0
    train, val = capsys.readouterr().out.splitlines()
    assert train.startswith(f"ok  {small / 'rooms-v0.npz'}: 2,000 transitions, 2.0% of the official size")
    assert val == f"ok  {small / 'rooms-v0-val.npz'}: 200 transitions"


def test_a_data_directory_that_is_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for verb in (["list"], ["check"], ["inspect"], ["make", "rooms"]):
        assert cli.run(["data", *verb, "--data-dir", str(tmp_path / "file")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"{tmp_path / 'file'} is not a directory" in said


@pytest.mark.parametrize("maze", [True, False])
def test_pictures(data, maze, tmp_path):
    path = tmp_path / "deep" / "picture.png"
    picture(data, path, "rooms", maze)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 10_000
