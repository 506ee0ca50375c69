"""Suites: which populations, what the directories say about them, how long they take."""

import csv
import dataclasses
import json
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_runs import make_data
from uhm import cli, presets, tasks
from uhm.agents import FAMILIES, iql
from uhm.errors import UhmError
from uhm.runs import Run
from uhm.suites import data, overview, runner, speed
from uhm.suites.ablations import ABLATIONS
from uhm.suites.cluster import resources
from uhm.suites.plan import differences, populations
from uhm.suites.status import status, tail
from uhm.suites.worker import share
from uhm.train import resolve

REPOSITORY = Path(__file__).parent.parent
PAPER = Path(presets.__file__).parent / "paper"
SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "seeds": 1, "steps": 20, "eval_episodes": 2}


@pytest.fixture(scope="module", autouse=True)
def cpu():
    """What JAX sees is asked once, in a process of its own; here it is known."""
    patch = pytest.MonkeyPatch()
    patch.setattr(speed, "devices", lambda: speed.Devices("cpu", "cpu", 1))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    return overview.facts(populations(["paper"], out=out), out, ["paper"])


def test_the_whole_paper(paper):
    """Against the paper's table of results, read here, and what its text says about seeds and steps."""
    with (PAPER / "results_per_task.csv").open() as file:
        cells = {(row["task"], row["method"].lower(), row["suite"]) for row in csv.DictReader(file)}
    listed = {(t, p["agent"], p["suite"]) for p in paper["populations"] for t in p["tasks"]}
    assert listed == cells
    assert len(cells) == 50 * 11 + 25 * 5 + 25 * 5
    assert len(paper["environments"]) == 20
    assert len(paper["tasks"]) == 100
    assert "cube-double-play-task2" in paper["tasks"]
    for population in paper["populations"]:
        # "five random seeds ... 1M gradient steps"; "for long-horizon tasks, we use three random seeds and ... 2M".
        long = population["suite"] == "long-horizon"
        assert population["seeds"] == list(range(3 if long else 5))
        assert population["steps"] == (2_000_000 if long else 1_000_000)
        assert population["members"] == 5 * (3 if long else 5)
    assert len({p["directory"] for p in paper["populations"]}) == paper["totals"]["populations"] == 110 + 25 + 25
    json.dumps(paper, allow_nan=False)


def test_agents_and_names(tmp_path):
    named = populations(["standard", "cube-double-play", "rooms"], ["uhm", "dtd", "uhm"], out=tmp_path)
    assert [p.name for p in named[-2:]] == ["uhm-rooms", "dtd-rooms"]
    assert len(named) == 2 * 11
    one = populations(["cube-double-play-task2"], ["uhm"], out=tmp_path)[0]
    assert one.name == "uhm-cube-double-play-task2"
    assert one.plan.tasks == ("cube-double-play-task2",)
    assert {p.agent for p in populations(["rooms"])} == {"rebrac-dagger", "mbtd", "dtd", "ghm", "uhm"}
    with pytest.raises(UhmError, match="Did you mean mopo"):
        populations(["rooms"], ["mopoo"])
    with pytest.raises(UhmError, match="Did you mean standard"):
        populations(["standart"])
    with pytest.raises(UhmError, match="name a suite"):
        populations()


@pytest.mark.parametrize(
    ("name", "hyper", "values"),
    [
        ("lambda-schedule", "schedule", {True, False}),
        ("beta", "beta", {0.0, 0.3, 1.0}),
        ("terminal", "terminal", {True, False}),
        ("q", "q", {0.1, 0.2, 1e-8}),
    ],
)
def test_ablations(name, hyper, values, tmp_path):
    """Values and places that the paper's text gives; all figures are over five runs."""
    wanted = populations(ablated=name, out=tmp_path)
    environments = {p.environment.name for p in wanted}
    if name == "q":
        assert environments == {"cube-quadruple-play", "puzzle-4x6-play"}
    else:
        assert environments == {e.name for e in tasks.SUITES["standard"]}
    for population in wanted:
        assert population.agent == "uhm"
        assert set(population.plan.axes[hyper]) == values
        assert population.members == 5 * 5 * len(values)
        # The paper's own setting is one of the values, so that the curves have their reference among them.
        assert population.plan.family.Hyper().__dict__[hyper] in values
        assert population.name.endswith(f"-{name}")
    assert len(populations(["rooms"], ablated=name)) == 1


def test_an_unknown_ablation():
    with pytest.raises(UhmError, match="Did you mean beta"):
        populations(ablated="betas")
    assert set(ABLATIONS) == {"lambda-schedule", "beta", "q", "terminal"}


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    width: int = 8


