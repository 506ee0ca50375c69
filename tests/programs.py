"""Programs that stand beside the package, as modules."""

import importlib.util
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent


def program(path: str) -> Any:
    """The program at `path` in the repository, not run."""
    specification = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
