"""A hybrid's GGUF file drafts with the MTP layer in it, and the text is that of plain decoding."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.decoding.heads import FeatureState
from edgedecode.export.heads import pack_head
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.small_tokenizers import byte_level
from tests.toys import session_options

hybrid_gguf = pytest.importorskip("tests.contract.hybrid_gguf", reason="transformers or gguf is missing")
toy_gguf = pytest.importorskip("tests.contract.toy_gguf", reason="gguf is missing")
pytestmark = pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.8)
PROMPTS = ("hello there", "a frog")
LENGTH = 32


@dataclass(frozen=True)
class Trained:
    """A file whose MTP layer was solved for the texts that its model writes."""

    path: Path
    pack: Path
    pairs: FloatArray
    """What `fc` reads: normed embeddings and states after the final norm, [rows, 2 · hidden]."""
    fc: FloatArray
    table: FloatArray
    final_norm: FloatArray
    wanted: Sequence[int]


def normed(rows: FloatArray) -> FloatArray:
    return rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + 1e-6)


def plain(pair: Pair, prompt: str, sampling: SamplingOptions = GREEDY) -> tuple[int, ...]:
    with pair.session(session_options(seed=7, sampling=sampling, drafter="none")) as session:
        return session.generate(prompt, max_tokens=LENGTH).tokens


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, tokenizer = tmp_path_factory.mktemp("mtp"), byte_level()
    rows = tokenizer.get_vocab_size()
    model = hybrid_gguf.random_model(hybrid_gguf.tiny_qwen(vocab_size=rows))
    torch.nn.init.uniform_(model.model.norm.weight, -0.9, 2.0)  # such norms differ widely between values

    def write(path: Path, fc: FloatArray) -> Path:
        hybrid_gguf.write_hybrid(
            model,
            path,
            drafting=True,
            fc=fc,
            vocabulary=lambda writer: toy_gguf.write_tokenizer(writer, tokenizer, rows=rows),
        )
        out = path.with_suffix("")
        assert main(["import", "--target", str(path), "--out", str(out)]) == 0
        return out

    table = model.model.embed_tokens.weight.detach().numpy()
    hidden, pairs, wanted = table.shape[1], [], list[int]()
    first = write(folder / "untrained.gguf", np.zeros((hidden, 2 * hidden), np.float32))
    with edgedecode.load(first, threads=1) as pair:
        assert pair.drafts.hold("head") is not None  # else the target gives no features
        for prompt in PROMPTS:
            with pair.session(session_options(seed=7, drafter="none")) as session:
                count = len(session.generate(prompt, max_tokens=LENGTH).tokens)
                tokens = list(session.tokens)
            with closing(pair.target.new_state(len(tokens))) as state:
                assert isinstance(state, FeatureState)
                features = state.keep_features()
                pair.target.forward(tokens, state, rows="none")
                state.keep(range(len(tokens)))
                states = features.rows(0, len(tokens) - 2)
            whole = np.concatenate([normed(table[tokens[1:-1]]), normed(states)], -1)
            pairs.append(whole[-count:])
            wanted += tokens[2:][-count:]
    read = np.concatenate(pairs)
    fc = np.linalg.lstsq(read, table[wanted], rcond=None)[0].T.astype(np.float32)
    path = folder / "trained.gguf"
    norm = 1 + model.model.norm.weight.detach().numpy()
    return Trained(path, write(path, np.ascontiguousarray(fc)), read, fc, table, norm, wanted)


@pytest.fixture(scope="module")
def pair(trained: Trained) -> Iterator[Pair]:
    with edgedecode.load(trained.pack, threads=1) as opened:
        yield opened


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_text_is_plain_text(pair: Pair, length: int, sampling: SamplingOptions) -> None:
    accepted = proposed = 0
    for prompt in PROMPTS:
        with pair.session(session_options(seed=7, sampling=sampling, drafter="head", draft_max=length)) as session:
            assert session.generate(prompt, max_tokens=LENGTH).tokens == plain(pair, prompt, sampling)
            accepted += session.stats.accepted
            proposed += session.stats.drafters["head"].proposed
    assert proposed > 0
    if sampling is GREEDY and length == 1:
        assert accepted > 0.8 * proposed  # it was solved for the first token


def test_states_after_the_norm_win_over_those_before_it(trained: Trained) -> None:
    hidden = len(trained.final_norm)

    def loss(pairs: FloatArray) -> float:
        """Return the mean of what the texts' own tokens cost, in nats."""
        logits = normed(pairs @ trained.fc.T) @ trained.table.T
        sums = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
        return float(np.mean(sums - logits[np.arange(len(logits)), trained.wanted]))

    before = normed(trained.pairs[:, hidden:] / trained.final_norm)
    found = loss(trained.pairs), loss(np.concatenate([trained.pairs[:, :hidden], before], -1))
    print(f"loss after the norm {found[0]:.5f}, before {found[1]:.5f}")
    assert found[0] < 0.5 * found[1]


def test_the_file_itself_drafts_and_its_head_is_listed_and_removed(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    with edgedecode.load(trained.path, threads=1) as opened:
        assert opened.drafter_names(SessionOptions())[0] == "head"
    assert main(["head", "list", str(trained.path)]) == 0
    assert "reads what follows the final norm (MTP)" in capsys.readouterr().out
    assert main(["head", "remove", str(trained.path)]) == 0
    with edgedecode.load(trained.path, threads=1) as opened:
        assert "head" not in opened.drafter_names(SessionOptions())
    assert main(["head", "add", str(trained.path), str(trained.path)]) == 0


def test_a_layer_of_another_size_is_left_out_and_its_model_runs(tmp_path: Path) -> None:
    tokenizer = byte_level()
    rows = tokenizer.get_vocab_size()
    hybrid_gguf.write_hybrid(
        hybrid_gguf.random_model(hybrid_gguf.tiny_qwen(vocab_size=rows)),
        tmp_path / "model.gguf",
        drafting=True,
        fc=np.zeros((64, 64), np.float32),
        vocabulary=lambda writer: toy_gguf.write_tokenizer(writer, tokenizer, rows=rows),
    )
    with edgedecode.load(tmp_path / "model.gguf", threads=1) as opened:
        assert "head" not in opened.drafter_names(SessionOptions())
        assert len(plain(opened, PROMPTS[0])) == LENGTH
    assert main(["head", "add", str(tmp_path / "model.gguf"), str(tmp_path / "model.gguf")]) == 1


def test_large_vocabularies_are_trimmed(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids that every trim keeps are proposed, and then the first ones."""
    rows = Manifest.load(trained.pack).models["target"].rows
    monkeypatch.setattr(pack_head, "TIED_ROWS", rows - 4)
    pack_head.add_head(trained.pack, trained.path, replace=True)
    with edgedecode.load(trained.pack, threads=1) as opened:
        head = opened.drafts.hold("head")
        assert head is not None
        ids = head.card.token_ids
        assert head.card.rows == rows - 4
        assert ids is not None
        assert set(range(200)) < set(np.asarray(ids).tolist())
        options = session_options(seed=7, drafter="head", draft_max=2)
        with opened.session(options) as session:
            assert session.generate(PROMPTS[0], max_tokens=LENGTH).tokens == plain(opened, PROMPTS[0])
            assert session.stats.drafters["head"].proposed > 0
