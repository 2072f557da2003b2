"""Which engine auto takes: what each says, what was measured, what is kept of it, and what happens without."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from edgedecode import engines
from edgedecode.activations_entry import ActivationsEntry, ProductError
from edgedecode.engine_choice import Candidate, Choice, Speeds, choose
from edgedecode.engine_speeds import MARK, EngineRequest, finding_path, load_speeds, measure_speeds, store_speeds
from edgedecode.engines import default_runtime
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError, RuntimeUnavailable
from edgedecode.factories import Refusal
from edgedecode.manifest import FileEntry, Manifest, ModelEntry
from edgedecode.notices import NOTICES
from edgedecode.pair import Pair, _first_opened
from edgedecode.protocols import Runtime
from edgedecode.testing import TableRuntime, toy_pair, toy_tables

UNABLE, BROKEN = Refusal("no such file"), Refusal("it died with SIGSEGV", broken=True)
FAST, SLOW = Candidate("fast", "1"), Candidate("slow", "2")
NOW = datetime.now(timezone.utc).isoformat(timespec="seconds")


@pytest.mark.parametrize(
    ("candidates", "speeds", "expected", "reason"),
    [
        ([SLOW, FAST], Speeds({"fast": 0.001, "slow": 0.002}), ("fast", "slow"), "fast 1.00 ms, slow 2.00 ms a token"),
        ([FAST, SLOW], Speeds({"fast": 0.001, "slow": 0.001}), ("slow", "fast"), "fast 1.00 ms, slow 1.00 ms a token"),
        ([FAST, SLOW], None, ("slow", "fast"), "not measured yet"),
        ([FAST, SLOW], Speeds({}, {"fast": "it crashed"}), ("slow", "fast"), "fast refused (it crashed)"),
        ([FAST, SLOW], Speeds({"fast": 1.0}, {"slow": "too large"}), ("fast", "slow"), "slow refused (too large)"),
        ([FAST], None, ("fast",), "the only engine"),
        ([FAST, replace(SLOW, version=None)], None, ("fast",), "slow: it is not installed"),
        ([FAST, replace(SLOW, refusal=UNABLE)], Speeds({"slow": 0.1}), ("fast",), "slow: no such file"),
        ([replace(FAST, refusal=UNABLE), replace(SLOW, version=None)], None, (), "fast: no such file; slow: it is not"),
        ([], None, (), ""),
    ],
)
def test_the_fastest_that_is_able(
    candidates: list[Candidate], speeds: Speeds | None, expected: tuple[str, ...], reason: str
) -> None:
    choice = choose(candidates, speeds=speeds, preferred="slow")
    assert choice.names == expected
    assert reason in choice.reason
    assert choice.broken == ()


def test_an_engine_that_does_not_run_is_told_of() -> None:
    choice = choose([FAST, replace(SLOW, refusal=BROKEN)], speeds=None, preferred="slow")
    assert choice == Choice(("fast",), "slow: it died with SIGSEGV", ("it died with SIGSEGV",))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """The notices of this test."""
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


def path_of(manifest: Manifest, request: EngineRequest | None = None, **versions: str) -> Path:
    path = finding_path(manifest, request or EngineRequest(), versions=versions or {"fast": "1", "slow": "2"})
    assert path is not None
    return path


def test_a_finding_is_kept_for_these_weights_engines_and_settings() -> None:
    manifest = toy_pair().manifest
    weights = manifest.models["target"].weights
    one, other = ({weights: FileEntry(1, digest)} for digest in ("aa", "bb"))
    paths = [
        path_of(replace(manifest, files=one)),
        path_of(replace(manifest, files=other)),
        path_of(replace(manifest, files=one), fast="1", slow="3"),
        *(path_of(replace(manifest, files=one), EngineRequest(**{name: value})) for name, value in SETTINGS.items()),  # type: ignore[arg-type]
    ]
    assert len(set(paths)) == len(paths)
    assert path_of(replace(manifest, files=one)) == paths[0]
    store_speeds(paths[0], Speeds({"fast": 0.25}, {}, NOW))
    assert load_speeds(paths[0]) == Speeds({"fast": 0.25}, {}, NOW)
    assert load_speeds(paths[1]) is None


SETTINGS = {"provider": "gpu", "threads": 3, "kv_type": "int8", "memory": 10**9}


def test_damage_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    negative = json.dumps({"seconds": {"fast": -1}, "refused": {}, "taken": NOW})
    for damage in ("", "{", "[]", "[1]", '{"seconds": 1, "refused": {}}', negative, "\x00"):
        path.write_text(damage)
        assert load_speeds(path) is None


def test_a_refusal_is_asked_again_the_next_day(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    for hours, kept in ((1, True), (30, False)):
        taken = (datetime.now(timezone.utc) - timedelta(hours=hours)).isoformat()
        speeds = Speeds({"fast": 1.0}, {"slow": "the disk is full"}, taken)
        store_speeds(path, speeds)
        assert load_speeds(path) == (speeds if kept else None)


def child(*lines: str) -> tuple[str, ...]:
    """Return a child that runs these lines, with `say(event)` and the engines it was asked for in `names`."""
    head = "import json, os, signal, sys; names = json.loads(sys.argv[1])['engines']"
    say = f"def say(**event): print({MARK!r} + json.dumps(event), flush=True)"
    return (sys.executable, "-c", "\n".join([head, say, *lines]))


def measured(*lines: str) -> Speeds:
    return measure_speeds(Path(), ["fast", "slow"], EngineRequest(), python=child(*lines))


def test_the_median_of_the_turns_is_the_speed(heard: list[str]) -> None:
    speeds = measured(
        "say(notice='made a file')",
        "[say(engine=name, seconds=number) for number in (1, 9, 2) for name in names]",
        "print('something else')",
    )
    assert (speeds.seconds, speeds.refused) == ({"fast": 2.0, "slow": 2.0}, {})
    assert heard == ["made a file"]
    assert datetime.fromisoformat(speeds.taken)


def test_a_refusal_of_one_leaves_the_other() -> None:
    speeds = measured("say(engine='fast', refused='no memory'); say(engine='slow', seconds=1)")
    assert (speeds.seconds, speeds.refused) == ({"slow": 1.0}, {"fast": "no memory"})


@pytest.mark.skipif(sys.platform == "win32", reason="signals by name")
def test_a_crash_costs_only_the_engine_whose_turn_it_was() -> None:
    speeds = measured(
        "say(engine='slow', seconds=1); 'fast' in names and say(engine='fast')",
        "'fast' in names and os.kill(os.getpid(), signal.SIGSEGV)",
    )
    assert speeds.seconds == {"slow": 1.0}
    assert speeds.refused == {"fast": "its native code died with SIGSEGV"}


def test_a_child_that_always_fails_ends_with_no_engine() -> None:
    speeds = measured("sys.exit(7)")
    assert speeds.seconds == {}
    assert speeds.refused == dict.fromkeys(("fast", "slow"), "its process ended with 7")
    absent = measure_speeds(Path(), ["fast"], EngineRequest(), python=("/no/such/python",))
    assert "could not be measured" in absent.refused["fast"]


class Factory:
    """What an entry point names, of an engine that says these things."""

    def __init__(self, version: str | None = "1", refusals: Mapping[str, Refusal] | None = None) -> None:
        self._version, self._refusals = version, refusals or {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self) -> Runtime:
        raise AssertionError("an engine was made only to be asked")

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
        monkeypatch.setattr(engines, "installed", lambda group: factories)
        monkeypatch.setattr(engines, "find_factory", lambda name: factories[name])
        monkeypatch.setattr(engines, "measure_speeds", None)  # whoever measures fails

    return install


def chosen(request: EngineRequest | None = None, *, asked: bool = False) -> tuple[str, ...]:
    return engines.chosen_engines(toy_pair().manifest, Path(), request or EngineRequest(), asked=asked)


def test_one_engine_is_taken_without_measuring(install: Install, heard: list[str]) -> None:
    install(llama=Factory(None), onnx=Factory())
    assert chosen() == ("onnx",)
    assert heard == []
    assert chosen(asked=True) == ("onnx",)
    assert heard == ["decoding on onnx (llama: it is not installed)"]


def test_an_engine_that_died_is_told_of_unasked(install: Install, heard: list[str]) -> None:
    install(llama=Factory(refusals={"target": BROKEN}), onnx=Factory())
    assert chosen() == ("onnx",)
    assert heard == ["decoding on onnx (it died with SIGSEGV)"]


def test_the_draft_counts_and_a_kv_type_narrows_for_the_target(install: Install) -> None:
    llama, onnx = Factory(refusals={"draft": UNABLE}), Factory()
    install(llama=llama, onnx=onnx)
    assert chosen(EngineRequest(kv_type="int8")) == ("onnx",)
    assert llama.asked == onnx.asked == [("target", ("kv:int8",)), ("draft", ())]


def test_a_target_that_needs_16_bit_activations_gets_an_engine_that_has_them(install: Install) -> None:
    manifest = toy_pair().manifest
    target = manifest.models["target"]
    found = {}
    for bits, wide in (("8", ()), ("16", ("head",))):
        activations = ActivationsEntry("auto", wide, {"head": ProductError(0.3, 0.001)})
        models = {**manifest.models, "target": replace(target, activations=activations)}
        asked = replace(manifest, models=models), Path(), EngineRequest()
        install(llama=Factory(), onnx=Factory())
        found[bits] = engines.known_choice(*asked).names
        install(llama=Factory(), onnx=Factory(None))
        assert engines.known_choice(*asked).names == ("llama",), "rather than none"
    assert found == {"8": ("onnx", "llama"), "16": ("onnx",)}


def test_no_engine_at_all(install: Install) -> None:
    install(llama=Factory(None), onnx=Factory(None))
    with pytest.raises(RuntimeUnavailable, match=r"no engine is installed: pip install 'edgedecode\[onnx\]'"):
        chosen()
    install(llama=Factory(None), onnx=Factory(refusals={"target": UNABLE}))
    assert chosen() == ("onnx",), "its own refusal says most"
    install(llama=Factory(refusals={"target": BROKEN}), onnx=Factory(refusals={"target": UNABLE}))
    with pytest.raises(CapabilityError, match="llama: it died with SIGSEGV; onnx: no such file"):
        chosen()


def test_two_are_measured_once(install: Install, heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    install(llama=Factory(), onnx=Factory())
    calls: list[object] = []

    def measure(root: Path, names: list[str], request: EngineRequest) -> Speeds:
        calls.append(names)
        return Speeds({"llama": 0.001, "onnx": 0.002}, {}, NOW)

    monkeypatch.setattr(engines, "measure_speeds", measure)
    known = engines.known_choice(toy_pair().manifest, Path(), EngineRequest())
    assert (known.names, calls) == (("onnx", "llama"), []), "devices does not measure"
    assert chosen() == chosen() == ("llama", "onnx")
    assert calls == [["llama", "onnx"]]
    assert heard == ["measured the engines on this pack, once: llama 1.00 ms, onnx 2.00 ms a token; decoding on llama"]
    known = engines.known_choice(toy_pair().manifest, Path(), EngineRequest())
    assert known.names == ("llama", "onnx")
    assert known.reason.endswith(f"a token, measured {NOW}")
    engines.known_choice(toy_pair().manifest, Path(), EngineRequest(), measure=True)
    assert len(calls) == 2


def test_what_cannot_be_kept_is_not_measured(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be measured at every start."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file" / "cache"))
    install(llama=Factory(), onnx=Factory())
    assert chosen() == ("onnx", "llama")


@pytest.mark.parametrize("error", [BudgetExceeded("too large", table=""), CapabilityError("too large")])
def test_an_engine_that_does_not_fit_leaves_it_to_the_next(
    error: Exception, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Runtime] = {name: TableRuntime({"target": toy_tables(259, seed=0)}) for name in ("one", "two")}
    monkeypatch.setattr("edgedecode.pair.find_runtime", lambda name: made[name])
    pair = toy_pair()

    def opened(engine: Runtime) -> Pair:
        if engine is made["one"]:
            raise error
        return pair

    assert _first_opened(("one", "two"), opened) is pair
    assert heard == ["one cannot run this pack here (too large); decoding on two"]
    with pytest.raises(type(error)):
        _first_opened(("one",), opened)


def test_the_variable_names_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_RUNTIME", "")
    assert default_runtime() == "auto"
    monkeypatch.setenv("EDGEDECODE_RUNTIME", "abacus")
    with pytest.raises(InputError, match=r"EDGEDECODE_RUNTIME is 'abacus', which is no engine here: set one of .*auto"):
        default_runtime()
