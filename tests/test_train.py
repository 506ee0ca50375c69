"""Training in this process: what a run leaves behind, and what its flags mean."""

import dataclasses
import json
import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_runs import TASKS, lines, make_data, small_plan, small_run
from toys import assert_trees
from uhm import __version__, cli, report, tasks, train
from uhm.agents import FAMILIES, family
from uhm.data import Dataset
from uhm.errors import UhmError
from uhm.evaluate import rooms
from uhm.evaluate.records import episode_seeds
from uhm.train.loop import data_of

AXIS = [0.03, 0.1]
SETTINGS = {"seeds": 2, "alpha": AXIS, "steps": 50, "log_interval": 10, "eval_interval": 12, "checkpoint_interval": 20}
MEMBERS = [(task, seed, alpha) for task in TASKS for seed in (0, 1) for alpha in AXIS]
EVALUATIONS = [20, 30, 40, 50]  # the first ends of chunks at or after 12, 24, 36 and 48


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The directory of a finished run, and what `start` returned."""
    directory, usual = tmp_path_factory.mktemp("runs") / "run", rooms.run

    def some_succeed(act, members, seeds, discounts, step, episodes):
        # A few steps teach nobody anything, and a score of zeros proves nothing.
        found, first = usual(act, members, seeds, discounts, step, episodes)
        return [e._replace(success=float((step // 10 * 5 + e.member * 3 + e.episode) % 7 < 3)) for e in found], first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "run", some_succeed)
        return directory, small_run(directory, small_plan(data, **SETTINGS))


def test_the_summary(finished):
    directory, summary = finished
    assert json.loads((directory / "summary.json").read_text()) == summary
    assert [(m["task"], m["seed"], m["hyper"]["alpha"]) for m in summary["members"]] == MEMBERS
    assert {m["agent"] for m in summary["members"]} == {"rebrac-dagger"}
    assert (summary["steps"], summary["total_steps"]) == (50, 50 * len(MEMBERS))
    assert summary["wall_time"] > 0
    assert summary["versions"]["uhm"] == __version__
    plan = train.Plan.from_json(json.loads((directory / "config.json").read_text()))
    for member in summary["members"]:
        assert member["hyper"].keys() == plan.hyper.keys()
        assert not member["diverged"]
    hashes = [member["params_sha256"] for member in summary["members"]]
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes)
    assert len(set(hashes)) == len(MEMBERS)


def test_metrics_have_a_line_per_chunk_and_a_number_per_member(finished):
    found = lines(finished[0] / "metrics.jsonl")
    assert [line["step"] for line in found] == [10, 20, 30, 40, 50]
    assert [line["seconds"] for line in found] == sorted(line["seconds"] for line in found)
    for line in found:
        values = {name: value for name, value in line.items() if name not in ("step", "seconds")}
        assert {"critic_loss", "actor_loss"} <= values.keys()
        assert all(len(value) == len(MEMBERS) and None not in value for value in values.values())


def test_every_episode_of_every_member_is_recorded_once(finished):
    found = [(e["step"], e["member"], e["episode"]) for e in lines(finished[0] / "episodes.jsonl")]
    assert sorted(found) == [(s, m, e) for s in EVALUATIONS for m in range(len(MEMBERS)) for e in range(3)]
    for record in lines(finished[0] / "episodes.jsonl"):
        assert (record["task"], record["seed"]) == MEMBERS[record["member"]][:2]
        assert 1 <= record["length"] <= tasks.ROOMS.episode_limit


def test_scores_are_means_of_the_last_three_evaluations(finished):
    directory, summary = finished
    episodes = lines(directory / "episodes.jsonl")
    for index, member in enumerate(summary["members"]):
        for found, step in zip(member["evaluations"], EVALUATIONS, strict=True):
            own = [e for e in episodes if (e["member"], e["step"]) == (index, step)]
            assert found.keys() == {"step", "success", "return", "discounted", "value"} and found["step"] == step
            for name in ("success", "discounted", "value"):
                assert found[name] == pytest.approx(np.mean([e[name] for e in own]))
        successes = [found["success"] for found in member["evaluations"]]
        assert member["score"] == pytest.approx(np.mean(successes[-3:]))
    assert len({member["score"] for member in summary["members"]}) > 1


def test_what_agents_expect_and_what_they_get_is_recorded(finished):
    """Of unsolved episodes: -1 for every step, discounted by gamma; and the smaller critic at the first position."""
    directory, _ = finished
    plan, _, state, _ = train.load_run(directory)
    last = [e for e in lines(directory / "episodes.jsonl") if e["step"] == 50]
    gamma, limit = plan.hyper["discount"], tasks.ROOMS.episode_limit
    unsolved = [e for e in last if e["length"] == limit and e["return"] == -limit]
    assert unsolved
    assert all(e["discounted"] == pytest.approx(-(1 - gamma**limit) / (1 - gamma)) for e in unsolved)
    for e in last:
        task = tasks.task(e["task"])
        at = jnp.asarray(rooms.start(task, *episode_seeds(e["seed"], 50, task.index, e["episode"])), jnp.float32)
        networks = jax.tree.map(lambda x, m=e["member"]: x[m], state.state.params)
        assert e["value"] == pytest.approx(float(networks.critic(at, networks.actor(at)).min()), rel=1e-4)


def test_checkpoints_are_kept(finished):
    kept = sorted(int(path.name) for path in (finished[0] / "checkpoints").iterdir())
    assert kept[-2:] == [40, 50]


def test_placement_does_not_change_the_result(data, tmp_path):
    """The same rows and the same noise; the compiler orders some sums otherwise, so that a last bit may differ."""
    found = []
    for placement in ("device", "host"):
        plan = small_plan(data, "dtd", "rooms-task2", seeds=2, steps=5, eval_interval=5, placement=placement)
        small_run(tmp_path / placement, plan)
        found.append(train.load_run(tmp_path / placement).state)
    assert_trees(np.testing.assert_allclose, found[0].state.params, found[1].state.params, atol=1e-6)
    assert np.array_equal(jax.random.key_data(found[0].key), jax.random.key_data(found[1].key))


def test_a_member_that_diverges_is_frozen_and_reported(data, tmp_path):
    plan = small_plan(data, what="rooms-task1", seeds=1, learning_rate=[1e-3, 1e30], steps=30, log_interval=10)
    with pytest.warns(UserWarning, match=r"member 1 \(rooms-task1, seed 0, .*1e\+30.*diverged before step 10"):
        summary = small_run(tmp_path / "run", plan)
    assert [member["diverged"] for member in summary["members"]] == [False, True]
    assert [e["step"] for e in summary["members"][1]["evaluations"]] == [10, 20, 30]
    assert all(line["critic_loss"][0] is not None for line in lines(tmp_path / "run" / "metrics.jsonl"))


def test_three_lines_of_python(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"hidden": [16, 16], "batch_size": 16, "steps": 2, "eval_episodes": 1, "seeds": 1, "eval_interval": 2}
    summary = train.train("rebrac-dagger", "rooms-task1", data_dir=data, **settings)
    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.name.startswith("rebrac-dagger-rooms-")
    assert Path(summary.pop("run")).resolve() == directory
    assert json.loads((directory / "summary.json").read_text()) == summary


def test_missing_data_leave_no_directory_behind(tmp_path):
    with pytest.raises(UhmError, match="uhm data make scene-play"):
        train.train("uhm", "scene-play-task1", run=tmp_path / "run", data_dir=tmp_path)
    assert not (tmp_path / "run").exists()


def test_data_of_another_environment_are_refused(data, tmp_path):
    (tmp_path / "scene-play-v0.npz").write_bytes((data / "rooms-v0.npz").read_bytes())
    with pytest.raises(UhmError, match="has size 2, but scene-play has 40"):
        train.train("uhm", "scene-play-task1", run=tmp_path / "run", data_dir=tmp_path)
    assert not (tmp_path / "run").exists()


def test_the_default_makes_its_own_data(tmp_path):
    made = data_of(train.resolve(data_dir=tmp_path))
    assert isinstance(made, Dataset)
    assert made.size == tasks.ROOMS.transitions
    with pytest.raises(UhmError, match="no train data"):
        data_of(train.resolve(data_dir=tmp_path, dataset="mine-v0"))


SUMMARY = {"environment": "rooms", "members": [{"diverged": False}, {"diverged": True}]}


@pytest.fixture
def planned(monkeypatch):
    """What the command line would train."""
    plans = []
    monkeypatch.setattr(train, "start", lambda plan, directory, **_: plans.append((plan, directory)) or SUMMARY)
    monkeypatch.setattr(report, "write", lambda runs, out: out)

    def parse(*arguments):
        assert cli.run(["train", *arguments]) == 0
        return plans[-1][0]

    return parse


def test_flags(planned):
    plan = planned(
        "dtd", "rooms-task1", "rooms-task3", "--alpha", "0.03", "0.1", "--hidden", "16", "16", "--seeds", "2"
    )
    assert (plan.agent, plan.tasks) == ("dtd", ("rooms-task1", "rooms-task3"))
    assert (plan.axes, plan.config["hidden"]) == ({"alpha": [0.03, 0.1]}, (16, 16))
    assert len(plan.members()) == 2 * 2 * 2
    assert planned() == train.resolve("uhm", "rooms")
    assert planned("--q-agg", "mean").config["q_agg"] == "mean"


@pytest.mark.parametrize(
    ("said", "seeds"),
    [("3", (0, 1, 2)), ("3-3", (3,)), ("5-7", (5, 6, 7)), ("3,7", (3, 7)), ("0-1,8", (0, 1, 8))],
)
def test_seeds_are_a_number_or_named(planned, said, seeds):
    assert planned("uhm", "rooms", "--seeds", said).seeds == seeds


def test_flags_may_come_before_the_agent(planned):
    plan = planned("--alpha", "0.1", "0.3", "iql", "rooms-task2", "--expectile", "0.8")
    assert plan == planned("iql", "rooms-task2", "--alpha", "0.1", "0.3", "--expectile", "0.8")
    assert planned("--run", "iql").agent == "uhm"  # the name of a directory
    assert planned("--no-tensorboard", "iql").agent == planned("--run=mac", "iql").agent == "iql"


def test_zero_and_false_are_values(planned):
    plan = planned(
        "uhm", "rooms", "--schedule", "False", "--beta", "0", "--lambda-f", "0.0", "--model-layer-norm", "False"
    )
    assert plan.hyper["schedule"] is False
    assert (plan.hyper["beta"], plan.hyper["lambda_f"]) == (0, 0)
    assert plan.config["model_layer_norm"] is False
    assert planned("uhm", "rooms", "--terminal", "True", "False").axes == {"terminal": [True, False]}
    assert planned("uhm", "rooms", "--standardise", "True").config["standardise"] is True


def test_the_run_directory_can_be_named_and_holds_the_page(monkeypatch, tmp_path, capsys):
    made, mine = [], tmp_path / "mine"
    monkeypatch.setattr(train, "start", lambda plan, directory, **_: made.append(directory) or SUMMARY)
    monkeypatch.setattr(report, "write", lambda runs, out: made.append((runs, out)) or out / "report.html")
    assert cli.run(["train", "--run", str(mine)]) == 0
    assert made == [mine, ([mine], mine / "report")]
    assert f"page: {mine / 'report' / 'report.html'}" in capsys.readouterr().out
    # A page that cannot be made does not make the run a failure.
    monkeypatch.undo()
    monkeypatch.setattr(train, "start", lambda plan, directory, **_: SUMMARY)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as on a command line
        assert cli.run(["train", "--run", str(mine)]) == 0
    assert "the run is complete, but its page could not be made: no run directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["module:", "rooms"], "'module:' names no Python module: write module:NAME for NAME.py"),
        (["ghm", "--resume", "nowhere"], "leave out the agent."),
        (["umh"], "unknown agent 'umh'. Did you mean uhm"),
        (["uhm", "room"], "Did you mean rooms"),
        (["uhm", "rooms", "--alhpa", "0.1"], "unknown flag '--alhpa'. Did you mean --alpha"),
        (["uhm", "rooms", "--lambda-f", "1"], "lambda_f is 1.0, and must be in [0, 1)"),
        (["uhm", "rooms", "--q", "0"], "q is 0.0, and must be in (0, 1)"),
        (["uhm", "rooms", "--steps", "-3"], "steps is -3"),
        (["uhm", "rooms", "--steps", "0"], "steps is 0"),
        (["uhm", "rooms", "--eval-interval", "0"], "eval_interval is 0"),
        (["uhm", "rooms", "--transitions", "0"], "transitions is 0"),
        (["uhm", "rooms", "--steps", "many"], "--steps"),
        (["uhm", "rooms", "--alpha", "much"], "--alpha"),
        (["uhm", "rooms", "--q-agg", "max"], "invalid choice 'max'"),
        (["uhm", "rooms", "--steps"], "--steps needs a value"),
        (["uhm", "rooms", "--seeds"], "Missing value for argument '--seeds'"),
        (
            ["uhm", "rooms", "--seeds", "0", "1"],
            "--seeds takes one value: a number of seeds, or which",
        ),
        (["uhm", "rooms", "--seeds", "7-5"], "--seeds is '7-5', and must be a number of seeds, or which ones: 5-9"),
        (["uhm", "rooms", "--seeds", "2,2"], "seeds are [2, 2], and must be different"),
        (["rooms-task1"], "'rooms-task1' is no agent, which comes first: `uhm train uhm rooms-task1`."),
        (["uhm", "log.hdf5"], "'log.hdf5': logs are .npz files"),
        (["uhm", "rooms", "--hidden"], "--hidden needs a value"),
        (["uhm", "rooms", "--alpha", "0.1,0.3"], "--alpha takes its values apart: --alpha 0.1 0.3."),
        (["uhm", "rooms", "--target-noise", "--steps", "9"], "--target-noise needs a value"),
        (["uhm", "rooms", "--dataset", "mine.npz", "--data-dir", "."], "no train data called mine in "),
        (["--resume", "nowhere"], "no run directory nowhere"),
        (["--resume", "nowhere", "--steps", "9"], "leave out --steps"),
        (["--resume", "nowhere", "--alpha", "0"], "leave out --alpha"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["train", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tasks", "alpha", "discount"),
    [([], "0.1", "0.98"), (["cube-single-play"], "1", "0.999"), (["nowhere"], "0.1", "0.999")],
)
def test_help_says_what_a_value_is_if_it_is_not_given(tasks, alpha, discount, capsys):
    """On these tasks, or for an environment that is not known as the agent has it."""
    with pytest.raises(SystemExit):
        cli.run(["train", "uhm", *tasks, "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(rf"cloning in the actor's loss\. \(default: {alpha}(\.0)?\)", text)
    assert f"gamma. (default: {discount})" in text


@pytest.mark.parametrize("agent", FAMILIES)
def test_help_explains_every_field(agent, capsys):
    with pytest.raises(SystemExit) as end:
        cli.run(["train", agent, "--help"])
    assert not end.value.code
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    kind = family(agent)
    for field in (*dataclasses.fields(kind.Config), *dataclasses.fields(kind.Hyper)):
        # A flag, its type in any notation, and at least the beginning of a sentence about it.
        assert re.search(rf" --{field.name.replace('_', '-')} [^ ].* [A-Za-z]", text), field.name
    known = {
        "alpha": "|".join(("Weight of behaviour cloning", "Inverse temperature", "Weight of imitating the flow")),
        "q_agg": "How the two critics are combined",
        "batch_size": "Transitions per gradient step",
    }
    for field in (*dataclasses.fields(kind.Config), *dataclasses.fields(kind.Hyper)):
        assert re.search(known.get(field.name, ""), text), field.name
    assert "--steps INT Gradient steps (default: the paper's; a million for logs)." in text
