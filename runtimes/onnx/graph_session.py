"""Open a graph file as an engine session: options, one-line errors, and the check against our graph contract."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from edgedecode.errors import BudgetExceeded, ManifestError
from edgedecode.pack.entries import GGUF
from edgedecode.pack.manifest import Graph, ModelEntry

from .kernels.rewriting import GIVEN_TILES, GRAPH_TILES, PARENTS, TILES
from .onnx_engine import SILENT, Untyped, first_line, import_engine
from .providers.kv_cache import PAST, PRESENT
from .providers.provider import Provider
from .recurrence import KEPT_ROWS, PAST_ROWS, PAST_STATE

SCALARS = ("input_ids", "position_ids", "seqlens_k", "total_length", "rows")
FULL_BIAS, WINDOW_BIAS = "attention_bias", "window_bias"
"""float32 [1, 1, rows, slots], added to the scores of full-attention layers, and of sliding-window layers."""
SQUARES_OUTPUT = "squares."
"""Prefix of the outputs with the sums of squares of a matrix's input, before the tensor's name: float32 [columns]."""
LAYER_ROWS = "layer_rows"
"""float32 [1, rows, layers · values]: what each layer reads of a token's second embedding (Gemma 4)."""
ROTARY, ROW_NUMBERS = ("cos_cache", "sin_cache"), "row_numbers"
"""Rotary tables by position; of architectures `rotated_by_pass` float32 [rows, values], and int64 [1, rows] with the
numbers of a pass's rows, which are their positions in these tables."""
TARGET_CACHES = ("target.full.key", "target.full.value"), ("target.window.key", "target.window.value")
"""The keys and values of a target that an assistant reads, of its last layers of both kinds that have any."""
FEATURES_INPUT, HIDDEN, HIDDEN_INPUT = "features", "hidden", "last_hidden"
"""A drafting head's inputs, of which rows have one or the other, features first: float32 [1, rows, taps · hidden], what
layers of the target read, and [1, rows, hidden], its own output `HIDDEN` for the row before, [rows picked, hidden]."""
ADAPTER_INPUT = "lora."
"""Prefix of the inputs that take an adapter's matrices."""
# Target and draft each have a thread pool. Threads that spin long (the default) starve the other model's threads and
# other processes; threads that never spin wake up too late. One millisecond covers the host overhead between passes.
# 0.5B int4 on two quiet cores, plain decoding against 100 us, medians of 15: 1 ms 1.04, default 0.99, never 0.86;
# inflated pair drafting 2 and 4 tokens: 1 ms 1.04 and 1.02, default 1.02 and 0.98, never 0.99 and 1.03.
SPINNING = {"session.intra_op.spin_duration_us": "1000", "session.intra_op.spin_backoff_max": "8"}
_SHARED_ALLOCATORS = Lock()
_LEAST_FOLDED_NBYTES = 1 << 20
_DEAD_NBYTES = 4096


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """Our operators' library, and the graph rewritten for them."""

    library: Path
    data: bytes
    in_order: bool = False
    """Run the nodes in the graph's order: the engine's runs those behind the last output first."""


def open_session(
    path: Path,
    *,
    weights: Path,
    provider: Provider,
    threads: int,
    own: OwnKernels | None = None,
    data: bytes | None = None,
    limit_nbytes: int | None = None,
    region_nbytes: int = 1 << 20,
) -> Untyped:
    """Open the graph at `path` on exactly this provider.

    data: the graph to open instead of the file (`Provider.rewritten`). weights: in any folder, under the file name that
    the graph contains. limit_nbytes: limit of the session's allocator; a pass that needs more fails. region_nbytes: its
    first region, which should hold a full pass. Raises ManifestError if the graph is missing or damaged,
    CapabilityError if the provider does not run all of it.
    """
    engine = import_engine()
    options = engine.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = engine.ExecutionMode.ORT_SEQUENTIAL
    # A pattern would be stored for every total length and never used again.
    options.enable_mem_pattern = False
    # Otherwise the engine guesses the format from the bytes, and may not read the file as the ONNX that we checked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # The arena stays enabled: it keeps the memory of the longest pass, which is bounded and planned, whereas the heap
    # fragmented to twice as much (inflated target: 21 MiB against up to 40, of 24 planned).
    for key, value in SPINNING.items():
        options.add_session_config_entry(key, value)
    if limit_nbytes is not None:
        # Constant folding allocates outside the allocator. The largest legitimate result is a 16-bit matrix as 32-bit.
        most = max(2 * weights.stat().st_size, _LEAST_FOLDED_NBYTES)
        options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(most))
    if not path.is_file():
        raise ManifestError(f"the graph {path} is missing: export or import the pack again")
    source: str | bytes = str(path)
    if own is not None:
        options.register_custom_ops_library(str(own.library))
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights.parent))
        source = own.data
        if own.in_order:
            options.execution_order = engine.ExecutionOrder.PRIORITY_BASED  # all have one priority
    elif data is not None or weights.parent != path.parent:  # bytes have no folder to look in
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights.parent))
        source = data or path.read_bytes()
    arguments = provider.configure(options, engine)
    try:
        with _limited(engine, options, limit_nbytes, region_nbytes=region_nbytes):
            session = engine.InferenceSession(source, options, **arguments)
    except Exception as error:  # the engine's exceptions share no base class
        check_allocated(error, f"{path}")
        raise provider.not_opened(path, first_line(error)) from None
    provider.check(session, subject=str(path))
    return session


