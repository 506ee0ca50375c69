"""Fused kernels against their definition, interpreted; on a GPU benchmarks/kernels.py compares them."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm import kernels
from uhm.errors import UhmError
from uhm.kernels import Launch, fused, normed, plain
from uhm.nets import MLP

WIDTH = 64


def arguments(dtype: Any, rows_of_bias: bool, *batch: int, seed: int = 0) -> list[jax.Array]:
    """z, bias, scale, shift and the slope of the result."""
    keys = jax.random.split(jax.random.key(seed), 5)
    draw = lambda key, *shape: jax.random.normal(key, (*shape, WIDTH))  # noqa: E731
    z, slope = draw(keys[0], *batch).astype(dtype), draw(keys[1], *batch).astype(dtype)
    bias = draw(keys[2], *batch) if rows_of_bias else draw(keys[2])
    return [z, bias, 1 + 0.3 * draw(keys[3]), 0.3 * draw(keys[4]), slope]


def interpreted(forward_rows: int, backward_rows: int) -> Any:
    launches = Launch(forward_rows, 4, interpret=True), Launch(backward_rows, 4, interpret=True)
    return lambda *arguments: fused(*arguments, *launches)


def value_and_slopes(function: Any, z: Any, bias: Any, scale: Any, shift: Any, slope: Any) -> list[np.ndarray]:
    value, pull = jax.vjp(function, z, bias, scale, shift)
    return [np.asarray(x, np.float32) for x in (value, *pull(slope))]


def rounding(exact: list[Any], tiles: list[list[Any]]) -> list[np.ndarray]:
    """How far results in bfloat16 may be from exact ones, of which `tiles` are what single programs would add up.

    A number of bfloat16 has 8 bits, so each differs by at most half a unit of the last. Sums over rows are rounded once
    in every program and not again.
    """
    shares = [np.sum([np.abs(tile[i]) for tile in tiles], axis=0) for i in range(len(exact))]
    sizes = [share if np.ndim(x) == 1 else np.abs(x) for x, share in zip(exact, shares, strict=True)]
    return [2**-8 * 1.01 * size + 1e-4 * np.abs(x).max() for x, size in zip(exact, sizes, strict=True)]


def within(got: list[Any], exact: list[Any], bounds: list[np.ndarray]) -> None:
    for mine, wanted, bound in zip(got, exact, bounds, strict=True):
        assert (np.abs(np.asarray(mine, np.float32) - wanted) <= bound).all()


def test_the_definition_by_numpy():
    z, bias, scale, shift, _ = (np.asarray(x, np.float64) for x in arguments(jnp.float32, False, 3))
    x = z + bias
    u = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    unit = (u - u.mean(-1, keepdims=True)) / np.sqrt(u.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(plain(*map(jnp.float32, (z, bias, scale, shift))), unit * scale + shift, atol=1e-5)


@pytest.mark.parametrize("rows_of_bias", [False, True])
@pytest.mark.parametrize(("forward_rows", "backward_rows"), [(2, 8), (8, 24), (1, 3), (12, 1)])
def test_kernels_are_their_definition(rows_of_bias: bool, forward_rows: int, backward_rows: int):
    """For one tile and for several, in three dimensions too."""
    given = arguments(jnp.float32, rows_of_bias, 2, 12)
    got = value_and_slopes(interpreted(forward_rows, backward_rows), *given)
    for mine, wanted in zip(got, value_and_slopes(plain, *given), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("rows_of_bias", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_without_a_norm_too(rows_of_bias: bool, dtype: Any):
    z, bias, _, _, slope = arguments(dtype, rows_of_bias, 24)
    launches = Launch(4, 2, interpret=True), Launch(8, 4, interpret=True)
    value, pull = jax.vjp(lambda z, bias: fused(z, bias, None, None, *launches), z, bias)
    got: list[Any] = [value, *pull(slope)]
    assert [x.dtype for x in got] == [dtype, dtype, jnp.float32]

    def exact(rows: slice) -> list[np.ndarray]:
        value, pull = jax.vjp(plain, z[rows].astype(jnp.float32), bias[rows] if rows_of_bias else bias)
        return [np.asarray(x) for x in (value, *pull(slope[rows].astype(jnp.float32)))]

    wanted = exact(slice(None))
    if dtype == jnp.float32:
        for mine, right in zip(got, wanted, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
    else:
        within(got, wanted, rounding(wanted, [exact(slice(i, i + 8)) for i in range(0, 24, 8)]))


@pytest.mark.parametrize("norm", [False, True])
def test_what_does_not_learn_has_no_sums_over_rows(norm: bool):
    """As critics in the actor's loss, of which only the slope of their input is wanted."""
    z, bias, scale, shift, slope = arguments(jnp.float32, False, 16)
    vectors = [bias, scale, shift] if norm else [bias]

    def run(z: jax.Array, *vectors: jax.Array) -> Any:
        return fused(z, *(*vectors, None, None)[:3], *[Launch(8, 4, interpret=True)] * 2)

    def backward(learns: bool) -> Any:
        def total(z: jax.Array, vectors: list[jax.Array]) -> jax.Array:
            return (run(z, *(vectors if learns else jax.lax.stop_gradient(vectors))) * slope).sum()

        return lambda z: jax.grad(total, (0, 1))(z, vectors)

    shapes = {}
    for learns in (False, True):
        calls = [e for e in jax.make_jaxpr(backward(learns))(z).eqns if e.primitive.name == "pallas_call"]
        shapes[learns] = [variable.aval.shape for variable in calls[-1].outvars]
    assert shapes == {False: [(16, WIDTH)], True: [(16, WIDTH), (2, 3 if norm else 1, WIDTH)]}
    np.testing.assert_allclose(backward(False)(z)[0], backward(True)(z)[0], rtol=1e-4, atol=1e-5)


