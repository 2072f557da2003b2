"""transformers' `generate` as a peer of `bench --against`: plain, with an assistant model, and with prompt lookup.

It runs the checkpoints the pack was made from, in the faster of float32 and bfloat16, not the pack's blocks: requests
are comparable, texts only where the rounding turns no token. Run in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.export.frameworks import reason_of

__all__ = ["TransformersPeer"]

_SIDE, _TRIES = 4096, 9
_LOOKUPS = (4, 10)
_DRAFTS = {"draft 4": (4, "constant", 0.0), "draft 20 confident": (20, "constant", 0.4)}
"""Mode → assistant tokens, their schedule, and the confidence below which the assistant stops; its default last."""


class TransformersPeer:
    """Answers with `generate(do_sample=False)`. Folders: the target's checkpoint, and perhaps the draft's."""

    def __init__(
        self,
        root: Path,
        *,
        threads: int,
        draft_threads: int,
        kv_type: str,
        capacity: int,
        ends: Sequence[int],
        folders: Sequence[Path],
    ) -> None:
        if not folders:
            raise CapabilityError(
                "no checkpoints given (--against-transformers TARGET[,DRAFT], the folders the pack was made from)"
            )
        try:
            import torch
            import transformers
        except ImportError as error:
            raise RuntimeUnavailable(f"{error.name} is missing: pip install 'edgedecode[export]'") from None
        torch.set_num_threads(threads)
        self._torch, self._ends = torch, list(ends)
        dtype = _faster_dtype(torch)
        self._target, *drafts = [_loaded(transformers, folder, dtype) for folder in folders]
        self._draft = drafts[0] if drafts else None
        self.modes = (
            "plain",
            *(_DRAFTS if self._draft is not None else ()),
            *(f"lookup {length}" for length in _LOOKUPS),
        )
        self.setting = (
            f"transformers {transformers.__version__} on torch {torch.__version__}, generate over the checkpoints in "
            f"{str(self._target.dtype).removeprefix('torch.')}: weights of another precision than the pack's, "
            f"{threads} threads"
        )

    def answer(self, mode: str, prompt: Sequence[int], *, count: int, read: Callable[[int], None]) -> Sequence[int]:
        """Answer afresh. The first tokens that come tell that the prompt has been read."""
        ids = self._torch.tensor([list(prompt)])
        with self._torch.inference_mode():
            output = self._target.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                eos_token_id=self._ends or None,
                pad_token_id=self._ends[0] if self._ends else 0,
                streamer=_FirstTokens(read),
                **self._speculation(mode),
            )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    def _speculation(self, mode: str) -> dict[str, object]:
        if mode == "plain":
            return {}
        if mode not in _DRAFTS:
            return {"prompt_lookup_num_tokens": int(mode.split()[1])}
        assert self._draft is not None
        config = self._draft.generation_config
        tokens, schedule, confidence = _DRAFTS[mode]
        config.num_assistant_tokens = tokens
        config.num_assistant_tokens_schedule = schedule
        config.assistant_confidence_threshold = confidence
        return {"assistant_model": self._draft}


class _FirstTokens:
    """A streamer, which is given the prompt and then tokens: it tells when the first of them come."""

    def __init__(self, read: Callable[[int], None]) -> None:
        self._read = read
        self._calls = 0

    def put(self, tokens: Any) -> None:  # noqa: ANN401  (a tensor)
        self._calls += 1
        if self._calls == 2:
            self._read(int(tokens.numel()))

    def end(self) -> None:
        """All has come."""


def _faster_dtype(torch: Any) -> Any:  # noqa: ANN401  (untyped)
    """Return the float type that this processor multiplies a vector by fastest; float16 has no kernels on most."""
    seconds: dict[Any, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix, vector = torch.ones(_SIDE, _SIDE, dtype=dtype), torch.ones(_SIDE, dtype=dtype)
        times = []
        for _ in range(_TRIES):
            started = perf_counter()
            torch.mv(matrix, vector)
            times.append(perf_counter() - started)
        seconds[dtype] = median(times)
    return min(seconds, key=lambda dtype: seconds[dtype])


def _loaded(transformers: Any, folder: Path, dtype: Any) -> Any:  # noqa: ANN401  (untyped)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
    except Exception as error:  # it raises OSError, ValueError and whatever its parts raise
        raise RuntimeUnavailable(f"transformers does not open {folder}: {reason_of(error)}") from None
    return model.eval()
