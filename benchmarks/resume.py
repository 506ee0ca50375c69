"""Is a run that was killed and resumed the same, bit by bit, as one that was not?

    python benchmarks/resume.py uhm cube-double-play --seeds 5 --steps 4000 --checkpoint-interval 500

The arguments are those of `uhm train` (default: a thousand steps of the built-in task). It trains once undisturbed.
Then it starts the same again, kills it (`kill -9`) at a random moment after its first checkpoint, resumes it, and
compares the digests of all members' parameters. Exit code 1 if one differs. Runs stay in `--keep DIR`, if given.

On an H200, by a script that did the same (25 agents, revision de31f82; killed while it wrote a checkpoint): all 25
digests are equal (results/resume).
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEFAULT = [
    *("uhm", "rooms", "--seeds", "1", "--steps", "1000", "--checkpoint-interval", "100"),
    *("--eval-interval", "500", "--eval-episodes", "2"),
]


def train(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "uhm", "train", *arguments], stdout=subprocess.DEVNULL)


def finished(process: subprocess.Popen[bytes]) -> None:
    if process.wait():
        sys.exit("the training failed, as said above.")


def kill(process: subprocess.Popen[bytes], run: Path, longest: float) -> int:
    """At a random moment after the first checkpoint; the newest checkpoint's step."""

    def checkpoints() -> list[int]:
        return sorted(int(path.name) for path in run.glob("checkpoints/*") if path.name.isdigit())

    while not checkpoints():
        if process.poll() is not None:
            sys.exit("the run ended before its first checkpoint: set --checkpoint-interval lower.")
        time.sleep(0.05)
    time.sleep(random.uniform(0, longest))
    process.kill()
    if process.wait() != -signal.SIGKILL:
        sys.exit("the run ended before it was killed: give it more --steps.")
    return checkpoints()[-1]


def digests(run: Path) -> list[str]:
    return [member["params_sha256"] for member in json.loads((run / "summary.json").read_text())["members"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="directory for the two runs")
    parser.add_argument("--within", type=float, default=3.0, help="kill so many seconds after the checkpoint at most")
    args, given = parser.parse_known_args()
    arguments = given or DEFAULT
    with tempfile.TemporaryDirectory() as folder:
        one, other = ((args.keep or Path(folder)) / name for name in ("undisturbed", "killed"))
        finished(train(*arguments, "--run", str(one)))
        step = kill(train(*arguments, "--run", str(other)), other, args.within)
        print(f"killed; the newest checkpoint is of step {step:,}")
        finished(train("--resume", str(other)))
        pairs = list(zip(digests(one), digests(other), strict=True))
    same = sum(a == b for a, b in pairs)
    print(f"{same} of {len(pairs)} members are the same, bit by bit")
    sys.exit(same < len(pairs))


if __name__ == "__main__":
    main()
