"""Adapters on both engines, changed between passes, against numpy models with the delta in their weights."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

import edgedecode
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterModel, AdapterUse, LanguageModel, LowRank
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.runtimes.onnx import onnx_adapters
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.conftest import GgufOpener, Opener, open_entry, skip_without
from tests.contract.reference import assert_close, assert_moved, settled
from tests.contract.toy_graph import LORA_MODULES, LORA_RANK, ToyShape
from tests.contract.toy_numpy import Floats, ToyNumpy

SHAPE = ToyShape(graphs=("base", "lora"))
PACKED = replace(SHAPE, packed=True)
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 128, 60)]
USE = AdapterUse(name="formal", digest="f0")


def width_of(shape: ToyShape, module: str) -> tuple[int, int]:
    """Return a projection's inputs and outputs."""
    query, cache = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes = {"q": (shape.hidden, query), "k": (shape.hidden, cache), "v": (shape.hidden, cache)}
    sizes |= {"o": (query, shape.hidden), "down": (shape.mlp, shape.hidden), "gate_up": (shape.hidden, 2 * shape.mlp)}
    return sizes[module.removesuffix("_proj")]


def adapter(shape: ToyShape, *, seed: int = 0, modules: tuple[str, ...] = LORA_MODULES) -> list[LowRank]:
    """Return a random adapter whose ranks differ between modules."""
    draw = np.random.default_rng(seed)
    found = []
    for layer in range(shape.layers):
        for place, module in enumerate(modules):
            inputs, outputs = width_of(shape, module)
            rank = LORA_RANK - place
            down = draw.standard_normal((rank, inputs), np.float32) / np.float32(inputs**0.5)
            found.append(LowRank(layer, module, down, draw.standard_normal((outputs, rank), np.float32) / 4))
    return found


def deltas(matrices: list[LowRank], scale: float = 1.0) -> dict[str, Floats]:
    """Return the adapter's deltas by the toy's names and in its orientation."""
    found: dict[str, Floats] = {}
    for part in matrices:
        delta = part.product().T.astype(np.float64) * scale
        names = ("gate", "up") if part.module == "gate_up_proj" else (part.module.removesuffix("_proj"),)
        pieces = np.split(delta, len(names), axis=1)
        found |= {f"layer{part.layer}.{name}": piece for name, piece in zip(names, pieces, strict=True)}
    return found


def read(model: LanguageModel, adapter: AdapterUse | None = None) -> FloatArray:
    return model.forward(TOKENS, model.new_state(60), rows="all", adapter=adapter).logits.copy()


@dataclass(frozen=True)
class Engine:
    """A model with adapters on one engine."""

    open: Callable[..., LanguageModel]
    shape: ToyShape
    onnx: bool
    static: bool = False
    provider: str = "cpu"


ENGINES = ("onnx separate", "onnx packed", "static", "openvino", "llama", "qwen2")


def open_static(
    opener: Opener, needs: tuple[str, ...], *, budget: Budget | None = None, provider: str = "cpu"
) -> LanguageModel:
    """Open graphs of fixed width."""
    from tests.contract.static_graph import add_static

    root = opener.root(SHAPE)
    entry = add_static(root, opener.entry(SHAPE), slots=128, widths=(1, 8, 64))
    return open_entry(entry, root, budget=budget or Budget(), needs=needs, provider=provider)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, opener: Opener, gguf_opener: GgufOpener) -> Engine:
    name = request.param
    if name.startswith("onnx"):
        shape = PACKED if name == "onnx packed" else SHAPE
        return Engine(partial(opener, shape, needs=("lora",)), shape, onnx=True)
    if name in {"static", "openvino"}:
        pytest.importorskip("onnx_ir")
        provider = "cpu" if name == "static" else name
        skip_without(provider)
        opened = partial(open_static, opener, ("static", "lora"), provider=provider)
        return Engine(opened, SHAPE, onnx=True, static=True, provider=provider)
    return Engine(partial(gguf_opener, SHAPE, architecture=name, needs=("lora",)), SHAPE, onnx=False)


@pytest.fixture
def shape(engine: Engine) -> ToyShape:
    return engine.shape


