"""The choice of an engine by "auto": capabilities, measured speeds, the cached result, and fallbacks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from edgedecode.engines import selection
from edgedecode.engines.child import interpreter
from edgedecode.engines.engine_choice import SLACK_NBYTES, Candidate, Choice, Speeds, choose
from edgedecode.engines.engine_factory import Refusal
from edgedecode.engines.engine_speeds import (
    EngineRequest,
    finding_path,
    load_speeds,
    measure_speeds,
    store_speeds,
)
from edgedecode.engines.interface import NO_MMAP, Runtime
from edgedecode.engines.selection import default_runtime
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError, RuntimeUnavailable
from edgedecode.open_pack import _open_on_first
from edgedecode.pack.entries import ActivationsEntry, FileEntry, ProductError
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pair import Pair
from edgedecode.runtimes.llama.files.engine_probe import Finding, probe_engine
from edgedecode.testing import TableRuntime, toy_pair, toy_tables
from edgedecode.user_notices import NOTICES

UNABLE, BROKEN = Refusal("no such file"), Refusal("it died with SIGSEGV", broken=True)
FAST, SLOW = Candidate("fast", "1"), Candidate("slow", "2")
MB = 10**6
NOW = datetime.now(UTC).isoformat(timespec="seconds")


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
def test_choose_takes_the_fastest_capable_engine(
    candidates: list[Candidate], speeds: Speeds | None, expected: tuple[str, ...], reason: str
) -> None:
    choice = choose(candidates, speeds=speeds, preferred="slow")
    assert choice.names == expected
    assert reason in choice.reason
    assert choice.broken == ()


def test_choose_reports_an_engine_that_does_not_run() -> None:
    choice = choose([FAST, replace(SLOW, refusal=BROKEN)], speeds=None, preferred="slow")
    assert choice == Choice(("fast",), "slow: it died with SIGSEGV", ("it died with SIGSEGV",))


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the memory of the test process: the real figure depends on the tests that ran before."""
    monkeypatch.setattr(selection, "held_nbytes", lambda: 50 * MB)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


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


def path_of(manifest: Manifest, request: EngineRequest | None = None, **versions: str) -> Path:
    path = finding_path(manifest, request or EngineRequest(), versions=versions or {"fast": "1", "slow": "2"})
    assert path is not None
    return path


def test_finding_path_differs_by_weights_engines_and_settings() -> None:
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
    found = Speeds({"fast": 0.25}, {}, NOW, {"fast usual": 7}, {"slow 64": 8})
    store_speeds(paths[0], found)
    assert load_speeds(paths[0]) == found
    assert load_speeds(paths[1]) == load_speeds(None) == Speeds({})


SETTINGS = {"provider": "gpu", "threads": 3, "kv_type": "int8", "loading": (NO_MMAP,)}


def test_finding_path_is_shared_by_budgets_and_contexts() -> None:
    manifest = toy_pair().manifest
    assert len({path_of(manifest, EngineRequest(memory=limit)) for limit in (None, 10**8, 10**9)}) == 1
    assert path_of(manifest, EngineRequest(context=64)) == path_of(manifest)


def test_load_speeds_ignores_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    negative = json.dumps({"seconds": {"fast": -1}, "refused": {}, "taken": NOW})
    for damage in ("", "{", "[]", "[1]", '{"seconds": 1, "refused": {}}', negative, "\x00"):
        path.write_text(damage)
        assert load_speeds(path) == Speeds({})


