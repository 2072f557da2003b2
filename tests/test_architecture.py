"""The rings as import rules, read from the syntax trees, so that they hold for code no test reaches too."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RINGS = {
    "edgedecode": "edgedecode",
    "edgedecode.export": "export",
    "edgedecode.runtimes": "runtimes",
    "edgedecode.apps": "apps",
    "edgedecode.bench": "bench",
}
OUTER = ("export", "runtimes", "apps")
DEVELOPERS = "bench"  # may import every ring, and no ring imports it
FOLDERS = (*OUTER, DEVELOPERS)

ROOMS = {  # of the core: what a room may import beside itself, from rooms and from the modules of the face
    "sampling": {"arrays", "errors"},
    "decoding": {"sampling", "arrays", "errors"},
    "memory": {"errors", "turns"},
    "schedule": {"decoding", "errors", "user_notices"},
    "drafters": {"decoding", "sampling", "arrays", "cache", "errors", "memory"},
    "text": {"duplicate_names", "errors", "memory"},
    "onnx_format": {"duplicate_names"},
    "gguf": {"decoding", "arrays", "cache", "errors"},
    "pack": {
        *("decoding", "gguf", "onnx_format", "sampling", "text"),
        *("arrays", "cache", "duplicate_names", "errors", "locks", "memory", "typed_json", "user_notices"),
    },
    "adapters": {"arrays", "decoding", "errors", "gguf", "memory", "onnx_format", "pack", "turns"},
    "engines": {
        *("decoding", "drafters", "pack", "sampling"),
        *("arrays", "cache", "errors", "memory", "open_pack", "options", "pair", "typed_json", "user_notices"),
    },
    "switching": {"arrays", "decoding", "drafters", "errors", "sampling"},
    "sessions": {
        *("adapters", "decoding", "drafters", "engines", "pack", "sampling", "schedule", "switching", "text"),
        *("cache", "errors", "memory", "options", "turns", "user_notices"),
    },
}
MAX_LINES = 400
MAX_MODULES = 16
"""Of a folder: what a reader takes in at once."""
TWICE = {"__init__", "command"}

CORE = {"numpy", "tokenizers", "jinja2", "msgspec"}
TRAINING = {"gguf", "onnx", "onnx_ir", "onnxruntime_genai", "optimum", "peft", "safetensors", "torch", "transformers"}
HEAVY = {"huggingface_hub", "matplotlib", "tqdm"}
ENGINES = {"onnx": {"onnxruntime"}, "llama": {"llama_cpp"}}  # by folder of runtimes/
EXPORT = CORE | TRAINING | {"huggingface_hub", "matplotlib", "ml_dtypes", "onnxruntime", "rich", "tqdm"}
EXPORT |= {"builders"}  # the model builder's own package, reached through onnxruntime_genai
APPS = {"matplotlib", "numpy", "rich"}
BENCH = EXPORT | APPS | set().union(*ENGINES.values())
ASKED_LAZILY = {  # inside functions of these files, and nowhere else in the core
    Path("edgedecode/pack/hub.py"): "huggingface_hub",
    Path("edgedecode/memory/process_memory.py"): "psutil",
    Path("edgedecode/plot_file.py"): "matplotlib",
}
LLAMA_CHILD = Path("export/gguf/llama_child.py")  # llama.cpp's tokenizer and quantizer, never in our process

PRINTERS = {
    Path("edgedecode/cli.py"),
    *(path.relative_to(ROOT) for path in (ROOT / "export/cli").glob("*.py")),
}  # and everything under apps/ and bench/


@dataclass(frozen=True)
class Import:
    """One imported module: absolute name, where it stands, and whether importing the file loads it."""

    module: str
    line: int
    on_import: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Source:
    """One file of the package with its module name in the installed package."""

    path: Path  # relative to the root
    module: str
    tree: ast.Module
    lines: int

    @property
    def ring(self) -> str:
        return self.path.parts[0]

    def imports(self) -> tuple[Import, ...]:
        return _imports(self)


@cache
def _imports(source: Source) -> tuple[Import, ...]:
    return tuple(_found_imports(source))


def _found_imports(source: Source) -> Iterator[Import]:
    package = source.module if source.path.name == "__init__.py" else source.module.rpartition(".")[0]
    todo: list[tuple[ast.AST, bool]] = [(source.tree, True)]
    while todo:
        node, on_import = todo.pop()
        inside = on_import and not _is_lazy(node)
        todo += [(child, inside) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, on_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
            # `from edgedecode import runtimes` reaches the module edgedecode.runtimes
            yield from (Import(f"{base}.{alias.name}", node.lineno, on_import) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Import(argument.value, node.lineno, on_import)


def _is_lazy(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def _called(node: ast.Call) -> str:
    function = node.func
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the four folders."""
    found = []
    for package, folder in RINGS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join([package, *(inside[:-1] if inside[-1] == "__init__" else inside)])
            text = path.read_text(encoding="utf-8")
            found.append(Source(path.relative_to(ROOT), name, ast.parse(text, str(path)), len(text.splitlines())))
    return tuple(found)