@pytest.fixture
def lora(engine: Engine) -> Iterator[LanguageModel]:
    made = engine.open()
    yield made
    made.close()


def held(model: LanguageModel) -> AdapterModel:
    assert isinstance(model, AdapterModel)
    return model


def test_model_without_an_adapter_equals_the_base(opener: Opener, engine: Engine, lora: LanguageModel) -> None:
    base = opener(engine.shape) if engine.onnx else engine.open()
    if engine.static:
        base = open_static(opener, ("static",), provider=engine.provider)
    assert np.array_equal(read(lora), read(base))
    held(lora).add_adapter(USE.digest, adapter(engine.shape))
    read(lora, USE)
    assert np.array_equal(read(lora), read(base))
    base.close()


def test_adapter_is_added_to_the_weights(shape: ToyShape, lora: LanguageModel) -> None:
    matrices = adapter(shape)
    held(lora).add_adapter(USE.digest, matrices)
    found = read(lora, USE)
    assert_close(found, ToyNumpy(shape, deltas(matrices)).logits(TOKENS))
    assert_moved(found, read(lora))


@pytest.mark.parametrize("modules", [("k_proj",), ("q_proj", "v_proj"), ("down_proj", "gate_up_proj")], ids=str)
def test_adapter_may_change_some_projections_only(
    shape: ToyShape, lora: LanguageModel, modules: tuple[str, ...]
) -> None:
    matrices = adapter(shape, modules=modules)[: -len(modules)]  # not in the last layer
    held(lora).add_adapter(USE.digest, matrices)
    assert_close(read(lora, USE), ToyNumpy(shape, deltas(matrices)).logits(TOKENS))


def test_adapter_scales_are_folded_in(shape: ToyShape, lora: LanguageModel) -> None:
    matrices = adapter(shape)
    held(lora).add_adapter(USE.digest, matrices)
    for scale in (1.0, 0.25, 0.25, 2.0, 1.0, 0.0):
        expected = ToyNumpy(shape, deltas(matrices, scale)).logits(TOKENS)
        assert_close(read(lora, replace(USE, scale=scale)), expected)


def test_adapter_may_change_between_passes_of_one_state(engine: Engine, shape: ToyShape, lora: LanguageModel) -> None:
    """Each pass is compared with a fresh state whose last pass only has the adapter."""
    other = AdapterUse(name="pirate", digest="p1")
    held(lora).add_adapter(USE.digest, adapter(shape))
    held(lora).add_adapter(other.digest, adapter(shape, seed=1))
    state = settled(lora, TOKENS[:20], capacity=60)
    for use in (None, USE, other, replace(other, scale=0.5), USE, None, other):
        found = lora.forward(TOKENS[20:25], state, rows="all", adapter=use).logits.copy()
        state.crop(20)
        fresh = settled(lora, TOKENS[:20], capacity=60)
        again = lora.forward(TOKENS[20:25], fresh, rows="all", adapter=use).logits
        assert_close(found, again)
        assert np.array_equal(found, again) or not engine.onnx
        fresh.close()


def test_adapter_on_two_states_with_two_scales(shape: ToyShape, lora: LanguageModel) -> None:
    held(lora).add_adapter(USE.digest, adapter(shape))
    half = replace(USE, scale=0.5)
    whole, halved = read(lora, USE), read(lora, half)
    first, second = lora.new_state(60), lora.new_state(60)
    for start in range(0, 60, 20):
        left = lora.forward(TOKENS[start : start + 20], first, rows="all", adapter=USE).logits.copy()
        right = lora.forward(TOKENS[start : start + 20], second, rows="all", adapter=half).logits.copy()
        assert_close(left, whole[start : start + 20])
        assert_close(right, halved[start : start + 20])


