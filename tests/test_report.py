"""Reports: the statistics and every number of the tables worked out by hand, and which runs they are made of."""

import csv
import dataclasses
import io
import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table as RichTable
from scipy import stats

from report_runs import fake_run
from uhm import presets
from uhm.cli import run as cli
from uhm.errors import UhmError
from uhm.evaluate import Episode
from uhm.lines import console
from uhm.presets import Result
from uhm.report import charts, page, statistics, tables, writers
from uhm.report.calibration import calibration
from uhm.report.collect import Member, Method, collect, names
from uhm.report.tables import Cell, Row, Table, ranked

REPOSITORY = Path(__file__).parent.parent
ENVIRONMENT = "cube-double-play"
TASKS = tuple(f"{ENVIRONMENT}-task{i}" for i in range(1, 6))


def hundredths(i: int, seed: int, place: int, _: dict[str, Any]) -> float:
    """Scores 10 i + 8 +- 2 seed: odd tasks get better with the seed's number, even ones worse."""
    return (10 * i + (2 if i % 2 else -2) * seed + place) / 100


def constant(value: float) -> Any:
    return lambda *_: value


def made(*folders: Path, kind: str = "paper", level: str = "environment") -> Table:
    found = [t for t in tables.tables(collect(folders).members) if t.kind == kind and t.level == level]
    assert len(found) == 1
    return found[0]


def row(table: Table, name: str) -> Row:
    (found,) = [r for r in table.everything if r.name == name]
    return found


def cell(table: Table, name: str, method: str = "uhm") -> Cell:
    (found,) = [c for c in row(table, name).cells if c.method.label == method]
    return found


# ----------------------------------------------------------------------------------------------------------- statistics


def test_the_iqm_by_hand() -> None:
    assert statistics.iqm(np.array([7.0, 0, 1, 6, 2, 5, 3, 4])) == 3.5  # 2, 3, 4, 5 are left
    assert statistics.iqm(np.array([10.0, 0, 50, 20, 100])) == pytest.approx(80 / 3)  # 10, 20, 50 are left
    assert statistics.iqm(np.array([42.0])) == 42
    values = np.random.default_rng(0).normal(size=(3, 26))
    np.testing.assert_allclose(statistics.iqm(values), stats.trim_mean(values, 0.25, axis=1))


def test_the_bootstrap_of_many_normal_scores_is_the_textbook_interval() -> None:
    scores = np.random.default_rng(1).normal(50, 10, size=400)
    found = statistics.intervals([scores])
    assert found is not None
    half = 1.96 * scores.std() / math.sqrt(400)
    np.testing.assert_allclose(found.mean, (scores.mean() - half, scores.mean() + half), atol=0.06)
    assert found.iqm[0] < statistics.iqm(scores) < found.iqm[1]


def test_the_bootstrap_counts_all_draws() -> None:
    """Three seeds of one task and two of another have 27 x 4 equally likely draws, which can be listed."""
    first, second = np.array([0.0, 30, 60]), np.array([10.0, 100])
    draws = itertools.product(itertools.product(first, repeat=3), itertools.product(second, repeat=2))
    means = np.sort([(np.mean(a) + np.mean(b)) / 2 for a, b in draws])
    found = statistics.intervals([first, second], replicates=20_000)
    assert found is not None
    # Quantiles of a discrete distribution, clear of its jumps: 2.5 % of 108 draws are 2.7.
    assert found.mean == pytest.approx((means[2], means[-3]), abs=1e-9)


def test_seeds_are_drawn_within_tasks() -> None:
    """Two tasks that differ by everything and seeds that do not differ at all leave nothing open."""
    found = statistics.intervals([np.zeros(5), np.full(5, 100.0)])
    assert found == ((50, 50), (50, 50))
    assert statistics.intervals([np.array([1.0]), np.array([2.0])]) is None


def test_a_task_with_one_seed_leaves_no_interval() -> None:
    """It would count as if it never varied, and the interval be too narrow."""
    assert statistics.intervals([np.array([50.0, 51]), np.array([0.0])]) is None
    assert statistics.curve_interval([np.zeros((2, 3)), np.zeros((1, 3))]) is None


