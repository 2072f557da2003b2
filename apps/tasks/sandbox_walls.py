"""What keeps generated code inside: limits of resources, the kernel's filters, and an audit hook of the interpreter.

`sandbox_child.py` executes this file by its path in an interpreter without the package, so it imports the standard
library only. On Linux the kernel refuses network, processes, and files outside the folder. Elsewhere only the limits
and the audit hook do, and code that is written to get around an audit hook can.
"""

from __future__ import annotations

import os
import posix
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["REFUSED", "raise_walls"]

REFUSED = 77
"""Exit status of a process that tried what is refused."""
FILES = 64
"""Most files and folders that are opened for writing or created."""

_DENIED = (
    "_ctypes _curses _dbm _gdbm _interpchannels _interpqueues _interpreters _multiprocessing _posixshmem "
    "_posixsubprocess _remote_debugging _socket _sqlite3 _ssl _testbuffer _testcapi _testinternalcapi "
    "_testlimitedcapi _testmultiphase _tkinter _xxinterpchannels _xxsubinterpreters ctypes curses fcntl "
    "multiprocessing nis ossaudiodev pty readline resource socket sqlite3 subprocess syslog termios tkinter "
    "posix _imp _signal _thread sys builtins"
)
"""Modules that cannot be imported. The last are loaded already: a second copy would have what is removed below."""
_REMOVED = {
    "posix": "chroot eventfd memfd_create mkfifo mknod pidfd_open sched_setaffinity sched_setparam sched_setscheduler "
    "setns setpriority unshare",
    "_signal": "alarm pidfd_send_signal setitimer",
}
"""Functions without an audit event that reach outside, or that run code in the middle of the hook."""
_ACTS = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "subprocess.", "pty."),
    *("os.kill", "signal.pthread_kill", "signal.pidfd_send_signal", "_thread.start", "socket.", "sqlite3.", "ctypes."),
    *("os.chdir", "os.chmod", "os.chown", "os.chflags", "os.link", "os.symlink", "os.rename", "os.setxattr"),
    *("os.removexattr", "os.utime", "resource.", "fcntl.", "syslog.", "gc.get_", "sys.settrace", "sys.setprofile"),
    *("sys.monitoring", "sys.remote_exec", "sys.addaudithook", "code.__new__", "cpython.", "winreg.", "msvcrt."),
)
"""Beginnings of the events that end the process."""
_PATHS = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate")
_CREATING = ("open", "os.mkdir")
_CODE_FILES = (".py", ".pyc", ".so", ".dylib")


def raise_walls(folder: str, *, limits: dict[str, int], report: int) -> None:
    """Confine this process to `folder`, its working directory. Nothing can undo it.

    limits: seconds, memory_nbytes, file_nbytes, open_files. report: the descriptor to which a line of JSON with
    `refused` is written before a refused act ends the process.
    """
    posix.chdir(folder)
    os.environ["TMPDIR"] = folder
    _limit_resources(limits)
    if sys.platform == "linux":
        _kernel_walls(folder)
    for module, names in _REMOVED.items():
        for name in names.split():
            for holder in (sys.modules.get(module), sys.modules.get("os"), sys.modules.get("signal")):
                if hasattr(holder, name):
                    delattr(holder, name)
    library = os.path.dirname(os.__file__)
    sys.addaudithook(_hook(folder, library, report))


def _limit_resources(limits: dict[str, int]) -> None:
    seconds = limits["seconds"]
    most = {
        "RLIMIT_CPU": (seconds, seconds + 1),
        "RLIMIT_AS": (limits["memory_nbytes"],) * 2,
        "RLIMIT_FSIZE": (limits["file_nbytes"],) * 2,
        "RLIMIT_NOFILE": (limits["open_files"],) * 2,
        "RLIMIT_NPROC": (0, 0),
        "RLIMIT_CORE": (0, 0),
    }
    for name, pair in most.items():
        try:
            resource.setrlimit(getattr(resource, name), pair)
        except (AttributeError, OSError, ValueError):
            continue  # a system without this limit, or a lower one in force


