"""`uhm doctor`."""

import json
from pathlib import Path

from uhm.cli.flags import verb


@verb
class Doctor:
    """Show versions, devices, rendering, data and network, and warn about what would spoil results."""

    data_dir: Path | None = None
    """Where data live (default: $UHM_DATA_DIR, else ~/.ogbench/data)."""
    json: bool = False
    """Print JSON for machines."""

    def __call__(self) -> int:
        from rich.console import Console

        from uhm import doctor
        from uhm.data.source import data_directory

        found = doctor.report(data_directory(self.data_dir))
        if self.json:
            print(json.dumps(found, indent=2))
        else:
            Console().print(doctor.render(found))
        return 1 if found["data"]["error"] else 0
