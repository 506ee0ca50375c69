"""Reports on runs that learned from logs: numbers chosen by the tests come back in tables, curves and files."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from report_runs import fake_log_run, fake_run
from uhm import cli, report
from uhm.errors import UhmError
from uhm.population import Member
from uhm.report import charts, figures, logs
from uhm.report.collect import collect
from uhm.report.log_page import sections

SETTINGS: dict[str, Any] = {"steps": 1000, "alpha": [0.1, 0.3]}
STEPS = [float(step) for step in range(100, 1100, 100)]


def levels(member, step):
    """Every seed adds 1 (the third 10), every step a thousandth, alpha a hundred times itself."""
    alpha = dict(member.hyper).get("alpha", 0.0)
    return {
        "actor_loss": 0.5,
        "lambda": 0.25,
        "q_mean": -(100 * alpha + (0, 1, 10)[member.seed] + step / 1000),
        "critic_loss": 2.0,
    }


def read(*paths):
    return logs.read(collect(paths).runs)


@pytest.fixture
def sweep(tmp_path):
    return fake_log_run(tmp_path / "sweep", "uhm", "here/mine.npz", levels, seeds=3, **SETTINGS)


def test_members_and_what_they_logged_last(sweep):
    (log,) = read(sweep)
    (section,) = sections([log])
    head = [label for label, _ in section["table"]["head"]]
    assert head == ["member", "alpha", "seed", "q_mean", "critic_loss", "actor_loss", "diverged"]
    rows = [[cell.text for cell in row] for row in section["table"]["rows"]]
    assert rows[0] == ["0", "0.1", "0", "−11", "2", "0.5", "no"]
    assert rows[5] == ["5", "0.3", "2", "−41", "2", "0.5", "no"]
    assert len(rows) == 6
    assert float(section["table"]["rows"][5][3].sort) == pytest.approx(-41)
    assert [label for label, _ in section["others"]["head"]] == ["member", "alpha", "seed", "lambda", "diverged"]
    config = dict(section["runs"][0]["config"])
    assert (config["alpha"], config["discount"]) == ("0.1, 0.3", "0.999")
    assert section["name"].endswith("/here/mine.npz")


def test_curves_are_medians_and_ranges_of_seeds(sweep):
    first, others = logs.charts(read(sweep)[0])
    assert (first.name, first.group, first.zero, first.percent) == ("logs-mine-metrics", "logs", False, False)
    assert [panel.title for panel in first.panels] == ["q_mean", "critic_loss", "actor_loss"]
    assert [panel.title for panel in others.panels] == ["lambda"]
    weak, strong = first.panels[0].curves
    assert (weak.label, strong.label) == ("alpha=0.1", "alpha=0.3")
    assert weak.colour != strong.colour
    assert weak.x == strong.x == STEPS
    for curve, alpha in ((weak, 0.1), (strong, 0.3)):
        assert curve.y == pytest.approx([-(100 * alpha + 1 + step / 1000) for step in STEPS])
        assert curve.low == pytest.approx([-(100 * alpha + 10 + step / 1000) for step in STEPS])
        assert curve.high == pytest.approx([-(100 * alpha + step / 1000) for step in STEPS])
    assert first.caption == "Lines are the median over seeds, shaded is their range."


def test_those_that_diverged_are_told_and_not_drawn(tmp_path):
    """Members 1 and 3 are the second alpha; 2 is a seed of the first. Before the summary, a null tells."""
    gone = {"finished": (1, 2, 3), "going": (1, 3)}

    def values(member: Member, step: int) -> dict[str, float | None]:
        if member.hyper[0][1] == 0.3:
            return {"q_mean": None, "critic_loss": None}
        return {"q_mean": 1e11 if member.seed else -5.0, "critic_loss": 1.0}

    for name, expected in gone.items():
        settings = {**SETTINGS, "seeds": 2, "diverged": (1, 2, 3), "finished": name == "finished"}
        (log,) = read(fake_log_run(tmp_path / name, "uhm", "mine.npz", values, **settings))
        assert [member.index for member in log.members if member.diverged] == list(expected)
        (chart,) = logs.charts(log)
        (curve,) = chart.panels[0].curves
        assert curve.label == "alpha=0.1"
        assert curve.y == ([-5.0] * 10 if name == "finished" else [5e10] * 10)
        assert chart.caption.endswith(f"Without the {len(expected)} members that diverged: alpha=0.3.")
        texts = [[cell.text for cell in row] for row in sections([log])[0]["table"]["rows"]]
        assert [row[-1] for row in texts] == ["yes" if index in expected else "no" for index in range(4)]
        assert texts[1][3] == "–"
        assert logs.last(logs.lines(log)[1], "q_mean") is None
    (log,) = read(fake_log_run(tmp_path / "all", "uhm", "mine.npz", levels, seeds=1, diverged=(0, 1), **SETTINGS))
    assert logs.charts(log)[0].caption.endswith("All members diverged.")
    assert len(logs.charts(log)[0].panels[0].curves) == 2


def test_agents_and_runs_on_the_same_logs_stand_side_by_side(sweep, tmp_path):
    fake_log_run(tmp_path / "iql", "iql", "here/mine.npz", levels, seeds=1, steps=1000)
    fake_log_run(tmp_path / "again", "iql", "here/mine.npz", levels, seeds=1, steps=500)
    fake_log_run(tmp_path / "other", "iql", "there/mine.npz", levels, seeds=1, steps=500)
    first, second = sorted(read(tmp_path), key=lambda log: -len(log.members))
    labels = ["IQL, again", "IQL, iql", "UHM (alpha=0.1)", "UHM (alpha=0.3)"]
    assert [line.label for line in logs.lines(first)] == labels
    assert [line.label for line in logs.lines(second)] == ["IQL"]
    assert len({chart.name for log in (first, second) for chart in logs.charts(log)}) == 4
    section = sections([first])[0]
    assert [label for label, _ in section["table"]["head"]][:5] == ["run", "member", "agent", "alpha", "seed"]
    assert [row[2].text for row in section["table"]["rows"]] == ["IQL"] * 2 + ["UHM"] * 6
    curves = {curve.label: curve for curve in logs.charts(first)[0].panels[0].curves}
    assert curves["IQL, again"].x == [step / 2 for step in STEPS] and curves["IQL, iql"].low is None


def test_long_runs_and_many_settings_are_thinned_out(tmp_path):
    settings = {"seeds": 1, "steps": 10_000, "lines": 1000, "alpha": [float(alpha) for alpha in range(28)]}
    (log,) = read(fake_log_run(tmp_path / "run", "uhm", "mine.npz", levels, **settings))
    chart = logs.charts(log)[0]
    assert [curve.label for curve in chart.panels[0].curves] == [f"alpha={alpha}" for alpha in range(0, 28, 3)]
    assert {len(curve.x) for curve in chart.panels[0].curves} == {logs.POINTS}
    assert chart.panels[0].curves[0].x[-1] == 1_000_000
    assert "10 of 28 settings are drawn, evenly chosen" in chart.caption
    assert "200 of up to 1,000 log lines are drawn" in chart.caption
    assert len(sections([log])[0]["table"]["rows"]) == 28


def test_files(sweep, tmp_path):
    out = tmp_path / "out"
    assert report.write([sweep], out) == out / "report.html"
    written = sorted(str(path.relative_to(out)) for path in out.rglob("*.*"))
    drawn = [f"figures/logs-mine-{kind}.{end}" for kind in ("metrics", "others") for end in ("pdf", "png")]
    assert written == [*drawn, "report.html", "tables/logs.csv"]
    rows = list(csv.DictReader((out / "tables" / "logs.csv").read_text().splitlines()))
    assert [(row["alpha"], row["seed"]) for row in rows] == [(a, s) for s in "012" for a in ("0.1", "0.3")]
    assert [float(row["q_mean"]) for row in rows] == pytest.approx([-11, -31, -12, -32, -21, -41])
    assert {(row["logs"], row["run"], row["agent"], row["step"], row["diverged"], row["lambda"]) for row in rows} == {
        ("mine", "sweep", "uhm", "1000", "false", "0.25")
    }
    page = (out / "report.html").read_text()
    assert "0.1, 0.3" in page and "jax <b>0.10.2</b>" in page
    assert not re.search(r'id="(curves|ablations|model)"', page)
    fake_run(tmp_path / "rooms", "uhm", "rooms", lambda *_: 0.5)
    report.write([tmp_path / "rooms"], out)  # the files of before must not stand beside
    assert not list(out.rglob("logs*"))


def test_with_simulated_runs_each_has_its_section(sweep, tmp_path, capsys):
    fake_run(tmp_path / "rooms", "uhm", "rooms", lambda *_: 0.5)
    made = report.make([tmp_path], tmp_path / "out")
    page = made.page.read_text()
    places = [page.index(f'<section id="{name}"') for name in ("embedded", "curves", "model", "logs", "runs")]
    assert places == sorted(places)
    assert "<b>2</b> runs" in page and "<b>11</b> agents" in page and "<b>1</b> file of logs" in page
    (data,) = re.findall(r'id="data">(.*?)</script>', page)
    assert {chart["group"] for chart in json.loads(data)} == {"curves", "logs"}
    # The tables are as ever.
    alone = report.make([tmp_path / "rooms"], tmp_path / "alone")
    assert made.tables == alone.tables
    assert cli.run(["report", str(sweep), "--out", str(tmp_path / "cli")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"alpha=0\.3 +3 +-32 +2 +0\.5 +0\n", said)
    assert "success" not in said


def test_what_has_logged_nothing_yet(sweep, tmp_path):
    new = fake_log_run(tmp_path / "new", "uhm", "mine.npz", levels, seeds=1, steps=1000, finished=False, lines=0)
    with pytest.raises(UhmError, match=r"nothing to report yet: no run in .*new has logged anything\."):
        report.write([new], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [log.title for log in read(tmp_path)] == ["mine"]
    going = fake_log_run(tmp_path / "going", "uhm", "mine.npz", levels, seeds=1, steps=1000, finished=False, lines=3)
    (run,) = collect([going]).runs
    assert (run.reached, run.finished) == (300, False)
    assert len(logs.charts(*read(going))[0].panels[0].curves[0].x) == 3


def test_damaged_metrics_cost_one_run_only(sweep, tmp_path):
    other = tmp_path / "damaged"
    shutil.copytree(sweep, other)
    (other / "metrics.jsonl").write_text('no json\n{"step": 1, "seconds": 1}\n')
    with pytest.warns(UserWarning, match=r"damaged is left out: .*line 1 is not JSON"):
        (log,) = read(tmp_path)
    assert [run.directory.name for run in log.runs] == ["sweep"]


def test_no_empty_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four panels in rows of three leave two places, where nothing is to be seen."""
    drawn = []
    monkeypatch.setattr(figures, "write_figure", lambda path, figure, **_: drawn.append(figure))
    panels = [charts.Panel(str(number), [charts.Curve("a", "red", [1.0], [1.0])]) for number in range(4)]
    figures.draw(charts.Chart("a", "a", "a", "x", "y", panels), tmp_path)
    assert [axes.get_visible() for axes in drawn[0].axes] == [True] * 4 + [False] * 2
