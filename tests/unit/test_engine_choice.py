"""The choice of an engine by "auto": capabilities, what is said of the others, and fallbacks."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.engines import selection
from edgedecode.engines.engine_factory import Refusal
from edgedecode.engines.interface import NO_MMAP, Runtime
from edgedecode.engines.selection import Choice, EngineRequest, default_runtime
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError, RuntimeUnavailable
from edgedecode.open_pack import _open_on_first
from edgedecode.pack.entries import ActivationsEntry, ProductError
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pair import Pair
from edgedecode.testing import TableRuntime, toy_pair, toy_tables
from edgedecode.user_notices import NOTICES

UNABLE, BROKEN = Refusal("no such file"), Refusal("it died with SIGSEGV", told=True)


@pytest.fixture
def notices() -> Iterator[list[str]]:
    """Collect the notices of this test."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger(NOTICES), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


class Factory:
    """An engine's factory with the given version and refusals."""

    def __init__(self, version: str | None = "1", refusals: Mapping[str, Refusal] | None = None) -> None:
        self._version, self._refusals = version, refusals or {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self) -> Runtime:
        raise AssertionError("an engine was created only for its version or refusal")

    def engine_version(self) -> str | None:
        return self._version

    def refusal(
        self, entry: ModelEntry, root: Path, *, name: str, provider: str, needs: Collection[str]
    ) -> Refusal | None:
        self.asked.append((name, tuple(needs)))
        return self._refusals.get(name)


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(**factories: Factory) -> None:
        monkeypatch.setattr(selection, "installed", lambda group: factories)
        monkeypatch.setattr(selection, "find_factory", lambda name: factories[name])

    return install


def chosen(request: EngineRequest | None = None, *, asked: bool = False) -> str:
    return selection.first_engine(toy_pair().manifest, Path(), request or EngineRequest(), asked=asked)


def others(first: str) -> tuple[str, ...]:
    return selection.other_engines(toy_pair().manifest, Path(), EngineRequest(), first=first)


def choice(manifest: Manifest | None = None) -> Choice:
    return selection.engine_choice(manifest or toy_pair().manifest, Path(), EngineRequest())


def test_onnx_runtime_comes_first_where_it_can_run_the_pack(install: Install, notices: list[str]) -> None:
    llama = Factory()
    install(llama=llama, onnx=Factory())
    assert chosen() == "onnx"
    assert llama.asked == [], "no module of the others is imported"
    assert (chosen(asked=True), others("onnx")) == ("onnx", ("llama",))
    assert choice() == Choice(("onnx", "llama"), "rather than llama")
    assert notices == []
    install(llama=Factory(), onnx=Factory(refusals={"target": UNABLE}))
    assert (chosen(), others("llama")) == ("llama", ())
    assert choice() == Choice(("llama",), "onnx: no such file")


def test_an_engine_that_is_not_installed_is_named_only_if_auto_was_asked_for(
    install: Install, notices: list[str]
) -> None:
    install(llama=Factory(None), onnx=Factory())
    assert (chosen(), others("onnx")) == ("onnx", ())
    assert notices == []
    assert chosen(asked=True) == "onnx"
    assert notices == ["decoding on onnx (llama: it is not installed)"]


def test_an_engine_that_does_not_run_is_reported_where_it_was_asked(install: Install, notices: list[str]) -> None:
    install(llama=Factory(refusals={"target": BROKEN}), onnx=Factory())
    assert chosen() == "onnx"
    assert notices == []
    assert chosen(asked=True) == "onnx"
    assert notices == ["decoding on onnx (llama: it died with SIGSEGV)"]
    install(other=Factory(), onnx=Factory(refusals={"target": BROKEN}))
    assert chosen() == "other"
    assert notices[1:] == ["decoding on other (it died with SIGSEGV)"]


def test_an_engine_must_support_the_draft_and_the_targets_kv_type(install: Install) -> None:
    llama, onnx = Factory(refusals={"draft": UNABLE}), Factory()
    install(llama=llama, onnx=onnx)
    assert chosen(EngineRequest(kv_type="int8"), asked=True) == "onnx"
    assert llama.asked == onnx.asked == [("target", ("kv:int8",)), ("draft", ())]
    chosen(EngineRequest(loading=(NO_MMAP,)), asked=True)
    assert onnx.asked[2:] == [("target", (NO_MMAP,)), ("draft", (NO_MMAP,))]


def test_an_engine_with_16_bit_activations_is_taken_if_needed(install: Install) -> None:
    manifest = toy_pair().manifest
    target = manifest.models["target"]
    found = {}
    for bits, wide in (("8", ()), ("16", ("head",))):
        activations = ActivationsEntry("auto", wide, {"head": ProductError(0.3, 0.001)})
        models = {**manifest.models, "target": replace(target, activations=activations)}
        asked = replace(manifest, models=models)
        install(llama=Factory(), onnx=Factory())
        found[bits] = choice(asked).names
        install(llama=Factory(), onnx=Factory(None))
        assert choice(asked).names == ("llama",), "8-bit activations rather than no engine"
    assert found == {"8": ("onnx", "llama"), "16": ("onnx",)}


def test_no_usable_engine_are_an_error(install: Install) -> None:
    install(llama=Factory(None), onnx=Factory(None))
    with pytest.raises(RuntimeUnavailable, match=r"no engine is installed: pip install 'edgedecode\[onnx\]'"):
        chosen()
    install(llama=Factory(None), onnx=Factory(refusals={"target": UNABLE}))
    assert chosen() == "onnx", "loading it reports the refusal in full"
    install(llama=Factory(refusals={"target": BROKEN}), onnx=Factory(refusals={"target": UNABLE}))
    with pytest.raises(CapabilityError, match="llama: it died with SIGSEGV; onnx: no such file"):
        chosen()


@pytest.mark.parametrize(
    "error", [BudgetExceeded("too large", "buy more", table="a table"), CapabilityError("too large")]
)
def test_open_on_first_falls_back_to_the_next_engine(
    error: Exception, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Runtime] = {name: TableRuntime({"target": toy_tables(259, seed=0)}) for name in ("one", "two")}
    monkeypatch.setattr("edgedecode.open_pack.find_runtime", lambda name: made[name])
    pair = toy_pair()

    def opened(engine: Runtime) -> Pair:
        if engine is made["one"]:
            raise error
        return pair

    assert _open_on_first("one", opened, others=lambda: ("two",)) is pair
    assert notices == ["one cannot run this pack here (too large); trying two"]
    with pytest.raises(type(error)):
        _open_on_first("one", opened, others=tuple)


def test_default_runtime_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_RUNTIME", "")
    assert default_runtime() == "auto"
    monkeypatch.setenv("EDGEDECODE_RUNTIME", "abacus")
    with pytest.raises(
        InputError, match=r"EDGEDECODE_RUNTIME is 'abacus', which is not an engine here: set one of .*auto"
    ):
        default_runtime()
