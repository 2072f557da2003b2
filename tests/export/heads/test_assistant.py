"""Gemma 4's assistant: added to a pack, it drafts as transformers' module does, and changes no token."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig, PreTrainedModel

import edgedecode
from edgedecode import Pair, SamplingOptions
from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import Assistant, FeatureState
from edgedecode.errors import ExportError
from edgedecode.export.heads import pack_head
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.export.conftest import export, random_tokens, recipe
from tests.export.gguf.test_hybrid_export import CONTEXT, ROWS, gemma
from tests.export.tiny import write_network
from tests.toys import session_options

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
EXACT, LENGTH, PROMPTS = 2e-4, 32, ("hello there", "a frog")
TOKENS = random_tokens(90)


def assistant(**changes: object) -> Gemma4AssistantForCausalLM:
    """Return a random one, whose norms and scales differ from one."""
    sizes: dict[str, object] = {
        "vocab_size": ROWS,
        "vocab_size_per_layer_input": 0,
        "hidden_size": 32,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "sliding_window": 24,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "num_kv_shared_layers": 4,
    }
    torch.manual_seed(5)
    config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**{**sizes, **changes}), backbone_hidden_size=64)
    made = Gemma4AssistantForCausalLM(config).eval()
    with torch.no_grad():
        for value in made.parameters():
            value.normal_(0, 1.5 * value.shape[-1] ** -0.5) if value.ndim > 1 else value.uniform_(0.6, 1.4)
        for layer in made.model.layers:
            layer.layer_scalar.uniform_(0.6, 1.4)
            layer.self_attn.q_norm.weight *= 0.2
        made.lm_head.weight.copy_(made.model.embed_tokens.weight)
    return made


@dataclass(frozen=True)
class Made:
    """A pack of Gemma 4, its network, and its assistant's folder."""

    pack: Path
    network: PreTrainedModel


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, network = tmp_path_factory.mktemp("gemma"), gemma()
    export(write_network(folder / "model", network), folder / "pack", stored=recipe(32))
    return Made(folder / "pack", network)


@pytest.fixture
def pack(made: Made) -> Iterator[Path]:
    yield made.pack
    if Manifest.load(made.pack).head is not None:
        pack_head.remove_head(made.pack)


def folder_of(network: PreTrainedModel, folder: Path) -> Path:
    network.save_pretrained(folder)
    return folder


def expected(target: PreTrainedModel, module: Gemma4AssistantForCausalLM, drafts: list[int]) -> FloatArray:
    """Return the logits of a draft behind all but the last of TOKENS, by transformers' module."""
    with torch.no_grad():
        ids = torch.tensor([TOKENS[:-1]])
        found = target.model(ids, return_shared_kv_states=True, use_cache=True)
        hidden, rows = found.last_hidden_state[:, -1:], []
        for token in (TOKENS[-1], *drafts):
            embedded = target.model.embed_tokens(torch.tensor([[token]]))
            output = module(
                inputs_embeds=torch.cat([embedded, hidden], -1),
                position_ids=torch.tensor([[len(TOKENS) - 1]]),
                shared_kv_states=found.shared_kv_states,
            )
            hidden = output.last_hidden_state
            rows.append(output.logits[0, 0].numpy())
    return np.stack(rows)


def drafted(pair: Pair, drafts: list[int]) -> FloatArray:
    """Return the same on our kernels, of a target that read its text in pieces."""
    model, target = pair.drafts.hold("head"), pair.target
    assert isinstance(model, Assistant)
    with closing(target.new_state(CONTEXT)) as state, closing(model.new_state(16)) as own:
        assert isinstance(state, FeatureState)
        features, last = state.keep_features(), len(TOKENS) - 1
        for start, stop in ((0, 40), (40, last - 3), (last - 3, last)):
            target.forward(TOKENS[start:stop], state, rows="last" if stop == last else "none")
            state.keep(range(stop - start))
        assert features.oldest == last - 1
        model.attend(own, state, length=last)
        output = model.draft(TOKENS[-1:], own, features=features.rows(last - 1, last))
        rows = [output.logits.copy()]
        for token in drafts:
            output = model.draft([token], own, hidden=output.hidden[None])
            rows.append(output.logits.copy())
    return np.stack(rows)


