"""Run stock llama.cpp in a child process: all logits of a text in one pass, optionally with adapters; its quantizer.

Run as a script: arguments are the model, a .npy of ids, the .npy to write, then adapters as PATH or PATH=SCALE.
"""

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray


def stock_logits(model: Path, tokens: Sequence[int], adapters: Sequence[Path] = (), scale: float = 1.0) -> FloatArray:
    """Return llama.cpp's logits, float32 [tokens, rows]."""
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder) / "ids.npy", Path(folder) / "logits.npy"
        np.save(ids, np.asarray(tokens, np.int32))
        more = [f"{path}={scale}" for path in adapters]
        done = subprocess.run(
            [sys.executable, __file__, str(model), str(ids), str(out), *more],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        logits: FloatArray = np.load(out)
        return logits


def stock_quantize(source: Path, out: Path, *, kind: str) -> None:
    """Quantize a float file into one of llama.cpp's mixtures."""
    code = (
        "import ctypes, sys, llama_cpp; llama_cpp.llama_backend_init(); source, out, kind = sys.argv[1:]; "
        "parameters = llama_cpp.llama_model_quantize_default_params(); "
        "parameters.ftype = getattr(llama_cpp, f'LLAMA_FTYPE_MOSTLY_{kind}'); "
        "sys.exit(llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(parameters)))"
    )
    words = [sys.executable, "-c", code, str(source), str(out), kind]
    subprocess.run(words, capture_output=True, text=True, check=True)


def _main(model_path: str, ids_path: str, out_path: str, *adapters: str) -> None:
    import llama_cpp

    tokens = np.load(ids_path)
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(model_path.encode(), options)
    assert model, "the file cannot be loaded"
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 256
    if hasattr(settings, "n_outputs_max"):
        settings.n_outputs_max = 256
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = 0  # float32
    settings.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, settings)
    assert context
    _adapt(model, context, adapters)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for place, token in enumerate(tokens):
        batch.token[place], batch.pos[place] = int(token), place
        batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, 0, 1
    assert llama_cpp.llama_decode(context, batch) == 0
    rows = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=(len(tokens) * rows,))
    np.save(out_path, logits.reshape(len(tokens), rows).copy())


def _adapt(model: object, context: object, adapters: Sequence[str]) -> None:
    import llama_cpp

    if not adapters:
        return
    pairs = [spelled.rsplit("=", 1) for spelled in adapters]
    loaded = [llama_cpp.llama_adapter_lora_init(model, path.encode()) for path, _ in pairs]
    assert all(loaded), "an adapter cannot be loaded"
    kinds = (llama_cpp.llama_adapter_lora_p_ctypes * len(loaded))(*loaded)
    scales = (ctypes.c_float * len(loaded))(*(float(scale) for _, scale in pairs))
    assert llama_cpp.llama_set_adapters_lora(context, kinds, len(loaded), scales) == 0


if __name__ == "__main__":
    _main(*sys.argv[1:])
