"""What every test shares: no hub, the usual engine, Ctrl-C as it is, the same examples of properties on every run."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub
os.environ.setdefault("EDGEDECODE_RUNTIME", "onnx")  # else a measurement decides which engine a test runs on

# A shell starts background jobs with Ctrl-C ignored, children inherit it, and then nothing could test what it does.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("edgedecode", deadline=None, derandomize=True)
settings.load_profile("edgedecode")
