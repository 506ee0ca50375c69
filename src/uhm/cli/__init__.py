"""The command line. Each verb is a dataclass whose fields are its flags; heavy imports wait until a verb runs.

Bad input ends in one line on standard error and exit status 2; Ctrl-C ends in status 130.
"""

import sys
import warnings
from typing import Any

import tyro

from uhm import __version__
from uhm.errors import UhmError, unknown

DESCRIPTION = "Offline reinforcement learning with universal horizon models."
VERBS = {
    "train": "Train a population of agents: tasks x seeds x hyperparameters as one compiled program.",
    "data": "Get, make, check and look at data.",
    "doctor": "Show versions, devices, rendering, data and network; warn about what would spoil results.",
}


def main() -> None:
    """The entry point of `uhm`."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"uhm {__version__}")
    elif not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
    else:
        sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run one verb and return its exit status."""
    warnings.showwarning = _warn
    try:
        verb = tyro.cli(
            _verb(arguments),
            prog=f"uhm {arguments[0]}",
            args=arguments[1:],
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        )
        return verb()
    except UhmError as error:
        print(f"uhm: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `uhm data list | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("uhm: interrupted.", file=sys.stderr)
        return 130


def _verb(arguments: list[str]) -> Any:
    """The dataclass of a verb; only its own module is imported, because some need JAX to know their flags."""
    name = arguments[0]
    if name == "train":
        from uhm.cli.train import verb

        return verb(arguments[1:])
    if name == "data":
        from uhm.cli.data import Data

        return Data
    if name == "doctor":
        from uhm.cli.doctor import Doctor

        return Doctor
    raise unknown("verb", name, VERBS, "`uhm --help` lists them.")


def _overview() -> str:
    verbs = "\n".join(f"  {name:<8} {text}" for name, text in VERBS.items())
    return f"usage: uhm VERB ...\n\n{DESCRIPTION}\n\n{verbs}\n\n`uhm VERB --help` explains a verb; --version, --help."


def _warn(message: Any, *_: object, **__: object) -> None:
    """Warnings are one line too: the place in the source that raised them means nothing to a user."""
    print(f"uhm: warning: {message}", file=sys.stderr)
