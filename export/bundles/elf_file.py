"""Reads native libraries for Android: their processor, alignment, and what they ask of the system."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from edgedecode.errors import RuntimeUnavailable

ARCHITECTURES = {"arm64-v8a": "AArch64", "x86_64": "x64"}
"""By Android's name of the processor the one that pyelftools reads."""
BIONIC = frozenset({"libc.so", "libm.so", "libdl.so"})
SYSTEM = BIONIC | {
    f"lib{name}.so"
    for name in (
        *("log", "android", "z", "jnigraphics", "sync", "binder_ndk", "nativewindow", "neuralnetworks", "EGL"),
        *("GLESv1_CM", "GLESv2", "GLESv3", "vulkan", "aaudio", "amidi", "OpenSLES", "OpenMAXAL", "mediandk"),
        *("camera2ndk", "nativehelper", "icu"),
    )
}
"""What an app may link against, by the NDK's documentation of native APIs."""


class NativeLibrary(NamedTuple):
    """alignment: the smallest of the loaded segments, in bytes. damage: why it cannot be read; empty: it can.

    needed: libraries. versions: of symbols, as their libraries name them. imports: the symbols without which it does
    not load, no weak ones.
    """

    architecture: str = ""
    alignment: int = 0
    needed: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    damage: str = ""


@cache
def bionic_levels() -> dict[str, int]:
    """Return the functions of Android's C library, by name the API level that brought them."""
    lines = (Path(__file__).parent / "bionic.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {name: int(level) for level, *names in rows for name in names}


def read_library(path: Path) -> NativeLibrary:
    """Read a library, also a damaged one. Raises RuntimeUnavailable without pyelftools."""
    try:
        from elftools.elf.dynamic import DynamicSegment
        from elftools.elf.elffile import ELFFile
        from elftools.elf.gnuversions import GNUVerNeedSection
    except ImportError:
        raise RuntimeUnavailable(
            f"lint reads {path.name} with pyelftools, which is missing: pip install 'edgedecode[export]'"
        ) from None
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            dynamic = [each for each in elf.iter_segments() if isinstance(each, DynamicSegment)]
            symbols = [symbol for each in dynamic for symbol in each.iter_symbols()]
            named = [each for each in symbols if each.name and each["st_info"]["bind"] != "STB_LOCAL"]
            undefined = [each["st_shndx"] == "SHN_UNDEF" for each in named]
            wanted = [each for each in elf.iter_sections() if isinstance(each, GNUVerNeedSection)]
            return NativeLibrary(
                architecture=elf.get_machine_arch() if elf.elfclass == 64 else "",
                alignment=min((segment["p_align"] for segment in elf.iter_segments("PT_LOAD")), default=0),
                needed=tuple(tag.needed for each in dynamic for tag in each.iter_tags("DT_NEEDED")),
                versions=tuple(
                    version.name for each in wanted for _, found in each.iter_versions() for version in found
                ),
                exports=tuple(each.name for each, not_here in zip(named, undefined, strict=True) if not not_here),
                imports=tuple(
                    each.name
                    for each, not_here in zip(named, undefined, strict=True)
                    if not_here and each["st_info"]["bind"] != "STB_WEAK"
                ),
            )
    except Exception as error:  # of a damaged file: its own exceptions, and those of seeking and unpacking
        return NativeLibrary(damage=str(error) or type(error).__name__)