def _allowed(source: Source) -> set[str]:
    """Return the third-party packages a file may import, anywhere in it."""
    if source.ring == "edgedecode":
        return CORE | {ASKED_LAZILY[source.path]} if source.path in ASKED_LAZILY else CORE
    if source.ring == "runtimes":
        return CORE | (ENGINES.get(source.path.parts[1], set()))
    if source.path == LLAMA_CHILD:
        return CORE | {"llama_cpp"}
    return {"export": EXPORT, "apps": APPS, DEVELOPERS: BENCH}[source.ring]


def _reaches(imported: Import, rings: tuple[str, ...]) -> bool:
    return any(f"{imported.module}.".startswith(f"edgedecode.{ring}.") for ring in rings)


def _where(source: Source, imported: Import) -> str:
    return f"{source.path}:{imported.line} imports {imported.module}"


def test_the_walk_sees_the_tree() -> None:
    names = {source.module for source in sources()}
    assert {"edgedecode", "edgedecode.cli", "edgedecode.export", "edgedecode.runtimes.onnx", "edgedecode.apps"} <= names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from .. import runtimes", "edgedecode.runtimes"),
        ("from ..runtimes.onnx import model", "edgedecode.runtimes.onnx.model"),
        ("import edgedecode.export as e", "edgedecode.export"),
        ("importlib.import_module('edgedecode.export')", "edgedecode.export"),
    ],
)
def test_the_walk_resolves_every_way_to_import(text: str, expected: str) -> None:
    source = Source(Path("apps/chat.py"), "edgedecode.apps.chat", ast.parse(f"def f():\n    {text}"), 2)
    assert [(found.module, found.on_import) for found in source.imports()] == [(expected, False)]


