"""`uhm eval` of runs on logs without a simulator: the policies are judged by the logs."""

import json
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from small_runs import SMALL, make_data, small_plan, small_run
from uhm import cli
from uhm.cli import eval_logs
from uhm.train import judge as judging
from uhm.train import load_run, train

SETTINGS = {name: value for name, value in SMALL.items() if name != "eval_episodes"}
SETTINGS |= {"steps": 30, "log_interval": 10, "checkpoint_interval": 10}


def write(path, trajectories=6, width=2):
    """Logs of ten rows a trajectory, in each second of which the task ends in the fourth row."""
    rng, rows = np.random.default_rng(0), 10 * trajectories
    masks = np.ones(rows)
    masks[3::20] = 0
    ends = np.arange(rows) % 10 == 9
    own = {"rewards": rng.normal(1, 1, rows), "terminals": ends, "masks": masks}
    observations, actions = rng.normal(size=(rows, width)), rng.uniform(-0.9, 0.9, (rows, 1))
    np.savez(path, allow_pickle=False, observations=observations, actions=actions, **own)
    return path


def returns_in(path, discount):
    """Of every trajectory; the tenth row has no step, and nothing counts after the end."""
    with np.load(path) as file:
        rewards, masks = (file[name].reshape(-1, 10)[:, :9] for name in ("rewards", "masks"))
    goes_on = np.cumprod(np.insert(masks[:, :-1], 0, 1, axis=1), axis=1)
    return (rewards * goes_on * discount ** np.arange(9)).sum(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Logs, others, and runs: of three alphas, of two discounts."""
    folder = tmp_path_factory.mktemp("own")
    log = str(write(folder / "log.npz"))
    with np.load(log) as file:  # the same rows, which pay more
        np.savez(folder / "other.npz", allow_pickle=False, **{**file, "rewards": file["rewards"] + 1})
    train("rebrac-dagger", log, run=folder / "run", alpha=[0.1, 1.0, 10.0], discount=0.9, **SETTINGS)
    train("iql", log, run=folder / "two", discount=[0.9, 0.95], **SETTINGS)
    return folder


def said(capsys, *arguments, status=0):
    """What `uhm eval` says, on both channels; so short a fit has not settled, and is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.run(["eval", *map(str, arguments)]) == status
    return capsys.readouterr()


def reported(capsys, *arguments):
    return json.loads(said(capsys, *arguments, "--json").out)


def test_members_are_judged_by_what_they_learned_from(folder, capsys):
    report = reported(capsys, folder / "run", "--fit-steps", 20)
    assert [member["hyper"]["alpha"] for member in report["members"]] == [0.1, 1.0, 10.0]
    assert (report["agent"], report["step"], report["fit_steps"], report["logs"]) == (
        *("rebrac-dagger", 30, 20),
        str(folder / "log.npz"),
    )
    lowest = [member["fitted"] - member["spread"] for member in report["members"]]
    assert report["best"] == int(np.argmax(lowest))
    (stored,) = report["stored"]
    returns = returns_in(folder / "log.npz", 0.9)
    assert stored["mean"] == pytest.approx(returns.mean(), rel=1e-5)
    assert stored["standard_error"] == pytest.approx(returns.std(ddof=1) / np.sqrt(6), rel=1e-5)
    assert (stored["trajectories"], stored["cut"], stored["discount"]) == (6, 3, 0.9)
    starts = np.load(folder / "log.npz")["observations"][::10]
    expected = np.mean(load_run(folder / "run").value(2)(starts))
    assert report["members"][2]["expected"] == pytest.approx(float(expected), rel=1e-4)


def test_the_table(folder, capsys):
    report = reported(capsys, folder / "run", "--fit-steps", 20)
    told = said(capsys, folder / "run", "--fit-steps", 20)
    rows = [line.split() for line in told.out.splitlines() if line.strip().startswith(("0 ", "1 ", "2 "))]
    for place, (row, member) in enumerate(zip(rows, report["members"], strict=True)):
        numbers = [f"{member[name]:.5g}" for name in ("expected", "fitted", "spread", "apart")]
        mark = ["best"] if place == report["best"] else []
        assert row == [str(place), "0", ("0.1", "1", "10")[place], *numbers, *mark]
    stored, best = report["stored"][0], report["best"]
    assert f"the logs' own: {stored['mean']:.5g} ± {stored['standard_error']:.2g} over 6 trajectories" in told.out
    assert "3 of them are cut before the task ends" in told.out
    assert (
        f"load_run({str(folder / 'run')!r}).policy({best}), or uhm export {folder / 'run'} --member {best}" in told.out
    )
    assert "judged by log: discounted return" in told.out
    earlier = said(capsys, folder / "run", "--fit-steps", 5, "--step", 20).out
    assert ", 20).policy(" in earlier and " --step 20" in earlier


@pytest.mark.slow
def test_other_logs_and_another_discount(folder, capsys):
    """None is taken for a fit that was made before."""
    run, log, other = (folder / name for name in ("run", "log.npz", "other.npz"))
    for logs, discount in ((log, 0.9), (other, 0.9), (other, 0.5)):
        report = reported(capsys, run, "--fit-steps", 5, "--logs", logs, "--discount", discount)
        assert report["logs"] == str(logs)
        assert {member["discount"] for member in report["members"]} == {discount}
        (stored,) = report["stored"]
        assert stored["discount"] == discount
        assert stored["mean"] == pytest.approx(returns_in(logs, discount).mean(), rel=1e-5)


@pytest.mark.slow
def test_members_with_other_discounts_are_not_compared(folder, capsys):
    told = said(capsys, folder / "two", "--fit-steps", 5)
    assert "members discount differently, so their values cannot be compared: give --discount for all." in told.out
    assert "best" not in told.out
    assert told.out.count("the logs' own") == 2
    told = said(capsys, folder / "two", "--fit-steps", 5, "--discount", 0.9)
    assert "highest less its spread: member" in told.out
    assert reported(capsys, folder / "two", "--fit-steps", 5)["best"] is None


@pytest.mark.slow
def test_ctrl_c_and_again(folder, capsys, monkeypatch):
    usual = judging.advance

    def stopping(*arguments):
        signal.raise_signal(signal.SIGINT)
        return usual(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(judging, "advance", stopping)
        told = said(capsys, folder / "run", "--fit-steps", 30, "--discount", 0.7, status=130)
    assert told.out == ""
    assert "uhm: stopped at step 3 of 30, all saved: the same command goes on.\n" in told.err
    again = reported(capsys, folder / "run", "--fit-steps", 30, "--discount", 0.7)
    monkeypatch.setattr(judging, "advance", None)  # nothing is left to do
    assert reported(capsys, folder / "run", "--fit-steps", 30, "--discount", 0.7) == again


@pytest.mark.slow
def test_an_agent_of_ones_own_needs_neither_a_discount_nor_a_value(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent.parent / "docs" / "examples")])
    log, own = str(folder / "log.npz"), {"steps": 10, "hidden": (8,), "log_interval": 10}
    train("module:bc", log, run=folder / "bc", seeds=2, **own)
    told = said(capsys, folder / "bc", status=2)
    assert told.err == "uhm: module:bc has no discount of its own: give --discount.\n"
    members = reported(capsys, folder / "bc", "--fit-steps", 5, "--discount", 0.5)["members"]
    assert all("expected" not in member and member["fitted"] is not None for member in members)
    told = said(capsys, folder / "bc", "--fit-steps", 5, "--discount", 0.5)
    assert told.out.splitlines()[1].split() == ["member", "seed", "fitted", "spread", "apart"]


