"""A plan is resolved from presets and the caller's values, or refused in one line that names the field."""

import dataclasses
import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from uhm import horizons, tasks
from uhm.agents import FAMILIES
from uhm.errors import UhmError
from uhm.train import Plan, resolve


@pytest.mark.parametrize("agent", FAMILIES)
@pytest.mark.parametrize("environment", tasks.ENVIRONMENTS)
def test_every_agent_has_a_plan_for_every_environment(agent, environment):
    plan = resolve(agent, environment)
    plan.family.Config(**plan.config)
    plan.family.Hyper(**plan.hyper)
    assert plan.tasks == tuple(task.name for task in tasks.ENVIRONMENTS[environment].tasks)


@pytest.mark.parametrize(
    ("agent", "what", "expected"),
    [
        ("uhm", "cube-double-play", {"alpha": 0.1, "q_agg": "mean", "lambda_f": 0.8, "steps": 1_000_000, "seeds": 5}),
        ("uhm", "antmaze-large-navigate-task2", {"q_agg": "min", "discount": 0.999}),
        ("uhm", "puzzle-4x5-play", {"lambda_f": 0.9, "steps": 2_000_000, "seeds": 3}),
        ("dtd", "antmaze-large-explore", {"alpha": 0.003}),
        ("iql", "antsoccer-arena-navigate", {"alpha": 1, "discount": 0.995, "expectile": 0.9, "advantage_clip": 100}),
        ("rebrac", "scene-play", {"alpha": 0.1, "alpha_critic": 0.01, "actor_period": 2, "q_agg": "min"}),
        ("fql", "antmaze-giant-navigate", {"alpha": 10, "q_agg": "min", "flow_steps": 10, "ode": "euler"}),
    ],
)
def test_presets_are_applied(agent, what, expected):
    plan = resolve(agent, what)
    found = {"steps": plan.steps, **plan.config, **plan.hyper, "seeds": len(plan.seeds)}
    assert {name: found[name] for name in expected} == expected
    assert plan.hyper.get("steps", plan.steps) == plan.steps  # only an agent with a schedule asks for it


def test_the_caller_overrides_presets():
    plan = resolve("uhm", "cube-double-play", alpha=0.7, q_agg="min", steps=7, lambda_f=0, schedule=False)
    assert (plan.hyper["alpha"], plan.config["q_agg"], plan.hyper["steps"]) == (0.7, "min", 7)
    assert (plan.hyper["lambda_f"], plan.hyper["schedule"]) == (0, False)
    assert plan.axes == {}


def test_intervals():
    paper, short = resolve("uhm", "cube-double-play"), resolve("uhm", "rooms", steps=40)
    assert (paper.eval_interval, paper.eval_episodes, paper.log_interval) == (100_000, 50, 1000)
    assert paper.checkpoint_interval <= paper.eval_interval
    # Chunks end with log lines, and nothing happens within one: a short run still has its ten evaluations.
    assert (short.eval_interval, short.log_interval, short.checkpoint_interval) == (4, 4, 4)
    assert resolve(steps=1000, eval_interval=50).log_interval == 50
    given = resolve(steps=40, log_interval=10)
    assert (given.eval_interval, given.log_interval, given.checkpoint_interval) == (10, 10, 10)


def test_members_are_tasks_then_seeds_then_axes():
    plan = resolve("uhm", ["rooms-task3", "rooms-task1"], seeds=[4, 2], alpha=[0.1, 0.2], terminal=[True, False])
    members = plan.members()
    assert [(m.task, m.column, m.seed) for m in members[::4]] == [
        ("rooms-task3", 0, 4),
        ("rooms-task3", 0, 2),
        ("rooms-task1", 1, 4),
        ("rooms-task1", 1, 2),
    ]
    axes = [(("alpha", a), ("terminal", t)) for a in (0.1, 0.2) for t in (True, False)]
    assert [m.hyper for m in members] == axes * 4


def test_axes_may_be_arrays_and_single_values_are_none():
    plan = resolve(alpha=np.linspace(0.1, 0.3, 3), q=[0.3], discount=np.float32(0.5))
    assert plan.axes == {"alpha": pytest.approx([0.1, 0.2, 0.3])}
    assert (plan.hyper["q"], plan.hyper["discount"]) == (0.3, 0.5)
    json.dumps(plan.to_json())


