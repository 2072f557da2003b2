"""The verb `devices`: the engines and providers on this machine, and why some are unavailable."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict

from edgedecode import InputError
from edgedecode.commands import Command, add_json, add_pack, print_json
from edgedecode.engines.child import ask_child, child_command, tell_parent
from edgedecode.engines.engine_factory import GraphKernels
from edgedecode.engines.interface import Device
from edgedecode.engines.registry import RUNTIMES, installed
from edgedecode.errors import cause
from edgedecode.memory.sizes import format_nbytes
from edgedecode.text.printable import shown

from ..machine import Machine, versions
from ..terminal import plain_table, show_notices, table_console

TIMEOUT_SECONDS = 120.0


def probe(runtime: str, *, timeout: float = TIMEOUT_SECONDS, python: Sequence[str] | None = None) -> list[Device]:
    """Return the runtime's devices; for an engine that is missing, crashes or hangs, one unavailable device.

    The engine is queried in a child process; a frozen application cannot start one and queries it in this process.
    python: the child's command, which tests replace.
    """
    command = python or child_command(f"{__name__}:answer")
    if command is None:
        return _devices(runtime)
    reply = ask_child(command, runtime, seconds=timeout)
    for devices in reply.told:
        return [Device(**device) for device in devices]
    advice = ", so its build does not suit this machine: rebuild or reinstall the engine" if reply.signal else ""
    return [_unavailable(runtime, (reply.failure or "it gave no answer") + advice)]


def answer(runtime: str) -> None:
    """Send a runtime's devices to the parent process; run in the child process."""
    tell_parent([asdict(device) for device in _devices(runtime)])


def _devices(runtime: str) -> list[Device]:
    from edgedecode import EdgeDecodeError
    from edgedecode.engines.registry import find_runtime

    try:
        return list(find_runtime(runtime).devices())
    except EdgeDecodeError as error:
        return [_unavailable(runtime, cause(error))]


def _unavailable(runtime: str, reason: str) -> Device:
    return Device(runtime=runtime, provider="-", description="", available=False, reason=reason)


class DevicesCommand:
    """Print a table of engines and providers, without loading an engine into this process."""

    name = "devices"
    help = "list this machine's engines and providers, the engine that auto chooses for a pack, and a pack's kernels"

    def configure(self, parser: ArgumentParser) -> None:
        add_pack(parser, parser)
        parser.add_argument("--runtime", metavar="NAME", help="only this runtime")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        from .pack_engines import explain, pack_kernels

        names = list(installed(RUNTIMES))
        if arguments.runtime is not None:
            if arguments.runtime not in names:
                raise InputError(f"there is no runtime {arguments.runtime!r}; installed: {', '.join(names) or 'none'}")
            names = [arguments.runtime]
        show_notices()
        machine = Machine.here()
        devices = [device for name in names for device in probe(name)]
        found = {package: number for name in names for package, number in versions(name).items()}
        auto = explain(arguments.model)
        kernels = [] if arguments.model is None else pack_kernels(arguments.model, names)
        _show(machine, devices, found)
        if auto is not None:
            print(auto.line)
        if kernels:
            _show_kernels(kernels)
        if arguments.json:
            listed = [asdict(device) for device in devices]
            chosen = None if auto is None else asdict(auto)
            graphs = [{"runtime": name, "model": role, **asdict(graph)} for name, role, graph in kernels]
            facts = {"machine": asdict(machine), "versions": found, "devices": listed, "auto": chosen}
            print_json({**facts, "kernels": graphs})
        return 0


def _show(machine: Machine, devices: list[Device], found: dict[str, str]) -> None:
    from rich.text import Text

    table = plain_table("runtime", "provider", "available", "description, or why not", left=4)
    for device in devices:
        available = Text("yes", style="green") if device.available else Text("no", style="red")
        table.add_row(device.runtime, device.provider, available, Text(device.reason or device.description))
    table_console().print(table)
    memory = "memory unknown"
    if machine.total_nbytes is not None and machine.available_nbytes is not None:
        memory = f"{format_nbytes(machine.total_nbytes)} of memory, {format_nbytes(machine.available_nbytes)} available"
    print(f"\n{machine.processor}, {machine.cores} cores, {memory}")
    print(f"{machine.system}, Python {machine.python}")
    print(", ".join(f"{name} {number}" for name, number in found.items()))


def _show_kernels(kernels: list[tuple[str, str, GraphKernels]]) -> None:
    from rich.text import Text

    table = plain_table("model", "graph", "kernels", "matrices", "results of a row", "left to the engine", left=6)
    table.columns[3].justify = "right"
    for name, role, graph in kernels:
        own = graph.kernels or f"{name}'s own"
        bits = "identical at every width" if graph.row_invariant else "depend on the width"
        left = ", ".join(f"{count} {what}" for what, count in graph.left.items())
        cells = (role, graph.graph, own, str(graph.matrices), bits, graph.reason or left or "nothing")
        table.add_row(*(Text(shown(cell)) for cell in cells))
    print()
    table_console().print(table)


command: Command = DevicesCommand()
