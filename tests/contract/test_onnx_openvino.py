"""OpenVINO: the operators it lacks are replaced in static graphs, refusals; the contract suite covers the rest."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Budget
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.manifest import Manifest, ModelEntry
from tests.contract.conftest import open_entry, skip_without

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
static_graph = pytest.importorskip("tests.contract.static_graph", reason="onnx_ir is missing")
import_engine = pytest.importorskip("edgedecode.runtimes.onnx.onnx_engine").import_engine
OpenVinoProvider = pytest.importorskip("edgedecode.runtimes.onnx.providers.openvino").OpenVinoProvider

SLOTS, WIDTHS = 64, (1, 8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "static"
    shutil.copytree(BUNDLED_PACK / "draft", folder / "draft")
    return folder


@pytest.fixture(scope="module")
def entry(root: Path) -> ModelEntry:
    entry = Manifest.load(BUNDLED_PACK).models["draft"]
    made: ModelEntry = static_graph.add_static(root, entry, slots=SLOTS, widths=WIDTHS)
    return made


def test_rewritten_graph_computes_the_same_with_operators_that_openvino_has(root: Path, entry: ModelEntry) -> None:
    path = root / entry.graphs["static-8"].file
    data = OpenVinoProvider().rewritten(path)
    assert data is not None
    (path.parent / "rewritten.onnx").write_bytes(data)
    operators = Counter((node.domain, node.op_type) for node in GraphFile.parse(data).nodes)
    assert not {("", "RMSNormalization"), ("", "RotaryEmbedding")} & set(operators)
    assert operators["com.microsoft", "RotaryEmbedding"] == 2 * entry.layers
    rng = np.random.default_rng(0)
    found = []
    for file in (path, path.parent / "rewritten.onnx"):
        session = import_engine().InferenceSession(str(file), providers=["CPUExecutionProvider"])
        if not found:
            given = {
                value.name: rng.integers(0, 60, value.shape)
                if value.type == "tensor(int64)"
                else rng.standard_normal(value.shape, np.float32)
                for value in session.get_inputs()
            }
            given["rows"] = np.arange(8)
        found.append(session.run(["logits"], given)[0])
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_bundled_draft_chooses_the_tokens_of_the_processor(root: Path, entry: ModelEntry) -> None:
    skip_without("openvino")
    tokens = [int(token) for token in np.random.default_rng(3).integers(0, 8000, 40)]
    logits = []
    for provider in ("openvino", "cpu"):
        model = open_entry(entry, root, budget=Budget(), provider=provider)
        state = model.new_state(SLOTS)
        rows = [model.forward(tokens, state, rows="all").logits.copy()]
        state.keep(range(len(tokens)))
        rows.append(model.forward(tokens[:6], state, parents=[-1, 0, 0, 1, 2, 4], rows="all").logits.copy())
        state.keep([0, 2, 4, 5])
        rows.append(model.forward(tokens[5:8], state, rows="all").logits.copy())
        logits.append(np.concatenate(rows))
        model.close()
    device, processor = logits
    assert np.abs(device - processor).max() < 0.25
    assert np.mean(device.argmax(axis=1) == processor.argmax(axis=1)) > 0.9
