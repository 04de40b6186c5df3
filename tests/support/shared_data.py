"""Where the real datasets are: $NEOTENY_DATA, or a folder beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("NEOTENY_DATA") or Path(__file__).parents[3] / "shared" / "data")
