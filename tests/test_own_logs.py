"""Training on logs of one's own: what is learned is what would be learned if they were a known task's."""

import shutil
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_runs import SMALL, lines, make_data
from uhm import cli, population, tasks
from uhm.data import load
from uhm.errors import UhmError
from uhm.train import load_run, resolve, resume, train

SHORT: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "eval_episodes"}
SHORT |= {"seeds": 1, "steps": 40, "log_interval": 10, "checkpoint_interval": 20}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def log(data, tmp_path_factory):
    """The rows of a task as logs that have its name, which is what its members' randomness depends on."""
    rows = load("rooms-task3", data_dir=data, placement="host")
    columns = {name: np.asarray(getattr(rows, name)) for name in ("observations", "actions")}
    ends = np.asarray(rows.last) == np.arange(len(rows.last))
    path = tmp_path_factory.mktemp("logs") / "rooms-task3.npz"
    own = {"rewards": np.asarray(rows.rewards[0], np.float32), "masks": np.asarray(rows.masks[0])}
    np.savez(path, allow_pickle=False, **columns, **own, terminals=ends)
    return path


@pytest.fixture(scope="module")
def finished(log, tmp_path_factory):
    run = tmp_path_factory.mktemp("own") / "run"
    train("uhm", str(log), run=run, alpha=[0.1, 0.3], **SHORT)
    return run


@pytest.mark.parametrize("agent", ["uhm", pytest.param("mopo", marks=pytest.mark.slow)])
def test_logs_teach_what_the_same_rows_of_a_known_task_teach(data, log, agent, tmp_path):
    # How rare ends are is counted over all tasks of a known environment, so it is not left to the data here.
    own: dict[str, Any] = {"flag_std": 0.3} if agent == "uhm" else {}
    known = resolve(agent, "rooms-task3", data_dir=str(data), **SHORT, **own)
    same = {**known.config, **{name: value for name, value in known.hyper.items() if name != "steps"}}
    summaries = [
        train(agent, what, run=tmp_path / str(number), data_dir=str(data), normalise=False, **{**same, **SHORT})
        for number, what in enumerate(("rooms-task3", str(log)))
    ]
    digests = [summary["members"][0]["params_sha256"] for summary in summaries]
    assert digests[0] == digests[1]
    assert summaries[1]["members"][0]["score"] is None
    assert summaries[1]["members"][0]["evaluations"] == []


def test_a_run_has_all_but_episodes(finished):
    assert [line["step"] for line in lines(finished / "metrics.jsonl")] == [10, 20, 30, 40]
    assert not (finished / "episodes.jsonl").exists()
    assert resolve("uhm", "here/mine.npz").environment.title == "mine"


def test_resumed_elsewhere_it_is_the_same(finished, log, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "40")
    again, whole = resume(run), resume(finished)
    assert [m["params_sha256"] for m in again["members"]] == [m["params_sha256"] for m in whole["members"]]


@pytest.mark.slow
def test_the_folder_of_a_file_does_not_matter(log, finished, tmp_path):
    elsewhere = shutil.copy(log, tmp_path)
    summary = train("uhm", elsewhere, run=tmp_path / "run", alpha=[0.1, 0.3], **SHORT)
    assert [m["params_sha256"] for m in summary["members"]] == [m["params_sha256"] for m in resume(finished)["members"]]


def test_policies_of_a_run(finished):
    run = load_run(finished)
    rows = np.array([[0.1, -0.2], [0.5, 0.5], [-0.7, 0.2]])
    first, second = (np.asarray(run.policy(member)(rows)) for member in (0, 1))
    everyone = population.act(
        run.agent, run.state.state, jnp.stack([rows, rows]).astype(jnp.float32), jax.random.key(0)
    )
    np.testing.assert_allclose([first, second], everyone, rtol=1e-5, atol=1e-6)  # uhm's does not draw
    assert (first != second).all()
    assert run.agent.value is not None
    everyone = jax.vmap(run.agent.value, (0, None, None))(
        run.state.state, jnp.asarray(rows, jnp.float32), jax.random.key(0)
    )
    np.testing.assert_allclose([run.value(member)(rows) for member in (0, 1)], everyone, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.policy()(rows[1].tolist()), first[1], rtol=1e-5)
    with pytest.raises(UhmError, match="member is 2, and must be 0 to 1"):
        run.policy(2)
    with pytest.raises(UhmError, match="observations have 3 numbers, and those of this run have not"):
        run.policy()(np.zeros(3))
    for wrong in ("hello", [[1.0, 2.0], [3.0]]):
        with pytest.raises(UhmError, match="observations must be numbers, one row or a batch of rows"):
            run.policy()(wrong)
    with pytest.raises(UhmError, match=r"shape \(1, 3, 2\), and must be one row or a batch"):
        run.policy()(rows[None])


