"""What torchrun starts: one rank of a program in this folder, whose result is left as JSON beside the other ranks'."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path


def main(module: str, program: str, root: str, out: str) -> None:
    function = getattr(importlib.import_module(f"tests.frameworks.{module}"), program)
    (Path(out) / f"{os.environ['RANK']}.json").write_text(json.dumps(function(Path(root))))


if __name__ == "__main__":
    main(*sys.argv[1:])
