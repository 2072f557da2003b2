"""A block drafter of random weights computes what its formula says, on a hybrid target, and changes no text."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from transformers import Lfm2Config, PreTrainedModel

import edgedecode
from edgedecode import SamplingOptions
from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import BlockHead, FeatureState
from edgedecode.errors import EdgeDecodeError, ExportError
from edgedecode.export.heads import pack_head
from edgedecode.pack.manifest import Manifest
from edgedecode.pair import Pair
from edgedecode.runtimes.onnx.gguf import markov_rows
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.hybrid_gguf import random_model
from tests.export.conftest import export, random_tokens, recipe
from tests.export.tiny import write_network
from tests.toys import session_options

from .block_written import TinyBlock, draft
from .test_hybrid_mtp import CYCLE, FIRST, write_counting

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
ROWS, EXACT = 352, 1e-3
TOKENS, ANCHOR = random_tokens(90), 11
BLOCKS = {
    "dspark": TinyBlock(ROWS),
    "dspark, halves rotated": TinyBlock(ROWS, neox=True, outputs=(1, 2), block=7),
    "dflash": TinyBlock(ROWS, rank=0, neox=True),
}


@dataclass(frozen=True)
class Target:
    """A pack of a short LFM2, and its network."""

    pack: Path
    network: PreTrainedModel


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("lfm2")
    config = Lfm2Config(
        vocab_size=ROWS,
        hidden_size=64,
        intermediate_size=96,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        layer_types=["conv", "full_attention", "conv", "conv", "full_attention"],
        tie_word_embeddings=True,
    )
    network = random_model(config)
    export(write_network(folder / "model", network), folder / "pack", stored=recipe(32))
    return Target(folder / "pack", network)


@pytest.fixture
def target(made: Target) -> Iterator[Target]:
    yield made
    if Manifest.load(made.pack).head is not None:
        pack_head.remove_head(made.pack)


def features_of(network: PreTrainedModel, layers: tuple[int, ...]) -> torch.Tensor:
    """Return the outputs of these layers, as transformers computes them; of layer -1, the embedding."""
    with torch.inference_mode():
        states = network(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1][0] for layer in layers], -1)


@dataclass(frozen=True)
class Drafted:
    """A block's logits without and with the chain, and its greedy tokens."""

    base: FloatArray
    rows: FloatArray
    tokens: list[int]


def drafted(pair: Pair, counts: tuple[int, ...]) -> list[Drafted]:
    """Draft blocks behind TOKENS on our kernels, of features that passes of several widths left."""
    model = pair.drafts.hold("head")
    assert isinstance(model, BlockHead)
    found, end = [], len(TOKENS)
    with closing(pair.target.new_state(128)) as state, closing(model.new_state(128)) as own:
        assert isinstance(state, FeatureState)
        features = state.keep_features()
        for start, stop in ((0, 40), (40, 41), (41, end)):
            pair.target.forward(TOKENS[start:stop], state, rows="none")
            state.keep(range(stop - start))
        model.draft_block(5, own, features=features.rows(0, 4), count=3)
        own.keep(range(4))
        own.crop(3)
        for count in counts:
            rows = model.draft_block(ANCHOR, own, features=features.rows(own.length, end), count=count)
            tokens, ids, base = [ANCHOR], model.card.token_ids, rows.copy()
            for row in rows:
                model.link(row, tokens[-1])
                place = int(row.argmax())
                tokens.append(place if ids is None else int(ids[place]))
            found.append(Drafted(base, rows.copy(), tokens[1:]))
            own.keep(range(end - own.length))
    return found


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_the_formula(name: str, target: Target, tmp_path: Path) -> None:
    block, table = BLOCKS[name], target.network.get_input_embeddings().weight.detach()
    added = pack_head.add_head(target.pack, block.write(tmp_path / "block"), bits=32)
    assert added.entry.taps == tuple(layer + 1 for layer in block.outputs)
    assert added.entry.layers == block.layers
    before, counts = tuple(layer - 1 for layer in block.outputs), (block.block, 1, 3)
    features, inputs = (features_of(target.network, layers) for layers in (block.outputs, before))
    with edgedecode.load(target.pack, threads=1) as pair:
        found = drafted(pair, counts)
    for made, count in zip(found, counts, strict=True):
        base, rows, tokens = draft(block, features=features, token=ANCHOR, table=table, output=table, count=count)
        other = draft(block, features=inputs, token=ANCHOR, table=table, output=table, count=count)[0]
        chained = made.rows != made.base
        errors = np.abs(made.base - base.numpy()).max(), np.abs(made.rows - rows.numpy())[chained].max(initial=0)
        print(f"{name}, {count} rows: {errors[0]:.1e}, with the chain {errors[1]:.1e} of {chained.sum(1).tolist()} ids")
        assert max(errors) < EXACT < float((other - base).abs().max()) / 50
        assert made.tokens == tokens
        assert chained.any(1).all() == (block.rank > 0)


