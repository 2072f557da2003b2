"""With a drafting head the text is that of plain decoding, whether the head guesses nothing or nearly everything."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from safetensors.torch import load_file, save_file

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.cli import main
from edgedecode.decoding.heads import DraftHead, FeatureState
from edgedecode.errors import CapabilityError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.export.heads.written import TinyHead, write_flat
from tests.toys import session_options

pytestmark = pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
TARGET = Manifest.load(BUNDLED_PACK).models["target"]
HEAD = TinyHead.of(TARGET, rows=512)
GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.8)
PROMPTS = ("Tell me about a frog.", "Why is the sky blue?")
LENGTH = 40


def write_pack(folder: Path, head: Path, *, bits: int = 8) -> Path:
    """Return a copy of the bundled pack with a head."""
    shutil.copytree(BUNDLED_PACK, folder / "pack")
    assert main(["head", "add", str(folder / "pack"), str(head), "--bits", str(bits)]) == 0
    return folder / "pack"


def plain(pair: Pair, prompt: str, sampling: SamplingOptions = GREEDY) -> tuple[int, ...]:
    with pair.session(session_options(seed=7, sampling=sampling, drafter="none")) as session:
        return session.generate(prompt, max_tokens=LENGTH).tokens


def final_rows(pair: Pair, tokens: Sequence[int]) -> torch.Tensor:
    """Return what the vocabulary's matrix is multiplied with in each row, by a head whose matrix is the identity."""
    head = pair.drafts.hold("head")
    assert isinstance(head, DraftHead)
    with closing(pair.target.new_state(len(tokens))) as state, closing(head.new_state(len(tokens))) as own:
        assert isinstance(state, FeatureState)
        features = state.keep_features()
        pair.target.forward(tokens, state, rows="none")
        state.keep(range(len(tokens)))
        found = []
        for place in range(len(tokens) - 2):
            output = head.draft([tokens[place + 1]], own, features=features.rows(place, place + 1))
            own.keep([0])
            found.append(output.logits.copy())
    return torch.from_numpy(np.stack(found))


def good_head(folder: Path) -> Path:
    """Write a head whose vocabulary's matrix is solved for the texts that the target writes."""
    whole = replace(HEAD, rows=HEAD.hidden)
    source = write_flat(folder / "identity", whole)
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = torch.eye(HEAD.hidden)
    save_file(tensors, source / "model.safetensors")
    rows, wanted = [], []
    with edgedecode.load(write_pack(folder / "identity", source, bits=32), threads=1) as pair:
        for prompt in PROMPTS:
            with pair.session(session_options(seed=7, drafter="none")) as session:
                start = len(session.generate(prompt, max_tokens=LENGTH).tokens)
                tokens = list(session.tokens)
            first = len(tokens) - start - 2
            rows.append(final_rows(pair, tokens)[first:])
            wanted += tokens[first + 2 :]
    ids = torch.tensor(sorted({*wanted, *range(100)}))
    targets = (torch.tensor(wanted)[:, None] == ids).float()
    matrix = torch.linalg.lstsq(torch.cat(rows), 20 * targets).solution.T
    tensors |= {"lm_head.weight": matrix.contiguous(), "d2t": ids - torch.arange(len(ids))}
    del tensors["t2d"]
    out = write_flat(folder / "good", HEAD, draft_vocab_size=len(ids))
    save_file(tensors, out / "model.safetensors")
    return out


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    sources = {"random": write_flat(folder / "flat", HEAD), "good": good_head(folder)}
    return {name: write_pack(folder / f"{name}-pack", source) for name, source in sources.items()}


@pytest.fixture(scope="module")
def pair_of(packs: dict[str, Path]) -> Iterator[Callable[[str], Pair]]:
    opened: dict[str, Pair] = {}

    def pair(name: str) -> Pair:
        if name not in opened:
            opened[name] = edgedecode.load(packs[name], threads=1)
        return opened[name]

    yield pair
    for each in opened.values():
        each.close()


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["random", "good"])
def test_text_with_a_head_is_plain_text(
    name: str, length: int, sampling: SamplingOptions, pair_of: Callable[[str], Pair]
) -> None:
    pair, accepted, proposed = pair_of(name), 0, 0
    for prompt in PROMPTS:
        options = session_options(seed=7, sampling=sampling, drafter="head", draft_max=length)
        with pair.session(options) as session:
            assert session.generate(prompt, max_tokens=LENGTH).tokens == plain(pair, prompt, sampling)
            accepted += session.stats.accepted
            proposed += session.stats.drafters["head"].proposed
    assert proposed > 0
    if name == "good" and sampling is GREEDY:
        assert accepted > (0.9 * proposed if length == 1 else 10)  # it was solved for the first token alone