def test_few_agents_and_many_have_programs_of_their_own_size(monkeypatch: pytest.MonkeyPatch):
    given = arguments(jnp.bfloat16, False, 16)
    monkeypatch.setattr(kernels, "_hopper", lambda: True)

    def programs(agents: int) -> set[tuple[int, ...]]:
        with kernels.for_agents(agents):
            slope_of_z = lambda z: jax.vjp(lambda z: normed(z, *given[1:4]), z)[1](given[4])  # noqa: E731
            text = str(jax.make_jaxpr(slope_of_z)(given[0]))
        return {tuple(map(int, found)) for found in re.findall(r"grid=\((\d+),\)", text)}

    assert programs(1) == programs(kernels.MANY - 1) == {(2,), (4,)}
    assert programs(kernels.MANY) == {(2,)}


@pytest.mark.parametrize("rows_of_bias", [False, True])
def test_in_bfloat16_they_round_once(rows_of_bias: bool):
    given = arguments(jnp.bfloat16, rows_of_bias, 16)

    def exact(rows: slice) -> list[np.ndarray]:
        z, bias, scale, shift, slope = (x.astype(jnp.float32) for x in given)
        return value_and_slopes(plain, z[rows], bias[rows] if rows_of_bias else bias, scale, shift, slope[rows])

    wanted = exact(slice(None))
    bounds = rounding(wanted, [exact(slice(0, 8)), exact(slice(8, 16))])
    within(value_and_slopes(interpreted(4, 8), *given), wanted, bounds)
    value, pull = jax.vjp(interpreted(4, 8), *given[:4])
    assert [x.dtype for x in (value, *pull(given[4]))] == [jnp.bfloat16, *(x.dtype for x in given[:4])]


def test_a_fast_tanh_costs_less_than_rounding(monkeypatch: pytest.MonkeyPatch):
    """The GPU's has an error of up to 2^-11, here of that size everywhere: no result moves by a unit of the last place
    that a number near the largest has."""
    given = arguments(jnp.bfloat16, False, 16)
    exact = value_and_slopes(plain, *(x.astype(jnp.float32) for x in given))
    monkeypatch.setattr(kernels, "_exact_tanh", lambda x: jnp.tanh(x) * (1 + 2**-11 * jnp.sign(jnp.sin(1e3 * x))))
    jax.clear_caches()  # what was traced before has the exact one
    got = value_and_slopes(interpreted(4, 8), *given)
    jax.clear_caches()
    for mine, wanted in zip(got, exact, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2**-8, atol=2**-9 * np.abs(wanted).max())
    assert not np.array_equal(got[2], exact[2])