@contextmanager
def _limited(engine: Untyped, options: Untyped, limit_nbytes: int | None, *, region_nbytes: int) -> Iterator[None]:
    """Give the session opened in this block a separate allocator with a limit of `limit_nbytes`.

    The engine has one process-wide setting, which a session adopts when it is opened.
    """
    if limit_nbytes is None:
        yield
        return
    from onnxruntime.capi import _pybind_state as native

    memory = native.OrtMemoryInfo("Cpu", native.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, native.OrtMemType.DEFAULT)
    options.add_session_config_entry("session.use_env_allocators", "1")
    # One region from the start, split exactly: doubling regions would keep those that became too small.
    first = {"initial_chunk_size_bytes": region_nbytes, "max_dead_bytes_per_chunk": _DEAD_NBYTES}
    with _SHARED_ALLOCATORS:
        engine.create_and_register_allocator(memory, native.OrtArenaCfg({"max_mem": limit_nbytes, **first}))
        try:
            yield
        finally:  # otherwise the engine would hold the session's memory after it was closed
            engine.create_and_register_allocator(memory, native.OrtArenaCfg({"max_mem": limit_nbytes}))


_KV_KINDS = {"float32": "tensor(float)", "int8": "tensor(int8)"}


def cache_names(prefix: str, layers: int) -> list[str]:
    """Return the names of an exported graph's cache values by layer, key before value."""
    return [f"{prefix}{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


def check_contract(
    session: Untyped, entry: ModelEntry, graph: Graph, *, path: Path, replaced: Sequence[str] | None = None
) -> None:
    """Raise ManifestError unless the graph has the inputs and outputs that the manifest states, in the entry's sizes.

    replaced: the bias inputs before the graph was rewritten for our operators; None: it was not rewritten.
    """
    own = replaced is not None
    biases = _biases(entry, [value.name for value in session.get_inputs()] if replaced is None else replaced)
    if replaced is not None:
        if missing := [name for name in biases if name not in replaced]:
            raise ManifestError(f"{path} has no {', '.join(missing)}: it is not a base graph; export the pack again")
        if unknown := [name for name in replaced if name not in biases]:
            raise ManifestError(f"{path} has the unknown input {unknown[0]}: export the pack again")
        biases = [PARENTS]
    more = [TILES, GRAPH_TILES, GIVEN_TILES, FEATURES_INPUT, HIDDEN_INPUT] if own else []
    if GGUF in graph.capabilities:  # made here, with the caches of its file
        by_pass = (LAYER_ROWS, ROW_NUMBERS, *ROTARY, *TARGET_CACHES[0], *TARGET_CACHES[1])
        own_inputs = (PAST, PAST_STATE, PAST_ROWS, KEPT_ROWS, *by_pass)
        more += [value.name for value in session.get_inputs() if value.name.startswith(own_inputs)]
        check_names(session, entry, path=path, needed=[*SCALARS, *biases], more=more, caches=False)
        return
    check_names(session, entry, path=path, needed=[*SCALARS, *biases], more=more)
    kinds = {value.name: value.type for value in session.get_inputs()}
    if (kind := kinds[f"{PAST}0.key"]) != _KV_KINDS.get(graph.kv_type):
        raise ManifestError(f"{path} stores keys as {kind}, the manifest says {graph.kv_type}: export the pack again")
    if "lora" in graph.capabilities and not (graph.lora_rank and session.get_overridable_initializers()):
        raise ManifestError(f"{path} has no adapter inputs, the manifest says it does: export the pack again")


def check_names(
    session: Untyped,
    entry: ModelEntry,
    *,
    path: Path,
    needed: Sequence[str],
    more: Sequence[str] = (),
    caches: bool = True,
) -> None:
    """Raise ManifestError unless the graph has these inputs, perhaps `more`, and the entry's caches and sizes."""
    shapes = {value.name: value.shape for value in [*session.get_inputs(), *session.get_outputs()]}
    layers = entry.layers if caches else 0
    wanted = [*needed, *cache_names(PAST, layers), "logits", *cache_names(PRESENT, layers)]
    if missing := [name for name in wanted if name not in shapes]:
        raise ManifestError(f"{path} has no {', '.join(missing[:3])}: it is not a base graph; export the pack again")
    if unknown := [value.name for value in session.get_inputs() if value.name not in {*wanted, *more}]:
        raise ManifestError(f"{path} has the unknown input {unknown[0]}: upgrade edgedecode or export the pack again")
    first = shapes[f"{PAST}0.key"] if caches else (1, entry.kv_heads, 0, entry.head_size)
    found = [shapes["logits"][-1], first[1], first[3]]
    if found != [entry.rows, entry.kv_heads, entry.head_size]:
        raise ManifestError(
            f"{path} has {found[0]} rows, {found[1]} KV heads of size {found[2]}, the manifest says "
            f"{entry.rows}, {entry.kv_heads} and {entry.head_size}: export the pack again"
        )


def _biases(entry: ModelEntry, inputs: Sequence[str]) -> list[str]:
    """Return the bias inputs the graph must have: a model with only sliding-window layers has no full bias."""
    if not entry.window:
        return [FULL_BIAS]
    return [WINDOW_BIAS, FULL_BIAS] if FULL_BIAS in inputs else [WINDOW_BIAS]


def check_allocated(error: Exception, subject: str) -> None:
    """Raise BudgetExceeded if the engine's error means that its allocator's limit is reached."""
    if "smaller than requested" in str(error):
        advice = "use --runtime llama, or export the pack again"
        raise BudgetExceeded(f"{subject} needs more memory than was planned for it", advice, table="") from None