def test_each_ring_imports_only_its_third_parties() -> None:
    wrong = [
        _where(source, imported)
        for source in sources()
        for imported in source.imports()
        if imported.top not in sys.stdlib_module_names | {"edgedecode", "__future__"} | _allowed(source)
        and imported.top not in FOLDERS  # has a test of its own
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_imports_no_outer_ring() -> None:
    wrong = [_where(s, i) for s in sources() if s.ring == "edgedecode" for i in s.imports() if _reaches(i, FOLDERS)]
    assert not wrong, "\n".join(wrong)


def test_outer_rings_do_not_import_each_other() -> None:
    wrong = [
        _where(source, imported)
        for source in sources()
        if source.ring in OUTER
        for imported in source.imports()
        if _reaches(imported, tuple(ring for ring in FOLDERS if ring != source.ring))
    ]
    assert not wrong, "\n".join(wrong)


def _module(imported: Import, known: set[str]) -> str:
    """Return the module that an import reaches: `a.b` for `from a import b` where that is one, else `a`."""
    return imported.module if imported.module in known else imported.module.rpartition(".")[0]


def test_each_room_of_the_core_imports_only_what_it_may() -> None:
    known = {source.module for source in sources()}
    wrong = []
    for source in sources():
        room = source.path.parts[1] if source.ring == "edgedecode" else ""
        if room in ROOMS:
            reached = {(_module(found, known), found.line) for found in source.imports() if found.top == "edgedecode"}
            rooms = {(name.split(".")[1], line) for name, line in reached if "." in name}
            wrong += [
                f"{source.path}:{line} imports {name}" for name, line in rooms if name not in {room, *ROOMS[room]}
            ]
    assert not wrong, "\n".join(wrong)


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    folders = Counter(source.path.parent for source in sources())
    assert not {str(folder): modules for folder, modules in folders.items() if modules > MAX_MODULES}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for type checking and inside functions count too: a circle cannot be read from one end."""
    known = {source.module for source in sources()}
    left = {
        source.module: {_module(found, known) for found in source.imports() if found.top == "edgedecode"}
        & known - {source.module, "edgedecode"}
        for source in sources()
    }
    while free := [module for module, reached in left.items() if not reached & left.keys()]:
        for module in free:
            del left[module]
    assert not left, "\n".join(f"{module} imports {reached & left.keys()}" for module, reached in left.items())


def test_no_folder_is_imported_by_its_bare_name() -> None:
    """`import export` works from a checkout and nowhere else; tests are held to it too."""
    wrong = [_where(source, found) for source in sources() for found in source.imports() if found.top in FOLDERS]
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        source = Source(path.relative_to(ROOT), "tests.any", ast.parse(text, str(path)), 0)
        wrong += [_where(source, found) for found in source.imports() if found.top in FOLDERS]
    assert not wrong, "\n".join(wrong)


def test_the_hub_and_psutil_are_only_asked_for_inside_a_function() -> None:
    found = [i for s in sources() for i in s.imports() if ASKED_LAZILY.get(s.path) == i.top]
    assert {imported.top for imported in found} == set(ASKED_LAZILY.values())
    assert not [imported for imported in found if imported.on_import]


def test_the_command_line_is_light() -> None:
    """Verbs are loaded to print the help: importing them, with all that brings, loads no engine and no framework."""
    by_module = {source.module: source for source in sources()}
    for start in [source for source in sources() if source.path.name.endswith("command.py")]:
        todo = [by_module[name] for name in _with_parents(start.module)]
        seen, heavy = {source.module for source in todo}, []
        while todo:
            source = todo.pop()
            for imported in (found for found in source.imports() if found.on_import):
                if imported.top in (
                    TRAINING | set().union(*ENGINES.values()) | {"huggingface_hub", "matplotlib", "tqdm"}
                ):
                    heavy.append(_where(source, imported))
                for name in _with_parents(imported.module):
                    if name in by_module and name not in seen:
                        seen.add(name)
                        todo.append(by_module[name])
        assert not heavy, f"{start.path} loads at import:\n" + "\n".join(heavy)


def _with_parents(module: str) -> list[str]:
    """Return the module and the packages whose `__init__` runs before it."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def test_files_stay_short() -> None:
    long = [f"{source.path}: {source.lines} lines" for source in sources() if source.lines > MAX_LINES]
    assert not long, "\n".join(long)


def test_a_name_is_that_of_one_module() -> None:
    """An editor's "go to file", a traceback and a reader's memory know modules by their last name."""
    places: dict[str, list[str]] = {}
    for source in sources():
        places.setdefault(source.path.stem, []).append(str(source.path))
    wrong = [" and ".join(paths) for name, paths in places.items() if len(paths) > 1 and name not in TWICE]
    assert not wrong, "\n".join(wrong)


def test_only_programs_print() -> None:
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        if source.ring not in ("apps", DEVELOPERS) and source.path not in PRINTERS
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, "\n".join(wrong)


def test_no_star_imports_and_no_globals() -> None:
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Global)
        or (isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names))
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_a_module_does_no_work() -> None:
    """At module level stand definitions, constants, imports, and branches for type checking or being run."""
    wrong = [
        f"{source.path}:{node.lineno} {type(node).__name__}"
        for source in sources()
        for node in source.tree.body
        if not _is_definition(node)
    ]
    assert not wrong, "\n".join(wrong)


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        return any(word in test for word in ("TYPE_CHECKING", "__name__", "sys.version_info", "sys.platform"))
    return isinstance(
        node,
        (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    )


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(source.path) for source in sources() if not ast.get_docstring(source.tree)]
    assert not silent, "\n".join(silent)
