"""Our operator of gated recurrences: its results against numpy, and rounds of drafts against one row at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import Tensor
from edgedecode.runtimes.onnx.gguf.gated_recurrence import GatedRecurrence
from edgedecode.runtimes.onnx.kernels.products import DOMAIN, FLOAT
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.runtimes.onnx.recurrence import HEADER, SLOTS

LIBRARY, REASON = tried()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")
_INT32 = 6
DELTA = GatedRecurrence(heads=4, key_heads=2, key_size=32, value_size=48, width=4)
SMALL = GatedRecurrence(heads=2, key_heads=2, key_size=16, value_size=16, width=2)
MAMBA = GatedRecurrence(heads=6, key_heads=2, key_size=32, value_size=32, width=4, delta=False)
ALL = [DELTA, SMALL, MAMBA]


class Layer:
    """A layer with random weights, its operator, and what it computes in float64."""

    def __init__(self, sizes: GatedRecurrence, *, threads: int = 1) -> None:
        rng = np.random.default_rng(5)
        self.sizes = sizes
        self.weights = {
            "weight": rng.standard_normal((sizes.width, sizes.channels), np.float32) * 0.5,
            "decay": -np.exp(rng.standard_normal(sizes.heads, np.float32)),
            "step_bias": rng.standard_normal(sizes.heads, np.float32),
        }
        if sizes.delta:
            self.weights["norm"] = rng.standard_normal(sizes.value_size, np.float32)
        else:
            self.weights["bias"] = rng.standard_normal(sizes.channels, np.float32) * 0.1
            self.weights["skip"] = rng.standard_normal(sizes.heads, np.float32)
        self.session = self._session(threads)

    def _session(self, threads: int) -> object:
        import onnxruntime

        sizes = self.sizes
        memory = {"state": [HEADER + sizes.state_values], "rows": [SLOTS, sizes.row_values]}
        rows = {"x": sizes.channels, "steps": sizes.heads, "z": sizes.values}
        rates = {"rates": sizes.heads} if sizes.delta else {}
        more = ["rates", "norm", "", ""] if sizes.delta else ["", "", "bias", "skip"]
        lists = ["list", "total", "parents"]
        names = [*rows, "weight", "decay", "step_bias", *more, *(f"past_{part}" for part in memory), *lists]
        node = Node("GatedDelta", DOMAIN, "", names, ["y", *memory], {**sizes.attributes, "threads": threads})
        file = GraphFile(
            nodes=[node],
            inputs=[
                *(ValueInfo(name, FLOAT, ["R", width]) for name, width in (rows | rates).items()),
                *(ValueInfo(f"past_{part}", FLOAT, dims) for part, dims in memory.items()),
                *(ValueInfo(name, _INT32, ["N" + name]) for name in lists),
            ],
            outputs=[
                ValueInfo("y", FLOAT, ["R", sizes.values]),
                *(ValueInfo(part, FLOAT, dims) for part, dims in memory.items()),
            ],
            initializers={name: tensor(name, value) for name, value in self.weights.items()},
            opset={"": 21, DOMAIN: 1},
            model_rest=[(1, b"\x08\x0a")],
        )
        options = onnxruntime.SessionOptions()
        assert LIBRARY is not None
        options.register_custom_ops_library(str(LIBRARY.path))
        return onnxruntime.InferenceSession(file.serialize(), options, providers=["CPUExecutionProvider"])

    def inputs(self, rows: int, *, seed: int = 0) -> dict[str, FloatArray]:
        rng = np.random.default_rng(seed)
        sizes = self.sizes
        widths = {"x": sizes.channels, "steps": sizes.heads, "z": sizes.values}
        widths |= {"rates": sizes.heads} if sizes.delta else {}
        return {name: rng.standard_normal((rows, width), np.float32) for name, width in widths.items()}

    def new_memory(self) -> "Memory":
        slots = np.zeros((SLOTS, self.sizes.row_values), np.float32)
        return Memory(np.zeros(HEADER + self.sizes.state_values, np.float32), slots)

    def reference(self, inputs: dict[str, FloatArray]) -> FloatArray:
        """Return the results of a chain, from the rule's definition."""
        sizes, w = self.sizes, {name: value.astype(np.float64) for name, value in self.weights.items()}
        rows = {name: value.astype(np.float64) for name, value in inputs.items()}
        padded = np.concatenate([np.zeros((sizes.width - 1, sizes.channels)), rows["x"]])
        mixed = sum(padded[tap : tap + len(rows["x"])] * w["weight"][tap] for tap in range(sizes.width))
        mixed = silu(mixed + w.get("bias", 0.0))
        ends = [sizes.keys, 2 * sizes.keys] if sizes.delta else [sizes.values, sizes.values + sizes.keys]
        first, second, third = np.split(mixed, ends, axis=1)
        q, k, v = (first, second, third) if sizes.delta else (third, second, first)
        q, k = (each.reshape(-1, sizes.key_heads, sizes.key_size) for each in (q, k))
        if sizes.delta:
            q, k = (each / np.sqrt((each**2).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
            q = q * sizes.key_size**-0.5
        v = v.reshape(-1, sizes.heads, sizes.value_size)
        steps = np.logaddexp(0, rows["steps"] + w["step_bias"])
        fades = np.exp(w["decay"] * steps)
        found = np.empty((len(v), sizes.heads, sizes.value_size))
        for head in range(sizes.heads):
            group = head % sizes.key_heads if sizes.delta else head // (sizes.heads // sizes.key_heads)
            state = np.zeros((sizes.key_size, sizes.value_size))
            for row in range(len(v)):
                key, value = k[row, group], v[row, head]
                state = state * fades[row, head]
                if sizes.delta:
                    value = (value - key @ state) / (1 + np.exp(-rows["rates"][row, head]))
                else:
                    value = value * steps[row, head]
                state = state + np.outer(key, value)
                found[row, head] = q[row, group] @ state + w.get("skip", np.zeros(sizes.heads))[head] * v[row, head]
        if sizes.delta:
            found = found / np.sqrt((found**2).mean(-1, keepdims=True) + 1e-6) * w["norm"]
        return found.reshape(len(v), -1) * silu(rows["z"])

    def run(
        self,
        memory: "Memory",
        inputs: dict[str, FloatArray],
        *,
        settled: int,
        accepted: Sequence[int] = (),
        start: int = 0,
        parents: Sequence[int] = (),
    ) -> FloatArray:
        """Run a pass in place. accepted: the slots of the last settled rows; start: the slot of the first row."""
        feeds = {
            **inputs,
            "past_state": memory.state,
            "past_rows": memory.slots,
            "list": np.array([start, *accepted], np.int32),
            "total": np.array([settled + start + len(inputs["x"])], np.int32),
            "parents": np.array(parents, np.int32),
        }
        y, state, slots = self.session.run(None, feeds)
        memory.state[:], memory.slots[:] = state, slots
        return y


@dataclass(frozen=True, slots=True)
class Memory:
    state: FloatArray
    slots: FloatArray

    def copy(self) -> "Memory":
        return Memory(self.state.copy(), self.slots.copy())


def tensor(name: str, values: FloatArray) -> Tensor:
    return Tensor(name, FLOAT, values.shape, values.tobytes())


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def pick(inputs: dict[str, FloatArray], rows: slice | Sequence[int]) -> dict[str, FloatArray]:
    return {name: value[rows] for name, value in inputs.items()}


def one_by_one(
    layer: Layer, memory: Memory, inputs: dict[str, FloatArray], rows: Sequence[int], *, settled: int
) -> FloatArray:
    """Return the results of passes of one row, each accepted."""
    found = [np.empty((0, layer.sizes.values), np.float32)]
    for position, row in enumerate(rows, start=settled):
        accepted = [0] if position else []
        found.append(layer.run(memory, pick(inputs, [row]), settled=position, accepted=accepted))
    return np.concatenate(found)


@pytest.mark.parametrize("sizes", ALL)
def test_results_are_those_of_the_definition(sizes: GatedRecurrence) -> None:
    layer = Layer(sizes)
    inputs = layer.inputs(150)
    found = layer.run(layer.new_memory(), inputs, settled=0)
    expected = layer.reference(inputs)
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()
    assert np.array_equal(found, one_by_one(layer, layer.new_memory(), inputs, range(150), settled=0))


def test_results_are_those_of_the_engines_operators() -> None:
    import onnxruntime

    layer, rows = Layer(SMALL), 40
    sizes, inputs, w = SMALL, layer.inputs(40), layer.weights
    node = partial(Node, domain="com.microsoft")
    file = GraphFile(
        nodes=[
            node(
                "CausalConvWithState",
                inputs=["x", "weight"],
                outputs=["mixed", "last"],
                attributes={"activation": b"silu"},
            ),
            node(
                "LinearAttention",
                inputs=["q", "k", "v", "", "decay", "beta"],
                outputs=["y", "state"],
                attributes={"q_num_heads": 2, "kv_num_heads": 2, "update_rule": b"gated_delta", "scale": 0.25},
            ),
        ],
        inputs=[
            ValueInfo("x", FLOAT, [1, sizes.channels, rows]),
            *(ValueInfo(name, FLOAT, [1, rows, 32]) for name in "qkv"),
            *(ValueInfo(name, FLOAT, [1, rows, 2]) for name in ("decay", "beta")),
        ],
        outputs=[ValueInfo(name, FLOAT, [1, "A", "B"]) for name in ("mixed", "y")],
        initializers={"weight": tensor("weight", np.ascontiguousarray(w["weight"].T[:, None]))},
        opset={"": 21, "com.microsoft": 1},
        model_rest=[(1, b"\x08\x0a")],
    )
    session = onnxruntime.InferenceSession(file.serialize(), providers=["CPUExecutionProvider"])
    feeds = {"x": inputs["x"].T[None], **{name: np.zeros((1, rows, 32), np.float32) for name in "qkv"}}
    feeds |= {name: np.zeros((1, rows, 2), np.float32) for name in ("decay", "beta")}
    mixed = session.run(["mixed"], feeds)[0][0].T
    heads = {name: part.reshape(rows, 2, 16) for name, part in zip("qkv", np.split(mixed, 3, axis=1), strict=True)}
    for name in "qk":
        heads[name] = heads[name] / np.sqrt((heads[name] ** 2).sum(-1, keepdims=True) + 1e-6)
    feeds |= {name: part.reshape(1, rows, 32) for name, part in heads.items()}
    feeds["decay"] = (w["decay"] * np.logaddexp(0, inputs["steps"] + w["step_bias"]))[None]
    feeds["beta"] = (1 / (1 + np.exp(-inputs["rates"])))[None]
    y = session.run(["y"], feeds)[0].reshape(rows, 2, 16)
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6) * w["norm"]
    expected = y.reshape(rows, 32) * silu(inputs["z"])
    assert np.abs(layer.run(layer.new_memory(), inputs, settled=0) - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("sizes", ALL)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_instruction_set_gives_the_same_bits(sizes: GatedRecurrence, threads: int) -> None:
    assert LIBRARY is not None
    layer = Layer(sizes, threads=threads)
    inputs = layer.inputs(70)
    found = []
    try:
        for name in LIBRARY.instruction_sets:
            LIBRARY.choose(name)
            memory = layer.new_memory()
            y = layer.run(memory, inputs, settled=0)
            found.append((y.tobytes(), memory.state.tobytes(), memory.slots.tobytes()))
    finally:
        LIBRARY.choose("auto")
    assert len(found) > 1
    assert len(set(found)) == 1


def random_parents(rng: np.random.Generator, count: int) -> list[int]:
    return [int(rng.integers(max(-1, row - 4), row)) for row in range(count)]


def ancestors(parents: Sequence[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@pytest.mark.parametrize(("sizes", "rounds"), [(DELTA, 1000), (SMALL, 8000), (MAMBA, 1000)])
def test_rounds_of_drafts_have_the_bits_of_one_row_at_a_time(sizes: GatedRecurrence, rounds: int) -> None:
    layer, rng = Layer(sizes), np.random.default_rng(1)
    memory, plain = layer.new_memory(), layer.new_memory()
    settled, accepted, counts = 0, list[int](), dict.fromkeys(("tree", "none", "all", "pieces", "long", "undone"), 0)
    for seed in range(rounds):
        tree, long = bool(rng.integers(2)), rng.integers(40) == 0
        count = int(rng.integers(SLOTS + 1, SLOTS + 30)) if long else int(rng.integers(1, 9))
        tree = tree and not long
        parents = random_parents(rng, count) if tree else list(range(-1, count - 1))
        inputs = layer.inputs(count, seed=seed)
        undone = not long and rng.integers(4) == 0
        if undone:
            layer.run(memory, layer.inputs(3, seed=-seed % 97), settled=settled, accepted=accepted)
        cut = int(rng.integers(1, count)) if count > 1 and not long and rng.integers(3) == 0 else count
        results = np.concatenate(
            [
                layer.run(
                    memory,
                    pick(inputs, slice(start, stop)),
                    settled=settled,
                    accepted=accepted,
                    start=start,
                    parents=parents[:stop] if tree else (),
                )
                for start, stop in ((0, cut), (cut, count))
                if start < stop
            ]
        )
        other = ancestors(parents, int(rng.integers(0, count)))
        expected = one_by_one(layer, plain.copy(), inputs, other, settled=settled)
        assert np.array_equal(results[other], expected), (seed, parents)
        path = ancestors(parents, count - 1 if long else int(rng.integers(-1, count)))
        assert np.array_equal(results[path], one_by_one(layer, plain, inputs, path, settled=settled)), (seed, parents)
        settled, accepted = settled + len(path), [row - count + SLOTS for row in path[-SLOTS:]] if long else path
        for name, happened in zip(counts, (tree, not path, len(path) == count, cut < count, long, undone), strict=True):
            counts[name] += bool(happened)
    assert min(counts.values()) > 0, counts


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"settled": 3}, "not where its rows begin"),
        ({"accepted": [64]}, "no such slot"),
        ({"start": 65}, "no such slot"),
        ({"start": 63}, "more rows are pending"),
        ({"parents": [1, -1]}, "no chain or tree"),
        ({"parents": [-1]}, "do not fit the positions"),
    ],
)
def test_a_pass_that_does_not_fit_the_memory_is_refused(changed: dict[str, object], message: str) -> None:
    layer = Layer(SMALL)
    memory = layer.new_memory()
    with pytest.raises(Exception, match=message):
        layer.run(memory, layer.inputs(2), **{"settled": 0, **changed})  # type: ignore[arg-type]
    assert not memory.state.any()
