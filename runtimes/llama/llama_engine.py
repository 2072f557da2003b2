"""Import llama.cpp's low-level bindings, load models and create contexts.

Callers check every condition on which the native code would abort.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from weakref import finalize

from edgedecode.errors import ManifestError, RuntimeUnavailable

from .llama_devices import NativeDevice, Offload, device_address, native_devices
from .llama_log import Log, Untyped

INSTALL = "pip install 'edgedecode[llama]'"
REINSTALL = "pip install --force-reinstall --no-binary :all: --no-deps llama-cpp-python"
"""For an installed package that does not work, which INSTALL would leave as it is."""
KV_TYPES = {"float32": 0, "float16": 1, "int8": 8}
"""ggml's type numbers for keys and values; int8 is Q8_0."""
EXACT = "float32"
"""KV type that is used without flash attention, which rounds float32 to float16 first (an error of 4e-3 in the toy's
logits, against 1e-6 without). The other types need flash attention or gain from it."""
MMAP, NO_MMAP = 1, 0


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """The parameters of a context: cells for keys and values, rows per pass, sequences, outputs, KV type, threads."""

    cells: int
    rows_per_pass: int
    sequences: int
    outputs: int
    kv_type: str
    threads: int


@dataclass(frozen=True, slots=True)
class Loading:
    """How weights are loaded: mapped or read from the file, with or without repacked copies for the kernels.

    Mapped and repacked weights occupy memory twice, otherwise once. Without repacking, other kernels run, which are
    slower and round differently. offload: layers that another device than the processor runs.
    """

    mmap: bool = True
    repack: bool = True
    offload: Offload = field(default_factory=Offload)

    @property
    def twice(self) -> bool:
        return self.mmap and self.repack


class Engine:
    """The loaded library and its log.

    Importing may crash the process if the native code does not suit the processor: call `probe_engine` first.
    """

    def __init__(self) -> None:
        self.api = _import()
        self.log = Log.of(self.api)
        self.api.llama_backend_init()

    def devices(self) -> Sequence[NativeDevice]:
        """Return the devices of this build on this machine."""
        return native_devices(self._ggml())

    def _ggml(self) -> Untyped:
        from llama_cpp._ctypes_extensions import load_shared_library

        try:
            return load_shared_library("ggml", self.api._base_path)
        except (OSError, RuntimeError):
            return self.api._lib  # a build as a single library

    def load(self, path: Path, loading: Loading) -> "Weights":
        """Load the weights at `path`. Raises ManifestError with the engine's reason, CapabilityError for a device."""
        options, offload = self.api.llama_model_default_params(), loading.offload
        chosen = [device_address(self._ggml(), offload.device)] if offload.device else []
        devices = (ctypes.c_void_p * (len(chosen) + 1))(*chosen, None)  # empty, so that a GPU build does not use a GPU
        options.devices = ctypes.cast(devices, ctypes.c_void_p)
        options.n_gpu_layers = offload.layers
        options.load_mode = MMAP if loading.mmap else NO_MMAP
        options.use_extra_bufts = loading.repack
        self.log.begin()
        native = self.api.llama_model_load_from_file(str(path).encode(), options)
        if not native:
            raise ManifestError(
                f"{path} cannot be loaded ({self.log.reason()}): it is damaged, or this llama.cpp does not know it; "
                f"download or export it again, or upgrade llama-cpp-python"
            )
        return Weights(self, native, offloaded=bool(chosen))

    def context(self, weights: "Weights", plan: ContextPlan) -> Untyped:
        """Create a native context. Raises RuntimeUnavailable with the engine's own reason."""
        options = self.api.llama_context_default_params()
        options.n_ctx = plan.cells
        options.n_batch = options.n_ubatch = plan.rows_per_pass
        options.n_seq_max = plan.sequences
        options.n_outputs_max = options.n_outputs_max_per_seq = plan.outputs
        options.n_threads = options.n_threads_batch = plan.threads
        options.type_k = options.type_v = KV_TYPES[plan.kv_type]
        options.flash_attn_type = int(plan.kv_type != EXACT)
        options.offload_kqv = options.op_offload = weights.offloaded
        options.kv_unified = True  # otherwise the cells are divided among the sequences
        options.swa_full = True  # sliding-window layers keep all cells, as trees and rollback need
        options.embeddings = False  # would make every row an output, beyond the planned number
        options.no_perf = True
        self.log.begin()
        context = self.api.llama_init_from_model(weights.native, options)
        if not context:
            raise RuntimeUnavailable(f"llama.cpp made no context of {plan.cells} positions ({self.log.reason()})")
        return context


class Weights:
    """A loaded model. Freed when closed or collected; the owner of a context must keep it alive until then.

    Adapters that are still loaded are freed with it.
    """

    def __init__(self, engine: Engine, native: Untyped, *, offloaded: bool = False) -> None:
        api = engine.api
        self.engine = engine
        self.native = native
        self.offloaded = offloaded
        """Whether another device than the processor runs layers; their keys and values are kept there."""
        self.rows = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(native)))
        self.window = int(api.llama_model_n_swa(native))
        """Window of sliding-window layers in positions; 0: no such layers."""
        self.recurrent = bool(api.llama_model_is_recurrent(native) or api.llama_model_is_hybrid(native))
        """Whether recurrent layers make it impossible to roll back single rows."""
        self.decoder = bool(api.llama_model_has_decoder(native) and not api.llama_model_has_encoder(native))
        self._free = finalize(self, _free, engine, native)

    @property
    def closed(self) -> bool:
        return self.native is None

    def load_adapter(self, path: Path) -> int:
        """Load a checked GGUF adapter and return its address. Raises ManifestError with the engine's reason."""
        self.engine.log.begin()
        native = self.engine.api.llama_adapter_lora_init(self.native, str(path).encode())
        if not native:
            raise ManifestError(f"{path} cannot be loaded ({self.engine.log.reason()}): convert the adapter again")
        return int(ctypes.cast(native, ctypes.c_void_p).value or 0)

    def free_adapter(self, native: int) -> None:
        """Free an adapter that no context uses."""
        api = self.engine.api
        api.llama_adapter_lora_free(ctypes.cast(native, api.llama_adapter_lora_p_ctypes))

    def close(self) -> None:
        """Free the model, after all its contexts. Idempotent."""
        self.native = None
        self._free()


def _free(engine: Engine, native: Untyped) -> None:
    engine.api.llama_model_free(native)


def engine_version() -> str | None:
    """Return the installed version of llama-cpp-python, None if it is not installed, without loading it."""
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return None


def _import() -> Untyped:
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise RuntimeUnavailable(f"llama.cpp does not start ({error}): {INSTALL}") from None
    except (OSError, RuntimeError) as error:  # from the wheel's own loader
        reason = str(error).partition("\n")[0]
        raise RuntimeUnavailable(f"llama.cpp's library does not load ({reason}): {REINSTALL}") from None
    return llama_cpp
