"""Scaled observations: a run on raw logs with `normalise` is the run on logs that were scaled beforehand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_runs import SMALL, make_data, small_plan
from uhm.data import load
from uhm.errors import UhmError
from uhm.imagine.dream import Dream
from uhm.report.collect import collect
from uhm.train import load_run, resolve, start, train

SHORT: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "eval_episodes"}
SHORT |= {"seeds": 1, "steps": 20, "log_interval": 10, "checkpoint_interval": 20}
UNITS, OFFSET = np.array([1000.0, 0.01]), np.array([300.0, -2.0])


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The same rows in units that nobody would choose, and scaled by hand."""
    rows = load("rooms-task3", data_dir=make_data(tmp_path_factory.mktemp("data")), placement="host")
    s = np.asarray(rows.observations, np.float64)
    own = {"rewards": np.asarray(rows.rewards[0], np.float32), "masks": np.asarray(rows.masks[0])}
    own |= {"actions": np.asarray(rows.actions), "terminals": np.asarray(rows.last) == np.arange(len(rows.last))}
    found = {"raw": s * UNITS + OFFSET, "by hand": (s - s.mean(0)) / s.std(0)}
    paths = {}
    for name, observations in found.items():
        # One name: what members draw depends on it.
        paths[name] = tmp_path_factory.mktemp("logs") / "mine.npz"
        np.savez(paths[name], allow_pickle=False, observations=observations.astype(np.float32), **own)
    return paths, found


@pytest.mark.parametrize(
    "agent", ["uhm", "dtd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fql", "mopo", "mac"))]
)
def test_raw_logs_teach_what_scaled_ones_do(logs, agent, tmp_path):
    paths, observations = logs
    for name, scale in (("raw", True), ("by hand", False)):
        train(agent, str(paths[name]), run=tmp_path / name, normalise=scale, **SHORT)
    raw, scaled = (load_run(tmp_path / name) for name in paths)
    for one, other in zip(*(jax.tree.leaves(run.state.state.params) for run in (raw, scaled)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
    mine, other = (
        np.asarray(run.policy()(observations[name][:50])) for run, name in ((raw, "raw"), (scaled, "by hand"))
    )
    np.testing.assert_allclose(mine, other, atol=2e-3)
    assert np.std(other) > 1e-3
    for size in (1, 3):
        with pytest.raises(UhmError, match=f"observations have {size} numbers, and those of this run have not"):
            raw.policy()(np.zeros(size))


def test_where_it_is_the_default(logs):
    paths, _ = logs
    assert resolve("uhm", str(paths["raw"])).normalise
    assert not resolve("uhm", "rooms").normalise
    assert not resolve("uhm", str(paths["raw"]), normalise=False).normalise


def test_imagined_and_reported_as_observed(tmp_path):
    data = make_data(tmp_path / "data")
    plan = small_plan(data, "uhm", "rooms-task1", steps=4, normalise=True)
    start(plan, tmp_path / "run")
    dream = Dream(tmp_path / "run")
    s = np.asarray(load("rooms-task1", data_dir=data, placement="host").observations, np.float64)
    mean, std = s.mean(0), s.std(0)
    here, a = s[:6].astype(np.float32), jnp.zeros((6, 2))
    key = jax.random.key(3)
    found = dream.imagine(key, here, a, 1)
    inside, _ = dream.state.targets.model.sample(
        jax.random.split(key, 1)[0], jnp.asarray((here - mean) / std, jnp.float32), a, jnp.ones(6, jnp.int32)
    )
    np.testing.assert_allclose(found[0], np.asarray(inside) * std + mean, rtol=1e-4, atol=1e-4)
    (member,) = collect([tmp_path / "run"])[1]
    assert ("normalise", True) in member.setting  # beside a run without it, they are two methods