def test_a_policy_that_draws_draws_anew(log, tmp_path):
    train("fql", str(log), run=tmp_path / "run", **SHORT)
    policy, again = (load_run(tmp_path / "run").policy() for _ in range(2))
    drawn = [np.asarray(policy([0.1, 0.2])) for _ in range(2)]
    assert (drawn[0] != drawn[1]).any()
    np.testing.assert_array_equal(again([0.1, 0.2]), drawn[0])


def test_nobody_learned(log, tmp_path, capsys):
    """Then the command fails, offers no policy, and says it of a policy that is asked for nevertheless."""
    run = tmp_path / "run"
    flags = ("--steps", "20", "--hidden", "8", "--learning-rate", "1e30", "--log-interval", "10")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("error", message=".*NaN.*")
        assert cli.run(["train", "rebrac-dagger", str(log), *flags, "--run", str(run)]) == 1
    said = capsys.readouterr()
    assert "its policy" not in said.out
    assert "diverged before step 10 and was frozen." in said.err
    assert "uhm: all members diverged: look at the data" in said.err
    with pytest.warns(UserWarning, match="member 0 diverged: these are its networks from before"):
        load_run(run).policy()


def test_the_command_says_how_to_get_actions(log, tmp_path, capsys):
    flags = [part for name, value in SHORT.items() if name != "hidden" for part in (f"--{name}", str(value))]
    flags = [flag.replace("_", "-") for flag in flags]
    assert cli.run(["train", "uhm", str(log), "--hidden", "16", *flags, "--run", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "40 steps of 1 members" in said
    assert f"load_run({str(tmp_path / 'run')!r}).policy()" in said
    assert f"what it is worth, by the logs: uhm eval {tmp_path / 'run'}\n" in said
    assert (tmp_path / "run" / "picture.png").read_bytes()[:4] == b"\x89PNG"
    assert said.endswith(f"page: {tmp_path / 'run' / 'report' / 'report.html'}\n")
    assert "Own logs" in (tmp_path / "run" / "report" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "RUN", "--logs", "rooms"], "--logs is 'rooms', and must be FILE.npz or minari:NAME"),
        (["imagine", "RUN"], "imagine can draw the states of known environments only"),
        (["train", "uhm", "OUT/nowhere.npz"], "nowhere.npz: no such file"),
        (["train", "uhm", "LOG", "--transitions", "9"], "transitions and dataset are for OGBench's environments"),
        (["train", "uhm", "LOG", "--eval-episodes", "9"], "leave out eval_interval and eval_episodes"),
        (["train", "uhm", "LOG", "rooms"], "one population trains on one environment"),
        (["suite", "plan", "LOG"], "unknown task or environment"),
        (["data", "make", "LOG"], "unknown task or environment"),
    ],
)
def test_what_cannot_be_done_with_logs_is_one_line(arguments, message, finished, log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, path in (("RUN", finished), ("LOG", log), ("OUT", tmp_path / "out")):
        arguments = [argument.replace(name, str(path)) for argument in arguments]
    assert cli.run(arguments) == 2
    said = capsys.readouterr().err
    assert message.replace("RUN", str(finished)) in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_names_of_logs():
    assert tasks.task("minari:a/b-v0").name == "minari:a/b-v0"
    assert tasks.task("minari:a/b-v0").environment.title == "a-b-v0"
    assert tasks.task("cube-double-play-task2").environment.title == "cube-double-play"
    assert tasks.task("/x/y.npz").environment.tasks == (tasks.task("/x/y.npz"),)


def test_logs_that_are_too_short_leave_no_run_behind(log, tmp_path):
    with pytest.raises(UhmError, match="no trajectory has 1000 transitions: take fewer at once"):
        train("mac", str(log), run=tmp_path / "run", chunk=1000, hidden=(8,), steps=4)
    assert not (tmp_path / "run").exists()
