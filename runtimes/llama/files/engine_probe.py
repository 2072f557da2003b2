"""Test the engine in a child process before loading it: a build for another processor crashes at its first product.

The child decodes a tiny quantized Llama whose sizes reach the engine's fastest kernels. The result is cached for this
wheel, library and processor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np

from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.child import ask_child, child_command, tell_parent
from edgedecode.engines.hardware import processor_facts
from edgedecode.gguf.encoding import F32, WrittenTensor, write_gguf
from edgedecode.gguf.fields import Value

from ..llama_devices import DeviceKind
from ..llama_engine import INSTALL, REINSTALL, Engine, Loading
from .scratch import scratch_file

TIMEOUT_SECONDS = 60.0
REBUILD = f'CMAKE_ARGS="-DGGML_NATIVE=OFF" {REINSTALL}=='
LASTING = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGABRT", "SIGFPE")
"""Signals that the same build will cause again. Others (out of memory, stopped by the user) are not cached."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the engine runs here, or why not and what to do; and its devices besides the processor."""

    works: bool
    reason: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by the name for `--provider`."""


def probe_engine(version: str, *, python: Sequence[str] | None = None, timeout: float = TIMEOUT_SECONDS) -> Finding:
    """Return whether this wheel runs on this processor: the cached result, else the result of a child process.

    If no child can be started, as in a frozen application, the engine counts as working: its packager chose the wheel.
    python: the command that decodes the model whose path follows (tests use another one).
    """
    path = _cache_path(version)
    known = _load(path)
    if known is not None:
        return known
    command = python or child_command(f"{__name__}:decode_tiny")
    if command is None:
        return Finding(True)
    finding, lasting = _try(version, command, timeout=timeout)
    if lasting and path is not None:
        keep_json(path, asdict(finding))
    return finding


def decode_tiny(path: str) -> None:
    """Load the model at `path` and run a pass of several rows and a pass of one row; runs in the child process."""
    from edgedecode.decoding.model import ModelCard
    from edgedecode.gguf.header import read_header
    from edgedecode.memory.budget import Budget
    from edgedecode.pack.manifest import ModelEntry

    from ..llama_model import LlamaModel

    engine, header = Engine(), read_header(Path(path))
    entry = ModelEntry(
        architecture=header.architecture,
        rows=header.rows,
        context=header.context,
        hidden_size=header.hidden_size,
        layers=header.layers,
        kv_heads=header.kv_heads,
        head_size=header.head_size,
        parameters=1,
        weights="",
        graphs={},
        bits=4,
        block_size=32,
        head_bits=8,
        license="",
        source="",
    )
    card = ModelCard(
        name="probe", rows=entry.rows, vocabulary_size=entry.rows, context=entry.context, kv_type="float16"
    )
    weights = engine.load(Path(path), Loading())
    model = LlamaModel(weights, entry=entry, header=header, card=card, budget=Budget(), leases=[])
    state = model.new_state(64)
    model.forward(range(20), state)
    model.forward([1], state)
    model.close()
    others = (each for each in engine.devices() if each.kind != DeviceKind.CPU)
    tell_parent({each.provider: each.description for each in others})


def _try(version: str, command: Sequence[str], *, timeout: float) -> tuple[Finding, bool]:
    """Return the finding, and whether it is permanent."""
    with scratch_file("probe.gguf") as model:
        model.write_bytes(tiny_model())
        reply = ask_child(command, str(model), seconds=timeout, environment={"GGML_NO_BACKTRACE": "1"})
    if not reply.failure:
        return Finding(True, devices=reply.told[0] if reply.told else {}), True
    if reply.signal:
        return Finding(False, f"{reply.failure}; rebuild it: {REBUILD}{version}"), reply.signal in LASTING
    reason = reply.failure.removeprefix("edgedecode.errors.RuntimeUnavailable: ")
    return Finding(False, reason if INSTALL in reason or REINSTALL in reason else f"{reason} ({INSTALL})"), False


def _cache_path(version: str) -> Path | None:
    folder = cache_folder("engines")
    return folder and folder / f"llama-{facts_key(version, *_library(), *processor_facts())}.json"


def _library() -> list[str]:
    """Return facts that change when the wheel is rebuilt: its libraries' sizes and times. Does not import it."""
    spec = find_spec("llama_cpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [path for folder in folders for path in sorted((Path(folder) / "lib").glob("*")) if path.is_file()]
    return [f"{path}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files]


def _load(path: Path | None) -> Finding | None:
    try:
        return None if path is None else kept_json(path, Finding)
    except (OSError, ValueError):
        return None


HIDDEN = MLP = 256
HEADS, HEAD_SIZE, CONTEXT, ROWS = 4, 64, 256, 64
Q4_0, Q8_0 = 2, 8
BLOCK = 32
PAYLOAD = {Q4_0: 16, Q8_0: 32}
"""Bytes of a block after its float16 scale."""


def tiny_model() -> bytes:
    """Return a GGUF model of one layer with random weights and no vocabulary."""
    rng = np.random.default_rng(0)
    tensors = [
        ("token_embd.weight", (HIDDEN, ROWS), Q8_0),
        ("output_norm.weight", (HIDDEN,), F32),
        ("output.weight", (HIDDEN, ROWS), Q8_0),
        ("blk.0.attn_norm.weight", (HIDDEN,), F32),
        *((f"blk.0.attn_{part}.weight", (HIDDEN, HIDDEN), Q4_0) for part in ("q", "k", "v", "output")),
        ("blk.0.ffn_norm.weight", (HIDDEN,), F32),
        *((f"blk.0.ffn_{part}.weight", (HIDDEN, MLP), Q4_0) for part in ("gate", "up", "down")),
    ]
    file = BytesIO()
    written = [WrittenTensor(name, shape, kind, _values(shape, kind, rng)) for name, shape, kind in tensors]
    write_gguf(file, _fields(), written)
    return file.getvalue()


def _fields() -> dict[str, Value]:
    sizes = {
        "block_count": 1,
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "rope.dimension_count": HEAD_SIZE,
        "vocab_size": ROWS,
    }
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "none",
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **{f"llama.{name}": size for name, size in sizes.items()},
    }


def _values(shape: Sequence[int], kind: int, rng: np.random.Generator) -> bytes:
    count = int(np.prod(shape))
    if kind == F32:
        return np.ones(count, np.float32).tobytes()
    blocks = rng.integers(0, 256, (count // BLOCK, 2 + PAYLOAD[kind]), dtype=np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
    return blocks.tobytes()
