"""What benchmark programs compute, against something known."""

import argparse
import dataclasses
import json
import os
from typing import Any

import jax
import numpy as np
import pytest

from programs import program
from small_runs import make_data
from toys import random_data
from uhm import kernels, population, tasks
from uhm.agents import spec_of
from uhm.agents.horizon_model import HorizonModel
from uhm.data import load
from uhm.data.generate import make
from uhm.errors import UhmError


def test_heldout_scores_by_hand():
    """Samples 0 and 4 of a truth of 1, in units of 2: |X - y| is 0.5 and 1.5, |X - X'| is 2."""
    heldout = program("benchmarks/heldout.py")
    score, nothing, ratio, far = heldout.scores(
        np.array([[[0.0], [4.0]]]), np.array([[1.0]]), np.array([[7.0]]), np.array([2.0])
    )
    assert score == pytest.approx(1.0 - 2.0 / 2)
    assert nothing == pytest.approx(3.0)
    assert ratio == pytest.approx(np.sqrt(2.0 / (0.25 * 2 / 3)))  # variance 2; the mean, 1, is 0.5 off
    assert far == 0.5  # from 7, the truth is 6 away, and the samples 7 and 3


def test_heldout_scores_prefer_the_truth():
    heldout, rng = program("benchmarks/heldout.py"), np.random.default_rng(0)
    truth, start, unit = rng.normal(size=(20_000, 2)), np.zeros((20_000, 2)), np.ones(2)
    draw = lambda width: width * rng.normal(size=(20_000, heldout.DRAWS, 2))  # noqa: E731
    (narrow, _, sure, near), (right, _, fair, tenth), (wide, _, unsure, far) = (
        heldout.scores(draw(width), truth, start, unit) for width in (0.5, 1.0, 2.0)
    )
    assert right < min(narrow, wide) - 0.05
    assert fair == pytest.approx(1.0, abs=0.02)
    assert sure < 0.6
    assert unsure > 1.5
    # Distances are Rayleigh: beyond the root of 2 ln 10 lie a tenth of them, 1e-4 of half, 0.1^(1/4) of twice them.
    assert (near, tenth, far) == pytest.approx((1e-4, 0.1, 0.1**0.25), abs=0.01)


def test_heldout_horizons_are_those_of_the_method():
    """A geometric horizon model teaches itself to go on with probability lam gamma, so that the mean is 1 / (1 - p)."""
    heldout = program("benchmarks/heldout.py")
    assert heldout.horizons(4, 3, 0.8).tolist() == [4, 4, 4]
    found = heldout.horizons(heldout.GEOMETRIC, 100_000, 0.8)
    assert [np.mean(found == n) for n in (1, 2, 5)] == pytest.approx([0.2, 0.16, 0.2 * 0.8**4], abs=0.005)
    assert found.max() == heldout.LONGEST
    assert found.mean() == pytest.approx(5.0, abs=0.05)


def test_presses_by_hand():
    """The middle turns five lights and a corner three, of which they share two: both together turn 5 + 3 - 2 * 2."""
    presses = program("benchmarks/presses.py")
    middle, corner = 1 << 4, 1 << 0
    lights = [int(x).bit_count() for x in presses.lights_of()[[0, middle, corner, middle | corner]]]
    assert lights == [0, 5, 3, 4]
    assert sorted(presses.lights_of()) == list(range(512))  # every change of lights is made by one set
    best = presses.values(2, 0.5)  # two steps a press: 1 + 1/2, and a quarter of what comes after
    assert best[[0, middle, corner]].tolist() == [0, -7.5, -4.5]
    assert best[middle | corner] == -4 * 1.5 - 4.5 / 4  # the middle first, so that three are left and not five


def test_presses_that_are_needed():
    presses = program("benchmarks/presses.py")
    goal = np.zeros(9, bool)
    plus = np.array([0, 1, 0, 1, 1, 1, 0, 1, 0], bool)  # what the middle turns
    assert presses.needed(np.stack([goal, plus]), goal).tolist() == [0, 1 << 4]
    assert presses.needed(goal, plus) == 1 << 4


def test_returns_from_stored_states_by_hand():
    """Two episodes of three steps, gamma 1/2: the first is solved at the second step, the second never."""
    starts = program("benchmarks/stored_starts.py")
    rewards = np.array([[-2.0, -1.0], [-1.0, -1.0], [-9.0, -4.0]])
    found = starts.outcome(rewards, np.array([1, 3]), 0.5)
    assert found.obtained.tolist() == [-2 - 0.5, -1 - 0.5 - 1.0]
    assert found.at_worst.tolist() == [-2.5, -2.5 - (0.5 + 0.25 + 0.125 + 0.125)]  # -4 for ever, from the fourth on
    assert found.solved.tolist() == [True, False]


