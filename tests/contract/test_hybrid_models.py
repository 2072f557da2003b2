"""Models with gated recurrences on our own kernels: against transformers and llama.cpp, in passes of every width."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionDetails, SessionOptions
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterUse, LowRank
from edgedecode.errors import CapabilityError, EdgeDecodeError
from edgedecode.export.imports.gguf_import import import_gguf_pair
from edgedecode.export.imports.imported_pack import ImportRequest
from edgedecode.export.stages import Stages
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import ModelEntry
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.runtimes.onnx.onnx_model import OnnxModel
from tests.contract.conftest import GgufOpener, open_entry, open_gguf
from tests.contract.gguf_pack import write_pack
from tests.contract.toy_graph import ToyShape
from tests.small_tokenizers import byte_level

torch = pytest.importorskip("torch", reason="the export extra is not installed")
toy_gguf = pytest.importorskip("tests.contract.toy_gguf", reason="gguf is missing")
hybrid_gguf = pytest.importorskip("tests.contract.hybrid_gguf", reason="transformers or gguf is missing")
pytestmark = pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
GGUF = "model.gguf"
ROWS, CONTEXT = 96, 1024
TOKENS = np.random.default_rng(3).integers(0, ROWS, 512).tolist()
NAMES = {"qwen35": hybrid_gguf.tiny_qwen, "granitehybrid": hybrid_gguf.tiny_granite}


def entry_of(architecture: str, *, rows: int, layers: int, head_size: int) -> ModelEntry:
    """Return the entry of a tiny model's file."""
    return ModelEntry(
        architecture=architecture,
        rows=rows,
        context=CONTEXT,
        hidden_size=64,
        layers=layers,
        kv_heads=2,
        head_size=head_size,
        parameters=1,
        weights=GGUF,
        graphs={},
        bits=32,
        block_size=32,
        head_bits=32,
        license="",
        source="",
        gguf=GGUF,
    )


class Written:
    """A random model of transformers', and its GGUF file."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.folder, self.model = folder, hybrid_gguf.random_model(NAMES[architecture]())
        hybrid_gguf.write_hybrid(self.model, folder / GGUF)
        size = 16 if architecture == "granitehybrid" else 32
        self.entry = entry_of(architecture, rows=ROWS, layers=4, head_size=size)

    def ours(self) -> OnnxModel:
        model = open_entry(self.entry, self.folder, budget=Budget())
        assert isinstance(model, OnnxModel)
        return model

    def logits(self, model: Any = None) -> FloatArray:
        with torch.no_grad():
            found: FloatArray = (model or self.model)(torch.tensor(TOKENS)[None]).logits[0].numpy()
            return found


@pytest.fixture(scope="module", params=sorted(NAMES))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp(request.param), request.param)


def read(model: Any, *, width: int, count: int = len(TOKENS)) -> FloatArray:
    """Return the logits of passes of this width."""
    state, found = model.new_state(CONTEXT, rows=width), []
    for start in range(0, count, width):
        piece = TOKENS[start : min(count, start + width)]
        found.append(model.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
    state.close()
    return np.concatenate(found)


def test_logits_are_those_of_transformers_in_passes_of_every_width(written: Written) -> None:
    model, expected = written.ours(), written.logits()
    assert model.card.row_invariant
    whole = read(model, width=512)
    assert np.abs(whole - expected).max() < 2e-4 < np.abs(expected).max() / 1000
    for width in (4, 7, 64, 65):
        assert np.array_equal(read(model, width=width), whole), width
    assert np.array_equal(read(model, width=1, count=150), whole[:150])


def test_logits_are_those_of_llama_cpp(written: Written) -> None:
    theirs = open_gguf(written.entry, written.folder, budget=Budget())
    assert np.abs(read(written.ours(), width=300, count=300) - read(theirs, width=300, count=300)).max() < 2e-3


def test_a_quantized_file_gives_the_logits_of_its_weights(written: Written, tmp_path: Path) -> None:
    hybrid_gguf.write_hybrid(written.model, tmp_path / GGUF, quantization="Q8_0")
    found = read(open_entry(written.entry, tmp_path, budget=Budget()), width=512)
    expected = written.logits(hybrid_gguf.rounded(written.model, "Q8_0"))
    lost = np.abs(expected - written.logits()).mean()
    assert np.abs(found - expected).mean() < lost / 50  # products round their inputs to 16 bits


def test_trees_have_the_bits_of_their_branches(written: Written) -> None:
    model, rng = written.ours(), np.random.default_rng(8)
    state, plain = (model.new_state(CONTEXT, rows=16, tree=True) for _ in range(2))
    for round_ in range(150):
        count = int(rng.integers(1, 12))
        parents = [int(rng.integers(max(-1, row - 3), row)) for row in range(count)]
        tokens = rng.integers(0, ROWS, count).tolist()
        logits = model.forward(tokens, state, parents=parents, rows="all").logits.copy()
        row, path = int(rng.integers(-1, count)), list[int]()
        while row >= 0:
            path.insert(0, row)
            row = parents[row]
        state.keep(path)
        for row in path:
            assert np.array_equal(model.forward([tokens[row]], plain).logits[0], logits[row]), round_
            plain.keep([0])
    assert state.length == plain.length > 150


def test_drafts_of_every_kind_give_the_text_of_plain_decoding(tmp_path: Path) -> None:
    with edgedecode.load(write_pack(tmp_path / "pack", _Opener(tmp_path)), runtime="onnx", threads=1) as pair:
        assert pair.target.card.row_invariant
        texts, accepted = dict[str, object](), dict[str, int]()
        for drafter in ("none", "suffix", "recycle", "model", "tree"):
            options = SessionOptions(
                drafter=drafter,
                sampling=SamplingOptions(temperature=0.7, top_k=6),
                draft_max=None if drafter == "none" else 6,
                seed=7,
                context=400,
                details=SessionDetails(ignore_eos=True),
            )
            with pair.session(options) as session:
                answers = [session.generate(f"hello {number}", max_tokens=90) for number in range(2)]
            texts[drafter] = [answer.tokens for answer in answers]
            accepted[drafter] = sum(answer.stats.accepted for answer in answers)
        assert all(text == texts["none"] for text in texts.values())
        assert all(count > 0 for drafter, count in accepted.items() if drafter != "none"), accepted


class _Opener(GgufOpener):
    """Writes Qwen3.5's files for `write_pack`."""

    def entry(self, shape: ToyShape, architecture: str = "", quantization: str = "") -> ModelEntry:
        root = self.root(shape)
        root.mkdir()
        kinds = ["full_attention", "linear_attention"][: shape.layers]
        config = hybrid_gguf.tiny_qwen(vocab_size=shape.rows, num_hidden_layers=shape.layers, layer_types=kinds)
        hybrid_gguf.write_hybrid(hybrid_gguf.random_model(config), root / GGUF)
        return entry_of("qwen35", rows=shape.rows, layers=shape.layers, head_size=config.head_dim)