def test_drafts_are_those_of_transformers(made: Made, pack: Path, tmp_path: Path) -> None:
    module = assistant()
    added = pack_head.add_head(pack, folder_of(module, tmp_path / "assistant"), bits=32)
    assert (added.entry.layers, added.entry.rows, added.entry.taps) == (4, ROWS, (9,))
    drafts = [7, 300, 12]
    with edgedecode.load(pack, threads=1) as pair:
        found = drafted(pair, drafts)
    wanted = expected(made.network, module, drafts)
    assert np.abs(found - wanted).max() < EXACT < np.abs(wanted[0] - wanted[1]).max() / 100


def test_drafts_of_few_ids_are_those_of_transformers(
    made: Made, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_head, "TIED_ROWS", 300)
    module = assistant()
    added = pack_head.add_head(pack, folder_of(module, tmp_path / "assistant"), bits=32)
    assert added.entry.rows < ROWS
    with edgedecode.load(pack, threads=1) as pair:
        found, model = drafted(pair, [7]), pair.drafts.hold("head")
        assert model is not None
        ids = model.card.token_ids
    assert np.abs(found - expected(made.network, module, [7])[:, ids]).max() < EXACT


def solved(pair: Pair, network: PreTrainedModel) -> Gemma4AssistantForCausalLM:
    """Return an assistant of the target's greedy texts: its layers add nothing, and its first matrix is solved."""
    module = assistant(hidden_size=64)
    table, read, wanted = network.model.embed_tokens.weight.detach(), [], list[int]()
    for prompt in PROMPTS:
        with pair.session(session_options(seed=7, drafter="none")) as session:
            count = len(session.generate(prompt, max_tokens=LENGTH).tokens)
            tokens = list(session.tokens)
        with torch.no_grad():
            hidden = network.model(torch.tensor([tokens])).last_hidden_state[0]
        rows = torch.cat([8.0 * table[tokens[1:-1]], hidden[:-2]], -1)
        read.append(rows[-count:])
        wanted += tokens[2:][-count:]
    with torch.no_grad():
        for layer in module.model.layers:
            layer.layer_scalar.fill_(1)
            for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
                matrix.weight.zero_()
        module.model.norm.weight.fill_(1)
        head = module.model.embed_tokens.weight
        head /= head.norm(dim=-1, keepdim=True)
        module.lm_head.weight.copy_(head)
        module.pre_projection.weight.copy_(torch.linalg.lstsq(torch.cat(read), head[wanted]).solution.T)
    return module


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_change_no_token(made: Made, pack: Path, tmp_path: Path, temperature: float) -> None:
    with edgedecode.load(pack, threads=1) as pair:
        module = solved(pair, made.network)
    pack_head.add_head(pack, folder_of(module, tmp_path / "assistant"), bits=8)
    sampling, texts, accepted = SamplingOptions(temperature=temperature), dict[str | None, object](), 0
    with edgedecode.load(pack, threads=1) as pair:
        for drafter in ("none", "head", None):
            answers = []
            for prompt in PROMPTS:
                options = session_options(seed=7, sampling=sampling, drafter=drafter, draft_max=3)
                with pair.session(options) as session:
                    answers += [session.generate(text, max_tokens=LENGTH) for text in (prompt, "and then?")]
            texts[drafter] = [answer.tokens for answer in answers]
            if drafter == "head":
                accepted = sum(answer.stats.accepted for answer in answers)
    assert texts["head"] == texts[None] == texts["none"]
    assert accepted > (20 if temperature == 0 else 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": ROWS + 8}, f"is for ids {ROWS + 8}, its target has {ROWS}"),
        ({"head_dim": 32}, r"is for keys of \[32, 32\], its target has \[32, 16\]"),
    ],
)
def test_an_assistant_of_another_target_is_refused(
    pack: Path, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=message):
        pack_head.add_head(pack, folder_of(assistant(**changes), tmp_path / "assistant"))
    assert Manifest.load(pack).head is None


def test_a_folder_without_its_layers_is_refused(pack: Path, tmp_path: Path) -> None:
    folder = folder_of(assistant(), tmp_path / "assistant")
    value = json.loads((folder / "config.json").read_text())
    value["text_config"]["layer_types"] = ["full_attention"]
    (folder / "config.json").write_text(json.dumps(value))
    with pytest.raises(ExportError, match="is no whole assistant"):
        pack_head.add_head(pack, folder)
