"""The benchmarks count and measure what they say; how long anything takes is not tested."""

import fcntl
import functools
import itertools
import json
import math
import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from programs import program
from uhm import bench, cli, population
from uhm.bench import Subject, in_processes, products, subject, turns
from uhm.errors import UhmError
from uhm.nets import MLP

TINY = bench.Setting(hidden=(8,), batch_size=4, observation=3, action=2, k_max=2)


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that runs on this machine neither waits for tests nor keeps them waiting."""
    monkeypatch.setattr(turns, "path", lambda: tmp_path / "lock")


def flops(function: Callable, *arguments: object) -> int:
    counted = bench.products_of(jax.make_jaxpr(function)(*arguments))
    return sum(kind.flops * count for kind, count in counted.items())


def test_the_products_of_an_mlp_are_those_counted_by_hand() -> None:
    net, x = MLP(3, 2, jax.random.key(0), (8, 16)), jnp.ones((5, 3))
    forward = 2 * 5 * (3 * 8 + 8 * 16 + 16 * 2)
    assert flops(net, x) == forward
    # Backward: every weight's gradient, and every layer's input but the first's.
    assert flops(jax.grad(lambda net: net(x).sum()), net) == 2 * forward + 2 * 5 * (8 * 16 + 16 * 2)


def test_loops_batches_and_nested_programs_are_multiplied_out() -> None:
    w = jnp.ones((4, 4))
    once = 2 * 4 * 4 * 4

    def loop(x: jax.Array) -> jax.Array:
        step = jax.jit(lambda x, _: (x @ w, None))
        return jax.lax.scan(lambda x, _: jax.lax.scan(step, x, length=3), x, length=5)[0]

    assert flops(loop, w) == 15 * once
    assert flops(jax.vmap(loop), jnp.ones((7, 4, 4))) == 7 * 15 * once
    assert flops(lambda x: jax.lax.cond(x.sum() > 0, lambda: x, lambda: x @ w), w) == once
    with pytest.raises(UhmError, match="unknown length"):
        flops(lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ w, x), w)


def test_contracted_and_batched_axes_count_once() -> None:
    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("bik,bjk->bij", a, b)

    assert flops(dot, jnp.ones((2, 3, 5)), jnp.ones((2, 7, 5))) == 2 * 2 * 3 * 5 * 7


def test_one_of_many_products_is_that_of_two_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents and critics are axes that both factors have; their order does not matter."""
    einsum = lambda how, *shapes: bench.products_of(  # noqa: E731
        jax.make_jaxpr(functools.partial(jnp.einsum, how))(*map(jnp.ones, shapes))
    )
    ((many, times),) = einsum("abik,abkj->abij", (2, 3, 4, 5), (2, 3, 5, 7)).items()
    ((single, once),) = einsum("ik,kj->ij", (4, 5), (5, 7)).items()
    assert (times, once) == (1, 1)
    assert many.single == single == single.single
    assert many.flops == 2 * 3 * single.flops
    ((inside, _),) = einsum("iak,kaj->aij", (4, 6, 5), (5, 6, 7)).items()
    assert inside.single == single
    # Timed as on a GPU: it is the right product, and time is that of one.
    monkeypatch.setattr(products, "on_gpu", lambda: True)
    monkeypatch.setattr(products, "_AT_ONCE_FLOPS", 10 * single.flops)
    dot, done = products._dot, []
    monkeypatch.setattr(products, "_dot", lambda *args: done.append(dot(*args)) or done[-1])
    assert products.timed_as(many) == single
    now = itertools.count()
    monkeypatch.setattr(products.time, "perf_counter", lambda: next(now))
    assert products.timed_product(single)() == pytest.approx(1 / (10 * products._CALLS))
    assert done[0].shape == (10, 4, 7)