def test_adapter_scales_are_leased_while_in_use(engine: Engine, shape: ToyShape) -> None:
    """The copy of a scale is shared by the states it is bound to and released with the last of them."""
    budget = Budget()
    model = engine.open(budget=budget)
    assert isinstance(model, AdapterModel)

    def leased() -> int:
        return sum(lease.nbytes for lease in budget.leases if lease.name.startswith("adapter:"))

    matrices = adapter(shape)
    model.add_adapter(USE.digest, matrices)
    plain = leased()
    assert plain >= sum(part.down.nbytes + part.up.nbytes for part in matrices)
    half, quarter = replace(USE, scale=0.5), replace(USE, scale=0.25)
    kept = model.prepare_adapter(half)
    copy = leased() - plain
    assert (copy > 0) == engine.onnx
    model.prepare_adapter(quarter)
    assert leased() == plain + copy
    states = [model.new_state(60) for _ in range(4)]
    for state, use in zip(states, (half, half, quarter, USE), strict=True):
        model.forward(TOKENS[:5], state, adapter=use)
        state.keep(range(5))
    assert leased() == plain + 2 * copy
    del kept
    model.forward(TOKENS[:5], states[2], adapter=half)
    assert leased() == plain + copy
    states[0].close()
    assert leased() == plain + copy
    model.remove_adapter(USE.digest, scale=0.5)
    assert leased() == plain
    whole = model.forward(TOKENS[5:9], states[3], adapter=USE).logits.copy()
    budget.limit = Limit(budget.used_nbytes + copy // 2)
    if engine.onnx:
        with pytest.raises(BudgetExceeded):
            model.prepare_adapter(half)
    with pytest.raises(BudgetExceeded, match="the adapter target p1"):
        model.add_adapter("p1", matrices)
    states[3].crop(5)
    assert np.array_equal(model.forward(TOKENS[5:9], states[3], adapter=USE).logits, whole)
    model.remove_adapter(USE.digest)
    assert leased() == 0
    model.close()


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e39, 3e38])
@pytest.mark.filterwarnings("error")
def test_adapter_scales_without_finite_results_are_refused(engine: Engine, lora: LanguageModel, scale: float) -> None:
    held(lora).add_adapter(USE.digest, [replace(part, up=part.up * 8) for part in adapter(engine.shape)])
    if not engine.onnx and scale < float("inf"):
        pytest.skip("llama.cpp multiplies the products")
    with pytest.raises(InputError, match="scale must be a finite number"):
        held(lora).prepare_adapter(replace(USE, scale=scale))
    state = lora.new_state(8)
    with pytest.raises(InputError, match="scale must be a finite number"):
        lora.forward([1], state, adapter=replace(USE, scale=scale))
    lora.forward([1], state, adapter=USE)


def test_adapter_matrices_are_freed_after_removal_and_close(opener: Opener) -> None:
    model = opener(PACKED, needs=("lora",))
    states = [model.new_state(60) for _ in range(3)]

    def matrices() -> list[object]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is onnx_adapters._Matrices]  # runs no code of theirs

    def live() -> int:
        return len(matrices())

    others = matrices()  # those of other tests stay until this one ends
    none = len(others)
    held(model).add_adapter(USE.digest, adapter(PACKED))
    for state, scale in zip(states, (1.0, 0.5, 0.25), strict=True):
        model.forward(TOKENS[:5], state, adapter=replace(USE, scale=scale))
    all_of_them = live() - none
    states[2].close()
    assert live() - none == all_of_them * 2 // 3
    held(model).remove_adapter(USE.digest)
    assert live() == none
    model.forward(TOKENS[5:9], states[0])


def test_adapter_of_the_same_digest_is_replaced(shape: ToyShape, lora: LanguageModel) -> None:
    held(lora).add_adapter(USE.digest, adapter(shape))
    state = settled(lora, TOKENS[:20], capacity=60)
    before = lora.forward(TOKENS[20:25], state, rows="all", adapter=USE).logits.copy()
    held(lora).add_adapter(USE.digest, adapter(shape, seed=1))
    state.crop(20)
    after = lora.forward(TOKENS[20:25], state, rows="all", adapter=USE).logits.copy()
    assert_moved(before, after)


