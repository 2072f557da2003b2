"""The native draw samples the same tokens as numpy's, on every instruction set of this processor."""

import ctypes
import hashlib
import itertools
import math
import platform
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from ctypes.util import find_library
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.runtimes.onnx.kernels.draw import NativeRowDraw
from edgedecode.sampling.masses import exponent_scale
from edgedecode.sampling.penalties import Marked
from edgedecode.sampling.row_draw import Leading, NumpyRowDraw, RowDraw
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableRuntime, byte_tokenizer, toy_pair, toy_tables
from tests.made_once import compiled

ROOT = Path(__file__).parents[2]
COMPILER = next((name for name in ("g++", "clang++") if shutil.which(name)), None)
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared")
NUMPY = NumpyRowDraw()
NOTHING = Marked.of()
SIZES = (1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 1000, 1023, 1024, 1025, 4999)
OPTIONS = [
    SamplingOptions(temperature, top_k, top_p, min_p, penalty)
    for temperature, top_k, top_p, min_p, penalty in itertools.product(
        (0.0, 1e-6, 0.7, 1.0, 100.0), (0, 1, 5, 70, 900), (1.0, 0.9, 0.4, 1e-9), (0.0, 0.05, 1.0), (1.0, 1.3, 0.8)
    )
]
CHANGES = itertools.cycle(itertools.product((0.0, 0.7, -1.1), (0.6, 0.0), ((), ((0, -100),), ((0, 2.5),))))
OPTIONS += [
    replace(options, frequency_penalty=frequency, presence_penalty=presence, logit_bias=bias)
    for options, (frequency, presence, bias) in zip(OPTIONS[::4], CHANGES, strict=False)
]


def marked(indices: Iterable[int]) -> Marked:
    """Return these indices as generated, as often as they are listed."""
    return Marked.of(Counter(int(index) for index in indices))


@pytest.fixture(scope="module")
def library(pytestconfig: pytest.Config) -> ctypes.CDLL:
    """Compile draw.cpp without the flag that forbids fused operations: the source forbids them itself."""
    if COMPILER is None:
        pytest.skip("draw.cpp needs g++ or clang++")
    source = ROOT / "runtimes" / "onnx" / "kernels" / "draw.cpp"
    warnings = ("-Wall", "-Wextra", "-Werror", *(("-Wno-pass-failed",) if COMPILER == "clang++" else ()))
    command = [COMPILER, *FLAGS, *warnings, str(source)]
    return ctypes.CDLL(str(compiled(pytestconfig, "draw", command, folder=source.parent)))


