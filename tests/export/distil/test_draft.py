"""`distil --kind draft`: what a draft model starts from, its folder, going on where it stopped, its place in packs."""

import json
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from edgedecode import SamplingOptions, SessionOptions, load
from edgedecode.cli import main
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import ExportError
from edgedecode.export.distil.batches import Batch
from edgedecode.export.distil.kinds.draft_network import new_draft
from edgedecode.export.distil.target_weights import TargetWeights
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Budget
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.toy_gguf import GGUF, write_toy_gguf
from tests.contract.toy_graph import ToyShape
from tests.export.distil.stopping import kill_when

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
TOKENS = 1200
CHILD = """
import sys
from pathlib import Path
import torch
from edgedecode.export.distil import distil
from edgedecode.export.distil.kinds import draft_kind
from edgedecode.export.stages import Stages
distil.EPOCHS = 3
draft_kind.ROWS = 1024
torch.set_num_threads(1)
request = distil.DistilRequest(
    Path(sys.argv[1]), Path(sys.argv[2]), "draft", tokens=int(sys.argv[3]), resume=len(sys.argv) > 4
)
distil.Distillation(request, Stages()).run()
"""


def batch(tokens: torch.Tensor) -> Batch:
    """Return a batch of which only the tokens are read."""
    none = torch.zeros(0)
    return Batch(none, tokens, none, none, none, none, none)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_draft_of_all_layers_is_its_target(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedecode.export.distil.kinds.draft_network.LAYERS", 2)
    shape = ToyShape(head_size=16, rows=128)
    entry = write_toy_gguf(tmp_path, shape, architecture=architecture)
    target = TargetWeights(tmp_path / GGUF)
    ids = np.arange(3, shape.rows, 2)
    network = new_draft(target, ids, context=64)
    tokens = np.random.default_rng(1).integers(0, shape.rows, 40)
    with torch.inference_mode():
        (hidden,) = network.outputs(batch(torch.from_numpy(tokens)[None]), target.embedding, depth=1)
        found = network.lm_head(hidden)[0].numpy()
    entry = replace(entry, graphs={}, weights=GGUF)
    request = ModelRequest(entry, tmp_path, "target", shape.rows, Budget())
    with closing(find_runtime("onnx").open(request)) as model, closing(model.new_state(64, rows=64)) as state:
        wanted = model.forward(tokens.tolist(), state, rows="all").logits[1:, ids]
    assert np.abs(found - wanted).max() < 0.01 * wanted.std()


def test_layers_are_copied_evenly_spaced_and_other_architectures_refused(tmp_path: Path) -> None:
    write_toy_gguf(tmp_path, ToyShape(layers=5, head_size=16), architecture="qwen2")
    target = TargetWeights(tmp_path / GGUF)
    layers = dict(new_draft(target, np.arange(8), context=64).named_parameters())
    for ours, theirs in ((0, 0), (1, 4)):
        assert torch.equal(
            layers[f"model.layers.{ours}.mlp.up_proj.weight"], target.matrix(f"blk.{theirs}.ffn_up.weight")
        )
    assert layers["lm_head.weight"].shape[0] == 8
    other = tmp_path / "other"
    other.mkdir()
    write_toy_gguf(other, ToyShape(head_size=16), architecture="gemma2")
    with pytest.raises(ExportError, match="of architecture 'gemma2': llama, qwen2 and qwen3 are supported"):
        new_draft(TargetWeights(other / GGUF), np.arange(8), context=64)


def child(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", CHILD, str(BUNDLED_PACK), str(out), str(TOKENS), *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training that never stopped."""
    out = tmp_path_factory.mktemp("distil") / "draft"
    subprocess.run(child(out), check=True)
    return out


def test_a_killed_training_goes_on_to_the_same_weights(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    kill_when(child(out), out, "training.pt")
    subprocess.run(child(out, "resume"), check=True)
    for each in ("labels.bin", "model.safetensors", "config.json", "draft.ids"):
        assert (trained / each).read_bytes() == (out / each).read_bytes(), each


def test_it_is_read_by_transformers_and_replaces_the_packs_draft(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(trained)
    assert model.config.num_hidden_layers == 2
    pack, out = tmp_path / "pack", tmp_path / "draft"
    shutil.copytree(BUNDLED_PACK, pack)
    before = Manifest.load(pack)
    speeds = [[1.1, 1.1], [1.2, 1.0], [1.1, 1.1], [1.2, 1.3], [1.1, 1.1], [1.2, 1.3]]
    monkeypatch.setattr("edgedecode.export.distil.adding.speed_ups", lambda *_, **__: speeds.pop(0))
    monkeypatch.setattr("edgedecode.export.distil.distil.EPOCHS", 1)
    monkeypatch.setattr("edgedecode.export.distil.kinds.draft_kind.ROWS", 1024)
    answers = ["--answers", str(trained / "texts.jsonl"), "--init", str(trained), "--kind", "draft"]
    assert main(["distil", str(pack), *answers, "--out", str(out)]) == 0
    assert "no clear gain" in capsys.readouterr().out
    assert Manifest.load(pack) == before
    for folder in ("draft-2", "draft"):
        assert main(["distil", str(pack), *answers, "--out", str(out), "--resume"]) == 0
        assert "the draft model was added" in capsys.readouterr().out
        entry = check_pack(pack, full=True).models["draft"]
        assert entry.weights == f"{folder}/weights.bin"
        assert entry.trimmed is not None
        assert sorted(path.name for path in pack.glob("draft*")) == [folder]
    options = SessionOptions(sampling=SamplingOptions(), draft_max=3)
    with load(pack) as pair, pair.session(options) as session:
        drafted = session.generate("Tell me a story.", max_tokens=24).tokens
        assert session.stats.proposed
    assert main(["distil", str(pack), "--kind", "draft", "--remove"]) == 0
    assert not [*pack.glob("draft*")]
    assert check_pack(pack, full=True).models.keys() == {"target"}
    with load(pack) as pair, pair.session(SessionOptions(sampling=SamplingOptions())) as session:
        assert session.generate("Tell me a story.", max_tokens=24).tokens == drafted
    for kind, message in (("draft", "has no draft model"), ("head", "has no head")):
        assert main(["distil", str(pack), "--kind", kind, "--remove"]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "holds no draft model of this target"),
        ({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}, "of a class that is trained here"),
        ({"model_type": "nonsense"}, "holds no draft model: "),
    ],
)
def test_what_is_no_earlier_draft_is_one_line(
    wrong: dict[str, object], message: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, pack = tmp_path / "earlier", tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    earlier.mkdir()
    config = json.loads((trained / "config.json").read_text())
    (earlier / "config.json").write_text(json.dumps({**config, **wrong}))
    save_file({"model.embed_tokens.weight": torch.zeros(9, 256)}, earlier / "model.safetensors")
    given = ["--kind", "draft", "--answers", str(trained / "texts.jsonl"), "--init", str(earlier)]
    assert main(["distil", str(pack), *given, "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
