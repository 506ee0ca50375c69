"""`uhm imagine` and `uhm.imagine.futures` on runs whose networks have learned nothing: what is drawn and measured."""

import importlib
import json
import shutil
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_runs import make_data
from uhm import cli, imagine, population, tasks
from uhm.agents import spec_of
from uhm.data.dataset import make_dataset
from uhm.errors import UhmError
from uhm.imagine import calibrate
from uhm.imagine.distance import pick
from uhm.runs import Run
from uhm.train import resolve
from uhm.train.loop import data_of
from uhm.train.restore import build, keep_spec

# Truth and data may be missing; not in these runs.
Dream: Any = imagine.Dream
futures: Any = imagine.futures
calibration: Any = calibrate.calibration
write_module = importlib.import_module("uhm.imagine.write")
STEPS = 40
FILES = ["calibration.json", "calibration.pdf", "calibration.png", "futures.mp4", "futures.pdf", "futures.png"]


def untrained(directory, agent, what, data_dir, data=None, **settings):
    """A run that ended at once: its checkpoint holds the first parameters as those of the last step."""
    plan = resolve(agent, what, data_dir=str(data_dir), steps=STEPS, hidden=(8,), flow_steps=1, ode="euler", **settings)
    with Run.create(directory, plan.to_json()) as run:
        agent, hyper = build(plan, keep_spec(run, spec_of(data_of(plan) if data is None else data, plan.k_max())))
        state = population.init(agent, plan.members(), hyper)
        run.save(STEPS, state._replace(step=jnp.asarray(STEPS, jnp.int32)), block=True)
    return directory


def made_up():
    """Rows like those of `scene`, but random."""
    rng, total = np.random.default_rng(0), 120
    observations = rng.normal(0, 0.2, (total, 40)).astype(np.float32)
    actions, flat = rng.uniform(-1, 1, (total, 5)).astype(np.float32), np.zeros((1, total))
    return make_dataset(observations, actions, np.arange(total) % 40 == 39, flat, flat == 0, ("scene-play-task2",))


@pytest.fixture(autouse=True)
def short_films(monkeypatch):
    monkeypatch.setattr(write_module, "HORIZONS", 2)


@pytest.fixture
def scene_data(monkeypatch):
    monkeypatch.setattr("uhm.imagine.dream.load", lambda *_, **__: made_up())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagine")
    data = make_data(folder / "data")
    for agent in ("uhm", "ghm", "mbtd"):
        what = ["rooms-task1", "rooms-task3"]
        untrained(folder / agent, agent, what, data, seeds=[2, 5] if agent == "uhm" else [0])
    untrained(folder / "axes", "uhm", what, data, seeds=[2], alpha=[0.1, 0.3])
    untrained(folder / "scene", "uhm", "scene-play-task2", data, made_up(), seeds=1)
    config = json.loads((folder / "ghm" / "config.json").read_text())
    shutil.copytree(folder / "ghm", folder / "dtd")
    (folder / "dtd" / "config.json").write_text(json.dumps({**config, "agent": "dtd"}))
    return folder


def said(capsys, *arguments, status=0):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.run(["imagine", *(str(a) for a in arguments)]) == status
    return capsys.readouterr()


