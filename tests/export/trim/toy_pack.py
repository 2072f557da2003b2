"""A pack on disk with table models of 1,300 ids, of which the target generates about twenty."""

import string
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.memory.budget import Budget
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Generation, Graph, Manifest, ModelEntry
from edgedecode.pack.token_map import read_token_ids
from edgedecode.pair import Pair
from edgedecode.testing import CHATML, SPECIAL_TOKENS, TableRuntime, toy_pair, toy_tables
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer
from tests.toys import TrimmedTable

VOCABULARY = 1300
CONTEXT = 512
ENDS = (2, 0)
ALWAYS = len(SPECIAL_TOKENS) + 256
_LIKELY_IDS = 20
_LIKELY_BIAS = 14.0


def wide_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer of 1,300 ids: specials, bytes, and pairs of letters."""
    letters = string.ascii_letters[:33]
    merges = list(product(letters, letters))[: VOCABULARY - ALWAYS]
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    backend = tokenizers.Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return Tokenizer(backend, chat_template=ChatTemplate(CHATML))


def skewed_tables(*, seed: int = 0) -> tuple[FloatArray, ...]:
    """Return tables of a target that generates few of its ids, mostly high ones, and sometimes an end token."""
    first, second, third = toy_tables(VOCABULARY, seed=seed)
    likely = np.random.default_rng(seed).choice(np.arange(ALWAYS, VOCABULARY), _LIKELY_IDS, replace=False)
    first[:, [*likely, ENDS[0]]] += _LIKELY_BIAS
    return first, second, third


class TrimRuntime(TableRuntime):
    """Opens trimmed drafts with the ids of their map, and nothing else of their files."""

    name = "onnx"

    def open(self, request: ModelRequest) -> LanguageModel:  # type: ignore[override]
        if request.name != "trim":
            return super().open(request)
        graph = request.entry.graphs["base"]
        assert (request.root / graph.file).is_file()
        path, size = request.root / graph.token_ids, request.vocabulary_size
        return TrimmedTable(
            super().open(replace(request, name="draft")),
            read_token_ids(path, rows=request.entry.rows, vocabulary_size=size).ids.tolist(),
        )


def toy_runtime(*, draft_noise: float = 1.0) -> TrimRuntime:
    target = skewed_tables()
    draft = toy_tables(VOCABULARY, seed=1, scale=draft_noise, near=target)
    return TrimRuntime({"target": target, "draft": draft}, context=CONTEXT)


def open_toy(root: Path, runtime: TrimRuntime) -> Pair:
    return Pair(Manifest.load(root), root, tokenizer=wide_tokenizer(), runtime=runtime, budget=Budget())


def write_toy_pack(root: Path, *, draft: bool = True) -> Path:
    """Write a pack whose weights and graphs are dummy files."""
    roles = ("target", "draft") if draft else ("target",)
    files = ["tokenizer.json", *(f"{role}/{name}" for role in roles for name in ("base.onnx", "weights.bin"))]
    for number, name in enumerate(files):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes([number]) * 1000)
    tokenizer = wide_tokenizer()
    manifest = replace(
        toy_pair().manifest,
        tokenizer="tokenizer.json",
        tokenizer_digest=tokenizer.digest,
        vocabulary_size=tokenizer.size,
        generation=Generation(end_token_ids=ENDS, bos_token="<|im_start|>"),
        models={role: _entry(role) for role in roles},
        files={name: file_entry(root / name) for name in files},
    )
    (root / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return root


def fake_graph(base: Graph, entry: ModelEntry, root: Path, *, out: Path, ids: IntArray) -> Graph:
    """Replace the graph writer: write a dummy file and return its manifest entry."""
    assert (root / base.file).is_file()
    out.write_bytes(ids.astype("<i4").tobytes())
    return base


def _entry(role: str) -> ModelEntry:
    graph = Graph(f"{role}/base.onnx", ("input_ids",), ("logits",), capabilities=("tree", "rows"))
    entry = toy_pair().manifest.models["target"]
    return replace(entry, rows=VOCABULARY, context=CONTEXT, weights=f"{role}/weights.bin", graphs={"base": graph})