@pytest.mark.slow
def test_the_simulator_is_put_where_the_data_were(tmp_path):
    """Stored actions lead to the stored rows, and a policy that repeats them is rewarded as the data are."""
    starts, environment = program("benchmarks/stored_starts.py"), tasks.environment("puzzle-3x3-play")
    make(environment, tmp_path, episodes=1, progress=False)
    rows = starts.stored(environment, tmp_path, 4, seed=0)
    made = starts.simulators(environment.tasks[0], 4)
    assert starts.step_error(made[0], rows) < 1e-3
    for env in made:
        env._success = True  # as after an episode that was solved
    rewards, ends = starts.roll(lambda observations: rows.actions, made, rows, 1)
    data = load(environment.tasks[0], data_dir=tmp_path, placement="host")
    found = [np.flatnonzero((np.asarray(data.observations) == row).all(-1))[0] for row in rows.observations]
    np.testing.assert_array_equal(rewards[0], np.asarray(data.rewards)[0][found])
    np.testing.assert_array_equal(ends == 0, ~np.asarray(data.masks)[0][found])


def test_heldout_variants_are_settings():
    heldout = program("benchmarks/heldout.py")
    assert heldout.settings("default") == ({}, {})
    found = heldout.settings(
        "predict=delta,flag_std=1,model_layer_norm=False,flow_steps=2,standardise=True,flag_weight=10"
    )
    assert found.config == {
        "predict": "delta",
        "flag_std": 1.0,
        "model_layer_norm": False,
        "flow_steps": 2,
        "standardise": True,
    }
    assert found.hyper == {"flag_weight": 10.0}
    with pytest.raises(UhmError, match="no setting 'predicts'"):
        heldout.settings("predicts=delta")


def test_heldout_counts_ends(monkeypatch):
    """Of a model whose flag is the first coordinate."""
    heldout, data = program("benchmarks/heldout.py"), random_data()
    monkeypatch.setattr(heldout, "STATES", 2)
    own = heldout.trajectories(data, 2)
    above = lambda threshold: heldout.Variant({}, {"flag_threshold": threshold})  # noqa: E731

    class Sign(HorizonModel):
        def sample(self, key, s, a, n=1, threshold=0.5):
            return s, s[..., 0] > threshold

    made: Any = Sign
    model = jax.jit(lambda key: made(spec_of(data, 2), key, hidden=(8,)))(jax.random.key(0))
    positive = own.rows[own.observations[own.rows, 0] > 0]
    ended = np.zeros(len(own.observations), bool)
    ended[positive] = True
    marked = own._replace(ended=ended)
    unit = np.ones(data.observations.shape[1])
    *_, ends, stored, found, known = heldout.futures(model, marked, marked, unit, 2, above(0.0))
    assert known == 1.0  # states that are marked as ended are those where it says so
    assert ends == 0.0
    alive = own.rows[~ended[own.rows]]
    assert stored == pytest.approx(np.mean(ended[alive] | ended[alive + 1]))
    assert found == 0.0
    *_, known = heldout.futures(model, marked, marked, unit, 2, above(1e9))  # nothing is above it
    assert known == 0.0


def test_growth_changes_one_thing_at_a_time():
    growth = program("benchmarks/growth.py")
    base = growth.bench.Setting(hidden=(8,))
    found = growth.jobs(list(growth.AXES), base, largest=25)
    assert [members for axis, _, _, members, _ in found if axis == "members"] == [1, 2, 5, 10, 25]
    for axis, _, value, members, setting in found:
        if axis == "members":
            assert (members, setting) == (value, base)
        else:
            assert members == growth.MEMBERS
            assert dataclasses.replace(setting, **{axis: getattr(base, axis)}) == base
            assert getattr(setting, axis) == value


def test_a_device_is_full_where_more_agents_hardly_make_one_cheaper():
    growth = program("benchmarks/growth.py")
    point = lambda members, ms: growth.Point("members", "uhm", members, members, ms, 0.0)  # noqa: E731
    assert growth.full_at([point(1, 1.0), point(5, 1.2), point(25, 4.3), point(100, 16.0)]) == 25


