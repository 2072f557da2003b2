"""What every test shares: no test reaches the hub, and property tests draw the same examples on every run."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub

settings.register_profile("edgedecode", deadline=None, derandomize=True)
settings.load_profile("edgedecode")
