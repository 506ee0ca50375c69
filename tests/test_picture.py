"""The picture of a run: which lines it has, and that they are the numbers of their setting and of no other."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from uhm.evaluate import Episode
from uhm.population import grid
from uhm.train import names, picture

TASKS = ["rooms-task1", "rooms-task2"]
PATH = Path("picture.png")


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that is drawn, instead of its file."""
    figures = []

    @contextmanager
    def keep(path, title, width, height):
        figures.append(Figure(figsize=(width, height), layout="constrained"))
        yield figures[-1]
        figures[-1].draw_without_rendering()  # what would fail while saving fails here

    monkeypatch.setattr(picture, "_figure", keep)
    return figures


def lines(axes):
    """Values by label."""
    return {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()}


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()], found.get_title().get_text()


def episodes(members, success):
    """Two evaluations of one episode."""
    return [
        Episode(index, member.task, member.seed, step, 0, success(member, step), -1.0, 1)
        for index, member in enumerate(members)
        for step in (100, 200)
    ]


def test_settings_are_lines_and_tasks_are_panels(drawn):
    members = grid(TASKS, [0, 1], {"alpha": [0.03, 30.0]})

    def level(member, step):
        task, alpha = member.task == TASKS[1], member.hyper[0][1] > 1
        return (step / 100 + 10 * task + 40 * alpha + 4 * member.seed) / 100

    picture.draw(PATH, "", members, episodes(members, level))
    first, second = drawn[0].axes
    assert (first.get_title("left"), second.get_title("left")) == tuple(TASKS)
    # The mean of two seeds, which are 4 apart.
    assert lines(first)["alpha=0.03"] == pytest.approx([3, 4])
    assert lines(first)["alpha=30"] == pytest.approx([43, 44])
    assert lines(second)["alpha=0.03"] == pytest.approx([13, 14])
    assert lines(second)["alpha=30"] == pytest.approx([53, 54])
    assert legend(drawn[0]) == (["alpha=0.03", "alpha=30"], "")
    colours = [[line.get_color() for line in axes.get_lines()] for axes in (first, second)]
    assert colours[0] == colours[1] and len(set(colours[0])) == 2


def test_tasks_are_lines_where_there_is_one_setting(drawn):
    members = grid(TASKS, [0, 1], {})
    walks = np.zeros((4, 3, 2))
    picture.draw(PATH, "", members, episodes(members, lambda m, _: 0.5 * m.seed), walks)
    curves, map_ = drawn[0].axes
    assert lines(curves) == {"task1": [25, 25], "task2": [25, 25]}
    assert len(map_.get_lines()) == 4 * 3  # a way, its start and its goal


def test_of_many_settings_the_best_are_drawn_and_it_says_so(drawn):
    alphas = [float(value) for value in range(1, 26)]
    members = grid(TASKS, [0], {"alpha": alphas})
    picture.draw(PATH, "", members, episodes(members, lambda m, _: m.hyper[0][1] % 17 / 17))
    best = sorted(alphas, key=lambda alpha: -(alpha % 17))[:10]
    expected = [f"alpha={alpha:g}" for alpha in alphas if alpha in best]
    assert legend(drawn[0]) == (expected, "the 10 most successful of 25 settings")
    assert list(lines(drawn[0].axes[1])) == expected


def metrics(members, value, steps=(10, 20)):
    return [{"step": step, "seconds": 1.0, "q_mean": [value(m, step) for m in members]} for step in steps]


def test_metrics_of_settings_stay_apart(drawn):
    members = grid(["a.npz"], [0, 1, 2], {"alpha": [0.1, 0.3, 1.0]})
    values = metrics(members, lambda m, step: step + 100 * m.hyper[0][1] + m.seed**2)
    picture.draw_metrics(PATH, "", members, values, [True] * 9)
    (axes,) = drawn[0].axes
    # Seeds add 0, 1 and 4, of which 1 is the median.
    assert lines(axes) == {"alpha=0.1": [21, 31], "alpha=0.3": [41, 51], "alpha=1": [111, 121]}
    assert legend(drawn[0]) == (["alpha=0.1", "alpha=0.3", "alpha=1"], "")


def test_members_that_diverged_do_not_spoil_the_others(drawn):
    members = grid(["a.npz"], [0, 1], {"alpha": [0.1, 0.3]})
    values = metrics(members, lambda m, step: None if m.hyper == (("alpha", 0.3),) else 1e11 if m.seed else 5.0)
    picture.draw_metrics(PATH, "", members, values, [True, False, False, False])
    (axes,) = drawn[0].axes
    assert lines(axes) == {"alpha=0.1 (1 of 2 diverged)": [5, 5], "alpha=0.3 (diverged)": []}
    picture.draw_metrics(PATH, "", members, values, [False] * 4)  # then there is nothing else to look at
    assert len(lines(drawn[1].axes[0])["alpha=0.1 (diverged)"]) == 2


def test_one_setting_has_no_legend_and_many_are_thinned_out(drawn):
    alone = grid(["a.npz"], [0, 1], {})
    picture.draw_metrics(PATH, "", alone, metrics(alone, lambda m, step: 1.0), [True] * 2)
    assert drawn[0].legends == []
    many = grid(["a.npz"], [0], {"alpha": [float(value) for value in range(28)]})
    picture.draw_metrics(PATH, "", many, metrics(many, lambda m, step: 1.0), [True] * 28)
    assert legend(drawn[1]) == ([f"alpha={value}" for value in range(0, 28, 3)], "10 of 28 settings, evenly chosen")


def test_what_is_spread_has_its_ends_and_nothing_twice():
    for count in range(1, 60):
        found = names.spread(range(count))
        assert len(set(found)) == len(found) == min(count, 10)
        assert (found[0], found[-1]) == (0, count - 1)