def files(directory):
    return {str(path.relative_to(directory)): path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_rooms(runs, capsys):
    run = runs / "uhm"
    before = files(run)
    out = json.loads(said(capsys, run, "--n", "1,2", "--starts", 2, "--draws", 8, "--json").out)
    assert sorted(path.removeprefix(f"{run}/imagine/") for path in out["files"]) == FILES
    assert all((run / "imagine" / name).stat().st_size > 300 for name in FILES)
    shutil.copytree(run / "imagine", runs / "seen")
    facts = json.loads((run / "imagine" / "calibration.json").read_text())
    shutil.rmtree(run / "imagine")
    assert {k: v for k, v in files(run).items() if k != "."} == before
    assert facts == out["calibration"]
    assert (facts["task"], facts["agent"], facts["seed"], facts["step"]) == ("rooms-task1", "uhm", 2, STEPS)
    assert (facts["n"], facts["unit"], facts["mixed"]) == ([1, 2], "steps", True)
    assert len(facts["uhm"]) == len(facts["truth"]) == 2
    assert min(facts["uhm"]) > 0.3  # it knows nothing
    assert max(np.abs(facts["truth"])) < 0.1


def test_futures_from_python(runs):
    found = futures(runs / "uhm", task="rooms-3", n=[3, 1], starts=3, draws=5, seed=5)
    assert (found.task, found.seed, found.n, found.k_max) == ("rooms-task3", 5, (1, 3), 7)
    assert found.model.shape == found.truth.shape == (3, 3, 5, 2)
    assert found.horizons.tolist() == [1, 2, 3]
    # n = 1 of the truth is the world's step by the actor's own action, and the same for all draws.
    assert np.ptp(found.truth[0], axis=1).max() == 0
    dream = Dream(runs / "uhm", "rooms-task3", 5)
    expected = dream.world.step(found.s.astype(float), found.a.astype(float), np.ones(3, bool))
    assert np.allclose(found.truth[0, :, 0], expected, atol=1e-6)
    other = futures(runs / "uhm", task="rooms-task3", n=[1], starts=3, draws=5, seed=2)
    assert not np.allclose(found.model[0], other.model[0])
    pure = futures(runs / "uhm", task="rooms-task3", n=[3], starts=3, draws=5, seed=5, mix=False)
    assert found.mixed
    assert not pure.mixed
    assert not np.allclose(found.truth[2], pure.truth[2])


def test_what_an_earlier_call_left_is_gone(runs, tmp_path, monkeypatch):
    """A film of the other kind, or numbers there are none of now, may be of another member."""
    old = [tmp_path / name for name in ("futures.mp4", "calibration.json", "calibration.png", "calibration.pdf")]
    for path in old:
        path.write_text("old")
    module = importlib.import_module("uhm.imagine.write")
    monkeypatch.setattr(module, "calibration", lambda *_, **__: None)
    facts, paths = module.write(Dream(runs / "uhm"), tmp_path, [1], starts=1, draws=2, gif=True)
    assert facts is None and tmp_path / "futures.gif" in paths
    assert not any(path.exists() for path in old)


def test_a_perfect_model_is_found_perfect(runs, monkeypatch):
    dream = Dream(runs / "uhm", mix=False)
    shift = 0.0

    def imagine(key, s, a, steps):
        return dream.monte_carlo(77, np.asarray(s, float), a, steps) + shift

    monkeypatch.setattr(dream, "imagine", imagine)
    facts = calibration(dream, [1, 3], draws=32)
    assert max(np.abs(facts["uhm"])) < 0.05
    shift = 2.0  # far: 2 |shift| sqrt(2) less the spread
    facts = calibration(dream, [1], draws=32)
    assert facts["uhm"][0] == pytest.approx(2 * 2 * np.sqrt(2), rel=0.01)


def test_ghm_knows_no_n(runs, capsys):
    out = said(capsys, runs / "ghm", "--n", "2", "--starts", 2, "--draws", 8, "--out", runs / "out", "--gif")
    assert "ghm knows no n, only its geometric marginal. --n is not used." in out.err
    facts = json.loads((runs / "out" / "calibration.json").read_text())
    assert facts["marginal"]
    assert facts["n"] == [pytest.approx(1 / (1 - 0.8 * 0.98), rel=1e-5)]
    assert len(facts["ghm"]) == 1
    assert (runs / "out" / "futures.gif").read_bytes()[:3] == b"GIF"
    assert "geometric, mean 4.6" in out.out
    found = futures(runs / "ghm", starts=2, draws=300)
    assert found.model.shape == (1, 2, 300, 2)
    assert found.drawn.mean() == pytest.approx(facts["n"][0], rel=0.15)
    mixture = found.true_mixture()
    at = found.drawn[1, 7] - 1
    assert np.array_equal(mixture[1, 7], found.truth[at, 1, 7])


def test_mbtd_rolls_its_model_and_needs_no_mixing(runs):
    found = futures(runs / "mbtd", n=[4], starts=2, draws=6)
    assert found.model.shape == (4, 2, 6, 2)
    assert not found.mixed
    assert found.beta == 0
    dream = Dream(runs / "mbtd")
    once = dream.imagine(jax.random.key(1), np.repeat(found.s[:, None], 6, 1), np.repeat(found.a[:, None], 6, 1), 4)
    assert np.allclose(once, found.model)


def test_an_arm_with_and_without_its_data(runs, scene_data, capsys, monkeypatch):
    found = futures(runs / "scene", n=[1, 2], starts=2, draws=6)
    dream = Dream(runs / "scene")
    stored = np.asarray(dream.data.observations)
    for start in range(2):
        (row,) = np.flatnonzero((stored == found.s[start]).all(1))
        assert np.array_equal(found.truth[:, start, 0], stored[row + 1 : row + 3])
        assert np.array_equal(found.a[start], np.asarray(dream.data.actions)[row])
    quick = ("--n", "1", "--starts", 1, "--draws", 4, "--out", runs / "arm")
    out = said(capsys, runs / "scene", *quick)
    assert out.err == ""
    facts = json.loads((runs / "arm" / "calibration.json").read_text())
    assert (facts["unit"], facts["of"]) == ("m", ["gripper", "cube", "drawer", "window"])
    assert "of the data" in facts["how"]
    shutil.rmtree(runs / "arm")
    monkeypatch.setattr("uhm.imagine.dream.load", lambda *_, **__: (_ for _ in ()).throw(UhmError("no data")))
    out = said(capsys, runs / "scene", *quick)
    assert "the run's data are not there" in out.err
    assert sorted(path.name for path in (runs / "arm").iterdir()) == ["futures.mp4", "futures.pdf", "futures.png"]


def test_changes_of_the_data_against_themselves(runs, scene_data, monkeypatch):
    dream = Dream(runs / "scene")
    stored = np.asarray(dream.data.observations)

    def imagine(key, s, a, steps):
        rows = [int(np.flatnonzero((stored == one).all(1))[0]) for one in s]
        return np.stack([stored[np.array(rows) + n] for n in range(1, steps + 1)])

    monkeypatch.setattr(dream, "imagine", imagine)
    facts = calibration(dream, [1, 5])
    assert max(np.abs(facts["uhm"])) < 0.02
    monkeypatch.setattr(dream, "how", "marginal")  # GHM's futures, at horizons of its distribution
    monkeypatch.setattr(dream, "lam", 0.5)
    mean = 1 / (1 - 0.5 * 0.999)

    def mixture(key, s, a, steps):
        return np.asarray(pick(imagine(key, s, a, steps), dream.drawn(9, (len(s),))))[None]

    monkeypatch.setattr(dream, "imagine", mixture)
    facts = calibration(dream)
    assert facts["n"] == [pytest.approx(mean)]
    assert abs(facts["uhm"][0]) < 0.02


def test_extrapolation_is_said(runs, capsys, monkeypatch):
    assert Dream(runs / "uhm").default_n() == (1, 2, 4, 7)
    monkeypatch.setattr("uhm.imagine.write", lambda *_, **__: (None, []))
    out = said(capsys, runs / "uhm", "--n", "8", "--starts", 1, "--draws", 2, "--out", runs / "far")
    assert out.err == "uhm: warning: the model learned n up to 7: beyond that it extrapolates.\n"


def test_a_member_among_hyperparameters(runs):
    """Members are task by task, and alpha by alpha within: 0 and 1 are task 1, 2 and 3 task 3."""
    with pytest.warns(UserWarning, match=r"members 2, 3 differ in alpha: this is 2; --member chooses"):
        first = Dream(runs / "axes", "rooms-task3")
    assert (first.member, first.hyper.alpha) == (2, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = Dream(runs / "axes", member=3)
        assert Dream(runs / "uhm", "rooms-task3", 5).member == 3
    assert (named.task.name, named.seed, named.hyper.alpha) == ("rooms-task3", 2, 0.3)
    assert calibration(named, [1], draws=4)["member"] == 3


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("dtd", [], "dtd has no model of the future: imagine looks at runs of uhm, mbtd, ghm."),
        ("uhm", ["--n", "0"], "--n has '0', and must be whole numbers of at least 1"),
        ("uhm", ["--n", "1,x"], "--n has 'x'"),
        ("uhm", ["--starts", "0"], "--starts is 0"),
        ("uhm", ["--draws", "1"], "--draws is 1, and must be at least 2"),
        ("uhm", ["--task", "rooms-task2"], "unknown task of this run 'rooms-task2'"),
        ("uhm", ["--task", "nonsense"], "It trained on rooms-task1, rooms-task3."),
        ("uhm", ["--seed", "1"], "the run has no seed 1: its seeds are 2, 5."),
        ("uhm", ["--member", "4"], "the run has no member 4: its members are 0 to 3."),
        ("uhm", ["--member", "1", "--seed", "5"], "a member has its task and its seed"),
        ("uhm", ["--step", "first"], "--step is 'first'"),
        ("uhm", ["--step", "7"], "no checkpoint of step 7"),
        ("nowhere", [], "no run directory"),
        ("empty", [], "has no checkpoint yet"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(run, arguments, message, runs, capsys):
    if run == "empty" and not (runs / "empty").exists():
        shutil.copytree(runs / "uhm", runs / "empty", ignore=shutil.ignore_patterns("checkpoints"))
    out = said(capsys, runs / run, *arguments, status=2)
    assert out.out == ""
    assert message in out.err
    assert not (runs / run / "imagine").exists()
    assert len([line for line in out.err.splitlines() if "warning" not in line]) == 1


def test_the_starts_of_a_task_that_cannot_be_written(runs, capsys):
    (runs / "file").write_text("")
    quick = ("--n", "1", "--starts", 1, "--draws", 2, "--out", runs / "file" / "below")
    assert "cannot write" in said(capsys, runs / "uhm", *quick, status=2).err


def test_all_known_environments_have_a_view():
    from uhm.imagine.views import view

    for environment in tasks.ENVIRONMENTS.values():
        found = view(environment)
        assert max(t.first + t.size for t in (*found.things, *found.slides)) <= environment.observation_size
        assert max((first + 4 for first in found.buttons), default=0) <= environment.observation_size
        assert found.arm == (environment.domain == "manipulation")