def test_an_agent_of_the_users_own(monkeypatch, tmp_path, capsys):
    """It has its own directory, though it is called as one of ours, and may name its sizes as it likes."""
    own = types.SimpleNamespace(make=iql.make, Config=OwnConfig, Hyper=iql.Hyper)
    monkeypatch.setitem(sys.modules, "iql", own)
    arguments = ["suite", "plan", "rooms", "--out", str(tmp_path), "--agents"]
    assert cli.run([*arguments, "iql,module:iql", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["populations"]
    assert [(row["agent"], row["name"]) for row in rows] == [("iql", "iql-rooms"), ("module:iql", "module-iql-rooms")]
    assert cli.run([*arguments, "module:nobody"]) == 2
    assert "no Python module 'nobody'" in capsys.readouterr().err


def test_seeds_by_name_and_data_on_the_host(tmp_path, capsys):
    arguments = ["suite", "plan", "rooms", "--agents", "uhm", "--out", str(tmp_path), "--json"]
    assert cli.run([*arguments, "--seeds", "1,3-4"]) == 0
    assert json.loads(capsys.readouterr().out)["populations"][0]["seeds"] == [1, 3, 4]
    assert cli.run([*arguments, "--seeds", "2", "--placement", "host"]) == 0
    assert json.loads(capsys.readouterr().out)["populations"][0]["seeds"] == [0, 1]
    assert small(tmp_path, placement="host", seeds=[3])[0].plan.placement == "host"


# ---------------------------------------------------------------------------------------------------- directories


def small(out, agents=("uhm",), **settings):
    return populations(["rooms"], agents, out=out, **{**SMALL, **settings})


def begin(population):
    """The directory of a run that has just begun."""
    return Run.create(population.directory, population.plan.to_json())


def test_what_the_directories_say(tmp_path):
    (population,) = small(tmp_path)
    assert status(population).state == "left"
    with begin(population) as run:
        assert status(population).state == "running"
        run.log(10, {"seconds": 1.0})
        run.log_episodes({"step": step, "success": float(step == 10)} for step in (5, 10, 10))
    now = status(population)
    assert (now.state, now.step, now.success) == ("interrupted", 10, 1.0)
    with Run.open(population.directory) as run:
        run.finish({"members": [{"score": 0.25}, {"score": 0.75}]})
    assert status(population)[:3] == ("done", 20, 0.5)


def test_another_setting_is_another_run(tmp_path):
    (population,) = small(tmp_path, data_dir="/somewhere", checkpoint_interval=5)
    begin(population).close()
    assert status(small(tmp_path)[0]).state == "interrupted"  # neither where data are nor how often it saves matters
    for changed, said in (
        ({"seeds": 2}, "was run with seeds 0, not 0,1"),
        ({"eval_episodes": 3}, "was run with eval_episodes 2, not 3"),
        ({"hidden": (8, 8)}, "was run with hidden 8, not 8,8"),
        ({"compute_dtype": "bfloat16"}, "was run with compute_dtype float32, not bfloat16"),
        ({"beta": 0.5}, "was run with beta 0.3, not 0.5"),
    ):
        now = status(small(tmp_path, **changed)[0])
        assert (now.state, now.note) == ("differs", said)
    assert status(small(tmp_path, steps=30)[0]).note.startswith("was run with steps 20, not 30")
    with pytest.raises(UhmError, match=rf"{population.directory} was run with beta 0.3, not 0.5: give another --out"):
        runner.split(small(tmp_path, beta=0.5))


def test_a_field_that_an_older_version_did_not_have():
    plan = resolve("uhm", "rooms")
    config = json.loads(json.dumps(plan.to_json()))
    assert differences(plan, config) == ""
    del config["hyper"]["normalise_q"]
    assert differences(plan, config) == ""
    assert differences(resolve("uhm", "rooms", normalise_q=False), config) == "normalise_q True, not False"


def test_tail(tmp_path):
    path = tmp_path / "lines"
    assert tail(path, 5) == []
    path.write_bytes(b"".join(b'{"step": %d}\n' % i for i in range(100)) + b'{"st')
    for window in (1, 13, 14, 15, 50, 10_000):
        for count in (1, 3, 99, 100, 200):
            steps = [line["step"] for line in tail(path, count, window)]
            assert steps == list(range(100))[-count:]
    path.write_bytes(b'{"st')
    assert tail(path, 1, 2) == []


def test_the_last_evaluation_is_read_whole_however_long_it_is(tmp_path):
    """300 episodes of each of 5 members, the first half of which succeeded; and a log of a megabyte a line."""
    (population,) = small(tmp_path, eval_episodes=300)
    with begin(population) as run:
        for step in (5, 10):
            run.log(step, {"seconds": step / 10, "loss": [0.123456789] * 100_000})
            records = [{"step": step, "success": float(i < 750), "task": "x" * 150} for i in range(1500)]
            run.log_episodes(records)
    assert status(population)[:3] == ("interrupted", 10, 0.5)


# ----------------------------------------------------------------------------------------------------------- time


def at_speed(population, runs, here) -> Any:
    return speed.speed(population, runs, here)


def one(environment, agent, **settings):
    return populations([environment], [agent], **settings)[0]


def test_hours_from_the_measurements_of_the_package():
    """By hand, from the rows of speed.csv: straight between two sizes, proportional beyond the largest."""
    at = at_speed(one("puzzle-3x3-play", "uhm", seeds=1), [], "cpu")
    assert (at.milliseconds, at.device, at.basis) == (1.465, "NVIDIA H200", "measured")
    assert speed.hours(one("puzzle-3x3-play", "uhm", seeds=1), at) == pytest.approx(1465 / 3600)
    assert speed.hours(one("puzzle-3x3-play", "uhm", seeds=1), at, 500_000) == pytest.approx(732.5 / 3600)
    half = {"compute_dtype": "bfloat16"}
    for environment, agent, settings, milliseconds, basis in (
        ("cube-double-play", "uhm", {}, 5.879, "measured"),
        ("cube-double-play", "uhm", half, 2.446, "measured"),
        ("cube-double-play", "iql", half, 1.337, "measured"),
        ("cube-triple-play", "mbtd", {}, 22.9, "measured"),  # k_max 16
        ("cube-double-play", "mbtd", {}, 18.931, "measured"),  # k_max 8
        ("cube-triple-play", "uhm", {}, (1.465 + 5.879) / 2, "scaled"),  # 15 members, between 5 and 25
        ("cube-triple-play", "dtd", half, (0.71 + 2.913) / 2, "scaled"),
        ("cube-double-play", "uhm", {"ablated": "beta"}, (5.879 + 2 * 21.526) / 3, "scaled"),  # 75, between 25 and 100
        ("cube-double-play", "mac", {"seeds": 40, **half}, 2 * 51.584, "scaled"),
    ):
        at = at_speed(one(environment, agent, **settings), [], "cpu")
        assert (at.milliseconds, at.basis) == (pytest.approx(milliseconds), basis)
        assert at.source.startswith(f"{basis}: ")


def test_the_package_says_what_was_measured():
    """What names the published table as its source has its numbers, and every method of the paper is there."""
    published = json.loads((REPOSITORY / "results/performance/updates.json").read_text())
    table = {(r["agent"], r["compute_dtype"], r["members"]): r["milliseconds"] for r in published["rows"]}
    named = [m for m in speed._package() if "updates.json" in m.source]
    assert len(named) == len(table)
    for m in named:
        assert m.milliseconds == pytest.approx(table[m.agent, m.compute_dtype, m.members], abs=6e-4)
        assert m.k_max == published["setting"]["k_max"]
    sixteen = json.loads((REPOSITORY / "results/performance/k-max-16.json").read_text())["rows"]
    table = {(row["agent"], row["members"], 16): row["milliseconds"] for row in sixteen}
    named = [m for m in speed._package() if "k-max-16.json" in m.source]
    assert len(named) == 4
    for m in named:
        assert m.milliseconds == pytest.approx(table[m.agent, m.members, m.k_max], abs=6e-4)
    assert {m.agent for m in speed._package()} == set(FAMILIES)


def test_what_nobody_measured_is_unknown():
    unknown = [
        one("rooms", "uhm"),  # other networks
        one("cube-double-play", "uhm", hidden=(256, 256)),
        one("cube-triple-play", "mbtd", q=0.1),  # a longer horizon, all of which it rolls out
        one("cube-triple-play", "dtd", q=0.1),
        one("cube-triple-play", "dtd", q=[0.2, 0.1], seeds=1),  # the longest of its members counts
    ]
    assert [at_speed(population, [], "cpu") for population in unknown] == [None] * len(unknown)
    assert speed.estimate(unknown[0], None, 0)["basis"] == "unknown"
    assert at_speed(one("cube-triple-play", "ghm"), [], "cpu") is not None
    for agent in ("uhm", "ghm"):  # these pay nothing for a longer horizon
        longer = at_speed(one("cube-triple-play", agent, q=0.1), [], "cpu")
        assert longer == at_speed(one("cube-triple-play", agent), [], "cpu")
    assert at_speed(one("cube-triple-play", "dtd", q=[0.2, 0.3], seeds=1), [], "cpu") is not None


def test_own_runs_of_another_horizon_say_nothing(tmp_path):
    longer = one("cube-triple-play", "dtd", q=0.1, out=tmp_path)
    write_run(longer, "NVIDIA A100", 0.004)
    runs = speed.runs_in(tmp_path)
    assert at_speed(longer, runs, "NVIDIA A100").milliseconds == pytest.approx(4.0)
    assert at_speed(one("cube-triple-play", "dtd"), runs, "NVIDIA A100").device == "NVIDIA H200"


def write_run(population, device, pace):
    """A run that took `pace` seconds a step after a compilation of 100 seconds."""
    with begin(population) as run:
        for step in (5, 10, 15):
            run.log(step, {"seconds": 100 + step * pace})
    path = population.directory / "environment.json"
    about = json.loads(path.read_text())
    about["sessions"][-1]["hardware"]["devices"] = [{"platform": "any", "kind": device}]
    path.write_text(json.dumps(about))


def test_own_runs_win_on_their_device(tmp_path):
    population = one("puzzle-3x3-play", "uhm", seeds=1, out=tmp_path)
    write_run(population, "NVIDIA A100", 0.004)
    runs = speed.runs_in(tmp_path)
    other = one("scene-play", "uhm", seeds=1)
    for here in ("NVIDIA A100", "cpu"):  # a machine without a GPU plans for those that have one
        at = at_speed(other, runs, here)
        assert (at.milliseconds, at.device, at.basis) == (pytest.approx(4.0), "NVIDIA A100", "measured")
    assert at_speed(other, runs, "NVIDIA H200").milliseconds == 1.465
    assert (
        at_speed(one("scene-play", "uhm", seeds=1, compute_dtype="bfloat16"), runs, "NVIDIA A100").milliseconds == 0.875
    )
    at = at_speed(one("scene-play", "uhm"), runs, "NVIDIA A100")
    assert (at.milliseconds, at.basis) == (pytest.approx(4.0 * 5.879 / 1.465), "scaled")
    assert at_speed(one("scene-play", "dtd", seeds=1), runs, "NVIDIA A100").device == "NVIDIA H200"


def test_runs_that_say_nothing(tmp_path):
    population = small(tmp_path)[0]
    write_run(population, "cpu", 0.5)
    assert at_speed(population, speed.runs_in(tmp_path), "cpu").milliseconds == pytest.approx(500)
    assert at_speed(population, speed.runs_in(tmp_path), "NVIDIA H200") is None
    for name, text in (("config.json", "{}"), ("metrics.jsonl", '{"step": 1, "seconds": 1.0}\n')):
        shutil.copytree(population.directory, tmp_path / "x" / "run")
        (tmp_path / "x" / "run" / name).write_text(text)
        assert speed.runs_in(tmp_path / "x") == []
        shutil.rmtree(tmp_path / "x")


# ----------------------------------------------------------------------------------------------------------- data


def test_missing_data_are_told_before_anything_starts(tmp_path, capsys):
    names = ["cube-double-play", "scene-play", "antsoccer-arena-navigate", "humanoidmaze-large-navigate"]
    flags = ["--agents", "uhm,dtd", "--out", str(tmp_path / "out"), "--data-dir", str(tmp_path / "data")]
    assert cli.run(["suite", "run", *names, *flags]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "`uhm data make cube-double-play scene-play` (or give --make-data)" in said
    assert "`uhm data get antsoccer-arena-navigate humanoidmaze-large-navigate`" in said
    assert cli.run(["suite", "run", *names, *flags, "--make-data"]) == 2
    said = capsys.readouterr().err
    assert "uhm data make" not in said
    assert "`uhm data get antsoccer-arena-navigate humanoidmaze-large-navigate`" in said
    assert list(tmp_path.iterdir()) == []


def test_make_data(tmp_path, monkeypatch, capsys):
    made = []

    def make(environment, directory):
        made.append(environment.name)
        np.savez(directory / f"{environment.dataset}.npz", allow_pickle=False, terminals=np.arange(11) == 10)

    monkeypatch.setattr(data, "make", make)
    wanted = populations(["scene-play", "rooms"], ["uhm"], data_dir=str(tmp_path))
    with pytest.raises(UhmError, match="uhm data make scene-play"):
        data.provide(wanted, False)
    assert (tmp_path / "rooms-v0.npz").exists() and made == []  # unasked, because it takes a second
    data.provide(wanted, True)
    assert made == ["scene-play"]
    assert data.missing(wanted) == []
    few = "data: scene-play has 0.0% of the official size: fit for smoke tests, not for comparison\n"
    assert capsys.readouterr().err == few


def test_sets_of_which_files_are_still_to_come_are_not_there_yet(tmp_path):
    """Their files get their names one after the other, and training would take what there is."""
    wanted = populations(["cube-triple-play"], ["uhm"], data_dir=str(tmp_path))
    (environment,) = {population.environment for population in wanted}
    folder = tmp_path / environment.dataset
    folder.mkdir()
    np.savez(folder / "cube-triple-play-v0-000.npz", allow_pickle=False, terminals=np.arange(11) == 10)
    assert data.missing(wanted) == []
    for unfinished in (tmp_path / f"{environment.dataset}.parts", folder / "cube-triple-play-v0-001.npz.part"):
        unfinished.mkdir()
        assert data.missing(wanted) == [(environment, tmp_path)]
        unfinished.rmdir()


# ------------------------------------------------------------------------------------------------------ resources


def test_what_a_population_asks_of_ray():
    def node(alive=True, **has):
        return {"Alive": alive, "Resources": {name: float(value) for name, value in has.items()}}

    mixed = [node(CPU=16), node(CPU=64, GPU=8), node(CPU=96, GPU=8), node(alive=False, CPU=1, GPU=8)]
    assert resources(mixed) == {"num_gpus": 1, "num_cpus": 8}
    assert resources(mixed, "cpu") == {"num_gpus": 0, "num_cpus": 16}
    assert resources([node(CPU=4), node()], "gpu") == {"num_gpus": 1, "num_cpus": 1}  # nodes with GPUs may still come
    assert resources([node(CPU=4), node(CPU=2), node()]) == {"num_gpus": 0, "num_cpus": 2}
    with pytest.raises(UhmError, match="no node"):
        resources([node()])


def test_cores_are_shared_out():
    parts = [share(list(range(10, 18)), index, 3) for index in range(3)]
    assert sorted(core for part in parts for core in part) == list(range(10, 18))
    assert share([0, 1], 5, 8) == (1,)
    assert share([0, 1], 0, 1) == ()


def test_bad_flags(capsys, tmp_path):
    for flags, message in (
        (["--steps", "0"], "--steps must be at least 1"),
        (["--seeds", "0"], "seeds is 0, and must be at least 1"),
        (["--seeds", "3,3"], "seeds are [3, 3], and must be different"),
        (["--seeds", "many"], "--seeds is 'many', and must be a number of seeds, or which"),
        (["--on", "local", "--address", "x"], "--address is for --on ray"),
        (["--on", "slurm"], "--on"),
    ):
        assert cli.run(["suite", "run", "rooms", "--out", str(tmp_path / "out"), *flags]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1


def test_a_suite_is_not_published_onto_itself(capsys, tmp_path):
    """Said before any work: its data are missing too, which would be said next."""
    flags = ["--out", str(tmp_path / "out"), "--publish", str(tmp_path / "x" / ".." / "out")]
    assert cli.run(["suite", "run", "scene-play", "--data-dir", str(tmp_path), *flags]) == 2
    said = capsys.readouterr().err
    assert "would replace the run" in said
    assert len(said.splitlines()) == 1


def test_ray_is_an_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    flags = ["--out", str(tmp_path / "out"), "--data-dir", str(make_data(tmp_path / "data"))]
    assert cli.run(["suite", "run", "rooms", "--on", "ray", *flags]) == 2
    assert "pip install '.[cluster]'" in capsys.readouterr().err


def test_the_table_of_a_plan(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    arguments = ["cube-double-play", "rooms", "--agents", "uhm", "--out", str(tmp_path)]
    assert cli.run(["suite", "plan", *arguments]) == 0
    said = capsys.readouterr().out
    assert re.search(r"uhm-cube-double-play +5x5 = 25 +1M +left +1\.63", said)
    assert re.search(r"uhm-rooms +5x1 = 5 +8k +left +unknown", said)
    assert "2 populations (2 environments, 10 tasks, 30 members): 2 left." in said
    assert "Left: about 1.6 GPU hours of training, and unknown time for 1 populations." in said
    assert cli.run(["suite", "plan", *arguments, "--compute-dtype", "bfloat16"]) == 0
    assert re.search(r"uhm-cube-double-play +5x5 = 25 +1M +left +0\.68", capsys.readouterr().out)