@pytest.mark.slow
def test_rows_and_ratios() -> None:
    (rows,) = bench.update(("rebrac-dagger", "dtd"), (1, 2), [TINY], steps=5)
    assert [(row.agent, row.members) for row in rows] == [(a, m) for m in (1, 2) for a in ("rebrac-dagger", "dtd")]
    # Twice the members are twice the work; two bootstrap states instead of one are more of it.
    assert rows[2].gigaflops == 2 * rows[0].gigaflops
    assert rows[1].gigaflops > rows[0].gigaflops
    assert all(row.milliseconds > 0 and row.products_milliseconds > 0 for row in rows)
    assert rows[3].milliseconds_per_member == rows[3].milliseconds / 2
    assert rows[0].teraflops_per_second == pytest.approx(rows[0].gigaflops / rows[0].milliseconds)
    floor = max(rows[0].products_milliseconds, rows[0].copy_milliseconds)
    assert rows[0].of_ceiling == pytest.approx(floor / rows[0].milliseconds)
    # Parameters, Adam's two moments and the targets of two critics and an actor, each once, in float32.
    critic, actor = 2 * (5 * 8 + 8 + 16 + 8 + 1), 3 * 8 + 8 + 8 * 2 + 2
    subject = bench.Subject("rebrac-dagger", 2, TINY, 1)
    assert subject.facts.state_bytes == pytest.approx(2 * 4 * 4 * (critic + actor), abs=2 * 16)  # and the step counters
    assert rows[2].gigabytes * 1e9 > subject.facts.state_bytes
    assert bench.ratios(rows[1:], "rebrac-dagger").keys() == {2}  # no ratio to what was not measured
    found = bench.ratios(rows, "rebrac-dagger")
    assert found[1]["rebrac-dagger"] == 1
    assert found[2]["dtd"] == rows[3].milliseconds / rows[2].milliseconds


def test_who_measures_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(kind: int) -> bool:
        with turns.path().open("a") as file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with bench.preparing():
        assert free(fcntl.LOCK_SH)
        assert not free(fcntl.LOCK_EX)
    with bench.measuring():
        assert not free(fcntl.LOCK_SH)
    # The benchmark itself: programs are compiled under the one and run under the other.
    seen = []

    class Watched(bench.Subject):
        def run(self) -> float:
            seen.append((free(fcntl.LOCK_SH), free(fcntl.LOCK_EX)))
            return super().run()

    monkeypatch.setattr(bench, "Subject", Watched)
    assert len(list(bench.update(("rebrac-dagger",), (1,), [TINY], steps=5))) == 1
    assert seen == [(False, False)] * (1 + bench.TURNS)
    assert free(fcntl.LOCK_EX)


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, plain = "RESOURCE_EXHAUSTED: Out of memory", bench.Subject

    class Large(plain):
        def __init__(self, agent: str, *rest: Any) -> None:
            if agent == "dtd":
                raise jax.errors.JaxRuntimeError(problem)
            super().__init__(agent, *rest)

    monkeypatch.setattr(bench, "Subject", Large)
    agents = ("rebrac-dagger", "dtd")
    assert [row.agent for rows in bench.update(agents, (1,), [TINY], steps=5) for row in rows] == ["rebrac-dagger"]
    flags = ["--hidden", "8", "--observation", "3", "--action", "2", "--steps", "5", "--members", "1"]
    assert cli.run(["bench", "update", "--agents", "dtd", *flags]) == 0
    assert capsys.readouterr().out == "1 member, float32: not enough free memory for dtd\n"
    problem = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        list(bench.update(agents, (1,), [TINY], steps=5))

    class Hungry(plain):
        def run(self) -> float:
            if self.facts.agent == "dtd":
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return super().run()

    monkeypatch.setattr(bench, "Subject", Hungry)
    assert [row.agent for rows in bench.update(agents, (1,), [TINY], steps=5) for row in rows] == ["rebrac-dagger"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--agents", "uhmm"], "uhm"),
        (["--members", "0"], "at least 1"),
        (["--members", "1", "1"], "each once"),
        (["--hidden", "0"], "hidden"),
        (["--k-max", "0"], "k_max"),
        (["--steps", "2"], "at least 5"),
        (["--json", "nowhere/at/all.json"], "no directory"),
        (["--markdown", "nowhere/at/all.md"], "no directory"),
        (["--gpu"], "no GPU"),
        (["--processes", "0"], "at least 1"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "update", *arguments]) == 2
    printed = capsys.readouterr().err.strip()
    assert says in printed
    assert printed.count("\n") == 0


def test_what_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench, "update", lambda *_: pytest.fail("it measured"))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    for flag in ("--json", "--markdown"):
        assert cli.run(["bench", "update", flag, str(tmp_path / "b")]) == 2
        assert capsys.readouterr().err == f"uhm: cannot write {tmp_path / 'b'}: name another file.\n"


