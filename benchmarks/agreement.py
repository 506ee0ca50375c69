"""Does a GPU learn what the definition says, in every form that an update has there?

    uhm data make cube-single-play --episodes 200
    python benchmarks/agreement.py reference agreement.json      # on a CPU; takes minutes; results/agreement has one
    python benchmarks/agreement.py compare agreement.json --processes 4   # on a GPU; exit code 1 if a form disagrees

A member of a population sees the same batches and the same noise wherever it is trained, so two programs that compute
the same differ by rounding alone, and for a thousand steps they stay together. The reference is what some members of a
UHM population with the paper's networks log, chunk by chunk, in float32 and in bfloat16 on a CPU, which runs no kernels
of ours (`--environment rooms` needs no data). The GPU trains the same members, among others, in each of its forms.
Errors are relative, means over members. What float32 and bfloat16 differ by on the CPU is what rounding does to Q, and
a form that is further away than several times that computes something else.

Data that are made again on another machine need not be quite the same. Then forms are compared with float32 as trained
here, and what that differs from the reference by says how much the data do.

Success would show it late: a form that passed all weights on in two halves learned cube-single-play as well as others,
but not as soon, and Q was 0.6 % lower after 3,000 steps, where bfloat16 makes a difference of 0.02 % on a CPU
(results/agreement, results/precision).
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from uhm import kernels, population
from uhm.agents import family, spec_of
from uhm.bench import in_processes
from uhm.data import load
from uhm.runs.environment import session
from uhm.runs.publish import unnamed

TASKS, MEMBERS, CHUNK = 5, 25, 250
NAMES = ("q_mean", "critic_loss", "bc_error", "model_loss", "reward_loss")
TOLERANCE = 5.0  # times what rounding does
LEAST = 2e-4  # that rounding is taken to do: few members may have less by chance
K_MAX = 8


class Form(NamedTuple):
    """How an update is compiled: what differs from the choice that is made by itself."""

    dtype: str
    members: int = MEMBERS
    kernels: str = "auto"
    loop: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, str | bool], ...] = ()


IN_A_ROW = ("xla_gpu_command_buffer_scheduling_mode", "SERIALIZE")
FORMS = {
    "float32": Form("float32"),
    "bfloat16": Form("bfloat16"),
    "five": Form("bfloat16", members=5),
    "one": Form("bfloat16", members=1),
    "whole": Form("bfloat16", loop=(("halved", False),)),
    "not-ahead": Form("bfloat16", loop=(("ahead", False),)),
    "no-kernels": Form("bfloat16", kernels="off"),
    "in-a-row": Form("bfloat16", options=(IN_A_ROW,)),
    "exact-rounding": Form("bfloat16", options=(("xla_allow_excess_precision", False),)),
    "split-products": Form("bfloat16", options=(("xla_disable_hlo_passes", ""),)),
    "simplest": Form("bfloat16", MEMBERS, "off", (("ahead", False), ("halved", False)), (IN_A_ROW,)),
}


class Training(NamedTuple):
    """What is trained; `schedule` are the steps of the run whose beginning it is."""

    environment: str
    hidden: tuple[int, ...]
    steps: int
    schedule: int


def trained(form: Form, what: Training, data_dir: Path | None = None) -> list[dict[str, list[float]]]:
    """What every member logs, chunk by chunk; members of few are the first of many."""
    kind, data = family("uhm"), load(what.environment, data_dir=data_dir)
    config = kind.Config(hidden=what.hidden, compute_dtype=form.dtype)
    agent = kind.make(config, spec_of(data, K_MAX))
    # Seeds vary slowest, so that any number of members is a part of any larger one.
    members = [population.Member(data.names[i % TASKS], i % TASKS, seed=i // TASKS) for i in range(form.members)]
    hyper = population.stack_hyper(kind.Hyper(alpha=1.0, steps=what.schedule), members)
    on_device = data.with_task(np.array([member.column for member in members], np.int32))
    state, logged = population.init(agent, members, hyper), []
    with _in(form):
        advance = population.advance.lower(agent, state, hyper, on_device, CHUNK).compile(dict(form.options))
    for _ in range(what.steps // CHUNK):
        state, metrics = advance(state, hyper, on_device)
        logged.append({name: np.asarray(metrics[name], float).tolist() for name in NAMES})
    return logged


@contextmanager
def _in(form: Form) -> Iterator[None]:
    chosen = population.loop_of

    def loop_of(members: int, draws: bool) -> population.Loop:
        return chosen(members, draws)._replace(**dict(form.loop))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {kernels.VARIABLE: form.kernels}))
        stack.enter_context(mock.patch.object(population, "loop_of", loop_of))
        yield


def errors(logged: list[dict[str, list[float]]], reference: list[dict[str, list[float]]], name: str) -> list[float]:
    """Of each chunk: the mean over the reference's members of the relative difference."""
    found = []
    for mine, true in zip(logged, reference, strict=True):
        a, b = np.array(mine[name])[: len(true[name])], np.array(true[name])
        assert a.size == b.size, "the reference has members that were not trained"
        found.append(float(np.abs(a / b - 1).mean()))
    return found


