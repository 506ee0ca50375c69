"""What is shown of a run: the table at its end, and lines where nobody watches a bar."""

import time

import pytest
from rich.console import Console

from uhm.data import generate
from uhm.population import grid
from uhm.train import progress


def rows(agent, members, scores, **more):
    console = Console(width=200)
    with console.capture() as said:
        console.print(progress.table(agent, members, scores, [True] * len(members), **more))
    return [line.split() for line in said.get().splitlines()[1:]]


def test_a_table_of_seeds_by_hand():
    """Seeds 0 and 1 of two tasks: 100 and 50 %, 0 and 0 %; the standard deviation of the first is 25 times root 2."""
    members = grid(("rooms-task1", "rooms-task2"), [0, 1], {})
    assert rows("uhm", members, dict(enumerate([1.0, 0.5, 0.0, 0.0]))) == [
        ["task", "mean", "std", "members", "paper"],
        ["rooms-task1", "75.0", "35.4", "2", "-"],
        ["rooms-task2", "0.0", "0.0", "2", "-"],
        ["mean", "37.5", "4"],
    ]


def test_other_hyperparameters_are_other_methods():
    """No mean is taken over them, and they are not the paper's."""
    members = grid(("cube-double-play-task1", "cube-double-play-task2"), [0], {"alpha": [0.1, 1000.0]})
    scores = {index: 1.0 if dict(member.hyper)["alpha"] == 0.1 else 0.0 for index, member in enumerate(members)}
    found = rows("uhm", members, scores, more={"obtained": {index: float(index) for index in scores}})
    assert found == [
        ["task", "setting", "mean", "std", "members", "paper", "obtained"],
        ["cube-double-play-task1", "alpha=0.1", "100.0", "-", "1", "-", "0.0"],
        ["cube-double-play-task1", "alpha=1000", "0.0", "-", "1", "-", "1.0"],
        ["cube-double-play-task2", "alpha=0.1", "100.0", "-", "1", "-", "2.0"],
        ["cube-double-play-task2", "alpha=1000", "0.0", "-", "1", "-", "3.0"],
        ["mean", "alpha=0.1", "100.0", "2"],
        ["mean", "alpha=1000", "0.0", "2"],
    ]


def test_the_paper_is_beside_its_own_setting():
    (member,) = grid(("cube-double-play-task1",), [0], {})
    assert rows("uhm", [member], {0: 0.5})[1] == ["cube-double-play-task1", "50.0", "-", "1", "44"]


def test_a_log_gets_a_line_for_every_tenth(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Four chunks of 25 steps, a minute each after the first: 75, 50 and 25 steps are left."""
    now = iter((1000.0, 1060.0, 1120.0, 1180.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with progress.bar("uhm rooms", 5, 100, 0, True) as update:
        update(25, "")
        update(50, "task1 50%  task2 0%")
        update(75, "task1 100%  task2 0%")
        update(100, "task1 100%  task2 100%")
    assert capsys.readouterr().err.splitlines() == [
        "uhm rooms: step 25 of 100",
        "uhm rooms: step 50 of 100, 0:02:00 left  task1 50%  task2 0%",
        "uhm rooms: step 75 of 100, 0:01:00 left  task1 100%  task2 0%",
        "uhm rooms: step 100 of 100  task1 100%  task2 100%",
    ]


def test_an_evaluation_in_a_few_words():
    """Success is the mean of the task's seeds, a return that of all members."""
    members = grid(("rooms-task1", "rooms-task2"), [0, 1], {})
    assert progress.latest(members, dict(enumerate([1.0, 0.5, 0.0, 0.0])), "success") == "task1 75%  task2 0%"
    members = grid(("log.npz",), [0, 1], {})
    assert progress.latest(members, {0: -1000.0, 1: -2001.0}, "return") == "return -1500"
    assert progress.latest(members, {}, "return") == progress.latest(members, {}, "success") == ""


def test_a_table_of_returns_has_what_is_known():
    members = grid(("log.npz",), [0], {"alpha": [0.1, 3.0]})
    means = [{"return": -12.3456789, "success": 0.5, "value": 2.0}, {"return": 1e6, "discounted": 3.0}]
    console = Console(width=200)
    with console.capture() as said:
        console.print(progress.returns("what it is", members, means, [True, False]))
    assert [line.split() for line in said.get().splitlines()] == [
        ["what", "it", "is"],
        ["seed", "alpha", "return", "success", "expected", "obtained"],
        ["0", "0.1", "-12.346", "0.5", "2"],
        ["0", "3", "1e+06", "3"],
        ["1", "of", "2", "members", "diverged", "and", "were", "frozen"],
    ]


def test_lines_are_few_and_a_resumed_run_goes_on_with_them(capsys: pytest.CaptureFixture[str]):
    with progress.bar("a", 1, 1000, 450, True) as update:
        for step in range(451, 1001):
            update(step, "")
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in said] == ["500", "600", "700", "800", "900", "1,000"]
    with progress.bar("a", 1, 1000, 0, False) as update:
        update(1000, "")
    assert capsys.readouterr().err == ""


def test_so_does_one_of_data_that_are_made(capsys: pytest.CaptureFixture[str]):
    setup = {"environment": {"name": "scene-play"}, "rows": 1001}
    with generate._progress_bar(setup, 40, 30, True) as advance:
        for _ in range(10):
            advance()
    said = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in said] == [f"scene-play: episode {done} of 40" for done in (32, 36, 40)]
    with generate._progress_bar(setup, 40, 30, False) as advance:
        advance()
    assert capsys.readouterr().err == ""