def test_tasks_count_the_same_however_many_seeds_they_have() -> None:
    assert statistics.mean([np.array([0.0, 0, 0]), np.array([90.0])]) == 45
    assert statistics.std([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert statistics.std([1.0]) is None


def test_intervals_of_curves_agree_with_those_of_numbers() -> None:
    scores = [np.random.default_rng(i).uniform(0, 100, size=5) for i in range(3)]
    found = statistics.curve_interval([np.stack([s, 2 * s], 1) for s in scores], replicates=20_000)
    number = statistics.intervals(scores, replicates=20_000)
    assert found is not None and number is not None
    np.testing.assert_allclose([found[0][0], found[1][0]], number.mean, atol=0.8)
    np.testing.assert_allclose(np.array(found)[:, 1], 2 * np.array(found)[:, 0])


# --------------------------------------------------------------------------------------------------------------- tables


def test_cells_are_formed_as_in_the_paper(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", ENVIRONMENT, hundredths, seeds=3)
    per_task = made(tmp_path, level="task")
    for i, task in enumerate(TASKS, 1):
        found = cell(per_task, task)
        # The last three of the ten evaluations add 7, 8 and 9; seeds 0, 1, 2 are 0, 2, 4 apart.
        mean = 10 * i + 8 + (2 if i % 2 else -2)
        assert (found.mean, found.std, found.seeds) == (pytest.approx(mean), pytest.approx(2), 3)
    found = cell(made(tmp_path), ENVIRONMENT)
    # Per seed, three tasks go up by two and two go down by two: 38, 38.4, 38.8.
    assert (found.mean, found.std) == (pytest.approx(38.4), pytest.approx(0.4))
    assert found.paper == Result(30, 2)
    assert found.difference == pytest.approx(8.4)
    assert found.verdict == "above"
    # 15 scores, 3 dropped at each end of 14 16 18, 24 26 28, 34 36 38 ... in order.
    scores = sorted(10 * i + 8 + (2 if i % 2 else -2) * s for i in range(1, 6) for s in range(3))
    assert found.iqm == pytest.approx(np.mean(scores[3:-3]))
    assert found.interval is not None and found.interval[0] < 38.4 < found.interval[1]


def test_a_suite_averages_all_its_tasks(tmp_path: Path) -> None:
    names = ("cube-triple-play", "cube-quadruple-play", "puzzle-4x5-play", "puzzle-4x6-play")
    for place, name in enumerate((*names, "humanoidmaze-giant-navigate")):
        fake_run(tmp_path / name, "uhm", name, lambda i, s, *_, p=place: (10 * p + 2 * s) / 100)
    found = cell(made(tmp_path), "Average")
    assert (found.mean, found.std, found.marks) == (pytest.approx(22), pytest.approx(2), "")
    assert found.paper == Result(22, 1)
    assert found.difference == pytest.approx(0)
    assert found.verdict == "same"


def test_a_part_of_the_tasks_is_compared_with_the_same_part(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", TASKS[:2], constant(0.5))
    found = cell(made(tmp_path), ENVIRONMENT)
    lines = csv.DictReader((REPOSITORY / "src/uhm/paper/results_per_task.csv").read_text().splitlines())
    paper = {line["task"]: float(line["success_mean"]) for line in lines if line["method"] == "UHM"}
    assert found.paper is not None
    assert found.paper.mean == (paper[TASKS[0]] + paper[TASKS[1]]) / 2
    assert math.isnan(found.paper.std)
    assert found.marks == "e"
    assert found.rank == ""
    assert cell(made(tmp_path, level="task"), TASKS[4]).mean is None


def test_best_is_bold_and_95_percent_of_it_underlined() -> None:
    def ranks(*means: float | None) -> list[str]:
        cells = [Cell(Method(str(index)), mean=mean) for index, mean in enumerate(means)]
        return [c.rank for c in ranked(cells)]

    assert ranks(93, 90, 88.36, 88.34, None) == ["best", "near", "near", "", ""]  # 0.95 * 93 = 88.35
    assert ranks(100, 95, 94.9) == ["best", "near", ""]
    assert ranks(98.96, 99.04, 98.94) == ["best", "best", "near"]  # the first two are printed alike
    assert ranks(0, 0.01) == ["", ""]
    assert ranks(50, None) == ["", ""]
    part = [Cell(Method("a"), mean=90, marks="e"), Cell(Method("b"), mean=50), Cell(Method("c"), mean=49)]
    assert [c.rank for c in ranked(part)] == ["", "best", "near"]


def test_differences_are_coloured_by_the_spread_of_both() -> None:
    def verdict(mean: float, std: float | None, paper: Result) -> str:
        return Cell(Method("uhm"), mean=mean, std=std, paper=paper).verdict

    assert verdict(34.9, 3, Result(30, 4)) == "same"  # the hypotenuse of 3 and 4 is 5
    assert verdict(35.1, 3, Result(30, 4)) == "above"
    assert verdict(24.9, 3, Result(30, 4)) == "below"
    assert verdict(34.1, None, Result(30, 4)) == "above"  # one seed of ours: nothing is known of its spread
    assert verdict(90.0, 3, Result(30, math.nan)) == ""  # nor of the paper's, for a mean over a part of its tasks
    assert Cell(Method("uhm"), paper=Result(30, 4)).verdict == ""


def test_what_was_not_run_long_enough_is_marked(tmp_path: Path) -> None:
    def marks(name: str, **settings: Any) -> str:
        fake_run(tmp_path / name, "uhm", ENVIRONMENT, constant(0.5), **settings)
        return cell(made(tmp_path / name), ENVIRONMENT).marks

    assert marks("whole") == ""
    assert marks("early", evaluations=2) == "a"
    assert marks("running", finished=False, evaluations=5) == "b"
    assert marks("short", steps=1000) == "c"
    assert marks("lonely", seeds=2) == "d"
    assert marks("diverged", diverged=[3]) == "f"
    assert marks("long", steps=2_000_000) == "g"
    assert marks("rounded", compute_dtype="bfloat16") == "h"
    for name, about in (("i", {"generated": True}), ("", {"generated": False}), ("ij", {"generated": True, "few": 1})):
        folder = fake_run(tmp_path / f"data-{len(about)}{name}", "uhm", ENVIRONMENT, constant(0.5), session=True)
        environment = json.loads((folder / "environment.json").read_text())
        transitions = 1_000_000 // (10 if about.pop("few", 0) else 1)
        text = json.dumps(environment | {"data": {"transitions": transitions, **about}})
        (folder / "environment.json").write_text(text)
        assert cell(made(folder), ENVIRONMENT).marks == name
    assert marks("all", finished=False, evaluations=2, steps=1000, seeds=1) == "abcd"


def test_rows_and_columns_are_the_papers_and_say_what_is_missing(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", ENVIRONMENT, constant(0.5))
    table = made(tmp_path)
    order = "iql rebrac fql mopo mobile mac rebrac-dagger mbtd dtd ghm uhm"
    assert [method.label for method in table.methods] == order.split()
    assert table.rows[0].name == "antmaze-large-navigate"
    assert len(table.rows) == 10
    assert sum(r.missing for r in table.rows) == 9
    assert cell(table, "scene-play", "mac").paper == Result(97, 4)
    text = writers.to_markdown(table)
    assert "| scene-play | not run<br>paper 28 ± 1 |" in text


def test_other_settings_are_other_methods_and_not_the_papers(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", ENVIRONMENT, lambda i, s, p, axes: axes["alpha"], alpha=[0.03, 0.1, 0.3])
    fake_run(tmp_path / "b", "uhm", ENVIRONMENT, constant(0.7), hidden=(16, 8), transitions=1000)
    # 0.1 is the preset's value there, so it is plain uhm.
    assert cell(made(tmp_path), ENVIRONMENT).mean == pytest.approx(10)
    table = made(tmp_path, kind="settings")
    other = "uhm (hidden=16x8, transitions=1000)"
    assert [method.label for method in table.methods] == ["uhm", "uhm (alpha=0.03)", "uhm (alpha=0.3)", other]
    found = cell(table, ENVIRONMENT, "uhm (alpha=0.3)")
    assert (found.mean, found.paper, found.difference) == (pytest.approx(30), None, None)
    assert cell(table, ENVIRONMENT, other).rank == "best"
    assert [r.name for r in table.rows] == [ENVIRONMENT]


def test_precision_is_a_setting_only_where_it_is_compared(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", ENVIRONMENT, constant(0.5), compute_dtype="bfloat16", seeds=1)
    fake_run(tmp_path / "b", "dtd", ENVIRONMENT, constant(0.6), compute_dtype="float32", seeds=1)
    fake_run(tmp_path / "c", "uhm", "scene-play", constant(0.7), compute_dtype="float32", seeds=1)
    table = made(tmp_path)  # another agent's or environment's precision is no comparison
    assert (cell(table, ENVIRONMENT).mean, cell(table, ENVIRONMENT).marks) == (pytest.approx(50), "dh")
    assert cell(table, ENVIRONMENT).paper == presets.paper_result("uhm", collect([tmp_path / "a"]).runs[0].environment)
    fake_run(tmp_path / "d", "uhm", ENVIRONMENT, constant(0.9), compute_dtype="float32", seeds=1)
    assert cell(made(tmp_path), ENVIRONMENT).mean == pytest.approx(90)
    found = made(tmp_path, kind="settings")
    assert [m.label for m in found.methods] == ["uhm", "uhm (compute_dtype=bfloat16)"]
    assert {run.directory.name: run.methods[0].label for run in collect([tmp_path]).runs} == {
        "a": "uhm (compute_dtype=bfloat16)",
        "b": "dtd",
        "c": "uhm",
        "d": "uhm",
    }


def test_settings_that_are_no_more_are_still_settings(tmp_path: Path) -> None:
    """A run of before says them; its model is not today's, and it must not stand in today's column."""
    for name, changes in (("a", {"flag_scale": 4.0}), ("b", {"flow_output": "end"}), ("c", {"flag_scale": 1.0})):
        folder = fake_run(tmp_path / name, "uhm", ENVIRONMENT, constant(0.5))
        config = json.loads((folder / "config.json").read_text())
        config["config"] |= changes
        if name == "c":
            del config["config"]["flag_std"]
        (folder / "config.json").write_text(json.dumps(config))
    labels = {run.directory.name: run.methods[0].label for run in collect([tmp_path]).runs}
    assert labels == {"a": "uhm (flag_scale=4)", "b": "uhm (flow_output=end)", "c": "uhm (flag_std=none)"}
    folders = [REPOSITORY / "results" / name for name in ("pilots", "ogbench")]
    # Later pilots tried variants of today's model, among them today's own settings.
    paths = [path for folder in folders for path in folder.glob("*-puzzle-3x3-play*") if "choices" not in path.name]
    puzzles = collect(paths).runs
    assert {run.directory.parent.name for run in puzzles if Method("uhm") in run.methods} == {"ogbench"}
    assert {run.directory.parent.name for run in puzzles} == {"ogbench", "pilots"}


# ----------------------------------------------------------------------------------------------------------------- runs


def test_seeds_of_several_runs_are_joined(tmp_path: Path) -> None:
    for seed in (4, 7):
        fake_run(tmp_path / "deep" / str(seed), "uhm", "rooms", constant(seed / 10), seeds=[seed])
    found = cell(made(tmp_path), "rooms")
    assert (found.mean, found.seeds, found.std) == (pytest.approx(55), 2, pytest.approx(30 / math.sqrt(2)))


def test_of_the_same_member_twice_the_longer_one_counts(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", "rooms", constant(0.2), finished=False, evaluations=4)
    fake_run(tmp_path / "b", "uhm", "rooms", constant(0.8))
    with pytest.warns(UserWarning, match=r"b and .*a hold the same agent, task, seed and setting 5x"):
        assert cell(made(tmp_path), "rooms").mean == pytest.approx(80)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(collect([tmp_path / "b", tmp_path / "b", tmp_path / "." / "b"]).runs) == 1


def test_settings_of_an_agent_that_is_not_at_hand_are_what_its_runs_differ_in(tmp_path: Path) -> None:
    for alpha in (0.1, 0.3):
        folder = fake_run(tmp_path / str(alpha), "uhm", "rooms", constant(alpha), alpha=alpha, seeds=1)
        for name in ("config.json", "summary.json"):
            text = (folder / name).read_text()
            (folder / name).write_text(text.replace('"agent": "uhm"', '"agent": "module:elsewhere"'))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is held twice
        found = collect([tmp_path]).members
    assert {(member.setting, member.score) for member in found} == {((("alpha", a),), 100 * a) for a in (0.1, 0.3)}
    assert {member.setting for member in collect([tmp_path / "0.1"]).members} == {()}


def test_runs_of_the_same_name_are_told_apart() -> None:
    one, other, third = Path("a/x/run"), Path("a/y/run"), Path("b/alone")
    assert names([one, other, third]) == {one: "x/run", other: "y/run", third: "alone"}


def test_tasks_with_different_seeds_say_so(tmp_path: Path) -> None:
    tasks_of = [f"{ENVIRONMENT}-task{i}" for i in range(1, 6)]
    fake_run(tmp_path / "four", "uhm", tasks_of[:4], constant(0.5), seeds=[0, 1])
    fake_run(tmp_path / "one", "uhm", tasks_of[4:], constant(0.5), seeds=[2, 3, 4])
    found = cell(made(tmp_path), ENVIRONMENT)
    assert (found.seeds, found.std, found.marks) == (2, None, "dk")


def test_tables_in_a_pipe_have_all_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    table = RichTable(*(f"column-{i}" for i in range(20)))
    table.add_row(*(f"{i}.0001234567890" for i in range(20)))
    console().print(table)
    said = capsys.readouterr().out
    assert all(f" {i}.0001234567890 " in said for i in range(20))


def test_an_axis_of_an_agent_that_is_not_at_hand_is_kept(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", "uhm", "rooms", lambda i, s, p, h: h["alpha"], alpha=[0.1, 0.3], seeds=1)
    for name in ("config.json", "summary.json"):
        (folder / name).write_text((folder / name).read_text().replace('"agent": "uhm"', '"agent": "module:elsewhere"'))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = collect([tmp_path]).members
    assert {(member.method.agent, member.method.setting) for member in found} == {
        ("module:elsewhere", (("alpha", value),)) for value in (0.1, 0.3)
    }
    assert len(found) == 10


def test_an_unfinished_run_counts_its_complete_evaluations(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", "uhm", "rooms", lambda i, s, p, _: (5 + p) / 50, finished=False, evaluations=4)
    with (folder / "episodes.jsonl").open("a") as file:  # an evaluation that is being written, and a torn line
        one = Episode(0, "rooms-task1", 0, 9000, 0, 1.0, -1.0, 1)
        file.write(json.dumps(one.to_json()) + "\n")
        file.write('{"member": 0, "ta')
    found = collect([tmp_path]).members[0]
    assert list(found.evaluations) == [800, 1600, 2400, 3200]
    assert found.score == pytest.approx(14)  # 6, 7 and 8 of 50 episodes
    assert not found.finished


@pytest.mark.parametrize("finished", [True, False])
def test_what_was_expected_and_obtained(tmp_path: Path, finished: bool) -> None:
    """Two tasks and seeds; task t, seed s obtains -10 t - s and expects 3 more. Another method does not say."""
    fake_run(
        *(tmp_path / "a", "uhm", ["rooms-task1", "rooms-task2"], constant(0.5)),
        finished=finished,
        seeds=2,
        values=lambda task, seed, place: (3.0 - 10 * task - seed, -10.0 * task - seed),
    )
    fake_run(tmp_path / "b", "dtd", ["rooms-task1", "rooms-task2"], constant(0.5))
    (chart,) = charts.value_curves(collect([tmp_path]).members)
    assert (chart.name, chart.group, chart.percent) == ("values-rooms", "values", False)
    assert [panel.title for panel in chart.panels] == ["mean of 2 tasks", "rooms-task1", "rooms-task2"]
    for panel, obtained in zip(chart.panels, (-15.5, -10.5, -20.5), strict=True):
        dashed, solid = panel.curves
        assert (dashed.label, dashed.dashed) == ("UHM, expected", True)
        assert (solid.label, solid.dashed) == ("UHM, obtained", False)
        assert dashed.colour == solid.colour == charts.COLOURS["uhm"]
        assert solid.x == [800.0 * i for i in range(1, 11)]
        assert dashed.y == [obtained + 3] * 10 and solid.y == [obtained] * 10


def test_a_value_that_was_no_number_is_left_out(tmp_path: Path) -> None:
    fake_run(
        tmp_path / "a", "uhm", ["rooms-task1"], constant(0.5), values=lambda t, s, p: (None if p < 4 else -1.0, -2.0)
    )
    (chart,) = charts.value_curves(collect([tmp_path]).members)
    assert chart.panels[0].curves[0].x == [800.0 * i for i in range(5, 11)]
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    for evaluation in summary["members"][0]["evaluations"]:
        del evaluation["discounted"]  # without which there is nothing to compare with
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary))
    assert charts.value_curves(collect([tmp_path]).members) == []


def test_the_committed_runs_can_be_reported() -> None:
    table = made(REPOSITORY / "results" / "rooms")
    labels = [method.label for method in table.methods]
    assert set(labels) == set(presets.AGENTS)
    assert [c.seeds for c in table.rows[0].cells] == [3 if label == "uhm" else 1 for label in labels]
    scores = []
    for seed in range(3):
        summary = json.loads((REPOSITORY / f"results/rooms/uhm-seed{seed}/summary.json").read_text())
        scores.append(100 * np.mean([member["score"] for member in summary["members"]]))
    assert cell(table, "rooms").mean == pytest.approx(np.mean(scores))


def test_what_is_no_run_is_passed_over_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model": "of somebody else"}')
    with pytest.raises(UhmError, match="no run in"):
        collect([tmp_path])
    with pytest.raises(UhmError, match="no run directory"):
        collect([tmp_path / "nowhere"])
    empty = fake_run(tmp_path / "empty", "uhm", "rooms", constant(0.5), finished=False, evaluations=0)
    with pytest.raises(UhmError, match="nothing to report yet"):
        collect([tmp_path])
    (empty / "summary.json").write_text('{"members": 3}')
    fake_run(tmp_path / "good", "uhm", "rooms", constant(0.5))
    with pytest.warns(UserWarning, match="empty is left out"):
        assert len(collect([tmp_path]).runs) == 1
    assert cli(["report", str(empty), "--out", str(tmp_path / "out")]) == 2
    assert cli(["report"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("uhm: ") for line in lines] == [True, True]
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------------------------------------------------- figures


def test_learning_curves_are_means_over_seeds_then_tasks(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", "rooms", hundredths, seeds=2)
    fake_run(tmp_path / "b", "dtd", ["rooms-task1"], constant(0.5), finished=False, evaluations=3)
    (chart,) = charts.learning_curves(collect([tmp_path]).members)
    assert [panel.title for panel in chart.panels] == ["mean of 5 tasks", *(f"rooms-task{i}" for i in range(1, 6))]
    (mean,) = chart.panels[0].curves  # dtd did not run on all tasks
    assert mean.x == [800.0 * i for i in range(1, 11)]
    assert mean.y[:2] == pytest.approx([30.2, 31.2])  # 30 + (3 * 1 - 2 * 1) / 5
    assert mean.low is not None and mean.high is not None
    assert all(low <= y <= high for low, y, high in zip(mean.low, mean.y, mean.high, strict=True))
    dtd, uhm = chart.panels[1].curves
    assert (dtd.label, dtd.x, dtd.low) == ("DTD(λ)", [800.0, 1600.0, 2400.0], None)
    assert uhm.y[0] == pytest.approx(11)


def test_the_work_grows_with_the_members_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty settings of five tasks: each member is asked a few times for its method, and not once per method."""
    for index, values in enumerate((range(1, 21), range(21, 41))):
        axis = [value / 100 for value in values]
        fake_run(tmp_path / str(index), "uhm", "cube-double-play", constant(0.5), evaluations=1, seeds=1, alpha=axis)
    found = collect([tmp_path])
    assert len(found.members) == 200
    asked, method, below, folders = [], Member.method.fget, page._below, []
    assert method is not None
    monkeypatch.setattr(Member, "method", property(lambda member: asked.append(member) or method(member)))
    (chart,) = charts.learning_curves(found.members)
    assert [len(panel.curves) for panel in chart.panels] == [40] * 6
    assert len(asked) <= 3 * 200
    monkeypatch.setattr(page, "_below", lambda runs: folders.append(runs) or below(runs))
    asked.clear()
    page.render(found, [], [], [])
    assert len(asked) <= 3 * 200
    assert len(folders) == 1


def test_ablations_are_drawn_from_runs_that_differ_in_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(tmp_path / "a", "uhm", ["rooms-task1"], lambda i, s, p, axes: axes["beta"] / 2, beta=[0.0, 1.0], seeds=2)
    fake_run(tmp_path / "b", "uhm", ["rooms-task1"], lambda i, s, *_: 0.2 + 0.2 * s, seeds=2)
    fake_run(tmp_path / "c", "uhm", ["rooms-task1"], constant(0.9), schedule=False, beta=0.5)
    drawn, hints = charts.charts(*collect([tmp_path]))
    assert [chart.name for chart in drawn] == ["curves-rooms", "ablation-beta"]
    (panel,) = drawn[1].panels
    assert [(curve.label, curve.y[-1]) for curve in panel.curves] == [
        ("beta = 0", 0.0),
        ("beta = 0.3", 30.0),
        ("beta = 1", 50.0),
    ]
    spread = 10 * math.sqrt(2)  # of 20 and 40
    assert panel.curves[1].low is not None
    assert panel.curves[1].low[-1] == pytest.approx(30 - spread, abs=0.01)
    assert [hint.title for hint in hints] == [
        *("λ scheduling", "Terminal state handling", "Winsorization quantile q", "Update time"),
        "Calibration of the model",
    ]
    for hint in hints[:3]:  # the commands that the page gives are understood, up to the task
        assert cli([*hint.command.replace("TASK", "nowhere").split()[1:]]) == 2
        assert "unknown task or environment 'nowhere'" in capsys.readouterr().err


def test_update_time_is_without_compiling_and_on_one_device(tmp_path: Path) -> None:
    for agent, milliseconds in (("uhm", 10.0), ("dtd", 5.0)):
        fake_run(tmp_path / agent, agent, "rooms", constant(0.5), milliseconds=milliseconds, session=True)
    fake_run(tmp_path / "alone", "ghm", ["rooms-task1"], constant(0.5), milliseconds=1.0, session=True)
    chart = charts.update_time(collect([tmp_path]).runs)
    assert isinstance(chart, charts.Chart)
    (panel,) = chart.panels
    assert panel.title == "rooms, 5 members at once, A Processor, 2 cores"
    assert [(bar.label, bar.value) for bar in panel.bars] == [("DTD(λ)", 1.0), ("UHM", 2.0)]


def test_update_time_is_compared_within_a_precision(tmp_path: Path) -> None:
    for name, agent, dtype in (("a", "uhm", "float32"), ("b", "dtd", "bfloat16"), ("c", "ghm", "bfloat16")):
        settings: dict[str, Any] = {"milliseconds": 10.0, "session": True, "compute_dtype": dtype}
        fake_run(tmp_path / name, agent, "rooms", constant(0.5), **settings)
    chart = charts.update_time(collect([tmp_path]).runs)
    assert isinstance(chart, charts.Chart)
    (panel,) = chart.panels
    assert panel.title == "rooms, 5 members at once, A Processor, 2 cores, bfloat16"
    assert [bar.label for bar in panel.bars] == ["DTD(λ)", "GHM"]


def test_calibration_comes_from_what_imagine_left(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", "uhm", "rooms", constant(0.5)) / "imagine"
    folder.mkdir()
    record = {"task": "rooms-task1", "n": [1, 4], "uhm": [0.1, 0.2], "truth": [0.01, None], "of": ["x", "y"]}
    (folder / "calibration.json").write_text(json.dumps({**record, "unit": "cells", "how": "Against the truth."}))
    other = fake_run(tmp_path / "b", "mbtd", "rooms", constant(0.5)) / "calibration.json"
    other.write_text(json.dumps({"task": "rooms-task1", "n": [2], "mbtd": [0.3], "truth": [0.0]}))
    chart = calibration(collect([tmp_path]).runs)
    assert isinstance(chart, charts.Chart)
    assert (chart.y, chart.caption) == ("energy distance, cells", "Against the truth. Lower is better.")
    (panel,) = chart.panels
    assert [(c.label, c.x, c.y) for c in panel.curves] == [
        ("UHM", [1.0, 4.0], [0.1, 0.2]),
        ("truth against truth", [1.0], [0.01]),
        ("MBTD(λ)", [2.0], [0.3]),
    ]
    other.unlink()
    (folder / "calibration.json").write_text("{")
    with pytest.warns(UserWarning, match="calibration.json"):
        assert isinstance(calibration(collect([tmp_path]).runs), charts.Hint)


# ---------------------------------------------------------------------------------------------------------------- files


def test_tables_as_csv_markdown_and_latex(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "uhm", ENVIRONMENT, hundredths, seeds=3)
    fake_run(tmp_path / "b", "rebrac-dagger", ENVIRONMENT, constant(0.37), seeds=3)
    table = made(tmp_path)
    lines = list(csv.DictReader(io.StringIO(writers.to_csv([table]))))
    assert len(lines) == 11 * 11
    (line,) = [line for line in lines if (line["name"], line["method"]) == (ENVIRONMENT, "uhm")]
    wanted = {"mean": "38.4000", "std": "0.4000", "paper_mean": "30.0000", "difference": "8.4000", "marks": "d"}
    assert {key: line[key] for key in wanted} == wanted
    assert sum(line["status"] == "not run" for line in lines) == 11 * 11 - 4
    # 0.95 * 38.4 = 36.48 <= 37
    assert "<u>37.0</u> ± 0.0<sup>d</sup><br>paper 4 ± 2, +33.0" in writers.to_markdown(table)
    assert "**38.4** ± 0.4<sup>d</sup><br>paper 30 ± 2, +8.4" in writers.to_markdown(table)
    latex = writers.to_latex(table)
    assert "\\underline{37.0} $\\pm$ 0.0\\textsuperscript{d} &" in latex
    assert "\\textcolor{gray}{30 $\\pm$ 2} \\textcolor{teal}{+8.4} \\\\" in latex
    assert "ReBRAC$^\\dagger$ & MBTD($\\lambda$)" in latex
    assert latex.count("{") == latex.count("}")
    assert {line.count("&") for line in latex.splitlines() if line.endswith("\\\\")} == {11}


def test_numbers_are_printed_with_a_real_minus_and_no_negative_zero() -> None:
    assert [tables.number(value, sign=True) for value in (-1.25, 0.04, -0.04, 3.0)] == ["−1.2", "+0.0", "+0.0", "+3.0"]
    assert tables.number(None) == "–"


def test_the_command_writes_everything_and_prints_a_small_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(tmp_path / "runs" / "a", "uhm", TASKS[:1], hundredths, session=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("of yesterday")
    for name in (
        "tables/noisy-settings-task.tex",
        "tables/own.md",
        "figures/curves-rooms.pdf",
        "figures/curves-own.png",
    ):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("of yesterday")
    assert cli(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    for name in (
        "tables/own.md",
        "figures/curves-own.png",
    ):  # the reader's files stay, yesterday's tables and figures go
        names.remove(name)
    assert names == {
        *(
            "report.html",
            "tables/results.csv",
            f"figures/curves-{ENVIRONMENT}.png",
            f"figures/curves-{ENVIRONMENT}.pdf",
        ),
        *(f"tables/standard-{level}.{kind}" for level in ("environment", "task") for kind in ("md", "tex")),
    }
    assert (out / "figures" / f"curves-{ENVIRONMENT}.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "figures" / f"curves-{ENVIRONMENT}.pdf").read_bytes().startswith(b"%PDF")
    said = capsys.readouterr().out
    assert "standard" in said and "22.0 ± 3.2 e" in said
    assert f"page: {out / 'report.html'}" in said
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before


def test_a_real_run_reads_the_same_with_and_without_its_summary(tmp_path: Path) -> None:
    from small_runs import make_data, small_plan, small_run

    plan = small_plan(make_data(tmp_path / "data"), steps=8, eval_interval=2, log_interval=2, checkpoint_interval=8)
    summary = small_run(tmp_path / "run", plan)
    finished = collect([tmp_path / "run"])
    assert [m.score for m in finished.members] == pytest.approx([100 * m["score"] for m in summary["members"]])
    assert finished.runs[0].update_seconds is not None and finished.runs[0].sessions
    (tmp_path / "run" / "summary.json").unlink()
    unfinished = collect([tmp_path / "run"])
    same = [dataclasses.replace(member, finished=True) for member in unfinished.members]
    assert same == finished.members