def report_of(numbers, **changes):
    """What `judge` says, in numbers chosen here: fitted, spread, and by how much it moved."""
    members = [
        {"task": "t", "seed": 0, "hyper": {"alpha": alpha}, "discount": 0.9, "diverged": False, "critics": None}
        | {"fitted": fitted, "spread": spread, "apart": 0.25, "moved": moved}
        for alpha, (fitted, spread, moved) in zip((0.1, 1.0, 10.0), numbers, strict=True)
    ]
    stored = [{"task": "t", "discount": 0.9, "mean": 1.0, "standard_error": None, "trajectories": 1, "cut": 1}]
    return {"agent": "mine", "step": 30, "fit_steps": 7, "stored": stored, "members": members, **changes}


def test_what_has_not_settled_or_diverged_is_said(folder, capsys, monkeypatch):
    report = report_of([(5.0, 1.0, 0.04), (6.0, 0.5, 0.06), (None, None, None)])
    monkeypatch.setattr(judging, "judge", lambda *_, **__: report)
    told = said(capsys, folder / "run")
    assert "warning: the estimates of member 1 still moved by more than 5% over the last fifth of the steps" in told.err
    assert "give --fit-steps more than 7, and doubt what never settles." in told.err
    rows = [line.split() for line in told.out.splitlines()[2:5]]
    assert rows == [
        ["0", "0", "0.1", "5", "1", "0.25"],
        ["1", "0", "1", "6", "0.5", "0.25", "best"],
        ["2", "0", "10", "0.25", "fit", "diverged"],
    ]
    assert "the logs' own: 1 over 1 trajectories (discount 0.9); all of them are cut" in told.out
    report["members"] = [member | {"diverged": True, "moved": 0.0} for member in report["members"]]
    told = said(capsys, folder / "run")
    assert "no member is left to choose: all diverged." in told.out
    assert told.out.count("diverged") == 4
    assert "warning" not in told.err


