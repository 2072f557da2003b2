"""The loss of a pack: its KL divergence and leading tokens against the original weights."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.engines.text_scores import ScoredText
from edgedecode.export.recipes.loss import measure_loss

from .conftest import export, opened, recipe
from .test_calibration import reference_of

pytestmark = pytest.mark.export

TEXTS = [
    ScoredText(tuple(int(token) for token in np.random.default_rng(seed).integers(0, 320, 150)), start)
    for seed, start in ((3, 1), (4, 40))
]


def test_measure_loss_is_the_divergence_computed_by_hand(llama: Path, tmp_path: Path) -> None:
    manifest = export(llama, tmp_path / "pack", stored=recipe(4))
    network = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    size = manifest.vocabulary_size
    kl, same = [], []
    with (
        reference_of(llama, recipe(4)) as reference,
        closing(opened(manifest.models["target"], tmp_path / "pack", size=size)) as model,
    ):
        found = measure_loss(model, reference, TEXTS)
        for text in TEXTS:
            with torch.inference_mode():
                expected = network(torch.tensor([text.tokens])).logits[0, :, :size].double().numpy()
            state = model.new_state(len(text.tokens))
            rows = model.forward(text.tokens, state, rows="all").logits[:, :size].astype(np.float64)
            state.close()
            for place in range(text.start - 1, len(text.tokens) - 1):
                p, q = (np.exp(each[place] - each[place].max()) for each in (expected, rows))
                p, q = p / p.sum(), q / q.sum()
                kl.append(float(np.sum(p * np.log(p / q))))
                same.append(p.argmax() == q.argmax())
    assert found["loss_positions"] == len(kl) == 149 + 110
    assert found["loss_kl"] == pytest.approx(np.mean(kl), rel=1e-3)
    assert found["loss_kl"] > 1e-4
    assert found["loss_top1"] == np.mean(same)


def test_fewer_bits_lose_more(demo_pair: Path, tmp_path: Path) -> None:
    found = []
    for stored in (recipe(8), recipe(4), recipe(4, block_size=128)):
        parity = export(demo_pair / "draft", tmp_path / stored.name, stored=stored).models["target"].parity
        assert parity["loss_positions"] > 100
        found.append((parity["loss_kl"], -parity["loss_top1"]))
    assert found == sorted(found)
