"""Placement: target and draft on different engines, or on different providers of one engine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import CapabilityError, InputError
from edgedecode.sampling.row_draw import RowDraw, row_draw_of

from .interface import NO_MMAP, NO_REPACK, Device, ModelFootprint, ModelRequest, PlanningRuntime, Runtime
from .registry import RUNTIMES, find_runtime, installed

PROCESSOR = "cpu"
TARGET = "target"


@dataclass(frozen=True, slots=True)
class Place:
    """An engine, and the provider of it: "llama", "onnx:webgpu", "onnx:openvino:npu"."""

    runtime: str
    provider: str = PROCESSOR

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Return the place of this name. Raises InputError for an engine that is not installed."""
        runtime, _, provider = text.partition(":")
        if runtime not in (known := installed(RUNTIMES)):
            raise InputError(
                f"there is no engine {runtime!r}; write ENGINE or ENGINE:PROVIDER, with one of: {', '.join(known)}"
            )
        return cls(runtime, provider or PROCESSOR)

    def __str__(self) -> str:
        return self.runtime if self.provider == PROCESSOR else f"{self.runtime}:{self.provider}"


class PlacedRuntime:
    """Implements `Runtime` and `PlanningRuntime`: opens the target on one engine and the draft at another place.

    It has the target's name, since it answers with the target's results. target: opens models on the provider that the
    request names.
    """

    def __init__(self, target: Runtime, draft: Runtime, *, place: Place) -> None:
        for engine in (target, draft):
            if not isinstance(engine, PlanningRuntime):
                raise CapabilityError(
                    f"the engine {engine.name} cannot plan memory, so it cannot share a budget with another engine"
                )
        self._target, self._draft, self._place = target, draft, place

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def draft_name(self) -> str:
        """The name of the draft's engine."""
        return self._draft.name

    @property
    def draft_place(self) -> str:
        """The draft's engine and provider."""
        return str(self._place)

    def devices(self) -> Sequence[Device]:
        return self._target.devices()

    def row_draw(self) -> RowDraw:
        """Return the target's engine's helper that draws tokens."""
        return row_draw_of(self._target)

    def open(self, request: ModelRequest) -> LanguageModel:
        if request.name == TARGET:
            return self._target.open(request)
        return self._draft.open(self._placed(request))

    def footprint(self, request: ModelRequest) -> ModelFootprint:
        engine = self._target if request.name == TARGET else self._draft
        assert isinstance(engine, PlanningRuntime)
        return engine.footprint(request if request.name == TARGET else self._placed(request))

    def _placed(self, request: ModelRequest) -> ModelRequest:
        """Return the draft's request for its own provider. How weights are loaded was asked of the target's engine."""
        needs = tuple(request.needs)
        if self._draft.name != self._target.name:
            needs = tuple(need for need in needs if need not in {NO_MMAP, NO_REPACK})
        return replace(request, provider=self._place.provider, needs=needs)


def place_draft(target: Runtime, place: Place | None) -> Runtime:
    """Return an engine that opens the draft at `place`; None: next to the target.

    Raises RuntimeUnavailable if the draft's engine cannot be loaded, CapabilityError if either cannot plan memory.
    """
    if place is None:
        return target
    draft = target if place.runtime == target.name else find_runtime(place.runtime)
    return PlacedRuntime(target, draft, place=place)
