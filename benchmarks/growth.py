"""How the time of a step grows with the population, the batch, the observation and the longest horizon.

    python benchmarks/growth.py --json growth.json            # measure, on a GPU; what the file has is not done again
    python benchmarks/growth.py --draw growth.json docs/images/growth.svg

One thing at a time is changed, from five UHM agents of 4 x 512 with batches of 256, 55 observed numbers and horizons of
at most 8 steps. The longest horizon is shown for DTD and MBTD too, which pay for it.
"""

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from uhm import bench
from uhm.runs.environment import session
from uhm.runs.publish import unnamed

MEMBERS = 5
TURNS = 3
AXES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "members": (("uhm",), (1, 2, 5, 10, 25, 50, 100, 200)),
    "batch_size": (("uhm",), (256, 512, 1024, 2048, 4096)),
    "observation": (("uhm",), (27, 55, 110, 220, 440)),
    "k_max": (("uhm", "dtd", "mbtd"), (4, 8, 16, 32)),
}
TITLES = {
    "members": "agents in the population",
    "batch_size": "rows of a batch",
    "observation": "numbers of an observation",
    "k_max": "longest horizon",
}


class Point(NamedTuple):
    """One program: what was changed, and its time."""

    axis: str
    agent: str
    value: int
    members: int
    milliseconds: float
    gigabytes: float


def jobs(axes: list[str], base: bench.Setting, largest: int) -> list[tuple[str, str, int, int, bench.Setting]]:
    """(axis, agent, value, members, setting) of every program."""
    found = []
    for axis in axes:
        agents, values = AXES[axis]
        for agent in agents:
            for value in values:
                if axis == "members":
                    if value <= largest:
                        found.append((axis, agent, value, value, base))
                else:
                    found.append((axis, agent, value, MEMBERS, dataclasses.replace(base, **{axis: value})))
    return found


def measure(args: argparse.Namespace) -> list[Point]:
    """All programs are compiled first, so that this can be done while something else keeps the device busy.

    What was measured is printed and written each time, and what does not fit into memory is left out.
    """
    base = bench.Setting(hidden=tuple(args.hidden), compute_dtype=args.compute_dtype)
    before = json.loads(args.json.read_text()) if args.json and args.json.exists() else {"sessions": [], "points": []}
    points = [Point(**point) for point in before["points"]]
    known = {(point.axis, point.agent, point.value) for point in points}
    todo = [job for job in jobs(args.axes, base, args.largest) if job[:3] not in known]
    sessions = [*before["sessions"], unnamed(session())]
    with bench.preparing():
        # The base is a point of every axis and measured once.
        programs = list(dict.fromkeys((agent, members, setting) for _, agent, _, members, setting in todo))
        subjects = bench.compiled([(*program, args.chunk) for program in programs], args.processes, print)
        made = dict(zip(programs, subjects, strict=True))
    times: dict[Any, float] = {}
    with bench.measuring():
        for axis, agent, value, members, setting in todo:
            program = agent, members, setting
            subject = made[program]
            # The first run of a program is not counted.
            if subject is None or (program not in times and bench.fitting(subject.run) is None):
                print(f"{axis:12} {value:5} {agent:5} not enough free memory", flush=True)
                continue
            if program not in times:
                times[program] = 1e3 * statistics.median(subject.run() for _ in range(TURNS))
            points.append(Point(axis, agent, value, members, times[program], subject.facts.memory_bytes / 1e9))
            print(f"{axis:12} {value:5} {agent:5} {times[program]:8.3f} ms a step", flush=True)
            if args.json:
                record = {"sessions": sessions, "points": [point._asdict() for point in points]}
                args.json.write_text(json.dumps(record, indent=1) + "\n")
    return points


def full_at(points: list[Point]) -> int:
    """The smallest population in which an agent costs at most a tenth more than in the one where it costs least."""
    least = min(point.milliseconds / point.members for point in points)
    return min(point.members for point in points if point.milliseconds / point.members <= 1.1 * least)


def draw(written: dict[str, Any], to: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"  # text stays text
    points = [Point(**point) for point in written["points"]]
    axes = list(dict.fromkeys(point.axis for point in points))
    figure, panels = plt.subplots(1, len(axes), figsize=(3.2 * len(axes), 3), layout="constrained", squeeze=False)
    for axis, panel in zip(axes, panels[0], strict=True):
        mine = [point for point in points if point.axis == axis]
        for agent in dict.fromkeys(point.agent for point in mine):
            line = [point for point in mine if point.agent == agent]
            panel.plot([p.value for p in line], [p.milliseconds for p in line], "o-", ms=4, label=agent.upper())
        if axis == "members":
            each = [p.milliseconds / p.members for p in mine]
            panel.plot([p.value for p in mine], each, "s--", ms=4, color="0.5", label="per agent")
            full = full_at(mine)
            panel.axvline(full, color="0.8", zorder=0)
            top = max(p.milliseconds for p in mine)
            panel.annotate(f"full at {full}", (full, top), (-4, -4), textcoords="offset points", ha="right", fontsize=8)
        panel.set(xscale="log", xlabel=TITLES[axis], xticks=sorted({p.value for p in mine}))
        if axis in ("members", "k_max"):
            panel.set(yscale="log")
            panel.yaxis.set_major_formatter("{x:g}")
        else:
            panel.set_ylim(0)
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.xaxis.minorticks_off()
        panel.tick_params(axis="x", labelsize=8)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if axis in ("members", "k_max"):
            panel.legend(fontsize=8, frameon=False, loc="upper left")
    panels[0][0].set_ylabel("ms per step")
    figure.savefig(to, metadata={"Date": None} if to.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--hidden", type=int, nargs="+", default=[512] * 4)
    parser.add_argument("--largest", type=int, default=200, help="largest population")
    parser.add_argument("--compute-dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--chunk", type=int, help="steps of one timed program")
    parser.add_argument("--processes", type=int, default=1, help="that compile side by side")
    parser.add_argument("--json", type=Path, help="write what was measured, with versions and hardware")
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("JSON", "PICTURE"), help="draw what was measured before")
    args = parser.parse_args()
    if args.draw:
        draw(json.loads(args.draw[0].read_text()), args.draw[1])
        return
    if args.processes > 1:
        bench.in_processes.share_memory()
    measure(args)


if __name__ == "__main__":
    main()