def _hook(folder: str, library: str, report: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Return the audit hook. Everything it uses is bound as a default: names can be replaced, defaults cannot."""

    denied, counter = frozenset(_DENIED.split()), iter(range(FILES))

    def check(  # noqa: PLR0913
        event: str,
        arguments: tuple[Any, ...],
        *,
        inside: str = folder + "/",
        library: str = library + "/",
        report: int = report,
        kind: Callable[[object], type] = type,
        text: type[str] = str,
        raw: type[bytes] = bytes,
        whole: type[int] = int,
        acts: tuple[str, ...] = _ACTS,
        paths: tuple[str, ...] = _PATHS,
        creating: tuple[str, ...] = _CREATING,
        denied: frozenset[str] = denied,
        code_files: tuple[str, ...] = _CODE_FILES,
        writes: int = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND,
        more: Callable[[], int] = counter.__next__,
        ended: type[Exception] = StopIteration,
        closed: type[Exception] = OSError,
        missing: type[Exception] = ImportError,
        write: Callable[[int, bytes], int] = posix.write,
        leave: Callable[[int], NoReturn] = posix._exit,
        refused: int = REFUSED,
    ) -> None:
        if event == "import":
            if kind(arguments[0]) is not text or arguments[0].partition(".")[0] in denied:
                raise missing("the sandbox has no such module")
            return
        bad = event.startswith(acts)
        if event == "object.__setattr__":  # named tuples and classes set other attributes
            bad = arguments[1] in ("__code__", "__kwdefaults__")
        if event == "open" or event in paths:
            path = arguments[0]
            opens = event == "open" and kind(arguments[2]) is whole
            writing = not opens or arguments[2] & writes
            if kind(path) is raw:
                path = path.decode("utf-8", "replace")
            if kind(path) is whole:
                writing = False  # a descriptor that is open already
            elif kind(path) is not text or ".." in path.split("/"):
                bad = True
            elif path.startswith("/") and not (path + "/").startswith(inside):
                source = path.startswith(library) and path.endswith(code_files)
                bad = path != "/dev/null" and (writing or not source)
            if writing and event in creating:
                try:
                    more()
                except ended:
                    bad = True
        if bad:
            try:  # noqa: SIM105  (nothing that could be replaced)
                write(report, b'{"refused": "' + event.encode("ascii", "replace") + b'"}\n')
            except closed:
                pass
            leave(refused)

    return check


# -- Linux -----------------------------------------------------------------------------------------------------------


def _kernel_walls(folder: str) -> None:
    """Take a network namespace of its own, then restrict files (Landlock) and system calls (seccomp).

    Each is left out where this kernel, or a container around it, does not offer it.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.unshare(0x10000000 | 0x40000000 | 0x08000000)  # user, network, IPC
    libc.prctl(1, 9, 0, 0, 0)  # die with the process that started this one, also if that is killed
    if libc.prctl(38, 1, 0, 0, 0) == 0:  # no new privileges: the two below need it
        _restrict_files(libc, folder)
        _restrict_calls(libc)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes")]:
        del sys.modules[name]


_READ, _WRITE = 1 << 2 | 1 << 3, 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
"""Landlock: read files and folders; write and remove files, remove folders, make folders and files."""
_TRUNCATE = 1 << 14
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime")


def _restrict_files(libc: CDLL, folder: str) -> None:
    import ctypes

    create, add, restrict = 444, 445, 446  # the same numbers on every processor
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return
    truncate = _TRUNCATE if version >= 3 else 0
    handled = ctypes.c_uint64((1 << 13) - 1 | (1 << 13 if version >= 2 else 0) | truncate)
    rules = libc.syscall(create, ctypes.byref(handled), 8, 0)
    if rules < 0:
        return
    own = {folder: _READ | _WRITE | truncate, "/dev/null": 1 << 1 | 1 << 2 | truncate}
    for path in (os.path.join(sys.base_prefix, "lib"), os.path.dirname(os.__file__), *_LIBRARIES):
        own.setdefault(path, _READ)
    for path, access in own.items():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = access if os.path.isdir(path) else access & ~(1 << 3)
        rule = allowed.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        libc.syscall(add, rules, 1, rule, 0)
        os.close(place)
    libc.syscall(restrict, rules, 0)
    os.close(rules)


_ENDING = {
    "x86_64": (*(56, 57, 58, 59, 322), *(41, 42, 43, 44, 46, 49, 50, 53, 288), *(62, 101, 310, 311)),
    "aarch64": (*(220, 221, 281), *(198, 199, 200, 201, 202, 203, 206, 211, 242), *(129, 117, 270, 271)),
}
"""System calls that end the process: clone, fork, exec; sockets; kill, ptrace, other processes' memory."""
_ENDING_ALL = (424, 425, 434, 435, 438)
"""The same on every processor: pidfd_send_signal, io_uring_setup, pidfd_open, clone3, pidfd_getfd."""
_FAILING = {
    "x86_64": (
        *(29, 30, 64, 68, 240, 319),  # shared memory, semaphores, message queues, memfd_create
        *(86, 88, 133, 259, 265, 266),  # links, nodes
        *(90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280),  # modes, owners, times
        *(135, 141, 142, 144, 155, 159, 160, 161, 163, 164, 165, 166, 167, 169, 170, 172, 173, 175, 176, 179, 203, 227),
        *(246, 248, 249, 250, 272, 298, 300, 302, 304, 308, 313, 314, 321, 323),  # the system itself, priorities, keys
    ),
    "aarch64": (
        *(180, 186, 190, 194, 196, 279),
        *(33, 36, 37),
        *(5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88),
        *(39, 40, 41, 51, 60, 89, 92, 97, 104, 105, 106, 112, 118, 119, 122, 140, 142, 161, 164, 170, 171, 217, 218),
        *(219, 224, 241, 261, 262, 264, 265, 268, 273, 274, 280, 282),
    ),
}
"""System calls that fail with EPERM."""
_FAILING_ALL = (428, 429, 430, 431, 432, 442, 452)
"""Mounts in their newer forms, fchmodat2."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def _restrict_calls(libc: CDLL) -> None:
    import ctypes

    machine = os.uname().machine
    if machine not in _ARCHITECTURES or sys.maxsize < 1 << 32:
        return
    load, equal, above, give = 0x20, 0x15, 0x35, 0x06
    end, fail, allow = 0x80000000, 0x00050000 | 1, 0x7FFF0000
    program = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURES[machine]), (give, 0, 0, end), (load, 0, 0, 0)]
    program += [(above, 0, 1, 0x40000000), (give, 0, 0, end)]  # the x32 calls
    for numbers, action in (
        ((*_ENDING[machine], *_ENDING_ALL), end),
        ((*_FAILING[machine], *_FAILING_ALL), fail),
    ):
        for number in numbers:
            program += [(equal, 0, 1, number), (give, 0, 0, action)]
    program.append((give, 0, 0, allow))
    code = b"".join(
        operation.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)
        for operation, yes, no, value in program
    )
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = len(program).to_bytes(8, sys.byteorder) + ctypes.addressof(buffer).to_bytes(8, sys.byteorder)
    libc.prctl(22, 2, filter_program, 0, 0)  # the kernel copies both