def test_adapter_that_is_not_loaded_is_refused(shape: ToyShape, lora: LanguageModel) -> None:
    state = lora.new_state(8)
    with pytest.raises(CapabilityError, match="holds no adapter 'formal'"):
        lora.forward([1], state, adapter=USE)
    held(lora).add_adapter(USE.digest, adapter(shape))
    lora.forward([1], state, adapter=USE)
    held(lora).remove_adapter(USE.digest)
    held(lora).remove_adapter(USE.digest)
    with pytest.raises(CapabilityError, match="holds no adapter 'formal'"):
        lora.forward([1], state, adapter=USE)
    assert state.pending == 1


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        (LowRank(0, "gate_proj", np.ones((2, 64), np.float32), np.ones((96, 2), np.float32)), CapabilityError, "gate"),
        (LowRank(9, "o_proj", np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)), CapabilityError, "layer 9"),
        (LowRank(0, "o_proj", np.ones((9, 64), np.float32), np.ones((64, 9), np.float32)), CapabilityError, "rank 9"),
        (LowRank(0, "o_proj", np.ones((2, 65), np.float32), np.ones((64, 2), np.float32)), InputError, "another model"),
        (LowRank(0, "k_proj", np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)), InputError, "another model"),
        (LowRank(0, "o_proj", np.ones((2, 64), np.float32), np.ones((64, 3), np.float32)), InputError, "do not fit"),
        (LowRank(0, "gate_up_proj", np.ones((2, 64), np.float32), np.ones((193, 2), np.float32)), InputError, "97"),
    ],
    ids=["module", "layer", "rank", "inputs", "outputs", "ranks differ", "stack"],
)
def test_adapter_matrices_that_do_not_fit_are_refused(
    engine: Engine, lora: LanguageModel, part: LowRank, error: type[Exception], words: str
) -> None:
    if not engine.onnx and words in ("gate", "rank 9"):
        pytest.skip("llama.cpp takes any rank, and its file stores the gate separately")
    with pytest.raises(error, match=words):
        held(lora).add_adapter(USE.digest, [part])


def test_adapter_on_a_graph_without_adapter_inputs_is_refused(opener: Opener) -> None:
    model = opener(SHAPE)
    with pytest.raises(CapabilityError, match="no adapter inputs: export it with"):
        held(model).add_adapter(USE.digest, adapter(SHAPE))
    held(model).add_adapter(USE.digest, [])
    with pytest.raises(CapabilityError, match="no adapter inputs"):
        model.forward([1], model.new_state(4), adapter=USE)


@pytest.mark.skipif(tried()[0] is None, reason="no kernels of ours here")
def test_adapter_matrices_of_float16_values_are_stored_as_float16_with_identical_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our products store float16 where every value is exactly representable, else float32; a scale may decide this."""
    inputs, outputs = 256, 256

    def reading(*, third: bool, wide: bool, scale: float = 1.0) -> tuple[bytes, int]:
        draw = np.random.default_rng(3)
        down = draw.integers(-512, 512, (16, inputs)).astype(np.float32) / 2048
        up = draw.integers(-512, 512, (outputs, 16)).astype(np.float32) / np.float32(3000 if third else 2048)
        if wide:
            monkeypatch.setattr(onnx_adapters, "_to_bytes", as_float32)
        with edgedecode.load(runtime="onnx", adapters=True) as pair:
            target = pair.target
            held(target).add_adapter(USE.digest, [LowRank(0, "o_proj", down, up)])
            state = target.new_state(60)
            use = replace(USE, scale=scale)
            logits = target.forward(TOKENS, state, rows="all", adapter=use).logits.tobytes()
            leased = [lease.nbytes for lease in pair.budget.leases if lease.name.startswith("adapter:")]
            state.close()
        monkeypatch.undo()
        return logits, sum(leased)

    def as_float32(values: FloatArray) -> np.ndarray:
        return values.view(np.uint8).reshape(*values.shape, 4)

    halves, held_nbytes = reading(third=False, wide=False)
    floats, all_nbytes = reading(third=False, wide=True)
    assert halves == floats
    assert (held_nbytes, all_nbytes) == (2 * 16 * (inputs + outputs), 4 * 16 * (inputs + outputs))
    assert reading(third=True, wide=False)[1] == 16 * (2 * inputs + 4 * outputs)
    scaled, nbytes = reading(third=False, wide=False, scale=0.3)
    assert scaled != halves
    assert held_nbytes < nbytes <= held_nbytes + 4 * 16 * outputs