@pytest.mark.parametrize("rows_of_bias", [False, True])
def test_they_become_programs_for_a_gpu(rows_of_bias: bool):
    """As far as this goes without one: Pallas makes Triton of the launches that are in use, both ways."""
    z, bias, scale, shift, slope = arguments(jnp.bfloat16, rows_of_bias, 5, 16)
    each = jax.vmap(lambda z, bias: fused(z, bias, scale, shift), (0, 0 if rows_of_bias else None))
    both = jax.jit(lambda z, bias, slope: jax.vjp(each, z, bias)[1](slope))
    text = both.trace(z, bias, slope).lower(lowering_platforms=("cuda",)).as_text()
    assert "normed_backward" in text
    forward = jax.jit(each).trace(z, bias).lower(lowering_platforms=("cuda",)).as_text()
    assert "normed_forward" in forward


def test_agents_and_ensembles_side_by_side():
    """Two axes of parameters: members of a population, and critics."""
    each = [[arguments(jnp.float32, False, 8, seed=2 * m + c) for c in range(2)] for m in range(3)]
    stacked = [jnp.stack([jnp.stack([critic[i] for critic in member]) for member in each]) for i in range(5)]
    run = jax.vmap(jax.vmap(interpreted(4, 8)))
    for i, together in enumerate(value_and_slopes(run, *stacked)):
        for m, member in enumerate(each):
            for c, given in enumerate(member):
                wanted = value_and_slopes(plain, *given)[i]
                np.testing.assert_allclose(together[m, c], wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_whole_networks_learn_alike(monkeypatch: pytest.MonkeyPatch):
    """Value and gradient of an MLP whose layers are kernels, against one whose layers are not."""
    mlp = jax.jit(lambda key: MLP(3, 1, key, (WIDTH, WIDTH), layer_norm=True))(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (16, 3))
    learn = jax.value_and_grad(lambda mlp: jnp.square(mlp(x) - 1).mean())
    wanted = learn(mlp)
    calls = []

    def counted(*given: jax.Array) -> jax.Array:
        calls.append(given[0].shape)
        return interpreted(4, 8)(*given)

    monkeypatch.setattr("uhm.nets.normed", counted)
    got = learn(mlp)
    assert calls == [(16, WIDTH)] * 2
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_where_there_is_no_such_gpu_the_definition_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(kernels, "_hopper", lambda: False)
    given = arguments(jnp.bfloat16, False, 8)[:4]
    uses_kernels = lambda *given: "pallas" in str(jax.make_jaxpr(lambda *x: normed(*x))(*given))  # noqa: E731
    assert not kernels.chosen()
    assert not uses_kernels(*given)
    # As on a GPU, in float32, for rows that do not fill tiles, and for those that do: the host gets the definition.
    monkeypatch.setattr(kernels, "_hopper", lambda: True)
    assert kernels.chosen()
    assert not uses_kernels(given[0].astype(jnp.float32), *given[1:])
    assert not uses_kernels(given[0][:3], *given[1:])
    assert not uses_kernels(jnp.stack([given[0]] * 2), given[0], *given[2:])  # one bias for two rows
    assert uses_kernels(*given)
    np.testing.assert_array_equal(jax.jit(normed)(*given), jax.jit(plain)(*given))
    # Its gradient too, for parameters that two members share.
    pair = jnp.stack([given[0], 2 * given[0]])

    def slope_of(function: Any) -> jax.Array:
        each = jax.vmap(function, (0, None, None, None))
        return jax.jit(jax.grad(lambda scale: each(pair, given[1], scale, given[3]).sum()))(given[2])

    np.testing.assert_array_equal(slope_of(normed), slope_of(plain))
    assert kernels.description() == "fused in bfloat16, and of 25 agents the ODE solve"
    monkeypatch.setattr(jax, "__version_info__", (9, 0, 0))
    assert kernels.description() == "fused in bfloat16"
    monkeypatch.setenv(kernels.VARIABLE, "off")
    assert not kernels.chosen()
    assert kernels.description() == "XLA's, by UHM_KERNELS"


def test_a_wrong_setting_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(kernels.VARIABLE, "on")
    with pytest.raises(UhmError, match="must be 'auto' or 'off'"):
        kernels.chosen()
