"""The kernel of an ODE solve against its definition, interpreted; on a GPU benchmarks/kernels.py compares them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

from toys import K, random_data
from uhm import kernels, ode_kernel
from uhm.agents import spec_of
from uhm.agents.horizon_model import HorizonModel, fused

SPEC = spec_of(random_data(), K)
WIDTH = 128


def make(seed: int = 0, hidden: tuple[int, ...] = (WIDTH, WIDTH), **options: Any) -> HorizonModel:
    """A model none of whose numbers is 0 or 1."""
    options = {"steps": 2, "flag_std": 0.3, "compute_dtype": "bfloat16"} | options

    def init(key: Any) -> HorizonModel:
        key_model, key_noise = jax.random.split(key)
        leaves, structure = jax.tree.flatten(HorizonModel(SPEC, key_model, hidden=hidden, **options))
        keys = jax.random.split(key_noise, len(leaves))
        noisy = [x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
        # Weights a little only: what x does would be chaos.
        noisy = [old + 0.1 * (new - old) if old.ndim > 1 else new for old, new in zip(leaves, noisy, strict=True)]
        return jax.tree.unflatten(structure, noisy)

    return jax.jit(init)(jax.random.key(seed))


def given(rows: int, seed: int = 1) -> tuple[jax.Array, jax.Array]:
    """Noise and condition."""
    keys = jax.random.split(jax.random.key(seed))
    return jax.random.normal(keys[0], (rows, SPEC.observation_size + 1)), jax.random.normal(keys[1], (rows, WIDTH))


interpreted = functools.partial(fused, interpret=InterpretGPUParams())


def near(got: Any, wanted: Any, x: Any) -> None:
    """Both round to bfloat16, at different places: 2^-7 of the way that x goes, the flag's too."""
    for part in (slice(None, -1), slice(-1, None)):
        way = np.abs(wanted - x)[..., part]
        np.testing.assert_allclose(got[..., part], wanted[..., part], atol=2**-7 * way.max())


@pytest.mark.parametrize("options", [{}, {"ode": "euler", "steps": 3, "hidden": (WIDTH,) * 4}])
def test_it_is_its_definition(options: dict[str, Any]):
    """With two tiles of rows, by both solvers, and with one hidden product or three."""
    model, (noise, c) = make(**options), given(128)
    near(interpreted(model, noise, c), model.follow(noise, c), noise)


def test_wider_halves_are_two_tiles():
    model = make(hidden=(512, 512), steps=1)
    noise, _ = given(64)
    c = jax.random.normal(jax.random.key(3), (64, 512))
    near(interpreted(model, noise, c), model.follow(noise, c), noise)


def test_agents_side_by_side():
    models, inputs = [make(seed) for seed in range(2)], [given(64, 5 + seed) for seed in range(2)]
    stack = lambda *leaves: jnp.stack(leaves)  # noqa: E731
    noise, c = jax.tree.map(stack, *inputs)
    together = jax.vmap(interpreted)(jax.tree.map(stack, *models), noise, c)
    for one, model, (noise, c) in zip(together, models, inputs, strict=True):
        near(one, model.follow(noise, c), noise)


def test_blocks_of_the_last_weight():
    last = jnp.arange(128.0 * 64).reshape(128, 64)
    packed = ode_kernel.blocks(last)
    assert packed.shape == (64, 128)
    np.testing.assert_array_equal(packed[:, :64], last[:64])
    np.testing.assert_array_equal(packed[:, 64:], last[64:])


def test_the_schedule_of_two_midpoint_steps():
    """tau = 0, 1/4, 1/2, 3/4; the flag's numbers at 1/2 by hand, with sigma = 0.3: D = 0.0225 + 0.25."""
    schedule = make().schedule()
    assert (schedule.gap, schedule.sizes) == (0.25, (0.25, 0.5))
    assert schedule.table.shape == (4, 3, ode_kernel.SIZE)
    flag, d = SPEC.observation_size, 0.2725
    np.testing.assert_allclose(schedule.table[2, :, flag], [d**-0.5, (0.045 - 0.5) / d, 0.3 * d**-0.5], rtol=1e-6)
    np.testing.assert_array_equal(schedule.table[:, :, :flag], np.array([[1], [0], [1]]) * np.ones((4, 1, flag)))