@pytest.fixture(params=("avx512", "avx2", "plain"))
def native(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Iterator[NativeRowDraw]:
    if not library.edgedecode_draw_force(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield NativeRowDraw(library)
    assert library.edgedecode_draw_force(b"")


def rows(size: int, *, generator: np.random.Generator) -> Iterator[FloatArray]:
    """Yield rows that are hard on sorting, binning or exponents; the largest logit is finite."""
    normal = generator.standard_normal(size)
    for scale in (0.01, 2.5, 30.0, 1e10):
        yield (scale * normal).astype(np.float32)
    yield np.round(normal).astype(np.float32)  # ties
    yield (np.round(3 * normal) * math.log(2)).astype(np.float32)  # weights that are powers of 2: exact shares
    yield np.full(size, generator.standard_normal(), np.float32)
    yield (normal * 1e-42).astype(np.float32)  # subnormal
    yield (np.sign(normal) * 3.4e38).astype(np.float32)
    yield np.where(normal > 0, 0.0, -0.0).astype(np.float32)
    yield np.sort(normal).astype(np.float32)
    yield np.sort(normal)[::-1].astype(np.float32)
    masked = (3 * normal).astype(np.float32)
    masked[generator.random(size) < 0.7] = -np.inf
    masked[generator.integers(size)] = 0.5
    yield masked
    peaked = normal.astype(np.float32)
    peaked[generator.integers(size, size=3)] += 20
    yield peaked


def outcome(call: Callable[[], object]) -> object:
    """Return the call's result, or None if it refuses the row."""
    try:
        return call()
    except CapabilityError:
        return None


_DRAWN: dict[tuple[object, ...], object] = {}


def drawn_by_numpy(
    row: FloatArray, options: SamplingOptions, *, key: int, seen: Marked, ids: IntArray | None
) -> object:
    """Return numpy's result, computed once for all instruction sets."""
    parts = (row, seen.ids, seen.numbers, *(() if ids is None else (ids,)))
    asked = (*(hashlib.blake2b(np.ascontiguousarray(part)).digest() for part in parts), options, key)
    if asked not in _DRAWN:
        with np.errstate(over="ignore"):  # a penalty may make a logit infinite
            _DRAWN[asked] = outcome(lambda: NUMPY.draw(row, options, key=key, seen=seen, ids=ids))
    return _DRAWN[asked]


def same(
    native: NativeRowDraw, row: FloatArray, options: SamplingOptions, *, key: int, seen: Marked, ids: IntArray | None
) -> bool:
    expected = drawn_by_numpy(row, options, key=key, seen=seen, ids=ids)
    with np.errstate(over="ignore"):
        return outcome(lambda: native.draw(row, options, key=key, seen=seen, ids=ids)) == expected


@pytest.mark.parametrize("size", SIZES)
def test_native_draw_equals_numpy(native: NativeRowDraw, size: int) -> None:
    generator = np.random.default_rng(size)
    for row in rows(size, generator=generator):
        before = row.copy()
        seen = marked(generator.integers(0, size, 9))
        some = np.sort(generator.choice(5 * size, size, replace=False))
        assert native.argmax(row) == NUMPY.argmax(row)
        assert native.leading(row) == NUMPY.leading(row)
        for place in generator.choice(len(OPTIONS), 24, replace=False).tolist():
            key = int(generator.integers(2**64, dtype=np.uint64))
            ids = some if place % 2 else None  # whose element 0 is another id: no bias
            assert same(native, row, OPTIONS[place], key=key, seen=seen, ids=ids), (OPTIONS[place], key)
        np.testing.assert_array_equal(row, before)


@pytest.mark.slow
@pytest.mark.parametrize("size", [151_936, 200_000])
def test_native_draw_equals_numpy_for_large_vocabularies(native: NativeRowDraw, size: int) -> None:
    generator = np.random.default_rng(size)
    options = [
        SamplingOptions(1.0, repetition_penalty=1.1),
        SamplingOptions(0.7, 40, 0.9),
        SamplingOptions(1.0, 2000, 0.95, 0.001),
        SamplingOptions(1.0, 5000),
        SamplingOptions(1.0, 50_000, 0.99),
        SamplingOptions(1.2, 0, 0.95),
    ]
    for row in rows(size, generator=generator):
        assert native.leading(row) == NUMPY.leading(row)
        assert native.argmax(row) == NUMPY.argmax(row)
        chosen = options[int(generator.integers(len(options)))]
        seen = marked(generator.integers(0, size, 500))
        for key in range(2):
            assert same(native, row, chosen, key=key, seen=seen, ids=None), chosen


@pytest.mark.parametrize("count", [1, 4, 8, 64])
def test_native_top_k_equals_numpy(native: NativeRowDraw, count: int) -> None:
    for size in (*SIZES, 16_500, 151_936):
        for row in rows(size, generator=np.random.default_rng(size + count)):
            k = min(count, size)
            found = native.top(row, k)
            assert len(set(found.tolist())) == k
            np.testing.assert_array_equal(row[found], row[NUMPY.top(row, k)])


@pytest.mark.parametrize(("size", "count"), [(3, 4), (100, 65), (5, 0)])
def test_native_top_k_refuses_an_unsupported_count(native: NativeRowDraw, size: int, count: int) -> None:
    with pytest.raises(ValueError, match="largest"):
        native.top(np.zeros(size, np.float32), count)


def rows_with_ties(size: int, *, generator: np.random.Generator) -> Iterator[FloatArray]:
    """Yield rows with a threshold among equal values, or with one that is hard to bracket."""
    yield np.full(size, 0.37, np.float32)
    yield np.where(generator.random(size) < 0.5, 1, 0).astype(np.float32)
    yield (1 - generator.integers(0, 3, size) * 2.0**-23).astype(np.float32)  # adjacent floats
    yield np.where(np.arange(size) % 1001 == 1, 3, np.where(np.arange(size) % 3 == 0, 0, -2)).astype(np.float32)
    yield np.where(np.arange(size) == size // 3, 10, 0).astype(np.float32)
    masked = np.full(size, -np.inf, np.float32)
    masked[generator.integers(0, size, 10)] = 1
    yield masked
    for count in (1, 4, 30, size // 50):  # a few large logits over many small ones
        heavy = (generator.standard_normal(size) / 10).astype(np.float32)
        heavy[generator.integers(0, size, count)] += np.float32(math.log(size / count)) - np.float32(0.5)
        yield heavy
    yield np.sort(2.5 * generator.standard_normal(size))[::-1].astype(np.float32)
    yield np.concatenate((np.zeros(size - size // 64), generator.standard_normal(size // 64))).astype(np.float32)


@pytest.mark.parametrize("size", [2048, 2049, 2060, 20_000, pytest.param(151_936, marks=pytest.mark.slow)])
def test_native_draw_equals_numpy_for_ties_and_extreme_thresholds(native: NativeRowDraw, size: int) -> None:
    generator = np.random.default_rng(size)
    cuts = list(
        itertools.product(
            (0, 1, 40, size // 16, size // 16 + 1, size // 2, size - 1, size, size + 1),
            (1.0, 1 - 2**-53, 1 - 1e-9, 0.999, 0.5, 1e-9),
        )
    )
    for row in rows_with_ties(size, generator=generator):
        for place in generator.choice(len(cuts), 6, replace=False).tolist():
            options = SamplingOptions(float(generator.choice([0.3, 1.0, 100.0])), *cuts[place])
            for key in range(3):
                assert same(native, row, options, key=key, seen=NOTHING, ids=None), (options, key)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    row=arrays.arrays(np.float32, st.integers(1, 300), elements=st.floats(width=32)),
    options=st.sampled_from(OPTIONS),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_native_draw_equals_numpy_for_any_floats(
    native: NativeRowDraw, row: FloatArray, options: SamplingOptions, key: int, data: st.DataObject
) -> None:
    """NaN and infinities included: both refuse the row, or both return the same token."""
    seen = marked(data.draw(st.lists(st.integers(0, len(row) - 1), max_size=5)))
    assert same(native, row, options, key=key, seen=seen, ids=None)
    assert outcome(lambda: native.argmax(row)) == outcome(lambda: NUMPY.argmax(row))
    assert outcome(lambda: native.leading(row)) == outcome(lambda: NUMPY.leading(row))


def test_native_draw_follows_the_softmax(native: NativeRowDraw) -> None:
    row = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    expected = np.exp(row / 0.8)
    expected *= 20_000 / expected.sum()
    sampler = Sampler(SamplingOptions(temperature=0.8), vocabulary_size=40, row_draw=native)
    noise = Noise(3)
    counts = np.bincount([sampler.draw(row, key=noise.take()) for _ in range(20_000)], minlength=40)
    assert ((counts - expected) ** 2 / expected).sum() < 78  # 39 degrees of freedom: exceeded once in ten thousand


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf])
def test_native_draw_refuses_nan_and_infinity_at_any_position(native: NativeRowDraw, value: float) -> None:
    options = [SamplingOptions(0.9), SamplingOptions(0.9, 3), SamplingOptions(0.9, 50, 0.5, 0.1, 1.2)]
    for at in (0, 20, 63, 64, 99, 1024, 1049):
        row = np.zeros(1050, np.float32)
        row[at] = np.copysign(np.float32(value), np.float32(math.copysign(1, value)))
        calls: list[Callable[[], object]] = [partial(native.leading, row)]
        calls += [partial(native.draw, row, each, key=1, seen=NOTHING) for each in options]
        if math.isnan(value):
            greedy = SamplingOptions(repetition_penalty=1.5)
            calls += [partial(native.argmax, row), partial(native.draw, row, greedy, key=1, seen=NOTHING)]
        for call in calls:
            with pytest.raises(CapabilityError, match="not numbers"):
                call()


def test_native_draw_reads_rows_of_any_memory_layout(native: NativeRowDraw) -> None:
    whole = np.random.default_rng(1).standard_normal((6, 400)).astype(np.float32)
    whole.flags.writeable = False
    options = SamplingOptions(1.0, 20, 0.9)
    for row in (whole[3], whole[2, 5:300], whole[:, 7], whole[1, ::-3]):
        assert native.argmax(row) == row.argmax()
        assert native.leading(row) == NUMPY.leading(row)
        assert same(native, row, options, key=9, seen=NOTHING, ids=None)
    with pytest.raises(ValueError, match="without logits"):
        native.argmax(whole[0, :0])


def test_native_draw_needs_at_most_the_declared_scratch_memory(native: NativeRowDraw) -> None:
    assert native.scratch_nbytes(151_936) < 24 * 151_936
    held = native._scratch.nbytes
    native.draw(np.zeros(5000, np.float32), SamplingOptions(1.0), key=0, seen=NOTHING)
    assert held < native._scratch.nbytes <= native.scratch_nbytes(5000) + 8


def test_native_draw_is_independent_between_threads(library: ctypes.CDLL) -> None:
    generator = np.random.default_rng(5)
    options = SamplingOptions(1.0, 0, 0.9, repetition_penalty=1.1)
    wide = [generator.standard_normal(20_000).astype(np.float32) for _ in range(2)]
    expected = [[NUMPY.draw(row, options, key=key, seen=NOTHING) for key in range(20)] for row in wide]
    found: list[list[int]] = [[], []]

    def draws(place: int) -> None:
        helper = NativeRowDraw(library)
        found[place] += [helper.draw(wide[place], options, key=key, seen=NOTHING) for key in range(20)]

    threads = [threading.Thread(target=draws, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="sets the mode in glibc's layout")
def test_native_draw_does_not_depend_on_the_floating_point_mode(native: NativeRowDraw) -> None:
    """Another library may have set this thread to flush denormals to zero, or to round upwards."""
    denormal = (np.arange(300) % 100 * 1e-42).astype(np.float32)
    row = (2.5 * np.random.default_rng(7).standard_normal(5000)).astype(np.float32)
    options = [  # options whose conversion to the kernel's scale does not change when rounding upwards
        next(
            each
            for each in temperatures
            if float(exponent_scale(each.temperature)) > math.log2(math.e) / each.temperature
        )
        for temperatures in (
            [SamplingOptions(t / 64, top_k, 0.90625, 0.0, 1.25) for t in range(60, 90)] for top_k in (0, 3000)
        )
    ]

    def results() -> list[object]:
        drawn = [native.draw(row, each, key=key, seen=marked(range(9))) for each in options for key in range(40)]
        return [
            native.argmax(denormal),
            native.leading(row),
            native.leading(denormal),
            *native.top(row, 5).tolist(),
            *drawn,
        ]

    expected = results()
    assert expected[0] == 99
    mathematics = ctypes.CDLL(find_library("m"))
    before, other = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    mathematics.fegetenv(before)
    mathematics.fegetenv(other)
    mode = int.from_bytes(other[28:32], "little")  # the last field of an x86-64 fenv_t
    assert mode & 0x1F80 == 0x1F80
    other[28:32] = (mode | 0xC040).to_bytes(4, "little")
    mathematics.fesetenv(other)
    try:
        found = results()
    finally:
        mathematics.fesetenv(before)
    assert found == expected


def test_native_draw_skips_penalised_ids_outside_the_row(native: NativeRowDraw, library: ctypes.CDLL) -> None:
    row, at = np.random.default_rng(3).standard_normal(64).astype(np.float32), 8
    scratch = np.full(at + native.scratch_nbytes(len(row)), 7.0, np.float32)
    seen = np.array([-1, len(row), -(2**62), 2**62], np.int64)
    place = scratch[at:].ctypes.data
    token = library.edgedecode_draw_row(
        row.ctypes.data, None, len(row), 0.0, 0, 1.0, 0.0, 1.5, seen.ctypes.data, len(seen), 0, place
    )
    assert token == row.argmax()
    assert (scratch[:at] == 7).all()


def test_native_draw_refuses_unknown_instruction_sets(library: ctypes.CDLL) -> None:
    assert not library.edgedecode_draw_force(b"sse9")


@pytest.mark.parametrize("sampling", [SamplingOptions(), SamplingOptions(0.9, 0, 0.9, repetition_penalty=1.1)], ids=str)
def test_session_uses_the_native_draw_of_the_runtime(library: ctypes.CDLL, sampling: SamplingOptions) -> None:
    """The native draw serves the target's and the draft's rows, is charged to the budget, and gives numpy's text."""
    draws: list[int] = []

    class Counting(NativeRowDraw):
        def draw(self, row: FloatArray, *arguments: Any, **more: Any) -> int:
            draws.append(len(row))
            return super().draw(row, *arguments, **more)

        def leading(self, row: FloatArray) -> Leading:
            draws.append(0)
            return super().leading(row)

    class Bringing(TableRuntime):
        def row_draw(self) -> RowDraw:
            return Counting(library)

    def generate(runtime: TableRuntime) -> tuple[tuple[int, ...], int]:
        plain = toy_pair()
        pair = Pair(plain.manifest, Path(), tokenizer=plain.tokenizer, runtime=runtime, budget=Budget())
        with pair, pair.session(SessionOptions(sampling=sampling, seed=5, drafter="model", draft_max=3)) as session:
            session.generate("hello", max_tokens=60)
            charged = next(lease.nbytes for lease in pair.budget.leases if lease.name == "sampling")
            assert session.stats.accepted > 0
            return session.tokens, charged

    size = byte_tokenizer().size
    target = toy_tables(size, seed=0)
    tables = {"target": target, "draft": toy_tables(size, seed=1, scale=0.5, near=target)}
    tokens, charged = generate(Bringing(tables))
    count = len(draws)
    assert count > 60
    expected, without = generate(TableRuntime(tables))
    assert (tokens, charged - without) == (expected, NativeRowDraw(library).scratch_nbytes(size))
    assert len(draws) == count
