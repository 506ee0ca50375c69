"""`uhm eval` and `load_run`: a run looked at from outside, without its data and without changing it."""

import json
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_runs import TASKS, lines, make_data, small_plan, small_run
from uhm import cli, evaluate
from uhm.errors import UhmError
from uhm.evaluate import video
from uhm.runs import Run, params_sha256
from uhm.train import load_run

SETTINGS = {"seeds": 2, "alpha": [0.03, 3.0], "steps": 30, "log_interval": 10, "eval_interval": 10}
SETTINGS |= {"checkpoint_interval": 10}
KEPT = [20, 30]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run whose data are gone."""
    directory, data = tmp_path_factory.mktemp("runs") / "run", make_data(tmp_path_factory.mktemp("data"))
    small_run(directory, small_plan(data, **SETTINGS))
    shutil.rmtree(data)
    return directory


def evaluated(capsys, *arguments):
    assert cli.run(["eval", *(str(a) for a in arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def files(directory):
    return {str(path.relative_to(directory)): path.stat().st_mtime_ns for path in directory.rglob("*")}


def means(run, step, members, field):
    episodes = [e for e in lines(run / "episodes.jsonl") if e["step"] == step]
    return [float(np.mean([e[field] for e in episodes if e["member"] == m])) for m in range(members)]


def test_load_run(run):
    plan, agent, state, _ = load_run(run)
    summary = json.loads((run / "summary.json").read_text())
    assert int(state.step) == 30
    hashes = [params_sha256(jax.tree.map(lambda x, i=i: x[i], state.state.params)) for i in range(8)]
    assert hashes == [member["params_sha256"] for member in summary["members"]]
    assert [m.task for m in plan.members()] == [member["task"] for member in summary["members"]]
    one = jax.tree.map(lambda x: x[0], state.state)
    assert agent.act(one, jnp.zeros((4, 2)), jax.random.key(0)).shape == (4, 2)


def test_load_run_at_a_step(run, tmp_path):
    assert Run.open(run, write=False).steps() == KEPT
    assert int(load_run(run, 20).state.step) == 20
    with pytest.raises(UhmError, match="no checkpoint of step 25"):
        load_run(run, 25)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for best in KEPT:
        records = [{**e, "success": float(e["step"] in (10, best))} for e in lines(run / "episodes.jsonl")]
        (copy / "episodes.jsonl").write_text("".join(json.dumps(e) + "\n" for e in records))
        assert int(load_run(copy, "best").state.step) == best
    # An evaluation that is being written may look better than it is: all its episodes so far succeeded.
    before = [{**e, "success": 0.0} for e in lines(run / "episodes.jsonl") if e["step"] != KEPT[-1]]
    records = [*before, {**before[0], "step": KEPT[-1], "success": 1.0}]
    (copy / "episodes.jsonl").write_text("".join(json.dumps(e) + "\n" for e in records))
    assert int(load_run(copy, "best").state.step) == KEPT[-2]
    (copy / "episodes.jsonl").unlink()
    with pytest.raises(UhmError, match="was evaluated yet"):
        load_run(copy, "best")


def test_what_cannot_be_loaded(run, tmp_path):
    with pytest.raises(UhmError, match="no run directory"):
        load_run(tmp_path / "nowhere")
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(UhmError, match="has no checkpoint yet"):
        load_run(copy)
    shutil.copytree(run / "checkpoints", copy / "checkpoints")
    spec = json.loads((copy / "spec.json").read_text())
    (copy / "spec.json").write_text(json.dumps({**spec, "colour": "red"}))
    with pytest.raises(UhmError, match=r"spec\.json: it was made by another version"):
        load_run(copy)
    (copy / "spec.json").unlink()
    with pytest.raises(UhmError, match=r"cannot read .*spec\.json"):
        load_run(copy)


@pytest.mark.parametrize("step", ["last", "20"])
def test_the_episodes_of_training_come_out_again(step, run, capsys):
    before, number = files(run), 30 if step == "last" else 20
    report = evaluated(capsys, run, "--episodes", 3, "--step", step)
    assert files(run) == before
    assert (report["step"], report["episodes"], report["agent"]) == (number, 3, "rebrac-dagger")
    for field in ("success", "return", "length", "discounted", "value"):
        assert [member[field] for member in report["members"]] == means(run, number, 8, field)
    for task in TASKS:
        own = [member["success"] for member in report["members"] if member["task"] == task]
        assert report["success"][task] == pytest.approx(np.mean(own))
    assert [(m["seed"], m["hyper"]["alpha"]) for m in report["members"][:4]] == [(0, 0.03), (0, 3), (1, 0.03), (1, 3)]
    assert report["videos"] == []


def test_episodes_and_seeds_are_those_asked_for(run, capsys, monkeypatch):
    asked = []

    class Watched(evaluate.Evaluator):
        def run(self, act, *, seeds, step, discounts=None):
            asked.append((self.episodes, list(seeds), step, discounts))
            return super().run(act, seeds=seeds, step=step, discounts=discounts)

    monkeypatch.setattr("uhm.evaluate.evaluator.Evaluator", Watched)
    evaluated(capsys, run, "--episodes", 2, "--step", "last")
    evaluated(capsys, run, "--episodes", 4, "--seed", 0, "--step", "20")
    discounts = [load_run(run).plan.hyper["discount"]] * 8
    assert asked == [(2, [0, 0, 1, 1] * 2, 30, discounts), (4, [0] * 8, 20, discounts)]


def test_the_table(run, capsys):
    assert cli.run(["eval", str(run), "--episodes", "2"]) == 0
    said = capsys.readouterr()
    assert "2 episodes at step 30" in said.out
    assert said.err == ""
    report = evaluated(capsys, run, "--episodes", 2)
    rows = {tuple(line.split()[:2]): line.split() for line in said.out.splitlines() if line.startswith(" rooms")}
    assert set(rows) == {(task, f"alpha={alpha:g}") for task in TASKS for alpha in (0.03, 3)}
    for (task, setting), row in rows.items():
        own = [m for m in report["members"] if m["task"] == task and f"alpha={m['hyper']['alpha']:g}" == setting]
        expected, obtained = (np.mean([member[name] for member in own]) for name in ("value", "discounted"))
        assert row[-2:] == [f"{expected:.1f}", f"{obtained:.1f}"]


def test_films(run, capsys):
    before = set(files(run))
    report = evaluated(capsys, run, "--episodes", 1, "--video")
    new = sorted(name for name in set(files(run)) - before if name != "videos")
    assert [f"{run}/{name}" for name in new] == report["videos"]
    named = [f"videos/{task}-alpha={alpha}-30" for task in TASKS for alpha in (0.03, 3.0)]
    assert [name.removesuffix(".mp4").removesuffix(".gif") for name in new] == named
    assert all((run / name).stat().st_size > 1000 for name in new)
    shutil.rmtree(run / "videos")


def test_where_nothing_can_be_drawn_the_numbers_remain(run, capsys, monkeypatch):
    def blind(*_, **__):
        raise UhmError("MuJoCo cannot draw here, so there is no video.")

    monkeypatch.setattr(video, "record_video", blind)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.run(["eval", str(run), "--episodes", "1", "--video", "--json"]) == 1
    said = capsys.readouterr()
    assert said.err == "uhm: warning: MuJoCo cannot draw here, so there is no video.\n"  # once, not per task
    report = json.loads(said.out)
    assert report["videos"] == []
    assert len(report["members"]) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no run directory nowhere"),
        (["nowhere", "--episodes", "0"], "--episodes is 0"),
        (["nowhere", "--seed", "-1"], "--seed is -1"),
        (["nowhere", "--step", "first"], "--step is 'first', and must be last, best or a number"),
        (["nowhere", "--vidoe"], "Did you mean --video?"),
        ([], "Directory of the run"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys):
    assert cli.run(["eval", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert len(said.err.splitlines()) == 1