def test_a_table_that_cannot_be_written_was_printed(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("uhm.runs.files.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    sizes = {"hidden": 8, "batch-size": 4, "observation": 3, "action": 2, "steps": 5, "members": 1}
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    assert cli.run(["bench", "update", "--agents", "iql", *flags, "--json", str(tmp_path / "b.json")]) == 2
    printed = capsys.readouterr()
    assert "1 member: iql = 1.00" in printed.out
    assert "No space left" in printed.err
    assert not list(tmp_path.glob("b.json*"))


def test_the_verb_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden": 8, "batch-size": 4, "observation": 3, "action": 2, "k-max": 2, "steps": 5, "members": 1}
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    out = ["--host-loop", "--json", str(tmp_path / "b.json"), "--markdown", str(tmp_path / "b.md")]
    assert cli.run(["bench", "update", "--agents", "rebrac-dagger", *flags, *out]) == 0
    printed = capsys.readouterr().out
    assert "1 member: rebrac-dagger = 1.00" in printed
    assert printed.index("1 member: ") < printed.index("in a loop on the host")
    assert "in a loop on the host" in printed
    assert max(map(len, printed.splitlines()[:4])) <= 80
    assert "| `rebrac-dagger` | 1 | float32 |" in (tmp_path / "b.md").read_text()
    written = json.loads((tmp_path / "b.json").read_text())
    assert written["sessions"][0]["versions"]["jax"] == jax.__version__
    assert written["setting"]["hidden"] == [8]
    assert written["rows"][0]["agent"] == "rebrac-dagger"
    assert written["host_loop"]["rebrac-dagger"] > 0


class Counted(bench.Subject):
    """Takes no time, and says that it was there."""

    made: ClassVar[list[tuple[str, int, str]]] = []

    def __init__(self, agent: str, members: int, setting: bench.Setting, chunk: int | None = None) -> None:
        if (agent, setting.compute_dtype) == ("dtd", "float32"):
            raise KeyboardInterrupt
        self.made.append((agent, members, setting.compute_dtype))
        product = products.Product((2, 2), (2, 2), (((1,), (0,)), ((), ())), "float32", "float32")
        facts = {"products": Counter([product]), "gigaflops": 1.0, "state_bytes": 1}
        self.facts = subject.Facts(agent, members, setting, 5, memory_bytes=1, compile_seconds=1.0, **facts)

    def run(self) -> float:
        return 0.001


@pytest.mark.parametrize(("runs", "turns"), [(1, 0), (2, 0), (5, 1), (9, 3), (99, bench.TURNS)])
def test_turns_that_were_done_count(runs: int, turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two programs, each of which is run once before. Somebody interrupts it after so many runs."""
    done = iter([0.1, 0.2, *(0.001 * i for i in range(1, 99))][:runs])

    def run(_: Any) -> float:
        for seconds in done:
            return seconds
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "copy_bandwidth", lambda: 1e9)
    monkeypatch.setattr(bench, "timed_product", lambda kind: lambda: 1e-6)
    monkeypatch.setattr(bench, "Subject", Counted)
    monkeypatch.setattr(Counted, "run", run)
    file = tmp_path / "b.json"
    command = ["bench", "update", "--json", str(file), "--hidden", "8", "--steps", "5", "--members", "1"]
    assert cli.run([*command, "--agents", "iql", "rebrac"]) == (0 if turns == bench.TURNS else 130)
    if not turns:
        assert not file.exists()
        return
    rows = json.loads(file.read_text())["rows"]
    assert [row["turns"] for row in rows] == [turns, turns]
    mine = [0.001 * i for i in range(1, 2 * bench.TURNS + 1)][: runs - 2]
    expected = [1e3 * statistics.median(mine[start::2]) for start in (0, 1)]
    np.testing.assert_allclose([row["milliseconds"] for row in rows], expected)


def test_what_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One precision after the other; the second is stopped."""
    monkeypatch.setattr(bench, "copy_bandwidth", lambda: 1e9)
    monkeypatch.setattr(bench, "timed_product", lambda kind: lambda: 1e-6)
    monkeypatch.setattr(bench, "Subject", Counted)
    loops: list[str] = []
    monkeypatch.setattr(bench, "timed_loop", lambda agent, *_: (loops.append(agent) or agent, 0.5))
    monkeypatch.setattr(Counted, "made", [])
    file, flags = tmp_path / "b.json", ["--hidden", "8", "--compute-dtype", "bfloat16", "float32", "--steps", "5"]
    command = ["bench", "update", "--json", str(file), *flags, "--members", "1", "--agents", "rebrac-dagger"]
    assert cli.run([*command, "dtd"]) == 130
    assert Counted.made == [("rebrac-dagger", 1, "bfloat16"), ("dtd", 1, "bfloat16"), ("rebrac-dagger", 1, "float32")]
    first = json.loads(file.read_text())
    found = [(row["agent"], row["compute_dtype"], row["session"]) for row in first["rows"]]
    assert found == [("rebrac-dagger", "bfloat16", 0), ("dtd", "bfloat16", 0)]
    Counted.made.clear()
    capsys.readouterr()
    # Another method instead of the one that stops, and two agents of each, too.
    assert cli.run([*command, "iql", "--host-loop", "--members", "1", "2"]) == 0
    assert Counted.made == [
        *(("iql", 1, "bfloat16"), ("rebrac-dagger", 2, "bfloat16"), ("iql", 2, "bfloat16")),
        *((agent, size, "float32") for size in (1, 2) for agent in ("rebrac-dagger", "iql")),
    ]
    after = json.loads(file.read_text())
    assert after["rows"][:2] == first["rows"]
    assert [row["session"] for row in after["rows"]] == [0, 0] + [1] * 7
    assert after["host_loop"] == {"rebrac-dagger": 500.0, "iql": 500.0}
    assert f"{file} has 2 measurements already" in capsys.readouterr().out
    Counted.made.clear()
    assert cli.run([*command, "iql", "--host-loop"]) == 0
    assert (Counted.made, loops) == ([], ["rebrac-dagger", "iql"])
    # What cannot be gone on with is left as it is.
    kept = file.read_bytes()
    capsys.readouterr()
    assert cli.run([*command, "--batch-size", "3"]) == 2
    assert "other sizes or on another device" in capsys.readouterr().err
    assert file.read_bytes() == kept
    file.write_text('{"points": []}')
    assert cli.run(command) == 2
    assert "is no measurement" in capsys.readouterr().err
    assert file.read_text() == '{"points": []}'


def test_growth_measures_each_program_once_and_leaves_out_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    growth, made = program("benchmarks/growth.py"), []

    def subject(agent: str, members: int, setting: bench.Setting, chunk: int | None) -> Any:
        made.append((agent, members, setting.batch_size))
        # The first, which compiles or loads something, does not count.
        run = iter([50.0, 5.0 * members, 1.0 * members, 3.0 * members])
        facts = SimpleNamespace(memory_bytes=2e9)
        return SimpleNamespace(run=too_much if members == 9 else lambda: next(run), facts=facts)

    def too_much() -> float:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(bench, "compiled", lambda programs, processes, report: [subject(*one) for one in programs])
    monkeypatch.setattr(growth, "AXES", {"members": (("uhm",), (1, 5, 9, 11)), "batch_size": (("uhm",), (256, 512))})
    monkeypatch.setattr("sys.argv", ["growth.py", "--axes", "members", "batch_size", "--largest", "10"])
    monkeypatch.setattr("sys.argv", [*sys.argv, "--json", str(tmp_path / "growth.json")])
    growth.main()
    assert made == [("uhm", 1, 256), ("uhm", 5, 256), ("uhm", 9, 256), ("uhm", 5, 512)]
    points = json.loads((tmp_path / "growth.json").read_text())["points"]
    assert [(p["axis"], p["value"], p["milliseconds"]) for p in points] == [
        ("members", 1, 3000.0),
        ("members", 5, 15000.0),
        ("batch_size", 256, 15000.0),
        ("batch_size", 512, 15000.0),
    ]
    assert "9 uhm   not enough free memory" in capsys.readouterr().out
    made.clear()
    growth.main()  # only what is not in the file
    assert made == [("uhm", 9, 256)]
    again = json.loads((tmp_path / "growth.json").read_text())
    assert again["points"] == points
    growth.draw(json.loads((tmp_path / "growth.json").read_text()), tmp_path / "growth.svg")
    assert "full at 1" in (tmp_path / "growth.svg").read_text()


@pytest.fixture(scope="module")
def futures() -> ModuleType:
    return program("benchmarks/futures.py")


def test_energy_distance_of_known_distributions(futures: ModuleType) -> None:
    # Two points at distance 5: 2 |x - y|.
    point = lambda *xy: jnp.broadcast_to(jnp.array(xy, jnp.float32), (10, 2))  # noqa: E731
    assert float(futures.energy_distance(point(0, 0), point(3, 4))) == pytest.approx(10)
    # Standard normals in one dimension, a shift of m apart: 2 E|N(m, 2)| - 2 E|N(0, 2)|.
    rng, m = np.random.default_rng(0), 1.0
    x, y, z = (jnp.asarray(rng.normal(size=(40, 500, 1)), jnp.float32) for _ in range(3))
    folded = 2 / np.sqrt(np.pi) * np.exp(-(m**2) / 4) + m * math.erf(m / 2)
    expected = 2 * folded - 4 / np.sqrt(np.pi)
    assert float(futures.energy_distance(x, y + m).mean()) == pytest.approx(expected, abs=0.02)
    # The same distribution: 0 on average, because the estimate has no bias.
    assert float(futures.energy_distance(x, z).mean()) == pytest.approx(0, abs=0.004)


def test_each_draw_gets_its_own_horizon(futures: ModuleType) -> None:
    states = np.arange(3)[:, None, None, None] + np.zeros((3, 2, 4, 2))
    n = np.array([[1, 2, 3, 1], [3, 3, 2, 1]])
    assert np.array_equal(np.asarray(futures.pick(states, n))[..., 0], n - 1)


@pytest.mark.slow
def test_what_other_processes_compiled_is_not_traced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two updates and their loops on the host, which are said in the order in which they are done."""
    monkeypatch.setattr(population, "advance", None)  # here; processes import it anew
    few = ["--agents", "iql", "rebrac", "--members", "1", "--hidden", "4", "--steps", "5", "--batch-size", "4"]
    table = tmp_path / "b.md"
    assert cli.run(["bench", "update", *few, "--processes", "2", "--host-loop", "--markdown", str(table)]) == 0
    said = capsys.readouterr().out
    assert "1 member: iql : rebrac" in said
    assert sorted(re.findall(r"one member: (\w+) \d", said)) == ["iql", "rebrac"]
    assert re.search(r"\| `iql` \| \d.* \|\n\| `rebrac` \| \d.* \|\n$", table.read_text())


@pytest.mark.slow
def test_a_program_that_travelled_is_the_same_program(tmp_path: Path) -> None:
    """Tunings are for a GPU, but XLA knows the option here, too."""
    here, there = Subject("uhm", 2, TINY, 3), Subject.loaded(subject.program("uhm", 2, TINY, 3, str(tmp_path)))
    assert here.facts._replace(compile_seconds=0.0) == there.facts._replace(compile_seconds=0.0)
    mine, theirs = (jax.tree.leaves(one._advance(one._init())) for one in (here, there))
    assert len(mine) == len(theirs) > 10
    for a, b in zip(mine, theirs, strict=True):
        a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
        np.testing.assert_array_equal(a, b)
    assert there.run() > 0


@pytest.mark.slow
def test_programs_travel_where_jax_keeps_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would come from JAX's own cache, as no program of a CPU that is to travel can."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    made = in_processes.each(bench._fitting_program, [("rebrac", 1, TINY, 3, None)] * 2, 1, lambda _: None)
    for one in made:
        assert Subject.loaded(one).run() > 0


def test_something_is_done_with_each_that_a_process_made() -> None:
    seen: list[int] = []
    assert in_processes.each(divmod, [(7, 2), (9, 4)], 2, lambda _: None, lambda found: seen.append(found[1])) == [
        (3, 1),
        (2, 1),
    ]
    assert seen == [1, 1]


def test_what_goes_wrong_in_a_process_is_said_at_once(tmp_path: Path) -> None:
    """And what has not begun is not begun."""
    said = []
    with pytest.raises(UhmError, match="nobody"):
        in_processes.each(_fail_or_write, [(tmp_path, i) for i in range(8)], 1, said.append)
    assert len(list(tmp_path.glob("*.done"))) < 7


def _fail_or_write(directory: Path, i: int) -> None:
    if i == 0:
        raise UhmError("nobody knows")
    time.sleep(0.2)
    (directory / f"{i}.done").touch()