def test_numbers_may_be_of_numpy_and_jax():
    plan = resolve(
        seeds=list(np.arange(2)),
        steps=np.int64(100),
        alpha=[np.float32(0.5), jnp.float32(0.25)],
        schedule=[np.True_, np.False_],
        hidden=list(np.array([16, 16])),
        eval_episodes=np.int64(3),
    )
    assert (plan.seeds, plan.steps, plan.eval_episodes, plan.config["hidden"]) == ((0, 1), 100, 3, (16, 16))
    assert plan.axes == {"alpha": [0.5, 0.25], "schedule": [True, False]}
    assert resolve(seeds=np.int64(2)).seeds == (0, 1)
    json.dumps(plan.to_json())


def test_tasks_and_names_are_the_same():
    assert resolve("uhm", tasks.task("rooms-task2")) == resolve("uhm", "rooms-task2")
    assert resolve("uhm", ["rooms-task2", "rooms"]).tasks[0] == "rooms-task2"
    assert len(resolve("uhm", ["rooms-task2", "rooms"]).tasks) == 5


def test_json_round_trip():
    plan = resolve("ghm", "rooms-task2", seeds=2, hidden=[8, 8], alpha=[0.1, 1], schedule=False, data_dir="here")
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.members() == plan.members()
    for broken in ({"agent": "uhm"}, {**plan.to_json(), "colour": "red"}):
        with pytest.raises(UhmError, match="has other fields than this version's"):
            Plan.from_json(broken)


def test_runs_from_before_a_field_came_go_on():
    plan = resolve("uhm", "rooms", seeds=[4])
    older = plan.to_json()
    del older["transitions"]
    assert Plan.from_json(older) == plan


