"""Run command lines, each in a fork of this process to contain native crashes, with one JSON line each.

Started once by `running.Fuzz`; slow imports happen here, before the forks.
"""

import json
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any

from edgedecode.engines import registry

CPU_SECONDS, WALL_SECONDS = 20, 90
"""Limits of one input; the wall time is for inputs that wait, on a machine with other load."""
ADDRESS_NBYTES = 3 << 30
"""Stops a runaway input before the machine runs out of memory; a refusal caused by it is a failure."""
ESCAPED = 70
"""The exit code of an exception that reached the caller of `main`."""
IMPORTED = (
    *("edgedecode.apps.chat.conversation", "edgedecode.apps.show.manifest_tables"),
    *("edgedecode.export.imports.gguf_import", "edgedecode.runtimes.llama", "edgedecode.runtimes.onnx", "gguf"),
    *("llama_cpp", "onnxruntime", "rich.progress"),
)


def serve() -> None:
    """Answer requests until standard input ends."""
    for command in registry.installed(registry.COMMANDS).values():
        command.load()
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        print(json.dumps(_forked(json.loads(line))), flush=True)


def _forked(request: dict[str, Any]) -> dict[str, float]:
    child = os.fork()
    if child == 0:
        _run(request)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "peak": usage.ru_maxrss * 1024, "seconds": usage.ru_utime + usage.ru_stime}


def _run(request: dict[str, Any]) -> None:
    """Run the command line in this fork and exit."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(request[name], flags, 0o600), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  (the server's stream has read ahead)
    os.chdir(request["folder"])
    if not request["tries"]:
        import_module("edgedecode.export.imports.gguf_import").engine_fault = lambda: "left out"
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_NBYTES, ADDRESS_NBYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_SECONDS)
    code = ESCAPED
    try:
        from edgedecode.cli import main

        code = main(request["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else ESCAPED
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
