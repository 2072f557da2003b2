"""A provider that comes as a plugin library in a package of its own.

The library is native code for hardware that may be missing: it is first loaded in a child process, and the result is
cached for this package, onnxruntime and machine. In this process it is registered once, when a model is opened on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import ClassVar

from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.child import ask_child, child_command, tell_parent
from edgedecode.engines.hardware import processor_facts
from edgedecode.engines.interface import Device
from edgedecode.errors import CapabilityError, EdgeDecodeError, RuntimeUnavailable
from edgedecode.memory.process_memory import held_nbytes

from ..onnx_engine import Untyped, first_line, import_engine
from .provider import RECORD, Provider, check_assignment

TIMEOUT_SECONDS = 120.0
"""The first use of a graphics driver may compile for many seconds."""


@dataclass(frozen=True, slots=True)
class Found:
    """The devices that a plugin reported in the child process, one line of text each by name; or why it has none."""

    devices: Mapping[str, str]
    most_rows: int = 0
    nbytes: int = 0
    """Memory that the library and the driver took in that process."""
    problem: str = ""


class PluginProvider(Provider):
    """A provider in a plugin library. Subclasses add the package's names and the options of a session."""

    package: ClassVar[str]
    """The Python package, with functions `get_library_path` and `get_ep_name`."""
    distribution: ClassVar[str]
    versions: ClassVar[tuple[str, ...]]
    """Prefixes of the versions that edgedecode was tried with, such as "0.4."."""
    variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables that decide which devices it finds."""
    environment: ClassVar[str] = ""
    """What its hardware needs besides the package, as the end of a message; empty: nothing to say."""

    @property
    def package_version(self) -> str:
        if find_spec(self.package) is None:
            return ""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return "unknown"

    def problem(self) -> str:
        found = self.package_version
        if not found:
            return f"{self.distribution} is not installed: {self._install}"
        if not found.startswith(self.versions):
            wanted = " or ".join(f"{prefix}*" for prefix in self.versions)
            return f"{self.distribution} {found} is installed, edgedecode needs {wanted}: {self._install}"
        tried = self._tried()
        if tried.problem:
            return f"{tried.problem} (install it again: {self._install})"
        if not tried.devices:
            return f"{self.distribution} finds no device here{self.environment and ': ' + self.environment}"
        if self.device and self.device not in tried.devices:
            return f"{self.distribution} finds no device {self.device!r} here; it finds {', '.join(tried.devices)}"
        return ""

    def devices(self, *, runtime: str, version: str) -> Sequence[Device]:
        if reason := self.problem():
            return [Device(runtime, self.full_name, "", available=False, reason=reason)]
        found = self._tried().devices
        names = [f"{self.name}:{each}" for each in found] if self.device_names() else [self.full_name]
        return [
            Device(runtime, name, f"{self.description}: {text}", available=True)
            for name, text in zip(names, found.values(), strict=False)
        ]

    def session_options(self) -> Mapping[str, str]:
        """Return the provider options of a session."""
        return {}

    def try_out(self, engine: Untyped) -> int | None:
        """Run something tiny, in the child process that lists the devices; return `most_rows`.

        None: there is no device after all. Raises if it does not work.
        """
        return 0

    def most_rows(self) -> int:
        return self._tried().most_rows

    def driver_nbytes(self) -> int:
        return self._tried().nbytes

    def device_name(self, device: Untyped) -> str:
        """Return the name of one of the engine's devices (`OrtEpDevice`) for `--provider NAME:DEVICE`."""
        return str(device.device.type.name).lower()

    def configure(self, options: Untyped, engine: Untyped) -> Mapping[str, object]:
        for key, value in RECORD.items():
            options.add_session_config_entry(key, value)
        devices = self.engine_devices(engine)
        chosen = [each for each in devices if self.device in {"", self.device_name(each)}][:1]
        if not chosen:
            raise RuntimeUnavailable(f"{self.full_name}: {self.problem() or 'the device is gone'}; use --provider cpu")
        options.add_provider_for_devices(chosen, dict(self.session_options()))
        return {"enable_fallback": 0}

    def not_opened(self, path: Path, reason: str) -> EdgeDecodeError:
        return CapabilityError(f"the provider {self.full_name} does not run {path} ({reason}); use --provider cpu")

    def check(self, session: Untyped, *, subject: str) -> None:
        session.disable_fallback()
        super().check(session, subject=subject)
        check_assignment(session, self, allowed=self.host_operators, subject=subject)

    def engine_devices(self, engine: Untyped) -> Sequence[Untyped]:
        """Return the engine's devices of this provider, after registering its library in this process."""
        load_plugin(self.package)
        return [each for each in engine.get_ep_devices() if each.ep_name == self.engine_name]

    def library(self) -> Path:
        """Return the plugin library's file."""
        return Path(import_module(self.package).get_library_path())

    def _tried(self) -> Found:
        """Return the result of the child process: this process's, the cached one, or that of a new child."""
        key = f"{self.package}:{self.engine_name}"
        if key not in _TRIED:
            _TRIED[key] = _try(type(self))
        return _TRIED[key]

    @property
    def _install(self) -> str:
        return f"pip install 'edgedecode[{self.name}]'"


