"""The command line. Each verb is a dataclass whose fields are its flags; heavy imports wait until a verb runs.

Bad input ends in one line on standard error and exit status 2; Ctrl-C ends in status 130.
"""

import sys
from typing import Annotated, Any

import tyro

from uhm import __version__
from uhm.cli.data import Data
from uhm.cli.doctor import Doctor
from uhm.errors import UhmError

# `Any`, because a union of annotated types is a form that tyro reads and a type checker does not.
VERBS: Any = Annotated[Data, tyro.conf.subcommand("data")] | Annotated[Doctor, tyro.conf.subcommand("doctor")]


def main() -> None:
    """The entry point of `uhm`."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"uhm {__version__}")
        return
    verb = tyro.cli(
        VERBS,
        prog="uhm",
        args=arguments or ["--help"],
        description="Offline reinforcement learning with universal horizon models.",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    try:
        sys.exit(verb())
    except UhmError as error:
        print(f"uhm: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `uhm data list | head`
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print("uhm: interrupted.", file=sys.stderr)
        sys.exit(130)
