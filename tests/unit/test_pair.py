"""`load` and `Pair`: the checks on opening a pack, and the resources that its sessions share."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.selection import EngineRequest
from edgedecode.errors import BudgetExceeded, CapabilityError, IncompatiblePair, InputError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.open_pack import load
from edgedecode.options import SessionOptions, SwitchOptions
from edgedecode.pack.entries import AdapterEntry, FileEntry, OutsideFile
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.pair import Pair
from edgedecode.testing import TableModel, TableRuntime, byte_tokenizer, toy_pair, toy_tables
from tests.toys import ascii_pair, session_options


def test_draft_is_loaded_by_the_first_session_that_uses_it() -> None:
    pair = ascii_pair()
    engine = pair._engine
    assert isinstance(engine, TableRuntime)
    pair.session(SessionOptions(drafter="suffix"))
    assert engine.opened == ["target"]
    pair.session(SessionOptions(drafter="model"))
    pair.session(SessionOptions())
    assert engine.opened == ["target", "draft"]


def test_session_without_a_draft_model_uses_free_drafters() -> None:
    base = toy_pair()
    manifest = replace(base.manifest, models={"target": base.manifest.models["target"]})
    runtime = TableRuntime({"target": toy_tables(259, seed=0)})
    pair = Pair(manifest, Path(), tokenizer=base.tokenizer, runtime=runtime, budget=Budget())
    assert pair.draft is None
    assert pair.session().drafter_name == "recycle+suffix"
    with pytest.raises(CapabilityError, match="no draft model"):
        pair.session(SessionOptions(drafter="model"))
    with pytest.raises(CapabilityError, match="for a GGUF file name one with --draft"):
        pair.session(session_options(switch=SwitchOptions()))


def test_session_of_a_target_without_rollback_does_not_draft() -> None:
    pair: Any = ascii_pair()
    pair.target.card = replace(pair.target.card, rollback=False)
    session = pair.session()
    assert session.drafter_name == "none"
    assert session.generate("hello", max_tokens=8).stats.proposed == 0
    for options in (SessionOptions(drafter="suffix"), SessionOptions(draft_max=2), SessionOptions(drafter="model")):
        with pytest.raises(CapabilityError, match="--drafter none"):
            pair.session(options)


@pytest.mark.parametrize("drafter", [None, "none", "model"])
def test_session_refuses_reproducible_text_if_rows_depend_on_the_width_of_a_pass(drafter: str | None) -> None:
    pair: Any = ascii_pair()
    pair.target.card = replace(pair.target.card, row_invariant=False)
    with pytest.raises(CapabilityError, match="leave out --reproducible") as refused:
        pair.session(session_options(drafter=drafter, reproducible=True))
    assert "\n" not in str(refused.value)


def test_session_refuses_a_draft_model_without_rollback() -> None:
    pair: Any = ascii_pair()
    pair.draft.card = replace(pair.draft.card, rollback=False)
    with pytest.raises(CapabilityError, match="--drafter suffix"):
        pair.session(SessionOptions(drafter="model"))
    assert pair.session().drafter_name == "suffix"  # the model was not requested: the other drafters are used


def test_drafter_source_is_shared_by_sessions() -> None:
    pair = ascii_pair()
    assert pair.drafter_source("suffix") is pair.drafter_source("suffix")


def test_close_closes_the_sessions_and_releases_every_lease() -> None:
    budget = Budget()
    with ascii_pair(budget=budget) as pair:
        names = ("model", "suffix", "recycle", "none", None)
        sessions = [pair.session(SessionOptions(drafter=name)) for name in names]
        assert budget.used_nbytes > 0
    assert budget.used_nbytes == 0
    pair.close()
    with pytest.raises(InputError, match="closed"):
        sessions[0].generate("hello")


def test_closed_pair_loads_nothing() -> None:
    budget = Budget()
    pair = ascii_pair(budget=budget)
    pair.close()
    for loads in (lambda: pair.draft, lambda: pair.adapter("any"), pair.session):
        with pytest.raises(InputError, match="this pair is closed: open the pack again"):
            loads()  # type: ignore[operator]
    assert budget.leases == ()


def test_pair_whose_target_does_not_open_leaves_no_lease() -> None:
    class Refusing(TableRuntime):
        def open(self, request: ModelRequest) -> TableModel:
            raise CapabilityError("no")

    base = toy_pair()
    budget = Budget()
    with pytest.raises(CapabilityError):
        Pair(base.manifest, Path(), tokenizer=base.tokenizer, runtime=Refusing({}), budget=budget)
    assert budget.used_nbytes == 0


def test_pair_refuses_an_unknown_provider_by_name() -> None:
    base = toy_pair()
    runtime = TableRuntime({"target": toy_tables(259, seed=0)})
    with pytest.raises(CapabilityError, match="'table' has no provider 'gpu'; it has: cpu"):
        Pair(
            base.manifest,
            Path(),
            tokenizer=base.tokenizer,
            runtime=runtime,
            budget=Budget(),
            request=EngineRequest("gpu"),
        )


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a manifest and a real tokenizer; the runtime is one of toy tables."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "pack"
    root.mkdir()
    base = toy_pair()
    (root / "tokenizer.json").write_text(byte_tokenizer()._inner.to_str(), encoding="utf-8")
    (root / "chat.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    (root / "weights.bin").write_bytes(b"weights.bin" * 10)
    write_manifest(root, replace(base.manifest, chat_template="chat.jinja"))
    tables = toy_tables(259, seed=0)
    monkeypatch.setattr(
        "edgedecode.open_pack.find_runtime", lambda name: TableRuntime({"target": tables, "draft": tables})
    )
    return root


def write_manifest(root: Path, manifest: Manifest) -> None:
    from edgedecode.pack.integrity import file_sha256

    names: Sequence[str] = [path.name for path in root.iterdir() if path.name != MANIFEST_NAME]
    files = {name: FileEntry((root / name).stat().st_size, file_sha256(root / name)) for name in names}
    models = {role: replace(entry, graphs={}) for role, entry in manifest.models.items()}  # toy tables have no graphs
    (root / MANIFEST_NAME).write_text(replace(manifest, files=files, models=models).to_json(), encoding="utf-8")


def test_load_opens_a_pack_with_its_tokenizer_and_template(pack: Path) -> None:
    with load(pack, memory="4GB") as pair, pair.session() as session:
        assert pair.budget.limit_nbytes == 4 * 10**9
        assert session.generate("abc", max_tokens=3).stats.prompt_tokens == 3


def test_load_finds_damaged_files(pack: Path) -> None:
    (pack / "weights.bin").write_bytes(b"weights.bad" * 10)
    with pytest.raises(ManifestError, match=r"weights\.bin is damaged"):
        load(pack)
    (pack / "weights.bin").write_bytes(b"")
    with pytest.raises(ManifestError, match="truncated"):
        load(pack)
    (pack / "weights.bin").unlink()
    with pytest.raises(ManifestError, match="is missing"):
        load(pack)


def test_draft_whose_weights_changed_after_opening_is_refused(pack: Path) -> None:
    with load(pack) as pair:
        assert Manifest.load(pack).models["draft"].weights == "weights.bin"
        (pack / "weights.bin").write_bytes(b"weights.new" * 10)
        with pytest.raises(
            CapabilityError, match="files of the pack were changed since the pack was opened: open it again"
        ):
            pair.draft  # noqa: B018
        (pack / "weights.bin").write_bytes(b"weights.bin" * 10)
        assert pair.draft is not None


def test_load_refuses_another_tokenizer(pack: Path) -> None:
    write_manifest(pack, replace(toy_pair().manifest, vocabulary_size=300))
    with pytest.raises(IncompatiblePair, match="has 259 tokens, the pack was exported with 300"):
        load(pack)


def test_load_reports_an_invalid_tokenizer_or_template(pack: Path) -> None:
    (pack / "tokenizer.json").write_text("{}", encoding="utf-8")
    write_manifest(pack, toy_pair().manifest)
    with pytest.raises(ManifestError, match=r"tokenizer\.json is not a tokenizer\.json"):
        load(pack)
    (pack / "chat.jinja").write_bytes(b"\xff")
    write_manifest(pack, replace(toy_pair().manifest, chat_template="chat.jinja"))
    with pytest.raises(ManifestError, match=r"chat template .* cannot be read"):
        load(pack)


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_load_refuses_threads_out_of_range(pack: Path, threads: int) -> None:
    with pytest.raises(InputError, match=f"{threads} threads are out of range"):
        load(pack, threads=threads)


@pytest.mark.parametrize("memory", ["lots", "0", 0, -5])
def test_load_refuses_an_invalid_budget(pack: Path, memory: int | str) -> None:
    with pytest.raises(InputError):
        load(pack, memory=memory)


def test_load_with_too_small_a_budget_shows_the_table(pack: Path) -> None:
    with pytest.raises(BudgetExceeded, match="requested"):
        load(pack, memory="1MB")


def test_load_refuses_external_files_of_a_downloaded_pack(pack: Path, tmp_path: Path) -> None:
    content = (pack / "weights.bin").read_bytes()
    elsewhere = tmp_path / "elsewhere" / "weights.bin"
    elsewhere.parent.mkdir()
    (pack / "weights.bin").rename(elsewhere)
    outside = {"weights.bin": OutsideFile(str(elsewhere), len(content), hashlib.sha256(content).hexdigest())}
    write_manifest(pack, replace(toy_pair().manifest, outside=outside))
    load(pack).close()
    downloaded = tmp_path / "cache" / "packs" / "owner--name"
    downloaded.parent.mkdir(parents=True)
    pack.rename(downloaded)
    with pytest.raises(ManifestError, match=r"downloaded and names files outside itself.*refused.* --copy"):
        load(downloaded)


class OneKvType(TableRuntime):
    """A runtime with int8 keys and values for the target only, which records each role's requested capabilities."""

    def open(self, request: ModelRequest) -> TableModel:
        if "kv:int8" in request.needs and request.name == "draft":
            raise CapabilityError("the draft has no such keys")
        self.needs = {**getattr(self, "needs", {}), request.name: tuple(request.needs)}
        return super().open(replace(request, needs=()))


