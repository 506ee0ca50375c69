"""Checkpoints are exact, complete or invisible, and never trusted blindly."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from uhm.errors import UhmError
from uhm.runs import Run, params_sha256
from uhm.runs.checkpoints import Checkpoints


class Net(eqx.Module):
    weight: jax.Array
    bias: jax.Array | None
    name: str = eqx.field(static=True)


class State(NamedTuple):
    net: Net
    optimiser: Any
    key: jax.Array
    extra: dict[str, Any]


def state(seed: int) -> State:
    key = jax.random.key(seed)
    net = Net(jax.random.normal(key, (3, 5)), None, "critic")
    extra = {
        "keys": jax.random.split(jax.random.key(seed, impl="rbg"), 4),
        "step": jnp.asarray(seed, jnp.int32),
        "done": jnp.asarray([True, False]),
        "half": jnp.full((2, 2), seed, jnp.bfloat16),
        "odd": jnp.asarray(
            np.array([0x7FC00001 + seed, 0x80000000], np.uint32).view(np.float32)
        ),  # a NaN's payload, -0
        "weak": jnp.asarray(1.5 * seed),
        "empty": jnp.zeros((0, 3)),
        "pinned": jax.device_put(jnp.ones(2), jax.devices()[0]),
        "host": np.arange(4) + seed,
        "scalar": np.float64(seed),
        "count": seed,
        "rate": 0.1 * seed,
    }
    return State(net, optax.adam(1e-3).init(eqx.filter(net, eqx.is_array)), key, extra)


def fill(step: int) -> dict[str, np.ndarray]:
    return {f"leaf{i}": np.full((1000,), step, np.int32) for i in range(4)}


@pytest.fixture
def run(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as run:
        yield run


def describe(leaf: Any) -> tuple[Any, ...]:
    attributes = ("dtype", "shape", "weak_type", "committed", "sharding")
    return type(leaf), *(getattr(leaf, name, None) for name in attributes)


def test_a_tree_comes_back_bit_for_bit(run: Run) -> None:
    saved = state(3)
    run.save(7, saved, block=True)
    restored = run.restore(state(4))
    assert restored is not None and restored[0] == 7
    assert params_sha256(restored[1]) == params_sha256(saved) != params_sha256(state(4))
    assert jax.tree.structure(restored[1]) == jax.tree.structure(saved)
    assert list(map(describe, jax.tree.leaves(restored[1]))) == list(map(describe, jax.tree.leaves(saved)))
    assert jnp.array_equal(jax.random.normal(restored[1].key, (8,)), jax.random.normal(saved.key, (8,)))
    shapes = jax.eval_shape(lambda: state(4))
    restored = run.restore(shapes._replace(extra=state(4).extra))
    assert restored is not None and params_sha256(restored[1]) == params_sha256(saved)


def test_without_a_checkpoint_there_is_nothing_to_restore(run: Run) -> None:
    assert run.restore(fill(0)) is None
    assert run.steps() == [] and run.best() is None
    with pytest.raises(UhmError, match="no checkpoint of step 3"):
        run.restore(fill(0), step=3)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ({"a": jnp.zeros(2), "k": jax.random.key(0)}, r"\['a'\] is float32\[3\] in it and float32\[2\] in the config"),
        ({"a": jnp.zeros(3, int), "k": jax.random.key(0)}, r"\['a'\] is float32\[3\] in it and int32\[3\]"),
        ({"a": jnp.zeros(3), "k": jax.random.key(0, impl="rbg")}, r"\['k'\] is key<fry>\[\] in it and key<rbg>\[\]"),
        ({"a": jnp.zeros(3), "k": jnp.zeros(2, jnp.uint32)}, r"\['k'\] is key<fry>\[\] in it and uint32\[2\]"),
        ({"a": jnp.zeros(3)}, r"\['k'\] is in it but not in the configuration"),
        ({"a": jnp.zeros(3), "k": jax.random.key(0), "z": jnp.zeros(1)}, r"\['z'\] is not in it"),
        ((jnp.zeros(3), jax.random.key(0)), r"\[0\] is not in it"),
    ],
)
def test_another_configuration_does_not_fit(template: Any, why: str, run: Run) -> None:
    run.save(1, {"a": jnp.zeros(3), "k": jax.random.key(0)})
    with pytest.raises(UhmError, match="the checkpoint does not fit this configuration: " + why):
        run.restore(template)


def test_the_digest_sees_every_difference() -> None:
    one = {"a": np.zeros(4, np.float32)}
    others = [
        {"b": np.zeros(4, np.float32)},
        {"a": np.zeros(4, np.int32)},
        {"a": np.zeros((2, 2), np.float32)},
        {"a": -np.zeros(4, np.float32)},
        {"a": np.zeros(4, np.float32), "b": np.zeros(0)},
        {"a": jax.random.key(0)},
        {"a": jax.random.key_data(jax.random.key(0))},
    ]
    assert len({params_sha256(tree) for tree in [one, *others]}) == 8
    assert params_sha256({"a": jnp.zeros(4)}) == params_sha256(one)
    assert params_sha256({"a": np.asfortranarray(np.eye(3, 2))}) == params_sha256({"a": np.eye(3, 2)})
    with pytest.raises(TypeError, match=r"leaf \['a'\] is a str"):
        params_sha256({"a": "text"})


def test_save_returns_at_once_with_a_copy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, write = threading.Event(), Checkpoints._write

    def late(*args: Any) -> None:
        assert changed.wait(20)
        write(*args)

    monkeypatch.setattr(Checkpoints, "_write", late)
    tree = {"device": jnp.arange(1000.0), "host": np.arange(1000.0)}
    expected = params_sha256(tree)
    run.save(1, tree)
    assert run.steps() == []
    tree["host"][:] = -1
    for _ in range(3):
        tree["device"] = jax.jit(lambda x: x - 1, donate_argnums=0)(tree["device"])
    changed.set()
    restored = run.restore(tree)
    assert restored is not None and params_sha256(restored[1]) == expected != params_sha256(tree)


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    with Run.create(tmp_path, {}, keep=2) as run:
        for step, score in enumerate([0.1, 0.9, 0.5, None, float("nan"), 0.2], 1):
            run.save(step, fill(step), score=score)
        assert run.best() == 2
        assert run.steps() == [2, 5, 6]
    with Run.open(tmp_path, keep=1) as run:  # the scores of earlier sessions count
        run.save(7, fill(7), score=0.9)
        assert run.best() == 7
        assert run.steps() == [7]
        run.save(8, fill(8), score=0.3, block=True)
        assert run.steps() == [7, 8]
        restored = run.restore(fill(0), step=7)
        assert restored is not None and restored[0] == 7 and restored[1]["leaf0"][0] == 7


def test_a_score_that_comes_later_counts_as_one_that_came_along(tmp_path: Path) -> None:
    with Run.create(tmp_path, {}, keep=1) as run:
        for step, score in enumerate([0.1, 0.9, 0.5], 1):
            run.save(step, fill(step))
            run.rate(step, score)
        run.rate(17, 1.0)  # no such checkpoint
        assert run.best() == 2
        assert run.steps() == [2, 3]
    with Run.open(tmp_path) as run:
        assert run.best() == 2
        assert run.restore(fill(0), step=2) is not None


def test_rewind_forgets_later_checkpoints(run: Run) -> None:
    run.save(1, fill(1))
    run.save(2, fill(2), block=True)
    run.rewind(1)
    assert run.steps() == [1]
    run.save(2, fill(2))  # in the background
    run.rewind(1)
    assert run.steps() == [1]


SHARDED = """
import sys, jax, jax.numpy as jnp
from pathlib import Path
from jax.sharding import NamedSharding, PartitionSpec
from uhm.runs import Run, params_sha256
mesh = jax.make_mesh((2,), ("member",))
split = NamedSharding(mesh, PartitionSpec("member"))
def tree(seed):
    keys = jax.random.split(jax.random.key(seed), 4)
    return jax.device_put({"x": jax.random.normal(keys[0], (4, 3)), "keys": keys}, split) | {
        "second": jax.device_put(jnp.ones(3), jax.devices()[1])}
with Run.create(Path(sys.argv[1]), {}) as run:
    run.save(1, tree(1))
    step, found = run.restore(tree(2))
assert params_sha256(found) == params_sha256(tree(1))
assert all(found[k].sharding == tree(1)[k].sharding for k in found), found
assert len(found["x"].devices()) == 2 and found["second"].devices() == {jax.devices()[1]}
"""


def test_arrays_return_to_their_devices(tmp_path: Path) -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-c", SHARDED, str(tmp_path)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stderr) == (0, "")


def test_orbax_is_silent_and_others_are_not(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "absl"):
        run.save(1, fill(1))
        run.restore(fill(0))
        logging.getLogger("absl").info("from somebody else")
    assert [record.message for record in caplog.records if record.name == "absl"] == ["from somebody else"]