@pytest.mark.parametrize("padded", [False, True])
def test_few_ids_are_those_of_the_formula(
    padded: bool, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """padded: the drafter is for the tokenizer's ids, of which the target's output has more rows."""
    block, table = BLOCKS["dspark"], target.network.get_input_embeddings().weight.detach()
    if padded:
        block = replace(block, vocabulary=Manifest.load(target.pack).vocabulary_size)
    else:
        monkeypatch.setattr(pack_head, "TIED_ROWS", 300)
    assert pack_head.add_head(target.pack, block.write(tmp_path / "block"), bits=32).entry.rows < ROWS
    with edgedecode.load(target.pack, threads=1) as pair:
        (made,), model = drafted(pair, (1,)), pair.drafts.hold("head")
        assert model is not None
        ids = model.card.token_ids
    assert ids is not None
    features = features_of(target.network, block.outputs)
    output = table[: block.vocabulary]
    base, rows, _ = draft(block, features=features, token=ANCHOR, table=table, output=output, count=1)
    assert np.abs(made.base - base.numpy()[:, ids]).max() < EXACT
    chained = made.rows != made.base
    assert np.abs(made.rows - rows.numpy()[:, ids])[chained].max() < EXACT
    assert made.tokens == [int(ids[rows[0, ids].argmax()])]


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pack of a target that counts up, and a block drafter whose chain alone does so too."""
    folder = tmp_path_factory.mktemp("counting")
    export(write_counting(folder / "model"), folder / "pack", stored=recipe(32))
    layers = Manifest.load(folder / "pack").models["target"].layers
    block, chain = TinyBlock(ROWS, outputs=(0, 1), target_layers=layers), torch.zeros(2, ROWS, CYCLE)
    for each in range(CYCLE):
        chain[0, FIRST + each, each] = chain[1, FIRST + (each + 1) % CYCLE, each] = 6.0
    tensors = {f"markov_head.markov_w{each + 1}.weight": chain[each] for each in (0, 1)}
    pack_head.add_head(
        folder / "pack", block.write(folder / "block", more={**tensors, "norm.weight": torch.full((64,), 0.02)})
    )
    return folder / "pack"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_max", [1, 5, 16])
def test_drafts_change_no_token(
    counting: Path, temperature: float, draft_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markov_rows, "_MOST", ROWS)  # without the chain, no id is likelier here
    sampling, texts, stats = SamplingOptions(temperature=temperature), [], []
    with edgedecode.load(counting, threads=1) as pair:
        for drafter in ("none", "head", None):
            options = session_options(seed=7, sampling=sampling, drafter=drafter, draft_max=draft_max)
            with pair.session(replace(options, details=replace(options.details, ignore_eos=True))) as session:
                answers = [session.generate(text, max_tokens=45) for text in ("hello " * 40, "and then?")]
            texts.append([answer.tokens for answer in answers])
            stats.append([answer.stats for answer in answers])
    assert texts[1] == texts[2] == texts[0]
    accepted = sum(each.accepted for each in stats[1])
    proposed = sum(each.drafters["head"].proposed for each in stats[1])
    assert accepted > 0
    if not temperature:
        assert accepted == proposed >= 40


def own(**fields: object) -> dict[str, object]:
    """Return the drafter's own fields; None: there is none of this name."""
    value = {"mask_token_id": 7, "target_layer_ids": [0, 2, 3], **fields}
    return {"dflash_config": {name: each for name, each in value.items() if each is not None}}


REFUSED: dict[str, tuple[dict[str, object], dict[str, torch.Tensor | None], str]] = {
    "no mask": (own(mask_token_id=None), {}, "does not say mask_token_id"),
    "no layers": (own(target_layer_ids=None), {}, "does not say target_layer_ids"),
    "a huge block": ({"block_size": 16_000_000}, {}, "block_size 16000000: blocks of 2 to 64 are supported"),
    "many layers": ({"num_hidden_layers": 10**7}, {}, "says num_hidden_layers 10000000, the tensors have 2: download"),
    "an own vocabulary": (
        {"draft_vocab_size": 300},
        {"lm_head.weight": torch.zeros(300, 64)},
        "vocab_size 352, and draft_vocab_size or lm_head has 300: an own draft vocabulary is not supported",
    ),
    "fewer rows": ({}, {"lm_head.weight": torch.zeros(300, 64)}, "lm_head has 300: an own draft vocabulary"),
    "more rows": ({}, {"lm_head.weight": torch.zeros(400, 64)}, "lm_head has 400: an own draft vocabulary"),
    "a number for rows": ({}, {"lm_head.weight": torch.tensor(1.0)}, "lm_head has 0: an own draft vocabulary"),
    "a norm twice": ({}, {"model.norm.weight": torch.zeros(64)}, "two tensors that are output_norm.weight here"),
    "no block": ({"block_size": None}, {}, "does not say block_size"),
    "no RoPE": ({"rope_theta": None}, {}, "does not say rope_theta"),
    "no head size": ({"head_dim": None}, {}, "does not say head_dim"),
    "two values": ({"mask_token_id": 8}, {}, "says mask_token_id twice"),
    "a window": ({"layer_types": ["full_attention", "sliding_attention"]}, {}, "layers with sliding_attention"),
    "a window for all": (
        {"use_sliding_window": True, "sliding_window": 64, "layer_types": None},
        {},
        "the block drafter has a sliding window of 64 positions, which is not supported",
    ),
    "causal": ({"is_causal": True}, {}, "causal attention in a block"),
    "another chain": ({"markov_head_type": "rnn"}, {}, "a Markov head of the kind rnn"),
    "another rank": ({"markov_rank": 16}, {}, "says markov_rank 16, the tensors have 32"),
    "a cap": ({"final_logit_softcapping": 30.0}, {}, "a cap of its logits"),
    "YaRN": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, {}, "RoPE scaling is 'yarn'"),
    "a mask beyond": (own(mask_token_id=400), {}, "mask_token_id 400 is none of 352"),
    "layers that descend": (own(target_layer_ids=[2, 0, 3]), {}, "no ascending layers"),
    "the last layer": (own(target_layer_ids=[0, 2, 4]), {}, "output of the last layer, 4"),
    "more layers": (own(target_layer_ids=[0, 2, 5]), {}, r"layers \[0, 2, 5\], the target has layers 0 to 4"),
    "a deeper target": (own(num_target_layers=6), {}, r"\[0, 2, 3\] of 6, the target has layers 0 to 4"),
    "another vocabulary": ({"vocab_size": 360}, {}, r"makes markov_head\.markov_w1\.weight \[360, 32\]"),
    "an unknown tensor": ({}, {"layers.0.conv.weight": torch.zeros(4, 4)}, r"layers\.0\.conv\.weight: it is another"),
    "a lost tensor": ({}, {"layers.1.mlp.up_proj.weight": None}, r"lacks 1 tensor, blk\.1\.ffn_up\.weight"),
    "half a chain": ({}, {"markov_head.markov_w2.weight": None}, r"lacks 1 tensor, markov_w2\.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_block_drafters_are_refused_in_one_line(name: str, target: Target, tmp_path: Path) -> None:
    config, more, message = REFUSED[name]
    folder = BLOCKS["dspark"].write(tmp_path / "block", more=more, **config)
    with pytest.raises(ExportError, match=message) as error:
        pack_head.add_head(target.pack, folder)
    assert "\n" not in str(error.value)
    assert Manifest.load(target.pack).head is None


def test_a_packs_block_drafter_is_no_source(counting: Path) -> None:
    path = counting / str(Manifest.load(counting).head.gguf)
    with pytest.raises(EdgeDecodeError, match="give the folder that it was converted from"):
        pack_head.add_head(counting, path, replace=True)
