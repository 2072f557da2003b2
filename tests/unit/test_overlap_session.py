"""Sessions whose draft model has a device of its own: when devices differ, and what a user sees of the overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from edgedecode.bench.measure.timed import TimedRuntime
from edgedecode.decoding.beside import THREAD, Stop
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import FixedLength, Plan
from edgedecode.decoding.stats import FinishReason
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.engines.interface import Device, ModelRequest
from edgedecode.engines.wrappers.one_resident import OneResident
from edgedecode.engines.wrappers.placed import Place, PlacedRuntime, devices_differ
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.schedule.scheduler import Scheduler
from edgedecode.sessions import session_drafting
from edgedecode.sessions.session import Session
from tests.toys import ascii_pair, drafting_threads

WARM = SamplingOptions(temperature=0.9, top_k=30)


class Engine:
    """An engine that lists devices and opens nothing."""

    def __init__(self, name: str, *devices: Device) -> None:
        self.name, self._devices = name, devices

    def devices(self) -> Sequence[Device]:
        return self._devices

    def open(self, request: ModelRequest) -> NoReturn:
        raise NotImplementedError

    footprint = open


ENGINE = Engine(
    "onnx",
    Device("onnx", "cpu", "", available=True),
    Device("onnx", "openvino:cpu", "", available=True),
    Device("onnx", "openvino:npu", "", available=True),
    Device("onnx", "qnn", "", available=True, emulated=True),
    Device("onnx", "webgpu", "", available=False),
    Device("onnx", "vulkan0", "", available=True),
)


@pytest.mark.parametrize(
    ("target", "draft", "differ"),
    [
        ("cpu", "cpu", False),
        ("cpu", "openvino:npu", True),
        ("openvino:npu", "cpu", True),
        ("cpu", "openvino:cpu", False),
        ("cpu", "openvino", False),  # whichever device that is
        ("cpu", "qnn", False),  # an emulator, on the same cores
        ("cpu", "webgpu", False),
        ("vulkan0", "cpu", True),
        ("vulkan0:20", "cpu", False),  # the other layers are on the processor
        ("vulkan0", "openvino:npu", False),  # two names, perhaps of one device
    ],
)
def test_devices_differ_only_if_one_alone_is_on_the_processor(target: str, draft: str, differ: bool) -> None:
    placed = PlacedRuntime(ENGINE, Engine("llama", *ENGINE.devices()), place=Place("llama", draft))
    assert devices_differ(placed, target) == differ
    assert devices_differ(TimedRuntime(placed), target) == differ
    assert not devices_differ(OneResident(placed), target)
    assert not devices_differ(ENGINE, target)


@pytest.mark.parametrize("rule", [Rule.MATCH, Rule.RATIO])
@pytest.mark.parametrize("differ", [False, True])
def test_scheduler_is_told_whether_devices_differ(differ: bool, rule: Rule) -> None:
    pair = ascii_pair()
    pair.shared.devices_differ = differ
    drafting = pair.session(SessionOptions(drafter="model", sampling=WARM, rule=rule))._drafts.drafting
    assert drafting is not None
    assert isinstance(drafting.policy, Scheduler)
    assert drafting.policy.options.separate == (differ and rule is Rule.MATCH)


@pytest.fixture
def ran_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Overlap in every round of a fixed draft length; the names of the threads that drafted ahead."""
    names: list[str] = []
    ahead = ModelDrafter.ahead

    def noted(self: ModelDrafter, draft: Draft, limit: int, rng: UniformSource, *, plan: Plan, stop: Stop) -> None:
        names.append(threading.current_thread().name)
        ahead(self, draft, limit, rng, plan=plan, stop=stop)

    monkeypatch.setattr(ModelDrafter, "ahead", noted)
    monkeypatch.setattr(session_drafting, "fixed_policy", lambda longest, *, trees: FixedLength(longest, ahead=True))
    yield names
    assert {*names} == {THREAD}
    assert not drafting_threads()


OVERLAPPED: dict[str, object] = {"drafter": "model", "draft_max": 4}
PLAIN: dict[str, object] = {"drafter": "none"}


def opened(pair: Pair, way: dict[str, object], **options: object) -> Session:
    return pair.session(SessionOptions(seed=3, **way, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
def test_conversation_with_overlap_has_the_text_of_plain_decoding(
    sampling: SamplingOptions | None, ran_ahead: list[str]
) -> None:
    pair = ascii_pair(noise=0.3)
    plain, made = (opened(pair, way, sampling=sampling) for way in (PLAIN, OVERLAPPED))
    for prompt in ("hello", "and now?", "more"):
        assert made.generate(prompt, max_tokens=40).text == plain.generate(prompt, max_tokens=40).text
    assert ran_ahead


@pytest.mark.parametrize("place", [4, 11, 26])
def test_stop_string_with_overlap_ends_the_answer_there(place: int, ran_ahead: list[str]) -> None:
    pair = ascii_pair(noise=0.3)
    text = opened(pair, PLAIN).generate("hello", max_tokens=40).text
    made = opened(pair, OVERLAPPED)
    done = made.generate("hello", max_tokens=40, stop=[text[place : place + 2]])
    assert done.text == text[: text.index(text[place : place + 2])]
    assert done.finish_reason is FinishReason.STOP


def test_session_closed_in_an_answer_releases_all_memory(ran_ahead: list[str]) -> None:
    pair = ascii_pair(noise=0.3)
    made = opened(pair, OVERLAPPED)
    stream = made.stream("hello", max_tokens=60)
    for _ in range(3):
        next(stream)
    made.close()
    assert not [lease for lease in pair.budget.leases if lease.name.startswith("kv:") and lease.nbytes]
    assert ran_ahead


def test_cancelled_answer_leaves_the_session_usable(ran_ahead: list[str]) -> None:
    pair = ascii_pair(noise=0.3)
    texts = []
    for way in (PLAIN, OVERLAPPED):
        made = opened(pair, way)
        heard = ""
        for chunk in (stream := made.stream("hello", max_tokens=60)):
            heard += chunk.text
            if len(heard) >= 12:
                stream.close()
        made.reset()
        texts.append(made.generate("again", max_tokens=30).text)
    assert texts[0] == texts[1]
    assert ran_ahead


def test_sessions_of_several_threads_share_the_models(ran_ahead: list[str]) -> None:
    pair = ascii_pair(noise=0.3)

    def answer(way: dict[str, object]) -> str:
        return opened(pair, way).generate("hello", max_tokens=60).text

    plain = answer(PLAIN)
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(answer, [OVERLAPPED] * 8)} == {plain}
    assert ran_ahead