@pytest.mark.parametrize(
    ("kv_type", "target", "draft"),
    [(None, (), ()), ("float32", ("kv:float32",), ("kv:float32",)), ("int8", ("kv:int8",), ())],
)
def test_load_passes_an_explicit_kv_type_to_the_engine(
    pack: Path, kv_type: str | None, target: tuple[str, ...], draft: tuple[str, ...]
) -> None:
    """float32 as well, which is not every engine's default. The draft may use another type."""
    tables = toy_tables(byte_tokenizer().size, seed=0)
    runtime = OneKvType({"target": tables, "draft": tables}, context=64)
    with load(pack, runtime=runtime, kv_type=kv_type) as pair:
        assert pair.draft is not None
    assert runtime.needs == {"target": target, "draft": draft}


def test_load_refuses_an_unknown_kv_type(pack: Path) -> None:
    with pytest.raises(InputError, match="unknown KV type 'int4': use one of float32, float16, int8"):
        load(pack, kv_type="int4")


@pytest.mark.parametrize(("role", "message"), [("target", "opened without adapters"), ("draft", "is for the draft")])
def test_session_refuses_adapters_that_cannot_be_applied(role: str, message: str) -> None:
    toy = toy_pair()
    entry = AdapterEntry("adapters/formal.gguf", role=role, rank=4, alpha=8.0, modules=("q_proj",))
    manifest = replace(toy.manifest, adapters={"formal": entry})
    runtime = TableRuntime({"target": toy_tables(259, seed=0)})
    pair = Pair(manifest, Path(), tokenizer=toy.tokenizer, runtime=runtime, budget=Budget())
    with pytest.raises(CapabilityError, match=message):
        pair.session(SessionOptions(adapter="formal"))
    with pytest.raises(ManifestError, match="has no adapter 'sailor'; it has: formal"):
        pair.session(SessionOptions(adapter="sailor"))
    assert pair.session(SessionOptions(drafter="none")).generate("hello", max_tokens=4).tokens


@pytest.mark.parametrize(
    ("rare", "message"),
    [
        ({"provider": None}, "provider is None: give a value of the type str"),
        ({"draft_on": 3}, "draft_on is 3: give a value of the type str"),
        ({"context": "big"}, "context is 'big': give a value of the type int"),
        ({"context": -5}, "context -5 is too small: the minimum is 1"),
        ({"mmap": "no"}, "mmap is 'no': give a value of the type bool"),
    ],
)
def test_rare_options_of_loading_are_checked(rare: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        edgedecode.LoadOptions(**rare)
    assert str(refusal.value) == message


def test_other_objects_than_rare_options_are_refused() -> None:
    wrong: Any = {"provider": "cpu"}
    for call in (edgedecode.load, edgedecode.plan):
        with pytest.raises(InputError, match="give LoadOptions"):
            call(options=wrong)


def test_a_plan_takes_its_context_from_either_options() -> None:
    pytest.importorskip("onnxruntime")
    rare = edgedecode.LoadOptions(context=1000)
    assert edgedecode.plan(options=rare).memory.choice.context == 1000
    assert edgedecode.plan(session=SessionOptions(context=700), options=rare).memory.choice.context == 700