@pytest.mark.parametrize("graph", ["lora", "squares", "hidden"])
def test_every_graph_gives_the_same_bits(written: Written, graph: str) -> None:
    found = read(open_entry(written.entry, written.folder, budget=Budget(), needs=(graph,)), width=64, count=128)
    assert np.array_equal(found, read(written.ours(), width=64, count=128))


@pytest.mark.parametrize("written", ["qwen35"], indirect=True)
def test_adapters_change_queries_and_their_gates(written: Written) -> None:
    rng, changed = np.random.default_rng(4), copy.deepcopy(written.model)
    matrices, layer = list[LowRank](), changed.model.layers[3]
    for module, linear in (("q_proj", layer.self_attn.q_proj), ("down_proj", layer.mlp.down_proj)):
        outputs, inputs = linear.weight.shape
        down, up = (rng.standard_normal(sizes, np.float32) * 0.2 for sizes in ((2, inputs), (outputs, 2)))
        matrices.append(LowRank(3, module, down, up))
        with torch.no_grad():
            linear.weight += torch.from_numpy(up @ down)
    model = open_entry(written.entry, written.folder, budget=Budget(), needs=("lora",))
    model.add_adapter("a", matrices)
    state = model.new_state(CONTEXT, rows=200)
    found = model.forward(TOKENS[:200], state, rows="all", adapter=AdapterUse("a", "a")).logits
    expected = written.logits(changed)[:200]
    assert np.abs(found - expected).max() < 5e-4 < np.abs(expected - written.logits()[:200]).max() / 100
    with pytest.raises(CapabilityError, match="takes no adapter for layer 0 qkv_proj"):
        model.add_adapter("b", [LowRank(0, "qkv_proj", np.ones((1, 64), np.float32), np.ones((256, 1), np.float32))])


@pytest.mark.parametrize("written", ["qwen35"], indirect=True)
def test_layers_that_draft_are_left_out(written: Written, tmp_path: Path) -> None:
    hybrid_gguf.write_hybrid(written.model, tmp_path / GGUF, drafting=True)
    found = open_entry(written.entry, tmp_path, budget=Budget())
    assert np.array_equal(read(found, width=64, count=100), read(written.ours(), width=64, count=100))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda writer: writer.add_ssm_inner_size(126), "4 heads and 126 values"),
        (lambda writer: writer.add_ssm_inner_size(64), "4 heads and 64 values|blk.0.ssm_conv1d.weight has the shape"),
        (lambda writer: writer.add_ssm_state_size(24), "heads of 24 keys and 32 values"),
        (lambda writer: writer.add_ssm_conv_kernel(17), "convolve 17 rows"),
        (lambda writer: writer.add_ssm_group_count(3), "4 heads for 3"),
        (lambda writer: writer.add_ssm_conv_kernel(5), r"has the shape \[4, \d+\], not \[5, \d+\]"),
    ],
)
def test_files_whose_sizes_do_not_fit_are_refused(
    written: Written, change: Callable[[Any], None], reason: str, tmp_path: Path
) -> None:
    def fields(writer: Any) -> None:
        writer.add_tokenizer_model("none")
        change(writer)

    hybrid_gguf.write_hybrid(written.model, tmp_path / GGUF, vocabulary=fields)
    with pytest.raises(EdgeDecodeError, match=reason):
        open_entry(written.entry, tmp_path, budget=Budget())


def test_an_imported_file_gives_one_text_on_both_engines(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    tokenizer = byte_level()
    rows = tokenizer.get_vocab_size()
    model = hybrid_gguf.random_model(hybrid_gguf.tiny_qwen(vocab_size=rows))
    hybrid_gguf.write_hybrid(
        model,
        tmp_path / GGUF,
        drafting=True,
        vocabulary=lambda writer: toy_gguf.write_tokenizer(writer, tokenizer, rows=rows),
    )
    import_gguf_pair(ImportRequest(target=tmp_path / GGUF, draft=None, out=tmp_path / "pack"), Stages())
    options = SessionOptions(drafter="none", sampling=SamplingOptions(), details=SessionDetails(ignore_eos=True))
    texts = set()
    for runtime in ("onnx", "llama"):
        with edgedecode.load(tmp_path / "pack", runtime=runtime, threads=1) as pair, pair.session(options) as session:
            texts.add(session.generate("hello", max_tokens=24).tokens)
    assert len(texts) == 1
