from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm.errors import UhmError
from uhm.horizons import (
    Custom,
    Measure,
    NStep,
    TDLambda,
    WinsorizedGeometric,
    bellman_operator,
    k_max,
    lambda_schedule,
    literal_mve_weights,
)

GAMMA = 0.9
PROBABILITIES = np.array([0.1, 0.0, 0.5, 0.4])
# D < 1: rewards go on for ever. D = 1: a mixture of n-step targets. D > 1: negative xi, and still a sub-probability.
BELOW, ONE, ABOVE = np.array([0.2, 0.0, 0.3, 0.0]), PROBABILITIES * GAMMA ** np.arange(4), PROBABILITIES


# Made inside each test: some run in float64.
MEASURES = {
    "1-step": lambda: NStep(1, GAMMA),
    "5-step": lambda: NStep(5, GAMMA),
    "td-lambda": lambda: TDLambda(0.8, GAMMA),
    "td-0": lambda: TDLambda(0.0, GAMMA),
    "winsorized-1": lambda: WinsorizedGeometric(0.8, GAMMA, 1),
    "winsorized-5": lambda: WinsorizedGeometric(0.8, GAMMA, 5),
    "winsorized-9": lambda: WinsorizedGeometric(0.7, GAMMA, 9),
    "winsorized-0": lambda: WinsorizedGeometric(0.0, GAMMA, 5),
    "custom-below": lambda: Custom(BELOW, GAMMA),
    "custom-one": lambda: Custom(ONE, GAMMA),
    "custom-above": lambda: Custom(ABOVE, GAMMA),
    "custom-zero": lambda: Custom(np.zeros(4), GAMMA),  # nu = 0: the Monte Carlo return
}


@jax.jit
def everything(measure: Measure, k: jax.Array) -> dict[str, jax.Array]:
    w_xi, w_nu = measure.weights(k)
    return {"nu": measure.nu(k), "xi": measure.xi(k), "pmf": measure.pmf(k), "w_xi": w_xi, "w_nu": w_nu}


@partial(jax.jit, static_argnames="count")
def draw(measure: Measure, key: jax.Array, count: int) -> jax.Array:
    return measure.sample(key, (count,))


operator = jax.jit(bellman_operator, static_argnames="terms")
each = pytest.mark.parametrize("name", list(MEASURES))


def xi_by_definition(nu: np.ndarray, gamma: float) -> np.ndarray:
    """xi(1..len(nu)) as the paper defines it."""
    ks = range(1, len(nu) + 1)
    return np.array([gamma ** (k - 1) - sum(gamma**j * nu[k - j - 1] for j in range(k)) for k in ks])


