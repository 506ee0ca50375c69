"""The documentation's programs run, and what it promises of them is so."""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from programs import program
from uhm import cli
from uhm.agents import FAMILIES, family
from uhm.errors import UhmError
from uhm.imagine.dream import JUMP, Dream
from uhm.report.collect import collect
from uhm.runs import Run
from uhm.runs.files import read_json
from uhm.train import load_run, resolve, resume, train

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def where_the_examples_are(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(DOCS / "examples")])


def test_the_example_agent_learns_and_is_resumed(tmp_path):
    text = (DOCS / "examples" / "bc.py").read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 40
    data = {"data_dir": str(tmp_path / "data"), "eval_episodes": 2}
    summary = train("module:bc", "rooms-task1", run=tmp_path / "bc", seeds=1, steps=60, log_interval=20, **data)
    metrics = (tmp_path / "bc" / "metrics.jsonl").read_text().splitlines()
    errors = [float(re.findall(r'"bc_error": \[([0-9.e-]+)\]', line)[0]) for line in metrics]
    assert len(errors) == 3
    assert errors[2] < errors[0]
    assert np.isfinite(summary["members"][0]["score"])
    assert resume(tmp_path / "bc") == read_json(tmp_path / "bc" / "summary.json")


@pytest.mark.slow
def test_the_logs_of_the_pendulum_teach_to_swing_it_up(tmp_path, monkeypatch, capsys):
    """Also the smallest agent becomes far better than the logs; and their return is what the documentation says."""
    monkeypatch.chdir(tmp_path)
    program("docs/examples/pendulum.py").main()
    said = capsys.readouterr().out
    assert said in (DOCS / "index.md").read_text().replace("python docs/examples/pendulum.py          # ", "")
    small: dict[str, Any] = {"hidden": 32, "batch_size": 128, "learning_rate": 3e-3, "discount": 0.99, "alpha": 1.0}
    small |= {"seeds": 2, "steps": 3000, "eval_interval": 1000, "eval_episodes": 10}
    summary = train("iql", "pendulum.npz", env="Pendulum-v1", run="run", **small)
    for member in summary["members"]:
        assert max(found["return"] for found in member["evaluations"]) > -664 + 200


def test_an_agent_like_uhm_has_the_papers_settings_of_uhm():
    for name in ("rooms", "antmaze-large-navigate", "cube-quadruple-play"):
        mine, uhm = resolve("module:nstep", name), resolve("uhm", name)
        assert (mine.config, mine.hyper, mine.k_max()) == (uhm.config, uhm.hyper, uhm.k_max())
    assert resolve("module:nstep", "rooms", alpha=0.7).hyper["alpha"] == 0.7
    assert resolve("module:bc", "rooms").hyper == {"learning_rate": 1e-3}  # is like none


def test_its_other_measure_is_what_differs(tmp_path):
    """Both measures are the same for one step, and no longer."""
    data = {"data_dir": str(tmp_path / "data"), "eval_episodes": 1, "steps": 10, "seeds": 1, "hidden": 8}

    def loss(agent, lambda_f):
        run = tmp_path / f"{agent.removeprefix('module:')}-{lambda_f}"
        train(agent, "rooms-task1", run=run, **{"schedule": False, "lambda_f": lambda_f, **data})
        with Run.open(run, write=False) as trained:
            return [line["critic_loss"][0] for line in trained.metrics()]

    assert loss("module:nstep", 0.0) == pytest.approx(loss("uhm", 0.0), rel=1e-4)
    assert loss("module:nstep", 0.5) != pytest.approx(loss("uhm", 0.5), rel=1e-2)
    assert Dream(tmp_path / "nstep-0.5").how == JUMP
    s_n, ended = load_run(tmp_path / "nstep-0.5").model()(jax.random.key(0), np.zeros((5, 2)), np.ones((5, 2)), n=2)
    assert (s_n.shape, ended.shape) == ((5, 2), (5,))
    model, key, s, a = load_run(tmp_path / "nstep-0.5").model(), jax.random.key(0), np.zeros((5, 2)), np.ones((5, 2))
    for arguments, message in (
        ((s, a, 0), "n is 0, and must be whole numbers from 1 on"),
        ((s, a, 2.7), "n is 2.7, and must be whole numbers"),
        ((s, a, [1, 2]), r"n has shape \(2,\): give one horizon, or one for each row"),
        ((s, a[:4], 1), r"a has shape \(4, 2\), and must be rows of 2 numbers, as many as of s"),
        ((s[:, :1], a, 1), r"s has shape \(5, 1\), and must be rows of 2 numbers"),
    ):
        with pytest.raises(UhmError, match=message):
            model(key, *arguments)
    with pytest.raises(UhmError, match="step is '10', and must be 'last', 'best' or a whole number"):
        load_run(tmp_path / "nstep-0.5", "10")
    with pytest.raises(UhmError, match="step is '10', and must be 'last', 'best' or a whole number"):
        load_run(tmp_path / "nstep-0.5", "10")  # type: ignore[arg-type]


