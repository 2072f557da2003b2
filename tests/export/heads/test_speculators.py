"""vLLM's speculators, where it is installed: its module computes what ours do, and reads the folder that we write."""

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("speculators", reason="speculators is not installed (it is no part of the extras)")

import torch
from safetensors.torch import load_file, save_file
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.eagle3.rotary_partial import install_partial_neox_rotary, uninstall_partial_neox_rotary
from torch import Tensor

from edgedecode.export.distil.kinds.head_folder import write_head
from edgedecode.export.distil.kinds.head_network import HeadNetwork, HeadSizes
from tests.export.tiny import TinyModel, write_model

from .written import VARIANTS, Reference, TinyHead, write_speculators

pytestmark = [
    pytest.mark.export,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention:UserWarning"),
]
EXACT = 1e-3
STEPS, POSITIONS = 3, 128
"""Its masks are of blocks of 128 positions."""
READ = {name: head for name, head in VARIANTS.items() if head.target_hidden == head.hidden and not head.window}
"""Its layers have their target's width; its window of later steps is that of their draft's first position."""


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model: its module reads the embedding there."""
    head = TinyHead()
    shape = TinyModel(layers=8, hidden=head.hidden, rows=head.vocabulary)
    return write_model(tmp_path_factory.mktemp("verifier"), shape)


def logits_of(folder: Path, features: Tensor, tokens: Sequence[int]) -> list[Tensor]:
    """Return the logits of each step, of drafts that begin at each position, by its module."""
    model = Eagle3DraftModel.from_pretrained(folder, dtype=torch.float32).eval()
    found: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda module, given, output: found.append(output[0].detach()))
    with torch.no_grad():
        model(features[None], torch.tensor([tokens]), torch.zeros(1, len(tokens), dtype=torch.long), ttt_steps=STEPS)
    return found


def largest_error(head: TinyHead, found: Sequence[Tensor], table: Tensor, features: Tensor, tokens: list[int]) -> float:
    """Return the largest difference to the formula's logits, of drafts that begin at each position."""
    reference, largest = Reference(head, table), 0.0
    for start in range(POSITIONS - STEPS):
        logits, after = reference.read(features[start : start + 1], tokens[start : start + 1])
        for step, row in enumerate(found):
            if step:
                logits, after = reference.step(after, [tokens[start + step]])
            largest = max(largest, float((row[start] - logits[0]).abs().max()))
        reference.crop(start + 1)
    return largest


def inputs(head: TinyHead, verifier: Path) -> tuple[Tensor, Tensor, list[int]]:
    random = torch.Generator().manual_seed(2)
    table = load_file(verifier / "model.safetensors")["model.embed_tokens.weight"]
    features = torch.randn(POSITIONS, 3 * head.hidden, generator=random)
    return table, features, torch.randint(0, head.vocabulary, (POSITIONS,), generator=random).tolist()


@pytest.mark.parametrize("name", READ)
def test_its_module_computes_the_formula(
    name: str, verifier: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    head = READ[name]
    layer = {**head.config(), "attention_bias": head.bias, "model_type": "qwen3" if head.qk_norm else "llama"}
    facts = {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy"}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": str(verifier), "architectures": []},
    }
    table, features, tokens = inputs(head, verifier)
    folder = write_speculators(tmp_path / "head", head, transformer_layer_config=layer, speculators_config=facts)
    tensors = load_file(folder / "model.safetensors") | {"embed_tokens.weight": table}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if head.rotated < head.head_size:  # as its training does
        install_partial_neox_rotary()
        request.addfinalizer(uninstall_partial_neox_rotary)
    found = largest_error(head, logits_of(folder, features, tokens), table, features, tokens)
    print(f"{name}: {found:.1e}")
    assert found < EXACT


def test_it_reads_a_head_that_was_trained_here(verifier: Path, tmp_path: Path) -> None:
    head = TinyHead()
    sizes = HeadSizes(
        head.hidden, head.heads, head.kv_heads, head.head_size, head.mlp, head.rows, head.epsilon, head.theta
    )
    network = HeadNetwork(sizes)
    weights = {name: each.half().float() for name, each in head.tensors().items()}  # as the folder has them
    network.load_state_dict({f"layers.0{name}" if name[0] == "." else name: each for name, each in weights.items()})
    table, features, tokens = inputs(head, verifier)
    facts = {"taps": head.layers, "table": table, "license": "Apache-2.0", "context": 512}
    write_head(tmp_path / "head", network, head.ids(), verifier=str(verifier), **facts)
    found = logits_of(tmp_path / "head", features, tokens)
    with torch.inference_mode():
        outputs = network.depths(
            features[None], table.half().float()[tokens][None], torch.tensor([POSITIONS]), depth=STEPS
        )
        wanted = [network.lm_head(each)[0] for each in outputs]
    errors = [
        float((theirs[: POSITIONS - step] - ours[step:]).abs().max())
        for step, (theirs, ours) in enumerate(zip(found, wanted, strict=True))
    ]
    print(f"a trained head: {max(errors):.1e}")
    assert max(errors) < EXACT
