"""Policies of a run, judged by logs: what is reported, fits that are stopped and resumed, and which member is best."""

import signal
from typing import Any

import numpy as np
import pytest

from small_runs import lines, make_data, small_plan, small_run
from toys import random_data
from uhm import population, tasks
from uhm.data import load
from uhm.errors import UhmError
from uhm.evaluate import fitted
from uhm.runs.files import read_json
from uhm.train import judge as judging
from uhm.train import load_run
from uhm.train.judge import best, judge


def _none(*_: Any) -> Any:
    raise AssertionError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    small_run(folder / "run", small_plan(make_data(folder / "data"), alpha=[0.1, 10.0], steps=20))
    return folder


@pytest.fixture(scope="module")
def given(run):
    """What is judged, and by what. The data are of all five tasks, the run of the first two."""
    return load_run(run / "run"), load("rooms", data_dir=run / "data")


def judged(given, where, **settings: Any):
    restored, data = given
    return judge(restored, data, where, **settings)


@pytest.fixture(scope="module")
def whole(given, run):
    """A fit that nobody stopped, and where it is."""
    return judged(given, run / "whole", steps=40), run / "whole"


def folder_of(where):
    (folder,) = (where / "fitted").iterdir()
    return folder


def learned_in(where):
    """The digest of all that a fit learned, and what it logged."""
    folder = folder_of(where)
    log = [
        {name: value for name, value in line.items() if name != "seconds"} for line in lines(folder / "metrics.jsonl")
    ]
    return read_json(folder / "checkpoints" / "40" / "manifest.json")["sha256"], log


def untimed(report):
    return {name: value for name, value in report.items() if name != "wall_time"}


