from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm.errors import UhmError
from uhm.nets import MLP, Actor, Critic, Linear, RewardNet, VectorField, ema, parameter_count
from uhm.numerics import biased, gelu, layer_norm, product

S, A, B = 5, 2, 4
HIDDEN = (16, 16)


def make(module: Callable[..., Any], *sizes: int, seed: int = 0, **options: Any) -> Any:
    """An initialised module, compiled as one program: op by op these tests would take three times as long."""
    return jax.jit(lambda key: module(*sizes, key=key, **options))(jax.random.key(seed))


def call(module: Callable[..., jax.Array], *inputs: Any) -> np.ndarray:
    return np.asarray(eqx.filter_jit(module)(*inputs))


def batch(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    key_s, key_a = jax.random.split(jax.random.key(seed))
    return jax.random.normal(key_s, (B, S)), jax.random.normal(key_a, (B, A))


def test_glorot_uniform_and_final_scale():
    mlp = make(MLP, 300, 100, hidden=(500,), final_scale=0.01)
    for layer, limit in zip(mlp.layers, (np.sqrt(6 / 800), np.sqrt(0.06 / 600)), strict=True):
        weight = np.asarray(layer.weight)
        assert 0.99 * limit < np.abs(weight).max() <= limit * 1.0001
        assert weight.std() == pytest.approx(limit / np.sqrt(3), rel=0.02)
        assert abs(weight.mean()) < 4 * weight.std() / np.sqrt(weight.size)
        assert not np.asarray(layer.bias).any()
    first, last = (np.asarray(layer.weight).ravel()[:50_000] for layer in mlp.layers)
    assert abs(np.corrcoef(first, last)[0, 1]) < 0.02


def test_layer_norm_comes_after_the_activation_by_hand():
    """Two hidden units that see 1 and -1: gelu gives 0.841192 and -0.158808 (tanh form), LayerNorm of two numbers +-1.

    LayerNorm first would give gelu(+-1), which is not symmetric.
    """

    def weights(mlp):
        return [layer.weight for layer in mlp.layers]

    x, kernels = jnp.array([1.0]), [jnp.array([[1.0, -1.0]]), jnp.eye(2)]
    plain = eqx.tree_at(weights, make(MLP, 1, 2, hidden=(2,)), kernels)
    normed = eqx.tree_at(weights, make(MLP, 1, 2, hidden=(2,), layer_norm=True), kernels)
    np.testing.assert_allclose(plain(x), [0.841192, -0.158808], atol=1e-6)  # the erf form has 0.841345, -0.158655
    np.testing.assert_allclose(normed(x), [1.0, -1.0], atol=1e-5)
    affine = (jnp.array([2.0, 3.0]), jnp.array([10.0, 20.0]))
    scaled = eqx.tree_at(lambda mlp: (mlp.norms[0].scale, mlp.norms[0].bias), normed, affine)
    np.testing.assert_allclose(scaled(x), [12.0, 17.0], atol=1e-4)


def test_layer_norm_epsilon():
    x, one = jnp.array([1e-3, -1e-3]), jnp.ones(2)
    np.testing.assert_allclose(layer_norm(x, one, 0 * one), np.array([1, -1]) / np.sqrt(2), rtol=1e-4)


def test_leaves_are_arrays_and_static_parts_are_not():
    several = jax.vmap(lambda key: VectorField(S + 1, S, A, key, HIDDEN))
    copies = jax.eval_shape(several, jax.random.split(jax.random.key(0), 3))
    assert {leaf.dtype for leaf in jax.tree.leaves(copies)} == {jnp.dtype(jnp.float32)}
    assert copies.mlp.layers[0].weight.shape == (3, S + 1 + 1 + S + A + 64, 16) and copies.x_size == S + 1
    reward = jax.eval_shape(lambda key: RewardNet(S, A, key, HIDDEN), jax.random.key(0))
    assert parameter_count(reward) == ((S + A) * 16 + 16) + (16 * 16 + 16) + 4 * 16 + (16 + 1)


@pytest.mark.parametrize("lead", [(), (B,), (3, B)])
def test_shapes_with_any_leading_axes(lead):
    def outputs(key):
        s, a = jnp.ones((*lead, S)), jnp.ones((*lead, A))
        critic, value = Critic(S, A, key, HIDDEN), Critic(S, 0, key, HIDDEN, members=1)
        return critic(s, a), value(s), RewardNet(S, A, key, HIDDEN)(s, a), Actor(S, A, key, HIDDEN)(s)

    shapes = [output.shape for output in jax.eval_shape(outputs, jax.random.key(0))]
    assert shapes == [(2, *lead), (1, *lead), lead, (*lead, A)]


def test_actor_starts_near_zero_and_is_bounded():
    s, _ = batch()
    actor = make(Actor, S, A, hidden=(64, 64))
    assert 0 < np.abs(call(actor, s)).max() < 0.5
    assert 0.9 < np.abs(call(actor, 1e4 * s)).max() <= 1


def test_an_ensemble_is_its_members():
    members, (s, a) = 3, batch()
    critic = make(Critic, S, A, hidden=HIDDEN, members=members)
    together = call(critic, s, a)
    forward = jax.jit(lambda mlp, x: mlp(x)[..., 0])
    for i in range(members):
        alone = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], critic.ensemble)
        np.testing.assert_allclose(together[i], forward(alone, jnp.concatenate([s, a], -1)), rtol=1e-5, atol=1e-6)
    kernels = np.asarray(critic.ensemble.layers[0].weight)
    assert all(np.abs(kernels[i] - kernels[j]).max() > 0.1 for i in range(members) for j in range(i))
    assert np.unique(np.asarray(together).round(4)).size == together.size


