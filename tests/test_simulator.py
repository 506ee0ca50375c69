"""Runs on logs, evaluated in a simulator of the user's own: while they train, and afterwards."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from report_runs import fake_log_run
from small_runs import lines, outcome
from uhm import cli, report, tasks
from uhm.envs import own
from uhm.envs.own import Simulator
from uhm.errors import UhmError
from uhm.evaluate import Evaluator, beside, make_act, record_video
from uhm.evaluate.camera import picture
from uhm.report import logs
from uhm.report.collect import collect
from uhm.report.log_page import sections
from uhm.train import last_means, load_run, resume, train

LINE = "line_module:Line-v0"
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 16, "learning_rate": 1e-2, "eval_episodes": 2}
SHORT: dict[str, Any] = SMALL | {"steps": 60, "eval_interval": 20, "log_interval": 10, "checkpoint_interval": 20}
SHORT["keep_checkpoints"] = 3


def episodes(name, act, count, **more):
    with Evaluator(tasks.logs("log.npz").tasks, episodes=count, simulator=Simulator(name, 1, 1), **more) as evaluator:
        return evaluator.run(act, seeds=[3], step=5, discounts=[0.5])


def always(action):
    """A policy that does one thing, and expects ten times where it is."""

    def act(state, observations, key):
        return jnp.full((len(observations), 1), state)

    def value(state, observations, key):
        return 10 * observations[:, 0]

    return make_act(act, jnp.array([action]), jax.random.key(0), observation_size=1, agent_value=value)


@pytest.mark.slow
def test_episodes_by_hand():
    """An action of 1/4 is 1 in the box, so a step of 1/2: six of them end within the limit and beyond 3."""
    found = episodes(LINE, always(0.25), 20)
    assert [record.episode for record in found] == list(range(20))
    assert all((record.length, record.return_, record.success) == (6, 3.0, 1.0) for record in found)
    assert found[0].discounted == pytest.approx(0.5 * (2 - 0.5**5))
    starts = [(record.value or 0.0) / 10 for record in found]
    assert len(set(starts)) == 20 and 0 <= min(starts) < 0.1 < 0.4 < max(starts) <= 0.5
    # Steps of 2 arrive sooner; and whatever runs beside an episode, it is the same.
    fast = episodes(LINE, always(1.0), 3)
    assert [(record.length, record.value) for record in fast] == [(2, record.value) for record in found[:3]]
    assert episodes(LINE, always(1.0), 3, workers=1, lanes=1) == fast
    backwards = episodes(LINE, always(-1.0), 2)
    assert [(record.length, record.return_, record.success) for record in backwards] == [(6, -12.0, 0.0)] * 2


@pytest.mark.slow
def test_what_a_simulator_does_not_say_and_where_it_fails():
    (found,) = episodes("line_module:Silent-v0", always(0.0), 1)
    assert (found.success, found.length, found.return_) == (None, own.LIMIT, 0.0)
    assert "success" not in found.to_json()
    where = r"ArithmeticError: nothing is beyond 3 \(line_module\.py, line \d+\)"
    with pytest.raises(UhmError, match=rf"^evaluation failed in an environment: {where}\.$"):
        episodes("line_module:Broken-v0", always(1.0), 1)
    with pytest.raises(UhmError, match=r"the environment's reward is nan, and must be a finite number\.$"):
        episodes("line_module:Unpaid-v0", always(1.0), 1)
    with pytest.raises(UhmError, match=r"environment: cannot make the environment 'line_module:No-v0'"):
        episodes("line_module:No-v0", always(1.0), 1)


def test_observations_are_flat_and_actions_scaled_to_the_box():
    env = Simulator(LINE, 1, 1).make()
    first, _ = env.reset(seed=0)
    assert (first.shape, first.dtype) == ((1,), np.float32)
    observation, reward, *ends, said = env.step(np.array([-0.5], np.float32))
    assert (float(observation[0] - first[0]), reward) == (pytest.approx(-1.0), -1.0)
    assert (ends, said) == ([False, False], {"success": 0.0})
    assert env.limit == float("inf")  # it truncates by itself
    for bound in (-1.0, 1.0):  # exactly at the bounds, or the simulator would refuse
        assert env.step(np.array([bound], np.float32))[1] == 2 * bound
    env.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert env._scaled(np.array([0.25])) == np.float32(0.25)


def test_actions_never_leave_the_bounds_of_their_space():
    env, rng = Simulator(LINE, 1, 1).make(), np.random.default_rng(0)
    for low, high in rng.integers(-99, 99, (500, 2)) / 10:
        if low < high:
            env.action_space = gymnasium.spaces.Box(low, high, (1,), np.float32)
            for action in (-1.0, 1.0):
                assert env.action_space.contains(env._scaled(np.array([action], np.float32))), (low, high)
    env.action_space = gymnasium.spaces.Box(-128, 127, (1,), np.int8)
    scaled = [env._scaled(np.array([action])) for action in (-1.0, -0.5, 0.1, 1.0)]
    assert [(int(one[0]), one.dtype) for one in scaled] == [(n, np.int8) for n in (-128, -64, 12, 127)]
    largest = float(np.finfo(np.float32).max)
    env.action_space = gymnasium.spaces.Box(-largest, largest, (1,), np.float32)
    assert float(env._scaled(np.zeros(1))[0]) == 0.0


@pytest.mark.slow
def test_a_simulator_is_tried_where_it_will_run(tmp_path, monkeypatch, capfd):
    """That is: in other processes, where the user stands, and not only made."""
    gymnasium.register("Here-v0", "line_module:Line")
    with pytest.raises(UhmError, match=r"cannot make the environment 'Here-v0': .*write MODULE:ID"):
        Simulator("Here-v0", 1, 1).check()
    filed = Simulator("line_module:Filed-v0", 1, 1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UhmError, match=r"Filed-v0 cannot be used: FileNotFoundError: .*start\.txt"):
        filed.check()
    (tmp_path / "start.txt").write_text("0")
    filed.check()
    assert len(episodes(filed.name, always(1.0), 1)) == 1
    with pytest.raises(UhmError, match=r"Threaded-v0 cannot be used: ArithmeticError: no way \(line_module"):
        Simulator("line_module:Threaded-v0", 1, 1).check()
    with pytest.raises(UhmError, match=r"evaluation failed in an environment: ArithmeticError: no way"):
        episodes("line_module:Threaded-v0", always(1.0), 1)
    with pytest.raises(UhmError, match=r"Many-v0 cannot be used: the environment's reward has shape \(2,\), and must"):
        Simulator("line_module:Many-v0", 1, 1).check()
    assert capfd.readouterr().out == ""  # what simulators print would not be JSON


@pytest.mark.slow
def test_numbers_in_arrays_are_numbers():
    Simulator("line_module:Boxed-v0", 1, 1).check()
    boxed, plain = (episodes(name, always(0.25), 2) for name in ("line_module:Boxed-v0", LINE))
    assert boxed == plain


def test_actions_that_nobody_scaled_are_noticed(monkeypatch):
    """Those of a space within [-1, 1] pass for scaled ones, and would be stretched a second time."""
    found = {"limited": True, "largest_action": 0.4}
    done = subprocess.CompletedProcess([], 0, json.dumps(found).encode(), b"")
    monkeypatch.setattr(own.subprocess, "run", lambda *_, **__: done)
    with pytest.warns(UserWarning, match=r"actions of the logs reach 0\.4, and those of X end at 0\.4, .*scaled by"):
        Simulator("X", 1, 1).check(reach=0.4)
    Simulator("X", 1, 1).check(reach=0.9)
    found["largest_action"] = 2.0
    done.stdout = json.dumps(found).encode()
    Simulator("X", 1, 1).check(reach=0.9)


@pytest.mark.slow
def test_a_simulator_that_fails_costs_no_training(log, tmp_path):
    """It fails in the second evaluation, after 40 steps; the checkpoint is of when that was noticed."""
    settings: dict[str, Any] = SHORT | {"checkpoint_interval": 1000}
    with pytest.raises(UhmError, match=r"ArithmeticError: enough .* steps until then are saved, .*resume"):
        train("rebrac-dagger", str(log), run=tmp_path / "run", env="line_module:Tired-v0", **settings)
    assert int(load_run(tmp_path / "run").state.step) in (50, 60)
    (tmp_path / "run" / "config.json").write_text(
        (tmp_path / "run" / "config.json").read_text().replace("Tired-v0", "Line-v0")
    )
    summary = resume(tmp_path / "run")
    assert summary["steps"] == 60 and summary["members"][0]["evaluations"][-1]["step"] == 60


def test_pictures_are_bytes_in_three_colours():
    clear = np.arange(4 * 4 * 4, dtype=np.uint8).reshape(4, 4, 4)
    np.testing.assert_array_equal(picture(clear), clear[:, :, :3])
    np.testing.assert_array_equal(picture(clear[:, :, :3]), clear[:, :, :3])
    for other, about in ((clear / 255, "float64 of shape"), (clear[0], "uint8 of shape"), (None, "NoneType")):
        with pytest.raises(UhmError, match=rf"gives no picture of bytes in three colours, but {about}"):
            picture(other)


def test_an_environment_without_a_limit_is_cut_and_says_so():
    with pytest.warns(UserWarning, match="line_module:Silent-v0 sets no limit: its episodes are cut after 1000 steps"):
        Simulator("line_module:Silent-v0", 1, 1).check()
    assert Simulator("line_module:Silent-v0", 1, 1).make().limit == 1000


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("CartPole-v1", (4, 1), r"actions are Discrete\(2\), and must be a box of numbers"),
        ("Pendulum-v1", (4, 1), "observations have 3 numbers, those of the logs 4"),
        ("Pendulum-v1", (3, 2), "actions have 1 numbers, those of the logs 2"),
        ("Nothing-v9", (1, 1), r"cannot make the environment 'Nothing-v9': .*if a module of yours .* MODULE:ID"),
        ("line_module:Unborn-v0", (1, 1), r"Unborn-v0': KeyError: 'no such map' \(line_module\.py, line \d+\)\.$"),
        ("no_such_module:X-v0", (1, 1), "cannot make the environment 'no_such_module:X-v0': .*no_such_module"),
    ],
)
def test_other_simulators_are_refused(name, sizes, message):
    with pytest.raises(UhmError, match=message) as refused:
        Simulator(name, *sizes).check()
    assert ("MODULE:ID" in str(refused.value)) == (name == "Nothing-v9")  # a name with a module has it already


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Logs in which every action is 1/2."""
    x = np.random.default_rng(0).uniform(0, 3, (60, 1))
    ends = np.arange(60) % 10 == 9
    path = tmp_path_factory.mktemp("logs") / "log.npz"
    columns = {"observations": x, "actions": np.full((60, 1), 0.5), "rewards": np.ones(60), "terminals": ends}
    np.savez(path, allow_pickle=False, **columns)
    return path