def test_a_report(given, whole):
    (restored, data), (report, where) = given, whole
    assert [(m["task"], m["hyper"]["alpha"]) for m in report["members"]] == [
        (f"rooms-task{task}", alpha) for task in (1, 2) for alpha in (0.1, 10.0)
    ]
    assert [stored["task"] for stored in report["stored"]] == ["rooms-task1", "rooms-task2"]
    starts = np.asarray(data.observations)[fitted.first_rows(data)]
    for index, member in enumerate(report["members"]):
        assert member["expected"] == pytest.approx(float(np.mean(restored.value(index)(starts))), rel=1e-4)
        assert member["fitted"] == pytest.approx(np.mean(member["critics"]), rel=1e-5)
        assert member["spread"] == pytest.approx(np.std(member["critics"], ddof=1), rel=1e-3)
        assert member["discount"] == 0.98
        rows = np.asarray(data.starts)[:: -(-data.size // 4096)]
        apart = np.asarray(restored.policy(index)(data.observations[rows])) - np.asarray(data.actions)[rows]
        assert member["apart"] == pytest.approx(np.sqrt(np.square(apart).mean()), rel=1e-4)
    logged = lines(folder_of(where) / "metrics.jsonl")
    assert [line["step"] for line in logged] == list(range(4, 44, 4))
    assert logged[-1]["fitted"] == pytest.approx([member["fitted"] for member in report["members"]])
    for index, member in enumerate(report["members"]):  # since step 32 of 40
        moved = max(abs(member[name] - logged[7][name][index]) for name in ("fitted", "spread"))
        size = max(abs(member["fitted"]), fitted.unit(data, index // 2, 0.98) / 10)
        assert member["moved"] == pytest.approx(moved / size, rel=1e-4)


@pytest.mark.slow
def test_stopped_and_resumed_it_is_the_same_fit(given, whole, monkeypatch, tmp_path):
    usual, calls = judging.advance, []

    def stopping(*arguments):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return usual(*arguments)

    monkeypatch.setattr(judging, "advance", stopping)
    with pytest.raises(KeyboardInterrupt, match=r"stopped at step 12 of 40, all saved: the same command goes on\."):
        judged(given, tmp_path, steps=40)
    report = judged(given, tmp_path, steps=40)
    assert len(calls) == 3 + 7
    assert learned_in(tmp_path) == learned_in(whole[1])
    assert untimed(report) == untimed(whole[0])


def test_a_finished_fit_is_only_read(given, whole, monkeypatch):
    report, where = whole
    monkeypatch.setattr(judging, "advance", _none)
    monkeypatch.setattr(population, "init", _none)
    for steps in (40, 30):  # more than asked for is no less
        assert judged(given, where, steps=steps) == report


@pytest.mark.slow
def test_with_more_steps_a_finished_fit_goes_on(given, whole, tmp_path):
    assert judged(given, tmp_path, steps=20)["fit_steps"] == 20
    assert [line["step"] for line in lines(folder_of(tmp_path) / "metrics.jsonl")] == list(range(2, 22, 2))
    report = judged(given, tmp_path, steps=40)
    assert [line["step"] for line in lines(folder_of(tmp_path) / "metrics.jsonl")][10:] == list(range(24, 44, 4))
    for ours, theirs in zip(report["members"], whole[0]["members"], strict=True):
        np.testing.assert_allclose(ours["critics"], theirs["critics"], rtol=1e-3)


@pytest.mark.slow
def test_what_makes_another_fit(given, whole, tmp_path):
    """Another discount, other start states: each in a folder of its own."""
    restored, data = given
    other = judge(restored, data, tmp_path, steps=10, discount=0.5)
    assert {member["discount"] for member in other["members"]} == {0.5}
    assert {stored["discount"] for stored in other["stored"]} == {0.5}
    assert other["stored"][0]["mean"] == pytest.approx(fitted.stored(data, 0, 0.5).mean)
    starts = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None, None], (4, 3, 2))
    there = judge(restored, data, tmp_path, steps=10, starts=starts)
    assert len(list((tmp_path / "fitted").iterdir())) == 2
    for index, member in enumerate(there["members"]):
        assert member["expected"] == pytest.approx(float(restored.value(index)([float(index)] * 2)), rel=1e-4)


@pytest.mark.slow
def test_data_on_the_host_teach_the_same(given, run, whole, tmp_path):
    restored, _ = given
    report = judge(restored, load("rooms", data_dir=run / "data", placement="host"), tmp_path, steps=40)
    for ours, theirs in zip(report["members"], whole[0]["members"], strict=True):
        np.testing.assert_allclose(ours["critics"], theirs["critics"], rtol=1e-3)


def test_what_cannot_be_judged(given, run, tmp_path):
    restored, data = given
    others = load([tasks.task(f"rooms-task{number}") for number in (2, 1)], data_dir=run / "data")
    for what, settings, message in (
        (random_data(), {}, "observations of these logs have 3 numbers, those of the run 2"),
        (data, {"discount": 1.0}, r"the discount is 1, and must be in \(0, 1\)"),
        (data, {"steps": 0}, "the steps of the fit are 0"),
        (data, {"critics": 1}, "critics are 1, and must be at least 2"),
        (
            others,
            {},
            r"these data are of rooms-task2, rooms-task1, and the run is of rooms-task1, rooms-task2: load th",
        ),
    ):
        with pytest.raises(UhmError, match=message):
            judged((restored, what), tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_the_best_by_hand():
    """3 - 0.5 is less than 2.9 - 0.1; the highest of all has diverged, and another fit did."""
    numbers = [(3.0, 0.5), (2.9, 0.1), (9.0, 0.0), (None, None)]
    same = {"task": "log", "discount": 0.9, "diverged": False}
    members: list[dict[str, Any]] = [{"fitted": mean, "spread": spread, **same} for mean, spread in numbers]
    members[2]["diverged"] = True
    assert best(members) == 1
    assert best(members[2:]) is None
    members[0]["discount"] = 0.99
    assert best(members) is None
    members[0] |= {"discount": 0.9, "task": "another"}
    assert best(members) is None