def test_where_it_was_measured_faster(monkeypatch: pytest.MonkeyPatch):
    pays = ode_kernel.pays
    assert pays(25, 256, 512)
    assert pays(33, 256, 512)
    assert not pays(34, 256, 512)
    assert not pays(49, 256, 512)
    assert all(pays(many, 256, 512) for many in (50, 66, 100, 200))
    assert not pays(25, 192, 512)
    assert not pays(25, 512, 512)
    assert not pays(5, 256, 512)
    assert not pays(1, 16, 512)
    assert not pays(25, 256, 256)
    monkeypatch.setattr(jax, "__version_info__", (9, 0, 0))  # whose Pallas nobody has seen
    assert not pays(25, 256, 512)


def test_what_does_not_fit_is_left_to_the_definition():
    fits = ode_kernel.fits
    size = SPEC.observation_size + 1
    assert fits(make().field.mlp, 256, size)
    assert not fits(make().field.mlp, 100, size)
    assert not fits(make().field.mlp, 256, 65)
    assert not fits(make(hidden=(WIDTH, 256)).field.mlp, 256, size)
    assert not fits(make(hidden=(96, 96)).field.mlp, 256, size)
    assert not fits(make(compute_dtype=None).field.mlp, 256, size)
    assert not fits(make(layer_norm=False).field.mlp, 256, size)
    # Vectors of more layers would not fit into shared memory.
    assert fits(make(hidden=(512,) * 5).field.mlp, 256, size)
    assert not fits(make(hidden=(512,) * 6).field.mlp, 256, size)


@pytest.mark.slow
def test_it_is_chosen_by_the_number_of_agents(monkeypatch: pytest.MonkeyPatch):
    """On a GPU of the right kind; and the host gets the definition even then."""
    monkeypatch.setattr(kernels, "ODE_AGENTS", 3)
    monkeypatch.setattr(ode_kernel, "_MEASURED_ROWS", 64)
    monkeypatch.setattr(ode_kernel, "_MULTIPROCESSORS", 3)
    monkeypatch.setattr(ode_kernel, "_MEASURED_WIDTH", WIDTH)
    monkeypatch.setattr(kernels, "chosen", lambda: True)
    model, s = make(), jnp.zeros((64, SPEC.observation_size))
    noise, a, n = given(64)[0], jnp.zeros((64, SPEC.action_size)), jnp.ones(64, int)

    def generate(model: HorizonModel, noise: jax.Array) -> Any:
        return model.generate(noise, s, a, n)

    def of(members: int) -> Any:
        each = jax.vmap(generate)
        return each, (jax.tree.map(lambda x: jnp.stack([x] * members), model), jnp.stack([noise] * members))

    def uses_it(function: Any, arguments: Any) -> bool:
        return "warpgroup" in str(jax.make_jaxpr(function)(*arguments))

    many, arguments = of(3)
    assert uses_it(many, arguments)
    assert not uses_it(*of(2))
    assert not uses_it(*of(4))
    assert uses_it(*of(6))
    assert not uses_it(generate, (model, noise))
    wanted = [jax.jit(generate)(model, noise) for _ in range(3)]
    for got, one in zip(jax.jit(many)(*arguments), zip(*wanted, strict=True), strict=True):
        np.testing.assert_allclose(got, jnp.stack(one), atol=0.02)
    # Its gradient is that of the definition, for one agent and for many.
    value = lambda model, noise: generate(model, noise)[0].sum()  # noqa: E731
    slope = jax.jit(jax.vmap(jax.grad(value, argnums=1)))(*arguments)
    monkeypatch.setattr(kernels, "chosen", lambda: False)
    wanted = jax.jit(jax.grad(value, argnums=1))(model, noise)
    monkeypatch.setattr(kernels, "chosen", lambda: True)
    assert np.abs(wanted).max() > 0.1
    for one in (*slope, jax.grad(value, argnums=1)(model, noise)):
        np.testing.assert_allclose(one, wanted, atol=0.02 * np.abs(wanted).max())
    # Two axes of agents, one of them with one model for all.
    twice = jax.vmap(jax.vmap(generate, (None, 0)))
    assert twice(arguments[0], jnp.stack([arguments[1]] * 3))[0].shape == (3, 3, 64, SPEC.observation_size)
    monkeypatch.setattr(kernels, "chosen", lambda: False)
    assert not uses_it(*of(3))
