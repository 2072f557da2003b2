"""A hybrid with its MTP layer, from a checkpoint to a session; the layer reads what follows the final norm."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from safetensors.torch import load_file, save_file

import edgedecode
from edgedecode import SamplingOptions, SessionDetails, SessionOptions
from edgedecode.decoding.stats import Stats
from edgedecode.export.heads.pack_head import add_head
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.runtimes.onnx import features
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.hybrid_gguf import random_model, tiny_qwen
from tests.export.conftest import export, recipe
from tests.export.tiny import write_network

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
ROWS, HIDDEN, FIRST, CYCLE = 352, 64, 10, 32
PROJECTIONS = {"q": (256, 64), "k": (64, 64), "v": (64, 64), "o": (64, 128)}


def write_counting(folder: Path) -> Path:
    """Write a hybrid that counts tokens up in a cycle, and the layer that does so two ahead of the state it reads.

    Its layers add nothing, so the state is an embedding, and after the final norm that times the norm's weights. The
    layer's matrix maps each state after the norm to the next one, exactly, and ignores the token.
    """
    model = random_model(tiny_qwen(vocab_size=ROWS, tie_word_embeddings=False))
    rng = torch.Generator().manual_seed(1)
    embedding = torch.randn(CYCLE, HIDDEN, generator=rng)
    embedding /= embedding.pow(2).mean(-1, keepdim=True).sqrt()
    gains = torch.randn(HIDDEN, generator=rng).exp() * torch.randn(HIDDEN, generator=rng).sign()
    after = embedding * gains
    places = (torch.arange(ROWS) - FIRST) % CYCLE
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                value.zero_()
        model.model.embed_tokens.weight.copy_(embedding[places])
        model.model.norm.weight.copy_(gains - 1)
        model.lm_head.weight.zero_()
        model.lm_head.weight[FIRST : FIRST + CYCLE] = torch.linalg.pinv(after).T.roll(1, 0)
    write_network(folder, model)
    normed = after / after.pow(2).mean(-1, keepdim=True).sqrt()
    ahead = (torch.linalg.pinv(normed) @ normed.roll(-1, 0)).T
    layer = {f"self_attn.{name}_proj.weight": torch.randn(sizes, generator=rng) for name, sizes in PROJECTIONS.items()}
    layer |= {f"mlp.{name}_proj.weight": torch.randn(96, HIDDEN, generator=rng) for name in ("gate", "up")}
    layer |= {"mlp.down_proj.weight": torch.zeros(HIDDEN, 96), "self_attn.o_proj.weight": torch.zeros(HIDDEN, 128)}
    layer |= {f"self_attn.{name}_norm.weight": torch.zeros(32) for name in "qk"}
    layer |= {f"{name}_layernorm.weight": torch.zeros(HIDDEN) for name in ("input", "post_attention")}
    mtp = {"fc.weight": torch.cat([torch.zeros(HIDDEN, HIDDEN), ahead], 1)}
    mtp |= {f"{name}.weight": torch.zeros(HIDDEN) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    mtp |= {f"layers.0.{name}": value for name, value in layer.items()}
    tensors = load_file(folder / "model.safetensors") | {f"mtp.{name}": value for name, value in mtp.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mtp_num_hidden_layers": 1}))
    return folder


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counting")
    model = write_counting(folder / "model")
    export(model, folder / "pack", stored=recipe(32))
    add_head(folder / "pack", model)
    return folder / "pack"


def answered(pack: Path, drafter: str, *, temperature: float) -> tuple[tuple[int, ...], Stats]:
    options = SessionOptions(
        drafter=drafter,
        draft_max=None if drafter == "none" else 3,
        sampling=SamplingOptions(temperature=temperature),
        details=SessionDetails(ignore_eos=True),
        seed=4,
    )
    with edgedecode.load(pack, threads=1) as pair, pair.session(options) as session:
        answer = session.generate("hello", max_tokens=61)
        return tuple(answer.tokens), answer.stats


@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_a_hybrid_drafts_with_its_layer(temperature: float, pack: Path) -> None:
    tokens, stats = answered(pack, "head", temperature=temperature)
    assert tokens == answered(pack, "none", temperature=temperature)[0]
    assert stats.accepted > 0
    if not temperature:
        assert all((after - before) % CYCLE == 1 for before, after in pairwise(tokens))
        assert stats.accepted == stats.drafters["head"].proposed >= 40


def test_the_state_before_the_norm_is_another(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Qwen's layers were trained on is after it (speculation in llama.cpp #24025, LightLLM #1402)."""
    final = features._every_final_row

    def before(file: GraphFile) -> str:
        name = final(file)
        (norm,) = (node for node in file.nodes if name in node.outputs)
        norm.outputs += [""] * (4 - len(norm.outputs))
        norm.outputs[3] = norm.outputs[3] or "before"
        return norm.outputs[3]

    expected = answered(pack, "none", temperature=0.0)[0]
    monkeypatch.setattr(features, "_every_final_row", before)
    tokens, stats = answered(pack, "head", temperature=0.0)
    assert tokens == expected
    assert stats.accepted < 0.1 * stats.drafters["head"].proposed