def test_an_agent_like_nobody_is_refused(tmp_path, monkeypatch):
    (tmp_path / "alike.py").write_text((DOCS / "examples" / "nstep.py").read_text().replace('"uhm"', '"uhn"'))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UhmError, match=r"LIKE of the module 'alike' is 'uhn', and must be one of: uhm, ghm, "):
        family("module:alike")
    (tmp_path / "alikes.py").write_text((DOCS / "examples" / "nstep.py").read_text().replace('"uhm"', '["uhm"]'))
    with pytest.raises(UhmError, match=r"LIKE of the module 'alikes' is \['uhm'\], and must be one of: uhm, ghm, "):
        family("module:alikes")


def test_an_agent_may_be_like_uhm_and_have_no_model(tmp_path, monkeypatch):
    """Then there is nothing to imagine; and its settings may be of any type."""
    text = (DOCS / "examples" / "bc.py").read_text() + '\n\nLIKE = "uhm"\n'
    field = "    batch_size: int = 256\n"
    assert text.count(field) == 1
    (tmp_path / "alone.py").write_text(
        text.replace(field, f"{field}    word: Any = 'x'\n    more: dict | None = None\n")
    )
    monkeypatch.chdir(tmp_path)
    train(
        "module:alone", "rooms-task1", run=tmp_path / "run", data_dir=str(tmp_path / "data"), steps=2, eval_episodes=1
    )
    with pytest.raises(UhmError, match="module:alone has no model of the future that imagine knows"):
        Dream(tmp_path / "run")
    assert cli.run(["train", "module:alone", "rooms-task1", "--steps", "0"]) == 2  # as far as its flags


def test_a_plain_function_is_no_sampler(tmp_path, monkeypatch):
    text = (DOCS / "examples" / "bc.py").read_text()
    assert text.count("transitions(config.batch_size)") == 1
    plain = text.replace("transitions(config.batch_size)", "lambda data, key: transitions(8)(data, key)")
    (tmp_path / "plain.py").write_text(plain)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UhmError, match=r"`sample` of module:plain is no uhm.data.Sampler"):
        train("module:plain", "rooms-task1", run=tmp_path / "run", data_dir=str(tmp_path / "data"))


def test_a_module_that_is_no_agent_is_refused(tmp_path):
    with pytest.raises(UhmError, match=r"no Python module 'nowhere' here or on the path"):
        family("module:nowhere")
    with pytest.raises(UhmError, match=r"'json' \(.*json.*\) is no agent: it has no make and no Config and no Hyper"):
        family("module:json")


def test_a_file_here_is_meant_whatever_else_has_its_name(tmp_path, monkeypatch):
    """`this` is a module of Python's own that nothing imports."""
    (tmp_path / "this.py").write_text((DOCS / "examples" / "bc.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    assert family("module:this").Config().hidden == (64, 64)
    assert sys.path[-1] == "" and str(tmp_path) not in sys.path
    del sys.modules["this"]


@pytest.mark.parametrize("page", ["concepts.md"])
def test_code_blocks_run(page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    blocks = [block for block in blocks if "runs/" not in block]
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})


def test_the_results_page_says_what_the_runs_say():
    results = program("docs/results.py")
    assert (DOCS / "results.md").read_text() == results.page(collect([results.RUNS])), "run docs/results.py"
    for picture in re.findall(r"\]\((images/.*?)\)", (DOCS / "results.md").read_text()):
        assert (DOCS / picture).exists()


def test_the_readme_has_the_results_of_every_environment():
    _, _, below = (DOCS / "results.md").read_text().partition("## Per environment\n\n")
    table, _, _ = below.partition("\n\n")
    assert table.count("\n") >= 4
    assert f"\n{table}\n" in (DOCS.parent / "README.md").read_text()


def test_the_page_of_updates_has_every_number():
    updates = program("docs/updates.py")
    assert (DOCS / "updates.md").read_text() == updates.page(read_json(updates.MEASURED)), "run docs/updates.py"


def test_the_table_of_updates_is_what_was_measured():
    published = read_json(DOCS.parent / "results" / "performance" / "updates.json")
    assert published["setting"]["k_max"] == 8
    measured = {(r["agent"], r["compute_dtype"], r["members"]): r["milliseconds"] for r in published["rows"]}
    text = (DOCS / "performance.md").read_text()
    for agent, kind in itertools.product(FAMILIES, ("float32", "bfloat16")):
        values = [measured[agent, kind, members] for members in (1, 5, 25, 100)]
        values += [published["host_loop"][agent]] if kind == "float32" else []
        cells = [f"{value:.2f}" for value in values]
        assert f"| `{agent}` | {' | '.join(cells)} |" in text, (agent, kind)
