"""What a long test has counted, for people: ``tools/soak.py`` asks for it and keeps it with the run's date."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: the file that gets the lines; not set: nobody keeps them
VARIABLE: Final = "SOAK_FIGURES"


def tell(line: str) -> None:
    print(line)
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