def test_growth_draws_what_was_measured(tmp_path):
    growth = program("benchmarks/growth.py")
    points = [growth.Point(axis, "uhm", v, v, 0.1 * v, 0.0)._asdict() for axis in growth.AXES for v in (1, 2, 4)]
    growth.draw({"points": points}, tmp_path / "growth.svg")
    drawn = (tmp_path / "growth.svg").read_text()
    assert all(title in drawn for title in (*growth.TITLES.values(), "full at 1", "ms per step"))


def test_agreement_is_counted_in_what_rounding_does():
    """On the CPU bfloat16 is 0.1 % away from float32, so half a percent is the most that a form may be away."""
    agreement = program("benchmarks/agreement.py")
    of = lambda *values: [{"q_mean": list(values)}]  # noqa: E731
    reference = {"float32": of(-2.0, -4.0), "bfloat16": of(-2.002, -4.004)}
    assert agreement.errors(reference["bfloat16"], reference["float32"], "q_mean") == pytest.approx([1e-3])
    assert agreement.errors(of(-2.0, -4.4, 7.0), reference["float32"], "q_mean") == pytest.approx([0.05])  # as one mean
    for away, fine in ((1.004, True), (1.006, False), (0.996, True), (0.994, False)):
        logged = of(-2.002 * away, -4.004 * away, 7.0)  # members that the reference does not have say nothing
        assert agreement.agrees(logged, reference["bfloat16"], reference) == fine
        alone = agreement.first(reference, 1)  # of a form with one agent
        assert agreement.agrees(of(-2.002 * away), alone["bfloat16"], alone) == fine
    with pytest.raises(AssertionError, match="members that were not trained"):
        agreement.errors(of(-2.0), reference["float32"], "q_mean")


def test_forms_of_an_update_are_as_they_are_called(monkeypatch):
    agreement = program("benchmarks/agreement.py")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    as_usual = population.loop_of(25, True)
    found = {}
    for name, form in agreement.FORMS.items():
        with agreement._in(form):
            found[name] = population.loop_of(form.members, True), os.environ[kernels.VARIABLE]
    assert found["bfloat16"] == (as_usual, "auto")
    assert found["whole"] == (as_usual._replace(halved=False), "auto")
    assert found["not-ahead"] == (as_usual._replace(ahead=False), "auto")
    assert found["no-kernels"] == (as_usual, "off")
    assert found["simplest"] == (as_usual._replace(ahead=False, halved=False), "off")
    assert population.loop_of(25, True) == as_usual


@pytest.mark.slow
def test_members_agree_in_any_population(tmp_path, capsys, monkeypatch):
    """Two members alone and among five, on this device; and a reference of something else does not agree."""
    agreement = program("benchmarks/agreement.py")
    monkeypatch.setattr(agreement, "CHUNK", 20)
    path = tmp_path / "reference.json"
    given = {"file": path, "data_dir": make_data(tmp_path / "data")}
    made = argparse.Namespace(**given, environment="rooms", hidden=[8], steps=40, schedule=100, members=2)
    agreement.make_reference(made)
    compared = argparse.Namespace(**given, forms=["five"], json=tmp_path / "found.json", processes=1)
    assert agreement.compare(compared) == 0
    found = json.loads(compared.json.read_text())
    assert found["same_data"] and [len(chunk["q_mean"]) for chunk in found["forms"]["five"]] == [5, 5]
    reference = json.loads(path.read_text())
    reference["training"]["schedule"] = 1
    path.write_text(json.dumps(reference))  # lambda at its end from the start
    assert agreement.compare(compared) == 1
    assert "NO" in capsys.readouterr().out
    path.write_text(json.dumps(reference | {"data": "other"}))  # so the reference only says what rounding does
    monkeypatch.setitem(agreement.FORMS, "float32", agreement.Form("float32", members=5))
    assert agreement.compare(compared) == 0
    assert "Other data than the reference's" in capsys.readouterr().out
    assert list(json.loads(compared.json.read_text())["forms"]) == ["float32", "five"]


def test_judged_members_by_hand():
    """The critic's order is the wrong one, the fit's the right one but for the best."""
    judged = program("benchmarks/judge.py")
    numbers = [(1.0, 3.0, 1.0), (2.0, 2.0, 5.0), (3.0, 1.0, 4.0)]
    members = [dict(zip(("obtained", "expected", "fitted"), row, strict=True)) for row in numbers]
    assert judged.scores(members, "expected") == pytest.approx({"correlation": -1, "regret": 2, "error": 4 / 3})
    assert judged.scores(members, "fitted") == pytest.approx({"correlation": 0.5, "regret": 1, "error": 4 / 3})