def first(reference: dict[str, Any], members: int) -> dict[str, Any]:
    """What the reference has of the first members, in both precisions."""
    return {dtype: cut(reference[dtype], members) for dtype in ("float32", "bfloat16")}


def cut(logged: list[dict[str, list[float]]], members: int) -> list[dict[str, list[float]]]:
    """The first members of it."""
    return [{name: values[:members] for name, values in chunk.items()} for chunk in logged]


def agrees(logged: Any, wanted: Any, reference: dict[str, Any]) -> bool:
    """Whether Q is, at the end, no further from what is wanted than `TOLERANCE` times what rounding does to it."""
    rounding = errors(reference["bfloat16"], reference["float32"], "q_mean")[-1]
    return errors(logged, wanted, "q_mean")[-1] <= TOLERANCE * max(rounding, LEAST)


def digest(environment: str, data_dir: Path | None) -> str:
    """Of what is learned from."""
    data, found = load(environment, data_dir=data_dir), hashlib.sha256()
    for array in (data.observations, data.actions, data.rewards, data.masks):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def make_reference(args: argparse.Namespace) -> None:
    jax.config.update("jax_platforms", "cpu")
    what = Training(args.environment, tuple(args.hidden), args.steps, args.schedule)
    data = digest(args.environment, args.data_dir)
    found: dict[str, Any] = {"training": what._asdict(), "data": data, "session": unnamed(session())}
    for dtype in ("float32", "bfloat16"):
        found[dtype] = trained(Form(dtype, members=args.members), what, args.data_dir)
    args.file.write_text(json.dumps(found) + "\n")
    print("rounding:", " ".join(f"{e:.2e}" for e in errors(found["bfloat16"], found["float32"], "q_mean")))


def compare(args: argparse.Namespace) -> int:
    reference = json.loads(args.file.read_text())
    what = Training(**{**reference["training"], "hidden": tuple(reference["training"]["hidden"])})
    same_data = digest(what.environment, args.data_dir) == reference["data"]
    names = list(args.forms) if same_data else list(dict.fromkeys(("float32", *args.forms)))
    made: dict[str, Any] = {}
    for begin in range(0, len(names), args.processes):
        some = names[begin : begin + args.processes]
        jobs = [(FORMS[name], what, args.data_dir) for name in some]
        several = in_processes.each(trained, jobs, len(jobs), print) if len(jobs) > 1 else [trained(*jobs[0])]
        made |= zip(some, several, strict=True)
        if args.json:  # each time: it takes long
            record = {"session": unnamed(session()), "same_data": same_data, "forms": made}
            args.json.write_text(json.dumps(record) + "\n")
    table = Table("form", *NAMES, "Q, chunk by chunk", "agrees", box=None)
    wrong = 0
    for name in names:
        form, known = FORMS[name], first(reference, FORMS[name].members)
        wanted = known[form.dtype] if same_data else cut(made["float32"], form.members)
        fine = agrees(made[name], wanted, known)
        wrong += not fine
        last = [f"{errors(made[name], wanted, metric)[-1]:.1e}" for metric in NAMES]
        q = " ".join(f"{e:.1e}" for e in errors(made[name], wanted, "q_mean"))
        table.add_row(name, *last, q, "yes" if fine else "NO")
    if not same_data:
        away = errors(made["float32"], reference["float32"], "q_mean")[-1]
        print(f"Other data than the reference's: forms are compared with float32 here, {away:.1e} away from it.")
    Console(width=160).print(table)
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("reference", help="make it, on a CPU")
    verb.add_argument("file", type=Path)
    verb.add_argument("--environment", default="cube-single-play")
    verb.add_argument("--hidden", type=int, nargs="+", default=[512] * 4)
    verb.add_argument("--steps", type=int, default=1000)
    verb.add_argument("--schedule", type=int, default=20_000, help="steps of the run whose beginning this is")
    verb.add_argument("--members", type=int, default=2)
    verb.set_defaults(run=make_reference)
    verb = verbs.add_parser("compare", help="train every form here, and compare")
    verb.add_argument("file", type=Path)
    verb.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    verb.add_argument("--json", type=Path, help="write what was logged, with versions and hardware")
    verb.add_argument("--processes", type=int, default=1, help="that train at the same time, one form each")
    verb.set_defaults(run=compare)
    for verb in verbs.choices.values():
        verb.add_argument("--data-dir", type=Path, default=None)
    args = parser.parse_args()
    if getattr(args, "processes", 1) < 1:
        parser.error("--processes must be at least 1")
    if getattr(args, "processes", 1) > 1:
        in_processes.share_memory()
    return args.run(args) or 0


if __name__ == "__main__":
    sys.exit(main())