def test_load_speeds_forgets_a_refusal_after_a_day(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    for hours, kept in ((1, True), (30, False)):
        taken = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
        speeds = Speeds({"fast": 1.0}, {"slow": "the disk is full"}, taken, {"fast usual": 5}, {"slow usual": 9})
        store_speeds(path, speeds)
        assert load_speeds(path) == (speeds if kept else replace(speeds, refused={}, least={}))


def child(*lines: str) -> tuple[str, ...]:
    """Return a child that runs these lines, with `report(event)` and the requested engine in `name`."""
    head = "import json, os, signal, sys; order = json.loads(sys.argv[1]); name = order['engine']"
    report = "from edgedecode.engines.child import tell_parent; report = lambda **event: tell_parent(event)"
    return (sys.executable, "-c", "\n".join([head, report, *lines]))


def measured(*lines: str, request: EngineRequest | None = None, known: Speeds | None = None) -> Speeds:
    names = ["fast", "slow"]
    return measure_speeds(Path(), names, request or EngineRequest(), known=known, python=child(*lines))


def test_measure_speeds_times_each_engine_in_its_own_child_process(notices: list[str], tmp_path: Path) -> None:
    log = tmp_path / "children"
    speeds = measured(
        "report(notice='made a file')",
        f"open({str(log)!r}, 'a').write(f'{{os.getpid()}} {{name}}\\n')",
        "report(needs=7 + order['memory']); report(seconds=2 if name == 'fast' else 3)",
        "print('something else')",
        request=EngineRequest(memory=100),
    )
    assert (speeds.seconds, speeds.refused) == ({"fast": 2.0, "slow": 3.0}, {})
    assert speeds.needs == {"fast usual": 107, "slow usual": 107}, "each engine has the full budget"
    children = [line.split() for line in log.read_text().splitlines()]
    assert [name for _, name in children] == ["fast", "slow"]
    assert len({pid for pid, _ in children}) == 2
    assert notices == ["measuring the engines on this pack (once, some seconds)", "made a file", "made a file"]
    assert datetime.fromisoformat(speeds.taken)


def test_measure_speeds_keeps_one_engine_if_the_other_refuses() -> None:
    speeds = measured("report(refused='no file') if name == 'fast' else report(seconds=1)")
    assert (speeds.seconds, speeds.refused) == ({"slow": 1.0}, {"fast": "no file"})


def test_measure_speeds_does_not_refuse_an_engine_for_one_budget() -> None:
    """The engine's minimum of free bytes is kept for this context length; a longer context is measured again."""
    unfit = "report(least=120) if name == 'fast' else [report(needs=30), report(seconds=1)]"
    speeds = measured(unfit, request=EngineRequest(memory=140, context=64, held=40))
    assert (speeds.seconds, speeds.refused) == ({"slow": 1.0}, {})
    assert speeds.least["fast 64"] == 120
    assert [speeds.fits("fast", context=64, free_nbytes=free) for free in (-5, 100, 119, 120)] == [False] * 3 + [None]
    assert speeds.fits("fast", context=65, free_nbytes=100) is None
    needed = 30 + SLACK_NBYTES
    assert [speeds.fits("slow", context=64, free_nbytes=free) for free in (needed - 1, needed)] == [False, True]
    request = EngineRequest(memory=2 * needed, context=64)
    larger = measured("report(needs=50); order['timed'] and report(seconds=2)", request=request, known=speeds)
    assert (larger.seconds, larger.needs) == ({"fast": 2.0, "slow": 1.0}, {"fast 64": 50, "slow 64": 50})


def test_chosen_engines_measure_again_under_a_smaller_budget(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory used without a budget does not rule an engine out; each result is measured once."""
    install(llama=Factory(), onnx=Factory())
    orders: list[tuple[str, int | None]] = []
    lines = "need = 500 if order['memory'] is None else 300 if name == 'llama' else 100; report(needs=need * 10**6)"
    command = child(lines, "order['timed'] and report(seconds=1 if name == 'llama' else 2)")

    def measure(root: Path, names: list[str], request: EngineRequest, *, known: Speeds) -> Speeds:
        orders.extend((name, request.memory) for name in names)
        return measure_speeds(root, names, request, known=known, python=command)

    monkeypatch.setattr(selection, "measure_speeds", measure)
    assert chosen() == ("llama", "onnx")
    fitting = EngineRequest(memory=560 * MB)
    assert chosen(fitting) == ("llama", "onnx")
    assert orders == [("llama", None), ("onnx", None)]
    smaller = EngineRequest(memory=360 * MB)
    assert chosen(smaller) == chosen(smaller) == chosen(fitting) == ("llama", "onnx")
    assert orders[2:] == [("llama", smaller.memory), ("onnx", smaller.memory)]


def test_chosen_engines_keep_speeds_and_repeat_no_notice_for_a_second_context(
    install: Install, notices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(llama=Factory(), onnx=Factory())
    log = tmp_path / "log"
    log.write_text("")
    command = child(
        f"open({str(log)!r}, 'a').write(f\"{{name}} {{order['context']}} {{order.get('timed', True)}}\\n\")",
        f"report(needs=1000); order.get('timed', True) and report(seconds=len(open({str(log)!r}).read()))",
    )
    monkeypatch.setattr(selection, "measure_speeds", partial(measure_speeds, python=command))
    requests = [EngineRequest(memory=1000 * MB, context=context) for context in (300, 301, 300, 301)]
    path = path_of(toy_pair().manifest, llama="1", onnx="1")
    found = []
    for request in requests:
        assert chosen(request) == ("llama", "onnx")
        found.append(load_speeds(path).seconds)
    assert found == [found[0]] * 4
    assert log.read_text().split("\n")[:-1] == [
        f"{name} {context} {timed}" for context, timed in ((300, True), (301, False)) for name in ("llama", "onnx")
    ]
    texts = [line.partition(" (")[0].partition(",")[0] for line in notices]
    engines_measured = [f"{word} the engines on this pack" for word in ("measuring", "measured")]
    assert texts == [*engines_measured, "measuring the memory of such a session"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals by name")
def test_measure_speeds_rules_out_only_the_engine_that_crashed() -> None:
    speeds = measured(
        "report(seconds=1)",
        "name == 'fast' and os.kill(os.getpid(), signal.SIGSEGV)",
    )
    assert speeds.seconds == {"slow": 1.0}
    assert speeds.refused == {"fast": "its native code died with SIGSEGV"}


def test_measure_speeds_refuses_every_engine_whose_child_fails() -> None:
    speeds = measured("sys.exit(7)")
    assert speeds.seconds == {}
    assert speeds.refused == dict.fromkeys(("fast", "slow"), "it ended with exit code 7")
    absent = measure_speeds(Path(), ["fast"], EngineRequest(), python=("/no/such/python",), known=Speeds({"fast": 1.0}))
    assert "could not be started" in absent.refused["fast"]
    assert absent.seconds == {}, "an earlier measurement is discarded"


@pytest.mark.parametrize("executable", ["/opt/app/app", ""])
def test_frozen_or_embedded_application_starts_no_child(
    executable: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.executable` is the application itself, so the preferred engine is taken unmeasured."""
    monkeypatch.setattr(sys, "frozen", bool(executable), raising=False)
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(subprocess, "run", None)
    install(llama=Factory(), onnx=Factory())
    assert interpreter() is None
    assert chosen() == chosen(EngineRequest(memory=10**9)) == ("onnx", "llama")
    assert measure_speeds(Path(), ["onnx"], EngineRequest()) == Speeds({})
    assert probe_engine("0.0") == Finding(True), "a frozen application brings a wheel that was chosen for it"


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
        monkeypatch.setattr(selection, "measure_speeds", None)  # measuring fails the test

    return install


def chosen(request: EngineRequest | None = None, *, asked: bool = False) -> tuple[str, ...]:
    return selection.chosen_engines(toy_pair().manifest, Path(), request or EngineRequest(), asked=asked)


def test_chosen_engines_do_not_measure_a_single_engine(install: Install, notices: list[str]) -> None:
    install(llama=Factory(None), onnx=Factory())
    assert chosen() == ("onnx",)
    assert notices == []
    assert chosen(asked=True) == ("onnx",)
    assert notices == ["decoding on onnx (llama: it is not installed)"]


def test_chosen_engines_report_a_crashed_engine_unasked(install: Install, notices: list[str]) -> None:
    install(llama=Factory(refusals={"target": BROKEN}), onnx=Factory())
    assert chosen() == ("onnx",)
    assert notices == ["decoding on onnx (it died with SIGSEGV)"]


def test_chosen_engines_must_support_the_draft_and_the_targets_kv_type(install: Install) -> None:
    llama, onnx = Factory(refusals={"draft": UNABLE}), Factory()
    install(llama=llama, onnx=onnx)
    assert chosen(EngineRequest(kv_type="int8")) == ("onnx",)
    assert llama.asked == onnx.asked == [("target", ("kv:int8",)), ("draft", ())]
    chosen(EngineRequest(loading=(NO_MMAP,)))
    assert onnx.asked[2:] == [("target", (NO_MMAP,)), ("draft", (NO_MMAP,))]


def test_known_choice_takes_an_engine_with_16_bit_activations_if_needed(install: Install) -> None:
    manifest = toy_pair().manifest
    target = manifest.models["target"]
    found = {}
    for bits, wide in (("8", ()), ("16", ("head",))):
        activations = ActivationsEntry("auto", wide, {"head": ProductError(0.3, 0.001)})
        models = {**manifest.models, "target": replace(target, activations=activations)}
        asked = replace(manifest, models=models), Path(), EngineRequest()
        install(llama=Factory(), onnx=Factory())
        found[bits] = selection.known_choice(*asked).names
        install(llama=Factory(), onnx=Factory(None))
        assert selection.known_choice(*asked).names == ("llama",), "8-bit activations rather than no engine"
    assert found == {"8": ("onnx", "llama"), "16": ("onnx",)}


def test_chosen_engines_without_a_usable_engine_are_an_error(install: Install) -> None:
    install(llama=Factory(None), onnx=Factory(None))
    with pytest.raises(RuntimeUnavailable, match=r"no engine is installed: pip install 'edgedecode\[onnx\]'"):
        chosen()
    install(llama=Factory(None), onnx=Factory(refusals={"target": UNABLE}))
    assert chosen() == ("onnx",), "loading it reports the refusal in full"
    install(llama=Factory(refusals={"target": BROKEN}), onnx=Factory(refusals={"target": UNABLE}))
    with pytest.raises(CapabilityError, match="llama: it died with SIGSEGV; onnx: no such file"):
        chosen()


def test_chosen_engines_time_two_engines_once(
    install: Install, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(llama=Factory(), onnx=Factory())
    calls: list[object] = []

    def measure(root: Path, names: list[str], request: EngineRequest, *, known: Speeds) -> Speeds:
        calls.append(names)
        return Speeds({"llama": 0.001, "onnx": 0.002}, {}, NOW)

    monkeypatch.setattr(selection, "measure_speeds", measure)
    known = selection.known_choice(toy_pair().manifest, Path(), EngineRequest())
    assert (known.names, calls) == (("onnx", "llama"), []), "`edgedecode devices` does not measure"
    assert chosen() == chosen() == ("llama", "onnx")
    assert calls == [["llama", "onnx"]]
    assert notices == [
        "measured the engines on this pack, once: llama 1.00 ms, onnx 2.00 ms a token; decoding on llama"
    ]
    known = selection.known_choice(toy_pair().manifest, Path(), EngineRequest())
    assert known.names == ("llama", "onnx")
    assert known.reason.endswith(f"a token, measured {NOW}")
    selection.known_choice(toy_pair().manifest, Path(), EngineRequest(), measure=True)
    assert len(calls) == 2


def test_chosen_engines_skip_the_faster_if_a_session_does_not_fit(
    install: Install, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is skipped before it is loaded in this process, and under this budget only."""
    install(llama=Factory(), onnx=Factory())
    asked: list[tuple[int | None, list[str]]] = []
    need = 10**9

    def measure(root: Path, names: list[str], request: EngineRequest, *, known: Speeds) -> Speeds:
        asked.append((request.memory, names))
        limit = request.memory or 10**12
        if "onnx" in names and limit < need:
            known = replace(known, least={"onnx usual": need - 10 - 10**8})
        elif "onnx" in names:
            known = replace(known, seconds={**known.seconds, "onnx": 0.001}, needs={**known.needs, "onnx usual": need})
        if "llama" in names:
            known = replace(known, seconds={**known.seconds, "llama": 0.002}, needs={**known.needs, "llama usual": 1})
        return replace(known, taken=NOW)

    monkeypatch.setattr(selection, "measure_speeds", measure)
    # This process may hold more by now than a fresh one would, and that counts against the budget.
    monkeypatch.setattr(selection, "held_nbytes", lambda: 10**8)
    small, large = EngineRequest(memory=9 * 10**8), EngineRequest(memory=2 * 10**9)
    assert chosen(small) == chosen(EngineRequest(memory=need - 11)) == ("llama", "onnx")
    assert chosen(large) == chosen(large) == chosen() == ("onnx", "llama")
    assert chosen(small) == ("llama", "onnx")
    assert asked == [(small.memory, ["llama", "onnx"]), (large.memory, ["onnx"])]
    assert notices[0].endswith("; decoding on llama (onnx: it does not fit 900.0 MB)")
    assert notices[1].endswith("it does not fit 1000.0 MB)")
    assert notices[-1] == "decoding on llama (onnx: it does not fit 900.0 MB)"
    assert len(notices) == 4, "with room for both, only the measurement is reported"


def test_chosen_engines_prefer_the_one_that_runs_if_no_default_session_fits(
    install: Install, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it is slower. If neither runs, the one that needs the least memory comes first."""
    install(llama=Factory(), onnx=Factory())
    lines = (
        "free = order['memory'] - order['held']",
        "runs, usual = (100, 300) if name == 'llama' else (200, 400)",
        "free < runs * 10**6 or report(runs=(runs - 3) * 10**6)",
        "report(least=(runs if free < runs * 10**6 else usual) * 10**6)",
    )
    monkeypatch.setattr(selection, "measure_speeds", partial(measure_speeds, python=child(*lines)))
    path = path_of(toy_pair().manifest, llama="1", onnx="1")
    for free, names in ((90, ("llama", "onnx")), (150, ("llama", "onnx")), (250, ("llama", "onnx"))):
        assert chosen(EngineRequest(memory=(50 + free) * MB)) == names
    store_speeds(path, replace(load_speeds(path), seconds={"llama": 2.0, "onnx": 1.0}))
    notices.clear()
    for free, names in ((90, ("llama", "onnx")), (150, ("llama", "onnx")), (250, ("onnx", "llama"))):
        assert chosen(EngineRequest(memory=(50 + free) * MB)) == names
    assert notices == ["decoding on llama (onnx: it does not fit 200.0 MB)"]


def test_chosen_engines_do_not_measure_if_the_result_cannot_be_cached(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every start would measure."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file" / "cache"))
    install(llama=Factory(), onnx=Factory())
    assert chosen() == ("onnx", "llama")


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

    assert _open_on_first(("one", "two"), opened) is pair
    assert notices == ["one cannot run this pack here (too large); trying two"]
    with pytest.raises(type(error)):
        _open_on_first(("one",), opened)


def test_default_runtime_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_RUNTIME", "")
    assert default_runtime() == "auto"
    monkeypatch.setenv("EDGEDECODE_RUNTIME", "abacus")
    with pytest.raises(
        InputError, match=r"EDGEDECODE_RUNTIME is 'abacus', which is not an engine here: set one of .*auto"
    ):
        default_runtime()