def test_an_ensemble_multiplies_all_members_at_once():
    s, a = batch()
    critic = make(Critic, S, A, hidden=HIDDEN, members=7)
    assert str(jax.make_jaxpr(critic)(s, a)).count("dot_general[") == len(HIDDEN) + 1


@pytest.mark.parametrize(
    ("horizon", "layer_norm"), [("sincos", True), ("scalar", True), ("onehot", False), ("none", False)]
)
def test_a_vector_field_is_an_mlp_on_the_concatenation(horizon, layer_norm):
    s, a = batch()
    n, tau = jnp.array([1, 2, 3, 8]), jnp.array([0.0, 0.2, 0.5, 0.9])
    x = jax.random.normal(jax.random.key(3), (B, S + 1))
    field = make(VectorField, S + 1, S, A, hidden=HIDDEN, horizon=horizon, max_horizon=8, layer_norm=layer_norm)
    angles = np.asarray(n)[:, None] * 10.0 ** (-4 * np.arange(32) / 31)
    embedding = {
        "sincos": np.concatenate([np.sin(angles), np.cos(angles)], -1),
        "scalar": np.asarray(n)[:, None] / 8,
        "onehot": np.eye(8)[np.asarray(n) - 1],
        "none": np.zeros((B, 0)),
    }[horizon]
    plain = call(field.mlp, jnp.concatenate([x, tau[:, None], s, a, jnp.asarray(embedding, jnp.float32)], -1))
    once = call(lambda f, *inputs: f(x, tau, f.condition(*inputs)), field, s, a, n)
    assert once.shape == x.shape
    np.testing.assert_allclose(once, plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(call(field.velocity, x, tau, s, a, n), once, rtol=1e-6)
    # A scalar tau is that tau in every row.
    np.testing.assert_allclose(call(field.velocity, x, jnp.float32(0.5), s, a, n)[2], once[2], rtol=1e-4, atol=1e-5)
    other = call(field.velocity, x, tau, s, a, n + 1 - 2 * (n == 8))
    assert (np.abs(other - once).max() > 1e-3) == (horizon != "none")


def test_a_flow_policy_needs_no_action_and_a_horizon_model_needs_n():
    s, a = batch()
    policy = make(VectorField, A, S, 0, hidden=HIDDEN, horizon="none")
    assert jax.eval_shape(policy.velocity, a, jnp.float32(0.3), s).shape == (B, A)
    with pytest.raises(ValueError, match="needs the horizon"):
        make(VectorField, S, S, A, hidden=HIDDEN).velocity(s, jnp.float32(0.3), s, a)
    with pytest.raises(UhmError, match="Did you mean sincos"):
        make(VectorField, S, S, A, hidden=HIDDEN, horizon="sincso")


def test_bfloat16_rounds_products_and_nothing_else():
    s, a = batch()
    n, x = jnp.array([1, 2, 3, 8]), jax.random.normal(jax.random.key(3), (B, S))
    fields = [make(VectorField, S, S, A, hidden=(64, 64), compute_dtype=dtype) for dtype in (None, "bfloat16")]
    full, half = (call(field.velocity, x, jnp.float32(0.5), s, a, n) for field in fields)
    assert {leaf.dtype for leaf in jax.tree.leaves(fields[1])} == {half.dtype} == {np.dtype(np.float32)}
    assert 1e-4 < np.abs(half - full).max() < 0.1 < np.abs(full).max()
    # Sums are float32: in bfloat16 257 is 256.
    assert product(jnp.ones(257), jnp.ones((257, 1)), "bfloat16", hands_on=False).item() == 257


def test_bfloat16_rounds_the_products_of_the_gradient_too():
    """257 is 256 in bfloat16; small whole numbers stay what they are."""
    x, weight = jnp.array([[1.0, 2.0], [3.0, -1.0]]), jnp.array([[2.0, 1.0, 257.0], [0.0, -3.0, 4.0]])
    slopes = jnp.array([[1.0, 2.0, -1.0], [257.0, 0.0, 1.0]])

    def loss(x, weight):
        return (slopes * product(x, weight, "bfloat16", hands_on=False)).sum()

    of_x, of_weight = jax.grad(loss, (0, 1))(x, weight)
    rounded = jnp.where(slopes == 257, 256, slopes), jnp.where(weight == 257, 256, weight)
    np.testing.assert_array_equal(of_x, rounded[0] @ rounded[1].T)
    np.testing.assert_array_equal(of_weight, x.T @ rounded[0])
    assert of_x.dtype == of_weight.dtype == np.float32
    # An ensemble whose members see the same rows: the rows' slopes are added up.
    pair = jnp.stack([weight, 2 * weight])
    both = jax.grad(lambda x: jax.vmap(loss, (None, 0))(x, pair).sum())(x)
    np.testing.assert_array_equal(both, 3 * rounded[0] @ rounded[1].T)


def test_between_layers_bfloat16_is_handed_on_and_at_the_end_float32():
    """The first layer makes 257, which the second hears as 256; what the last one makes is not rounded."""
    mlp = make(MLP, 1, 1, hidden=(1,), compute_dtype="bfloat16")
    layers = (Linear(jnp.full((1, 1), 128.5), jnp.zeros(1)), Linear(jnp.ones((1, 1)), jnp.ones(1)))
    exact = eqx.tree_at(lambda m: m.layers, mlp, layers)
    assert exact(jnp.full((1,), 2.0)).item() == 257  # 128.5 is 128 in bfloat16, 2 x 128 = 256, and the bias makes 257
    long = eqx.tree_at(lambda m: m.layers[0].weight, exact, jnp.full((1, 1), 257.0))
    assert long(jnp.ones(1)).item() == 257


def test_gelu_and_its_gradient_are_those_of_the_tanh_form():
    x = jnp.linspace(-6, 6, 101)
    ours, theirs = (jax.value_and_grad(lambda x, f=f: (jnp.sin(x) * f(x)).sum()) for f in (gelu, jax.nn.gelu))
    (value, slope), (expected, expected_slope) = ours(x), theirs(x)
    assert value == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(slope, expected_slope, atol=1e-5)
    np.testing.assert_array_equal(jax.grad(lambda x: gelu(x).sum())(jnp.array([-1e4, 1e4])), [0, 1])


def test_a_bias_adds_up_the_slopes_of_its_rows():
    slopes = jnp.array([[1.0, 2.0], [3.0, 257.0]])
    for rows, last in ((jnp.zeros((2, 2)), 259), (jnp.zeros((2, 2), jnp.bfloat16), 258)):  # 257 is 256 in bfloat16
        of_rows, of_bias = jax.grad(lambda y, b: (slopes * biased(y, b)).sum(), (0, 1))(rows, jnp.zeros(2))
        np.testing.assert_array_equal(of_bias, [4, last])
        assert of_rows.dtype == rows.dtype


def test_ema_moves_by_its_rate():
    target, online = make(Actor, S, A, hidden=HIDDEN), make(Actor, S, A, seed=1, hidden=HIDDEN)
    moved = ema(target, online, 0.25)
    for m, t, o in zip(*map(jax.tree.leaves, (moved, target, online)), strict=True):
        np.testing.assert_allclose(m, 0.75 * t + 0.25 * o, rtol=1e-5, atol=1e-7)
    assert jax.tree.structure(moved) == jax.tree.structure(target)
