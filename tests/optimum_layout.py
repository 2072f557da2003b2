"""Import the script that built the committed graph in optimum's layout, so that tests can build other sizes."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "export" / "data" / "optimum-tiny"


def load_recipe() -> Any:
    """Import recipe.py, which is stored next to its graph and not in a package."""
    name = "optimum_tiny_recipe"
    if name not in sys.modules:
        spec = spec_from_file_location(name, FOLDER / "recipe.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