def random_mdp(seed: int, size: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards and transitions between state-action pairs, and Q^pi by linear algebra."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.full(size, 0.3), size)
    reward = rng.normal(size=size)
    return reward, transition, np.linalg.solve(np.eye(size) - GAMMA * transition, reward)


@each
def test_xi_follows_its_definition(name):
    with jax.enable_x64(True):
        got = everything(MEASURES[name](), jnp.arange(300))
    nu, xi = (np.asarray(got[name])[1:41] for name in ("nu", "xi"))
    assert xi.dtype == np.float64
    np.testing.assert_allclose(xi, xi_by_definition(nu, GAMMA), rtol=1e-10, atol=1e-12)


def test_values_by_hand():
    def check(measure: Measure, **expected: list[float]) -> None:
        """From k = 0, where all are zero."""
        got = everything(measure, jnp.arange(5))
        for name, values in expected.items():
            np.testing.assert_allclose(got[name], values, rtol=1e-6, err_msg=name)

    check(NStep(3, 0.5), nu=[0, 0, 0, 0.25, 0], xi=[0, 1, 0.5, 0, 0], w_nu=[0, 0, 0, 1.75, 0])
    check(TDLambda(0.5, 0.5), nu=[0, 0.5, 0.125, 0.03125, 0.0078125], w_xi=[0, *[2 / 3] * 4])
    winsorized = WinsorizedGeometric(0.5, 0.5, 3)
    check(winsorized, nu=[0, 0.5, 0.125, 0.0625, 0], xi=[0, 0.5, 0.125, 0, 0], pmf=[0, 0.75, 0.1875, 0.0625, 0])
    # xi(1) = 1 - 1/4, xi(2) = 1/2 xi(1) - 1/4, and half of the last for every step beyond;
    # nu + xi is 1, 3/8 and then a tail of 1/8 in all.
    custom = Custom(np.array([0.25, 0.25]), 0.5)
    check(custom, xi=[0, 3 / 4, 1 / 8, 1 / 16, 1 / 32], pmf=[0, 2 / 3, 1 / 4, 1 / 24, 1 / 48])
    assert NStep(3, 0.5).nu(3) == 0.25
    assert NStep(3, 0.5).nu(np.array([3, 1])).tolist() == [0.25, 0.0]
    assert custom.sample(jax.random.key(0)).shape == ()


@each
def test_weights_times_pmf_give_nu_and_xi(name):
    with jax.enable_x64(True):
        got = {name: np.asarray(x) for name, x in everything(MEASURES[name](), jnp.arange(300)).items()}
    pmf, xi, nu, w_xi, w_nu = (got[name] for name in ("pmf", "xi", "nu", "w_xi", "w_nu"))
    assert (pmf >= 0).all() and pmf[0] == 0
    np.testing.assert_allclose(pmf.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(w_xi * pmf, xi, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(w_nu * pmf, nu, rtol=1e-12, atol=1e-15)
    assert (pmf[(xi != 0) | (nu != 0)] > 0).all()


def test_winsorized_weights_of_the_paper():
    w_xi, w_nu = WinsorizedGeometric(0.8, 0.999, 8).weights(jnp.array([1, 7, 8, 9]))
    np.testing.assert_allclose(w_xi, [3.98406, 3.98406, 0, 0], rtol=1e-4)
    np.testing.assert_allclose(w_nu, [0.99602, 0.99602, 1, 0], rtol=1e-4)
    assert WinsorizedGeometric(0.9, 0.999, 16).weights(3)[0] == pytest.approx(8.92, abs=5e-3)
    td = WinsorizedGeometric(0.0, 0.999, 1)
    assert td.sample(jax.random.key(0), (1000,)).tolist() == [1] * 1000
    assert [float(w) for w in td.weights(1)] == [0.0, 1.0]


@each
def test_iteration_reaches_the_value_of_the_policy(name):
    reward, transition, truth = random_mdp(0)
    with jax.enable_x64(True):
        measure, q = MEASURES[name](), jnp.full(truth.size, 7.0)
        for _ in range(250):
            q = operator(measure, q, jnp.asarray(reward), jnp.asarray(transition), terms=250)
    np.testing.assert_allclose(q, truth, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_random_sub_probabilities_have_the_right_fixed_point(seed):
    """Any non-negative nu that sums to at most 1, whatever the sign of its xi."""
    rng = np.random.default_rng(seed)
    nu = rng.dirichlet(np.ones(4)) * rng.uniform(0.2, 1) * (np.arange(4) <= seed)
    reward, transition, truth = random_mdp(10 + seed)
    with jax.enable_x64(True):
        q, measure = jnp.zeros(truth.size), Custom(nu, GAMMA)
        for _ in range(250):
            q = operator(measure, q, jnp.asarray(reward), jnp.asarray(transition), terms=250)
        np.testing.assert_allclose(q, truth, atol=1e-6)


@each
def test_one_sample_estimates_the_operator_without_bias(name):
    count, start = 100_000, 3
    reward, transition, _ = random_mdp(5)
    q = np.random.default_rng(6).normal(size=reward.size) * 3
    measure = MEASURES[name]()
    n = np.asarray(draw(measure, jax.random.key(1), count))
    table = everything(measure, jnp.arange(300))
    w_xi, w_nu = (np.asarray(table[w], np.float64)[n] for w in ("w_xi", "w_nu"))
    rows = np.zeros((n.max() + 1, reward.size))  # where the chain is after n steps
    rows[0, start] = 1
    for k in range(1, n.max() + 1):
        rows[k] = rows[k - 1] @ transition
    u = np.random.default_rng(7).random(count)
    end = np.minimum((rows[n].cumsum(1) < u[:, None]).sum(1), reward.size - 1)
    samples = reward[start] + GAMMA * (w_xi * reward[end] + w_nu * q[end])
    arrays = (jnp.asarray(x, jnp.float32) for x in (q, reward, transition))
    expected = float(operator(measure, *arrays, terms=250)[start])
    standard_error = samples.std() / np.sqrt(count)
    assert 0 < standard_error < 0.05  # otherwise the next line would say nothing
    assert abs(samples.mean() - expected) < 4 * standard_error


@each
def test_samples_follow_pmf(name):
    count = 100_000
    measure = MEASURES[name]()
    n = np.asarray(draw(measure, jax.random.key(2), count))
    assert n.dtype == np.int32 and n.min() >= 1
    pmf = np.asarray(everything(measure, jnp.arange(300))["pmf"])
    observed = np.bincount(n, minlength=300) / count
    assert (pmf[np.unique(n)] > 0).all()
    assert (np.abs(observed - pmf) < 4.5 * np.sqrt(pmf / count) + 2 / count).all()


def test_long_horizons_are_sampled_and_weighted_at_gamma_near_one():
    """A tail of ratio 0.999 is where float32 powers and logarithms would go wrong first."""
    custom = Custom(np.array([0.5, 0.2]), 0.999)
    n = draw(custom, jax.random.key(3), 100_000)
    k = np.arange(1, 40_000)
    mean = (k * np.asarray(everything(custom, jnp.asarray(k))["pmf"])).sum()
    assert float(n.mean()) == pytest.approx(mean, rel=0.02) and mean > 900
    # A measure with D = 1 up to rounding must not grow a tail of 1/(1-gamma) steps out of that rounding.
    probabilities = np.random.default_rng(0).dirichlet(np.ones(16))
    nu = (probabilities * 0.999 ** np.arange(16)).astype(np.float32)
    assert draw(Custom(nu, 0.999), jax.random.key(4), 100_000).max() <= 16


def chain(nu: np.ndarray, xi: np.ndarray, gamma: float) -> float:
    """Fixed point at the start of 100 steps of reward -1 into an absorbing goal; later states are solved first."""
    reward, q = np.zeros(201), np.zeros(201)
    reward[:100] = -1
    for i in reversed(range(100)):
        q[i] = reward[i] + gamma * (xi[:100] @ reward[i + 1 : i + 101] + nu[:100] @ q[i + 1 : i + 101])
    return q[0]


@pytest.mark.parametrize(("lam", "literal"), [(0.0, -180.5), (0.8, -112.9), (0.9, -104.1)])
def test_the_printed_gamma_mve_equation_misses_the_value_of_a_chain(lam, literal):
    gamma, k = 0.999, jnp.arange(1, 101)
    with jax.enable_x64(True):
        measure = TDLambda(lam, gamma)
        corrected = chain(np.asarray(measure.nu(k)), np.asarray(measure.xi(k)), gamma)
        w_xi, w_nu = literal_mve_weights(lam, gamma)
        printed = chain(np.asarray(w_nu * measure.pmf(k)), np.asarray(w_xi * measure.pmf(k)), gamma)
    assert corrected == pytest.approx(-(1 - gamma**100) / (1 - gamma), abs=1e-9)
    assert corrected == pytest.approx(-95.2, abs=0.05)
    assert printed == pytest.approx(literal, abs=0.05)


@pytest.mark.parametrize("jit", [False, True])
def test_k_max_of_the_paper(jit):
    f = jax.jit(k_max) if jit else k_max
    cases = {(0.8, 0.2): 8, (0.9, 0.2): 16, (0.8, 0.1): 11, (0.9, 0.1): 22, (0.8, 1e-8): 83, (0.9, 1e-8): 174}
    assert {case: int(f(case[0], 0.999, case[1])) for case in cases} == cases
    assert f(0.0, 0.999, 0.2) == 1 and f(0.9, 0.999, 1.0) == 1 and f(0.1, 0.5, 0.2) == 1
    assert f(0.9, 0.999, 0.2).dtype == jnp.int32


def test_k_max_is_exact_at_integer_boundaries():
    """q = (lam gamma)^m asks for m, and rounding in float32 must not make it m + 1."""
    assert [int(k_max(0.625, 0.8, 0.5**m)) for m in (1, 2, 3, 10)] == [1, 2, 3, 10]
    lam, gamma, m = np.meshgrid(np.linspace(0.05, 0.97, 47), [0.9, 0.99, 0.999], np.arange(1, 41), indexing="ij")
    q = (lam * gamma) ** m
    keep = q > 1e-30
    lam, gamma, q, m = lam[keep], gamma[keep], q[keep], m[keep]
    for f in (k_max, jax.jit(k_max)):
        np.testing.assert_array_equal(f(*(x.astype(np.float32) for x in (lam, gamma, q))), m)
        # and a little less tail than that needs one step more
        np.testing.assert_array_equal(f(*(x.astype(np.float32) for x in (lam, gamma, q * (1 - 1e-3)))), m + 1)


@pytest.mark.parametrize(
    ("lambda_f", "points"),
    [
        (0.8, [0.063, 0.203, 0.353, 0.506, 0.661, 0.816, 0.972]),
        (
            0.9,
            [0.028, 0.090, 0.157, 0.225, 0.294, 0.363, 0.432, 0.501, 0.571, 0.641, 0.711, 0.780, 0.850, 0.921, 0.991],
        ),
    ],
)
def test_k_max_changes_along_the_schedule_where_it_should(lambda_f, points):
    points = np.array(points, np.float32)
    before, after = (k_max(lambda_schedule(points + d, lambda_f), 0.999, 0.2) for d in (-6e-4, 6e-4))
    np.testing.assert_array_equal(before, np.arange(len(points)) + 1)
    np.testing.assert_array_equal(after, np.arange(len(points)) + 2)


def test_lambda_schedule():
    assert lambda_schedule(0.0, 0.8) == 0 and lambda_schedule(1.0, 0.8) == pytest.approx(0.8)
    rho = jnp.linspace(0, 1, 5)
    horizon = 1 / (1 - lambda_schedule(rho, 0.8))
    np.testing.assert_allclose(horizon, 1 + 4 * rho, rtol=1e-5)  # linear from 1 to 1 / (1 - 0.8)


@pytest.mark.parametrize("compile", [jax.jit, eqx.filter_jit])  # the latter would take Python scalars as constants
def test_a_schedule_compiles_once(compile):
    traces = []

    @compile
    def use(measure, key):
        traces.append(measure)
        n = measure.sample(key, (8,))
        return n, measure.weights(n)

    for step, lam in enumerate((0.0, 0.5, 0.8)):
        key = jax.random.key(step)
        use(WinsorizedGeometric(lam, 0.999, k_max(lam, 0.999, 0.2)), key)
        use(TDLambda(lam, 0.99 + step / 1000), key)
    assert len(traces) == 2

    @compile
    def scheduled(progress, key):
        traces.append(progress)
        lam = lambda_schedule(progress, 0.8)
        return WinsorizedGeometric(lam, 0.999, k_max(lam, 0.999, 0.2)).sample(key, (1000,)).max()

    assert [int(scheduled(jnp.float32(rho), jax.random.key(0))) for rho in (0.0, 0.3, 1.0)] == [1, 3, 8]
    assert len(traces) == 3


def test_measures_vmap_over_members():
    lams, caps = jnp.array([0.0, 0.5, 0.9]), jnp.array([1, 4, 16])
    stacked = jax.vmap(WinsorizedGeometric, (0, None, 0))(lams, 0.999, caps)
    got = jax.vmap(everything, (0, None))(stacked, jnp.arange(20))
    for i, (lam, cap) in enumerate(zip(lams.tolist(), caps.tolist(), strict=True)):
        alone = everything(WinsorizedGeometric(lam, 0.999, cap), jnp.arange(20))
        for name, values in alone.items():
            np.testing.assert_allclose(got[name][i], values, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TDLambda(1.0, 0.9), "lambda is 1"),
        (lambda: TDLambda(-0.1, 0.9), "lambda is -0.1"),
        (lambda: TDLambda(jnp.float32(2), 0.9), "lambda is 2"),
        (lambda: TDLambda(float("nan"), 0.9), "lambda is nan"),
        (lambda: WinsorizedGeometric(0.5, 1.0, 3), "discount is 1"),
        (lambda: WinsorizedGeometric(0.5, 0.0, 3), "discount is 0"),
        (lambda: WinsorizedGeometric(0.5, 0.9, 0), "k_max"),
        (lambda: NStep(0, 0.9), "is 0"),
        (lambda: Custom(np.array([0.5, -0.1]), 0.9), "non-negative"),
        (lambda: Custom(np.array([0.5, np.nan]), 0.9), "finite"),
        (lambda: Custom(np.array([0.6, 0.5]), 0.9), "sums to 1.1"),
        (lambda: Custom(np.zeros((2, 2)), 0.9), "shape"),
        (lambda: Custom(np.zeros(0), 0.9), "non-empty"),
        (lambda: k_max(0.8, 0.9, 0.0), "tail mass"),
        (lambda: k_max(0.8, 0.9, 1.5), "tail mass"),
        # a concrete value is checked under jit too
        (lambda: jax.jit(lambda x: TDLambda(1.5, 0.9).nu(1) + x)(0.0), "lambda is 1.5"),
    ],
)
def test_bad_input_is_one_line(make, message):
    with pytest.raises(UhmError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