@cache
def load_plugin(package: str) -> None:
    """Register the plugin library of a package with the engine, once a process. Raises RuntimeUnavailable."""
    try:
        plugin = import_module(package)
        # Some libraries name their provider as they are registered; graphs compiled for it contain that name.
        name = plugin.get_ep_name() if hasattr(plugin, "get_ep_name") else package
        import_engine().register_execution_provider_library(name, plugin.get_library_path())
    except Exception as error:  # the engine's exceptions share no base class
        raise RuntimeUnavailable(f"{package} does not load: {first_line(error)}; use --provider cpu") from None


def try_plugin(module: str, name: str) -> None:
    """Report what `_found_here` finds for the provider class to the parent; run in the child process."""
    tell_parent(asdict(_found_here(getattr(import_module(module), name))))


def _found_here(kind: type[PluginProvider]) -> Found:
    """Load the plugin in this process and return its devices. Raises what the engine or the plugin raises."""
    provider, engine = kind(), import_engine()
    before = held_nbytes() or 0
    devices: dict[str, str] = {}
    for each in provider.engine_devices(engine):
        hardware = each.device
        words = [hardware.metadata.get("Description", ""), str(hardware.vendor), hardware.type.name]
        devices.setdefault(provider.device_name(each), ", ".join(dict.fromkeys(word for word in words if word)))
    most_rows = provider.try_out(engine) if devices else 0
    grown = max(0, (held_nbytes() or 0) - before)
    return Found({}) if most_rows is None else Found(devices, most_rows, grown)


_TRIED: dict[str, Found] = {}


def _try(kind: type[PluginProvider]) -> Found:
    path = _cache_path(kind)
    try:
        known = None if path is None else kept_json(path, Found)
    except (OSError, ValueError):
        known = None
    if known is not None:
        return known
    command = child_command(f"{__name__}:try_plugin")
    if command is None:  # a frozen application: its packager chose the plugin
        try:
            return _found_here(kind)
        except Exception as error:  # the engine's exceptions share no base class
            return _failed(kind, first_line(error))
    reply = ask_child(command, kind.__module__, kind.__name__, seconds=TIMEOUT_SECONDS)
    for told in reply.told:
        found = Found(**told)
        if path is not None and found.devices:  # without a device, a driver may be installed later
            keep_json(path, asdict(found))
        return found
    return _failed(kind, reply.failure.removeprefix("edgedecode.errors.RuntimeUnavailable: "))


def _failed(kind: type[PluginProvider], reason: str) -> Found:
    reason = reason.removesuffix("; use --provider cpu")
    return Found({}, problem=f"{kind.distribution} does not run here: {reason}")


def _cache_path(kind: type[PluginProvider]) -> Path | None:
    """Return the cache file for this build of the plugin, onnxruntime and machine; None: there is no cache folder."""
    folder, spec = cache_folder("engines"), find_spec(kind.package)
    if folder is None or spec is None or spec.origin is None:
        return None
    files = sorted(Path(spec.origin).parent.glob("*.so")) + sorted(Path(spec.origin).parent.glob("*.dll"))
    facts = [f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files]
    build = version(kind.distribution), version("onnxruntime"), *(environ.get(name, "") for name in kind.variables)
    return folder / f"{kind.name}-{facts_key(*build, *facts, *processor_facts())}.json"