def test_flags_that_do_not_fit(folder, capsys, tmp_path, monkeypatch):
    write(tmp_path / "wide.npz", width=3)
    for flags, message in (
        (["--episodes", 5], "--episodes is for simulators, and none is named: leave it out, or give --env."),
        (["--seed", 5], "--seed is for simulators"),
        (["--video"], "--video is for simulators, and none is named"),
        (["--fit-steps", 0], "--fit-steps is 0, and must be at least 1"),
        (["--discount", 1], "--discount is 1, and must be in (0, 1)"),
        (["--logs", "cube"], "--logs is 'cube', and must be FILE.npz or minari:NAME"),
        (["--logs", tmp_path / "none.npz"], "no such file"),
        (["--logs", tmp_path / "wide.npz"], "observations of these logs have 3 numbers, those of the run 2"),
    ):
        told = said(capsys, folder / "run", *flags, status=2)
        assert message in told.err
        assert (told.out, len(told.err.splitlines())) == ("", 1)


def test_a_known_task_has_a_simulator(tmp_path, capsys):
    small_run(tmp_path / "run", small_plan(make_data(tmp_path / "data"), steps=10))
    for flags in (["--logs", "log.npz"], ["--fit-steps", 5], ["--discount", 0.5]):
        told = said(capsys, tmp_path / "run", *flags, status=2)
        assert told.err == f"uhm: {flags[0]} is for runs on logs: {tmp_path / 'run'} is evaluated in rooms.\n"


def test_minari_has_one_too_unless_logs_are_named(folder, capsys, monkeypatch):
    """A run that claims to have learned from Minari: which way it goes."""
    restored, went = load_run(folder / "run"), []
    plan = type(restored.plan)(**{**vars(restored.plan), "tasks": ("minari:a/b-v0",)})
    monkeypatch.setattr("uhm.train.load_run", lambda *_: restored._replace(plan=plan))
    monkeypatch.setattr("uhm.cli.eval.Eval._in", lambda *_: went.append("simulator") or 0)
    monkeypatch.setattr(eval_logs, "evaluate", lambda *_: went.append("logs") or 0)
    said(capsys, "run")
    said(capsys, "run", "--logs", "log.npz")
    said(capsys, "run", "--env", "Pendulum-v1")
    assert went == ["simulator", "logs", "simulator"]
    told = said(capsys, "run", "--fit-steps", 5, status=2)
    assert (
        "--fit-steps is for judging by logs, without a simulator: give --logs minari:a/b-v0, or leave it out"
        in told.err
    )
