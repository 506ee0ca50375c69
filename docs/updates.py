"""Writes updates.md, every number of `uhm bench update`, from results/performance/updates.json.

python docs/updates.py
"""

from pathlib import Path
from typing import Any

from uhm import bench
from uhm.runs.files import read_json

HERE = Path(__file__).parent
MEASURED = HERE.parent / "results" / "performance" / "updates.json"
TITLES = {"bfloat16": "bfloat16", "float32": "float32 (TF32)"}
ABOUT = """
One NVIDIA H200, networks of {hidden}, batch {batch_size}, observation {observation}, action {action}, horizons of up to
{k_max} steps. [What an update costs on a GPU](performance.md) says what the numbers mean.

- **ms / step**: one update of all agents of a population, the median of {turns} turns. **per agent**: divided by
  their number.
- **TFLOP/s**: the operations of all matmuls of an update over its time.
- **of ceiling**: the time that an update cannot go below, over its time. This is the larger of two times measured in
  the same run: that of its matmuls alone, on a full GPU, and that of copying its state once.
- **GB**: what the program holds while it runs.
- **compile**: seconds for one program, of up to 15 that were compiled side by side. A few seconds mean that it came
  from the cache of compiled programs.
"""


def main() -> None:
    (HERE / "updates.md").write_text(page(read_json(MEASURED)))


def page(measured: dict[str, Any]) -> str:
    """A table for each precision and number of agents, and the loops on the host."""
    rows = [bench.Row(**{name: row[name] for name in bench.Row._fields}) for row in measured["rows"]]
    setting = measured["setting"] | {"hidden": "×".join(map(str, measured["setting"]["hidden"]))}
    lines = ["# Every number of `uhm bench update`", "", "<!-- Written by docs/updates.py. -->"]
    lines.append(ABOUT.format(**setting))
    for kind, title in TITLES.items():
        lines += [f"## {title}", ""]
        for members in dict.fromkeys(row.members for row in rows):
            those = [row for row in rows if (row.compute_dtype, row.members) == (kind, members)]
            lines += [f"### {members} agent{'s' if members > 1 else ''}, {title}", "", *table(those), ""]
    loops = bench.markdown(rows, measured["host_loop"]).rpartition("\n\n")[2]
    return "\n".join([*lines, "## In a loop on the host, float32 (TF32)", "", loops])


def table(rows: list[bench.Row]) -> list[str]:
    """One size of the population. Narrower than what `uhm bench update --markdown` writes, or it would not fit."""
    lines = ["| agent | ms / step | per agent | TFLOP/s | of ceiling | GB | compile |", f"|---|{6 * '---:|'}"]
    for row in rows:
        times = f"{row.milliseconds:.2f} | {row.milliseconds_per_member:.3f} | {row.teraflops_per_second:.1f}"
        rest = f"{100 * row.of_ceiling:.0f} % | {row.gigabytes:.2f} | {row.compile_seconds:.0f}"
        lines.append(f"| `{row.agent}` | {times} | {rest} |")
    return lines


if __name__ == "__main__":
    main()