@pytest.fixture(scope="module")
def run(log, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    train("rebrac-dagger", str(log), run=directory, env=LINE, alpha=[10.0, 20.0], **SHORT)
    return directory


@pytest.mark.slow
def test_training_evaluates_and_is_rated_by_returns(run):
    summary = json.loads((run / "summary.json").read_text())
    records = lines(run / "episodes.jsonl")
    assert len(records) == 2 * 3 * 2
    for index, member in enumerate(summary["members"]):
        assert [found["step"] for found in member["evaluations"]] == [20, 40, 60]
        for found in member["evaluations"]:
            mine = [one for one in records if (one["member"], one["step"]) == (index, found["step"])]
            assert found["return"] == pytest.approx(np.mean([one["return"] for one in mine]))
            assert found["value"] == pytest.approx(np.mean([one["value"] for one in mine]))
            assert found["success"] == np.mean([one["success"] for one in mine])
        assert member["score"] == pytest.approx(np.mean([found["return"] for found in member["evaluations"]]))
    assert load_run(run).plan.env == LINE


@pytest.mark.slow
def test_the_best_checkpoint_is_the_one_of_the_highest_return(run, tmp_path):
    """What the simulator said is changed so that the second was best, while success grew to the end."""
    file = shutil.copytree(run, tmp_path / "run") / "episodes.jsonl"
    records = [one | {"return": 9.0 if one["step"] == 40 else 1.0, "success": one["step"] / 60} for one in lines(file)]
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    assert int(load_run(tmp_path / "run", "best").state.step) == 40
    assert int(load_run(tmp_path / "run").state.step) == 60


@pytest.mark.slow
def test_an_interrupted_run_is_the_same_run(run, tmp_path):
    again = shutil.copytree(run, tmp_path / "run")
    (again / "summary.json").unlink()
    for step in (40, 60):
        shutil.rmtree(again / "checkpoints" / str(step))
    resume(again)
    assert outcome(again) == outcome(run)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:line_module.Silent-v0 sets no limit")
def test_the_verb_makes_the_very_episodes_of_training(run, capsys):
    assert cli.run(["eval", str(run), "--episodes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulator"] == LINE
    trained = json.loads((run / "summary.json").read_text())["members"]
    for member, other in zip(found["members"], trained, strict=True):
        last = other["evaluations"][-1]
        assert {name: member[name] for name in last if name != "step"} == pytest.approx(
            {name: value for name, value in last.items() if name != "step"}
        )
        assert member["hyper"]["alpha"] == other["hyper"]["alpha"]
        assert len(member["episodes"]) == 2
    assert cli.run(["eval", str(run), "--env", "line_module:Silent-v0", "--episodes", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rebrac-dagger on log: 1 episodes in line_module:Silent-v0 at step 60; discounted return" in said
    assert "success" not in said and "obtained" in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:line_module.Silent-v0")
def test_films(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    assert cli.run(["eval", str(copy), "--episodes", "1", "--video", "--json"]) == 0
    films = [Path(name) for name in json.loads(capsys.readouterr().out)["videos"]]
    assert [film.stem for film in films] == ["log-alpha=10.0-60", "log-alpha=20.0-60"]
    assert all(film.parent == copy / "videos" and film.stat().st_size > 500 for film in films)
    assert cli.run(["eval", str(copy), "--env", "line_module:Silent-v0", "--episodes", "1", "--video"]) == 1
    assert "obtained" in capsys.readouterr().out  # the numbers stand


@pytest.mark.slow
def test_a_film_has_every_step_or_a_reason_why_not(tmp_path):
    """Steps of 2 from below 1/2 are over after two, so there are three pictures."""
    task, act = tasks.logs("log.npz").tasks[0], lambda observation: np.ones(1)
    film = record_video(task, act, tmp_path / "film.mp4", simulator=Simulator(LINE, 1, 1))
    assert imageio_ffmpeg.count_frames_and_secs(str(film)) == (3, pytest.approx(3 / 5))  # five a second, as it says
    for name, why in (
        ("Silent-v0", r"its render\(\) gives no picture .* NoneType"),
        ("No-v0", "cannot make the environment .*"),
    ):
        own = Simulator(f"line_module:{name}", 1, 1)
        with pytest.raises(UhmError, match=rf"{name} cannot be drawn here, so there is no video: {why}\.$"):
            record_video(task, act, tmp_path / "none.mp4", simulator=own)
    with pytest.raises(UhmError, match="the film of line_module:Broken-v0 failed: ArithmeticError nothing is beyond 3"):
        record_video(task, act, tmp_path / "none.mp4", simulator=Simulator("line_module:Broken-v0", 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "Nothing-v9"], "cannot make the environment 'Nothing-v9'"),
        (["--env", "CartPole-v1"], "the environment's observations have 4 numbers, those of the logs 1"),
        (["--env", LINE, "--logs", "x.npz"], "--logs is for judging by logs, without a simulator: leave out --env"),
        (["--fit-steps", "9"], "--fit-steps is for judging by logs, without a simulator: give --logs LOG, or"),
        (["--logs", "LOG", "--episodes", "9"], "--episodes is for simulators, and none is named"),
    ],
)
def test_what_the_verb_refuses(flags, message, run, log, capsys):
    assert cli.run(["eval", str(run), *[flag.replace("LOG", str(log)) for flag in flags]]) == 2
    said = capsys.readouterr()
    assert message.replace("LOG", str(log)) in said.err and said.out == ""
    assert len(said.err.splitlines()) == 1


def test_what_cannot_be_simulated_leaves_no_run_behind(log, tmp_path, capsys):
    for what, env, message in (
        (str(log), "Nothing-v9", "cannot make the environment 'Nothing-v9'"),
        (str(log), "Pendulum-v1", "observations have 3 numbers, those of the logs 1"),
        ("rooms", LINE, "env is for runs on logs: rooms is its own simulator"),
    ):
        assert cli.run(["train", "iql", what, "--env", env, "--run", str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        assert message in said and len(said.splitlines()) == 1
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_shows_returns(log, tmp_path, capsys):
    flags = [part for name, value in SHORT.items() if name != "hidden" for part in (f"--{name}", str(value))]
    flags = [flag.replace("_", "-") for flag in flags] + ["--hidden", "16", "--env", LINE]
    assert cli.run(["train", "rebrac-dagger", str(log), *flags, "--run", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert f"rebrac-dagger on log in {LINE}: mean of the last three evaluations" in said.out
    assert "seed" in said.out and "return" in said.out and "its policy" in said.out
    assert "by the logs: uhm eval" not in said.out
    assert "left  return " in said.err
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert f"evaluated in <code>{LINE}</code>" in page and "nothing was evaluated" not in page
    assert (tmp_path / "run" / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_means_of_the_last_three_evaluations_by_hand():
    found = [{"step": s, "return": r, "value": v} for s, r, v in ((1, 9.0, 1.0), (2, 1.0, None), (3, 2.0, 4.0))]
    assert last_means(found) == {"return": 4.0}
    assert last_means([*found, {"step": 4, "return": 6.0, "value": 5.0}]) == {"return": 3.0}
    assert last_means([*found, *({"step": s, "return": 0.0, "value": 5.0} for s in (4, 5))]) == {
        "return": pytest.approx(2 / 3),
        "value": pytest.approx(14 / 3),
    }


def test_evaluations_are_columns_beside_the_log_by_hand():
    log = [{"step": 1, "q": [0.1, 0.2]}, {"step": 3, "q": [0.3, 0.4]}]
    found = {0: {2: {"return": -1.0}, 3: {"return": -2.0, "success": 1.0}}, 1: {3: {"return": -3.0}}}
    assert beside(log, found, 2) == [
        {"step": 1, "q": [0.1, 0.2]},
        {"step": 2, "return": [-1.0, None]},
        {"step": 3, "q": [0.3, 0.4], "return": [-2.0, -3.0], "success": [1.0, None]},
    ]
    assert log[1] == {"step": 3, "q": [0.3, 0.4]}  # as it was
    # What an agent of one's own logs as `return` is not what it got.
    named = [{"step": step, "return": [9.0, 9.0]} for step in (1, 2)]
    assert beside(named, found, 2)[:2] == [{"step": 1}, {"step": 2, "return": [-1.0, None]}]


@pytest.fixture
def evaluated(tmp_path):
    """A run of two members on logs, evaluated at four steps: -1, -2, -3, -4, the second member ten times that."""
    directory = fake_log_run(tmp_path / "run", "uhm", "mine.npz", lambda *_: {"q_mean": -5.0}, seeds=2, steps=1000)
    config = json.loads((directory / "config.json").read_text()) | {"env": LINE, "eval_episodes": 1}
    (directory / "config.json").write_text(json.dumps(config))
    summary = json.loads((directory / "summary.json").read_text())
    records = []
    for index, member in enumerate(summary["members"]):
        steps = [250, 500, 750, 1000]
        returns = {step: -number * 10.0**index for number, step in enumerate(steps, 1)}
        member["evaluations"] = [{"step": step, "return": value, "value": 1.0} for step, value in returns.items()]
        about = {"task": member["task"], "seed": member["seed"], "episode": 0, "length": 1, "value": 1.0}
        records += [{"member": index, "step": step, "return": value, **about} for step, value in returns.items()]
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return directory


@pytest.mark.parametrize("finished", [True, False])
def test_a_report_has_returns_beside_the_log(evaluated, finished, tmp_path):
    if not finished:
        (evaluated / "summary.json").unlink()
    collected = collect([evaluated])
    assert collected.members == []  # no success of this is in the tables of known tasks
    (log,) = logs.read(collected.runs)
    assert log.metrics == ["return", "q_mean"]
    for index, member in enumerate(log.members):
        assert member.last("return") == pytest.approx(-3.0 * 10.0**index)
        assert member.last("q_mean") == -5.0
        assert not member.diverged
        known = [(step, one) for step, one in zip(member.steps, member.values["return"], strict=True) if one]
        assert known == [(step, -number * 10.0**index) for number, step in enumerate((250, 500, 750, 1000), 1)]
        assert member.hyper["env"] == LINE
    (section,) = sections([log])
    assert section["simulators"] == [LINE]
    curves = {panel.title: panel.curves for panel in logs.charts(log)[0].panels}
    assert curves["return"][0].x == [250.0, 500.0, 750.0, 1000.0]
    report.write([evaluated], tmp_path / "out")
    rows = (tmp_path / "out" / "tables" / "logs.csv").read_text().splitlines()
    head = rows[0].split(",")
    assert [float(row.split(",")[head.index("return")]) for row in rows[1:]] == [-3.0, -30.0]
