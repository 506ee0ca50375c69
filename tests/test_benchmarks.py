"""What benchmark programs compute, against something known."""

from typing import Any

import jax
import numpy as np
import pytest

from programs import program
from toys import random_data
from uhm.agents import spec_of
from uhm.agents.horizon_model import HorizonModel
from uhm.errors import UhmError


def test_heldout_scores_by_hand():
    """Samples 0 and 4 of a truth of 1, in units of 2: |X - y| is 0.5 and 1.5, |X - X'| is 2."""
    heldout = program("benchmarks/heldout.py")
    score, nothing, ratio = heldout.scores(
        np.array([[[0.0], [4.0]]]), np.array([[1.0]]), np.array([[7.0]]), np.array([2.0])
    )
    assert score == pytest.approx(1.0 - 2.0 / 2)
    assert nothing == pytest.approx(3.0)
    assert ratio == pytest.approx(np.sqrt(2.0 / (0.25 * 2 / 3)))  # variance 2; the mean, 1, is 0.5 off


def test_heldout_scores_prefer_the_truth():
    heldout, rng = program("benchmarks/heldout.py"), np.random.default_rng(0)
    truth, start, unit = rng.normal(size=(20_000, 2)), np.zeros((20_000, 2)), np.ones(2)
    draw = lambda width: width * rng.normal(size=(20_000, heldout.DRAWS, 2))  # noqa: E731
    (narrow, _, sure), (right, _, fair), (wide, _, unsure) = (
        heldout.scores(draw(width), truth, start, unit) for width in (0.5, 1.0, 2.0)
    )
    assert right < min(narrow, wide) - 0.05
    assert fair == pytest.approx(1.0, abs=0.02)
    assert sure < 0.6
    assert unsure > 1.5


def test_heldout_variants_are_settings():
    heldout = program("benchmarks/heldout.py")
    assert heldout.settings("default") == {}
    found = heldout.settings("predict=delta,flag_std=1,model_layer_norm=False,flow_steps=2,standardise=True")
    assert found == {
        "predict": "delta",
        "flag_std": 1.0,
        "model_layer_norm": False,
        "flow_steps": 2,
        "standardise": True,
    }
    with pytest.raises(UhmError, match="no setting 'predicts'"):
        heldout.settings("predicts=delta")


def test_heldout_counts_ends(monkeypatch):
    """Of a model whose flag is up wherever the first coordinate is positive."""
    heldout, data = program("benchmarks/heldout.py"), random_data()
    monkeypatch.setattr(heldout, "STATES", 2)
    monkeypatch.setattr(heldout, "K_MAX", 2)
    own = heldout.trajectories(data)

    class Sign(HorizonModel):
        def sample(self, key, s, a, n=1, threshold=0.5):
            return s, s[..., 0] > 0

    made: Any = Sign
    model = jax.jit(lambda key: made(spec_of(data, 2), key, hidden=(8,)))(jax.random.key(0))
    positive = own.rows[own.observations[own.rows, 0] > 0]
    ended = np.zeros(len(own.observations), bool)
    ended[positive] = True
    marked = own._replace(ended=ended)
    *_, ends, stored, found, known = heldout.futures(model, marked, marked, np.ones(data.observations.shape[1]), 2)
    assert known == 1.0  # states that are marked as ended are those where it says so
    assert ends == 0.0
    alive = own.rows[~ended[own.rows]]
    assert stored == pytest.approx(np.mean(ended[alive] | ended[alive + 1]))
    assert found == 0.0