def test_a_head_drafts_by_default_and_text_is_plain(pair_of: Callable[[str], Pair]) -> None:
    pair = pair_of("good")
    assert pair.drafter_names(SessionOptions())[0] == "head"
    assert "model" not in pair.drafter_names(SessionOptions())
    with pair.session(session_options(seed=7, sampling=GREEDY)) as session:
        assert session.generate(PROMPTS[0], max_tokens=LENGTH).tokens == plain(pair, PROMPTS[0])
        assert session.drafter_name.startswith("head+")


def test_turns_and_a_prefix_without_features_are_plain(pair_of: Callable[[str], Pair]) -> None:
    """The second session's first turn has no drafter, so that nothing keeps its features."""
    pair = pair_of("good")
    options = session_options(seed=7, sampling=GREEDY, drafter="head", draft_max=2)
    with pair.session(options) as session, pair.session(session_options(seed=7, drafter="none")) as other:
        for prompt in PROMPTS:
            found = session.generate(prompt, max_tokens=LENGTH)
            assert found.tokens == other.generate(prompt, max_tokens=LENGTH).tokens
        assert session.stats.drafters["head"].proposed > 0
    with closing(pair.target.new_state(64)) as state:
        assert isinstance(state, FeatureState)
        tokens = list(range(40, 80))
        pair.target.forward(tokens[:30], state, rows="none")
        state.keep(range(30))
        features = state.keep_features()
        from edgedecode.decoding.policy import WHOLE
        from edgedecode.drafters.head_state import HeadState

        head = pair.drafts.hold("head")
        assert isinstance(head, DraftHead)
        own = HeadState(head, state, capacity=64)
        own.join("test")
        own.begin(tokens[:31])
        assert own.reach(tokens[:31], 4, WHOLE) == 0  # no position has features
        pair.target.forward(tokens[30:39], state, rows="none")
        state.keep(range(9))
        assert features.oldest == 30
        assert own.unread(tokens) == 9
        assert own.reach(tokens, 4, WHOLE) == 4
        assert own.catch_up(tokens).shape == (head.card.rows,)
        assert own.unread(tokens) == 0
        own.leave("test")


def test_engines_without_features_say_so(packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_KERNELS", "engine")
    with edgedecode.load(packs["random"], threads=1) as pair:
        assert "head" not in pair.drafter_names(SessionOptions())
        with pytest.raises(CapabilityError) as error:
            pair.session(session_options(drafter="head", draft_max=2))
        assert "\n" not in str(error.value)


def test_plan_holds_the_session(packs: dict[str, Path]) -> None:
    plan = edgedecode.plan(packs["good"], memory="8GB", threads=1)  # more than the process of all tests takes
    assert {"weights:head", "kv:head", "features:target"} <= {holder.name for holder in plan.memory.holders}
    with edgedecode.load(packs["good"], memory="8GB", threads=1) as pair, pair.session() as session:
        assert session.drafter_name.startswith("head+")
        held = {lease.name: lease.nbytes for lease in pair.budget.leases if lease.nbytes}
        planned = {holder.name: holder.nbytes for holder in plan.memory.holders}
        for name in ("weights:head", "kv:head", "features:target"):
            assert held[name] <= planned[name] <= held[name] + 64


def test_llama_cpp_refuses_a_head_where_it_is_planned_and_where_it_is_opened(packs: dict[str, Path]) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    options = session_options(drafter="head", draft_max=2)
    refusal = "^the engine llama runs no drafting heads here: use --runtime onnx on the processor$"
    with pytest.raises(CapabilityError, match=refusal):
        edgedecode.plan(packs["good"], options, runtime="llama")
    with edgedecode.load(packs["good"], runtime="llama") as pair:
        assert "head" not in pair.drafter_names(SessionOptions())
        with pytest.raises(CapabilityError, match=refusal):
            pair.session(options)


def test_a_head_has_float_keys_beside_a_target_of_8_bits(
    packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*given: object) -> None:
        raise AssertionError("a head's keys and values have no scales")

    monkeypatch.setattr("edgedecode.runtimes.onnx.gguf.kv_scales.measure_scales", measured)
    with edgedecode.load(packs["good"], kv_type="int8", threads=1) as pair:
        head = pair.drafts.hold("head")
        assert head is not None
        assert (pair.target.card.kv_type, head.card.kv_type) == ("int8", "float32")
