"""What the tests of adapters share: the engines, prompts and options."""

import shutil
from dataclasses import replace
from pathlib import Path

from edgedecode import SamplingOptions, SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from tests.peft_folders import list_adapter, write_peft
from tests.toys import session_options

ENGINES = {"onnx": "onnxruntime", "llama": "llama_cpp"}
GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.8, top_p=0.95)
HEADER = (1, 307, 201)
"""The bundled template's header of the assistant's turn."""
ADAPTERS = ("ordinary", "activated", "another")
PROMPTS = ("Tell me about a boat.", "Who is its captain?", "Tell me more.", "And the harbor?")
SWAPS = (None, "ordinary", "activated", "alone", None, "activated")


def write_twins(made: Path) -> Path:
    """Write a pack whose draft model is a copy of the target, with its adapters except `alone`."""
    shutil.copytree(BUNDLED_PACK, made)
    manifest = Manifest.load(made)
    files = {name: entry for name, entry in manifest.files.items() if not name.startswith("draft/")}
    shutil.rmtree(made / "draft")
    twins = replace(manifest, models=dict.fromkeys(("target", "draft"), manifest.models["target"]), files=files)
    (made / MANIFEST_NAME).write_text(twins.to_json(), encoding="utf-8")
    for seed, name in enumerate(("ordinary", "activated", "alone")):
        folder = write_peft(made.parent / name, seed=seed, invocation=HEADER if name == "activated" else ())
        list_adapter(made, name, folder)
        if name != "alone":
            list_adapter(made, f"draft:{name}", folder)
    return made


def options(adapter: str | None, *, drafter: str | None = "none", sampling: SamplingOptions = GREEDY) -> SessionOptions:
    return session_options(adapter=adapter, drafter=drafter, sampling=sampling, seed=5, ignore_eos=True)
