"""The kernels as a standalone program: under sanitizers, and for arm64 under an emulator."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.made_once import compiled

FOLDER = Path(__file__).parents[2] / "runtimes" / "onnx" / "kernels"
SOURCES = [
    FOLDER / "check" / "check.cpp",
    *sorted(FOLDER.glob("kernels_*.cpp")),
    FOLDER / "pool.cpp",
    FOLDER / "dispatch.cpp",
    FOLDER / "draw.cpp",
    FOLDER / "prepare.cpp",
]
FLAGS = ["-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-w"]
DRAW = "draw-"
SPARSE = "6"
"""Of the combinations of options, an emulator draws with one in six."""
SANITIZERS = ["-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
"""Without optimization: it compiles in half the time and hides nothing from the sanitizers."""


def build(config: pytest.Config, name: str, compiler: str, *flags: str) -> Path:
    return compiled(config, name, [compiler, *FLAGS, *flags, *map(str, SOURCES)], folder=FOLDER)


def digests(words: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Run the program; return the digests by instruction set, those of the kernels' results and those of the draws."""
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    found = dict(line.split() for line in ran.stdout.splitlines())
    drawn = {name.removeprefix(DRAW): found.pop(name) for name in list(found) if name.startswith(DRAW)}
    return found, drawn


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.slow
def test_kernels_pass_sanitizers_and_agree_on_all_instruction_sets(pytestconfig: pytest.Config) -> None:
    program = build(pytestconfig, "sanitized", compiler("g++"), *SANITIZERS)
    found, drawn = digests([str(program), "20"])
    assert "generic" in found
    assert "plain" in drawn
    assert len(set(found.values())) == len(set(drawn.values())) == 1


@pytest.mark.slow
def test_kernels_on_arm64_give_the_bits_of_this_processor(pytestconfig: pytest.Config) -> None:
    cross, emulator = compiler("aarch64-linux-gnu-g++"), compiler("qemu-aarch64")
    here, drawn_here = digests([str(build(pytestconfig, "here", compiler("g++"), "-O2")), "16", SPARSE])
    arm = str(build(pytestconfig, "arm", cross, "-O2", "-static"))
    emulated, drawn = digests([emulator, "-cpu", "max", arm, "16", SPARSE])
    assert set(emulated) == {"generic", "neon", "i8mm"}
    assert set(emulated.values()) == set(here.values())
    assert set(drawn) == {"plain"}
    assert set(drawn.values()) == set(drawn_here.values())
    older, _ = digests([emulator, "-cpu", "cortex-a76", arm, "5", "100"])  # dot products, no matrix products
    assert set(older) == {"generic", "neon"}
    # Without dot products: no illegal instruction may run.
    plain, drawn = digests([emulator, "-cpu", "cortex-a53", arm, "5", SPARSE])
    assert set(plain) == {"generic"}
    assert set(drawn.values()) == set(drawn_here.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "kernels"), [("Denverton", set()), ("SandyBridge", set()), ("Haswell", {"avx2"})]
)
def test_kernels_on_older_processors_run_no_unknown_instruction(
    processor: str, kernels: set[str], pytestconfig: pytest.Config
) -> None:
    """Without AVX, with AVX, and with AVX2."""
    if platform.machine() != "x86_64":
        pytest.skip("for x86-64 processors")
    program = build(pytestconfig, "here", compiler("g++"), "-O2")
    found, drawn = digests([compiler("qemu-x86_64"), "-cpu", processor, str(program), "3", SPARSE])
    here, drawn_here = digests([str(program), "3", SPARSE])
    assert set(found) == {"generic"} | kernels
    assert set(found.values()) == set(here.values())
    assert set(drawn.values()) == set(drawn_here.values())


def reported_sets() -> list[str]:
    """Return the instruction sets whose features Linux reports, best first."""
    line = next(line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "flags" in line)
    needed = {
        "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"},
        "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"},
        "avx2": {"avx2", "fma", "f16c"},
        "generic": set[str](),
    }
    return [name for name, features in needed.items() if features <= set(line.split())]


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="reads /proc/cpuinfo")
def test_kernels_are_those_that_the_system_reports() -> None:
    from edgedecode.runtimes.onnx.kernels.trial import tried

    library, reason = tried()
    if library is None:
        pytest.skip(f"no kernels: {reason}")
    assert library.instruction_sets == tuple(reported_sets())


INTRIN = """
#include <cpuid.h>
#undef __cpuid
#define __cpuid(found, leaf) __cpuidex(found, leaf, 0)
#define __cpuidex(found, leaf, sub) __cpuid_count(leaf, sub, found[0], found[1], found[2], found[3])
inline unsigned long long _xgetbv(unsigned index) {
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(index));
  return static_cast<unsigned long long>(high) << 32 | low;
}
"""
"""Microsoft's names for what dispatch.cpp asks the processor."""
NAMES = """
#include <cstdio>
#include <initializer_list>
#include "kernels.h"
namespace edgedecode {
#define TABLE(set) const Kernels* kernels_##set() { static const Kernels table{#set}; return &table; }
TABLE(avx512) TABLE(avxvnni) TABLE(avx2) TABLE(neon) TABLE(i8mm) TABLE(generic)
}
int main() {
  puts(edgedecode::kernels()->name);
  for (const char* name : {"avx512", "avxvnni", "avx2", "neon", "i8mm", "generic"})
    if (edgedecode::kernels_named(name) != nullptr) puts(name);
}
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="reads /proc/cpuinfo")
def test_windows_asks_the_processor_too(tmp_path: Path) -> None:
    """The code that Microsoft's compiler sees, compiled here: it finds the instruction sets that the system reports."""
    for name, text in (("intrin.h", INTRIN), ("names.cpp", NAMES)):
        (tmp_path / name).write_text(text)
    program, sources = tmp_path / "names", [tmp_path / "names.cpp", FOLDER / "dispatch.cpp"]
    macros = ["-D_MSC_VER=1940", "-D_M_X64=100", "-D__forceinline=inline", f"-I{tmp_path}", f"-I{FOLDER}"]
    words = [compiler("g++"), "-std=c++17", "-w", *macros, *map(str, sources), "-o", str(program)]
    subprocess.run(words, check=True, timeout=300)
    best, *found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert found == reported_sets()
    assert best == found[0]


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_kernels_compute_in_a_forked_child_without_the_parents_threads() -> None:
    from edgedecode.runtimes.onnx.kernels.trial import tried

    if tried()[0] is None:
        pytest.skip("no kernels here")
    code = (
        "import os, edgedecode\n"
        "pair = edgedecode.load(threads=2, runtime='onnx')\n"
        "say = lambda: pair.session().__enter__().generate('Hello', max_tokens=4)\n"
        "say()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    say(); os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )

    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