def test_an_agent_with_another_schedule_has_no_horizon(tmp_path, monkeypatch):
    source = "import dataclasses\nConfig = dataclasses.make_dataclass('Config', [])\n"
    source += "Hyper = dataclasses.make_dataclass('Hyper', [('lambda_f', float, 0.5)])\nmake = None\n"
    (tmp_path / "with_lambda_alone.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert resolve("module:with_lambda_alone", "rooms").k_max() == 1


def test_the_data_directory_does_not_depend_on_where_one_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve(data_dir="here").data_dir == str(tmp_path / "here")
    assert resolve().data_dir is None


def test_k_max_is_the_largest_of_all_members():
    lambdas, tails, discount = [0.0, 0.9, 0.5], [0.4, 0.05], 0.99
    plan = resolve(lambda_f=lambdas, q=tails, discount=discount)
    of_members = [int(horizons.k_max(lam, discount, q)) for lam in lambdas for q in tails]
    assert len(set(of_members)) > 2
    assert plan.k_max() == max(of_members)
    assert resolve(lambda_f=0).k_max() == 1
    assert resolve("ghm", q=0.01).k_max() == resolve("ghm").k_max() == resolve().k_max()  # which it does not look at


BAD = [
    ({"lambda_f": 1.0}, r"lambda_f is 1.0, and must be in \[0, 1\)"),
    ({"lambda_f": -0.1}, "lambda_f is -0.1"),
    ({"lambda_f": [0.5, 1]}, r"lambda_f is 1, and must be in \[0, 1\)"),
    ({"q": 0}, r"q is 0, and must be in \(0, 1\)"),
    ({"q": 1}, r"q is 1, and must be in \(0, 1\)"),
    ({"discount": 1}, "discount is 1,"),
    ({"discount": math.nan}, "discount is nan"),
    ({"alpha": -1}, "alpha is -1,"),
    ({"alpha": math.inf}, "alpha is inf"),
    ({"alpha": "much"}, "alpha is much"),
    ({"alpha": True}, "alpha is True"),
    ({"alpha": []}, r"alpha is \[\]"),
    ({"alpha": [0.1, 0.1]}, r"alpha is \[0.1, 0.1\], and must be one value or several different ones"),
    ({"beta": 1.1}, "beta is 1.1"),
    ({"learning_rate": 0}, "learning_rate is 0"),
    ({"ema_rate": 2}, "ema_rate is 2"),
    ({"target_noise": -1}, "target_noise is -1"),
    ({"target_noise_clip": -1}, "target_noise_clip is -1"),
    ({"actor_period": 0}, "actor_period is 0"),
    ({"actor_period": 2.5}, "actor_period is 2.5, and must be a whole number"),
    ({"actor_period": "often"}, "actor_period is often"),
    ({"schedule": "no"}, "schedule is 'no', and must be True or False"),
    ({"terminal": [True, 0]}, "terminal is 0, and must be True or False"),
    ({"steps": 0}, "steps is 0, and must be at least 1"),
    ({"steps": -5}, "steps is -5"),
    ({"transitions": 1e5}, "transitions is 100000.0, and must be a whole number"),
    ({"seeds": 0}, "seeds is 0"),
    ({"seeds": [1, 1]}, r"seeds are \[1, 1\]"),
    ({"seeds": []}, r"seeds are \[\]"),
    ({"seeds": [-1]}, "a seed is -1"),
    ({"seeds": [0, 2**32]}, "a seed is 4294967296, and must be below 2\\^32"),
    ({"eval_interval": 0}, "eval_interval is 0"),
    ({"eval_episodes": 0}, "eval_episodes is 0"),
    ({"log_interval": 0}, "log_interval is 0"),
    ({"checkpoint_interval": -1}, "checkpoint_interval is -1"),
    ({"log_interval": 10, "eval_interval": 9}, r"eval_interval is 9, and must be at least log_interval \(10\)"),
    ({"log_interval": 10, "checkpoint_interval": 9}, "checkpoint_interval is 9, and must be at least log_interval"),
    ({"transitions": 0}, "transitions is 0"),
    ({"placement": "gpu"}, "placement is 'gpu', and must be device or host"),
    ({"hidden": ()}, "hidden is empty"),
    ({"hidden": (16, 0)}, "hidden is 0"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"flow_steps": 0}, "flow_steps is 0"),
    ({"q_agg": "max"}, "q_agg is 'max', and must be one of: min, mean"),
    ({"flag_std": -1}, r"flag_std is -1, and must be in \[0, inf\)"),
    ({"standardise": "yes"}, "standardise is 'yes', and must be True or False"),
    ({"batch_size": [16, 32]}, "batch_size changes the compiled program"),
    ({"q_agg": ["min", "mean"]}, "q_agg changes the compiled program"),
    ({"alhpa": 0.1}, "unknown setting 'alhpa'. Did you mean alpha"),
    ({"lamda_f": 0.1}, "Did you mean lambda_f"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[str(settings) for settings, _ in BAD])
def test_impossible_values_are_refused_in_one_line(settings, message):
    with pytest.raises(UhmError, match=message) as error:
        resolve(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("agent", FAMILIES)
def test_every_hyperparameter_has_a_range(agent):
    plan = resolve(agent)
    for field in dataclasses.fields(plan.family.Hyper):
        settings: dict[str, Any] = {field.name: -1 if field.name == "steps" else math.nan}
        with pytest.raises(UhmError, match=f"^{field.name} is "):
            resolve(agent, **settings)


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        ("iql", {"expectile": 1}, r"expectile is 1, and must be in \(0, 1\)"),
        ("iql", {"expectile": [0.9, 0]}, "expectile is 0"),
        ("iql", {"advantage_clip": 0}, "advantage_clip is 0"),
        ("iql", {"q_agg": "min"}, "iql has no such hyperparameter"),
        ("rebrac", {"alpha_critic": -1}, "alpha_critic is -1"),
        ("fql", {"ode": "rk4"}, "ode is 'rk4', and must be one of: midpoint, euler"),
        ("fql", {"flow_steps": 0}, "flow_steps is 0"),
        ("dtd", {"beta": [0, 0.3]}, "beta changes nothing in dtd, so its members would be the same"),
        ("uhm", {"literal_mve": [False, True]}, "literal_mve changes nothing in uhm"),
    ],
)
def test_impossible_values_of_other_agents(agent, settings, message):
    with pytest.raises(UhmError, match=message):
        resolve(agent, **settings)


@pytest.mark.parametrize(
    ("agent", "what", "message"),
    [
        ("umh", "rooms", "unknown agent 'umh'. Did you mean uhm"),
        ("uhm", "room", "Did you mean rooms"),
        ("uhm", ["rooms", "scene-play-task1"], r"not on 2 \(rooms, scene-play\)"),
        ("uhm", "noisy", "one population trains on one environment, not on 5"),
        ("uhm", [], "one population trains on one environment"),
    ],
)
def test_what_no_population_can_train_on(agent, what, message):
    with pytest.raises(UhmError, match=message):
        resolve(agent, what)
