"""Import rules between and within the top-level folders, checked in the syntax trees to cover untested code too."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "edgedecode": "edgedecode",
    "edgedecode.export": "export",
    "edgedecode.runtimes": "runtimes",
    "edgedecode.apps": "apps",
    "edgedecode.bench": "bench",
}
OUTER = ("export", "runtimes", "apps")
DEVELOPERS = "bench"  # may import every folder, and none imports it
OUTSIDE_CORE = (*OUTER, DEVELOPERS)

CORE_IMPORTS = {  # by folder of the core: which other folders and modules of the core it may import
    "sampling": {"arrays", "errors"},
    "decoding": {"sampling", "arrays", "errors"},
    "memory": {"errors", "fair_lock"},
    "schedule": {"decoding", "errors", "sampling", "typed_json", "user_notices"},
    "drafters": {"decoding", "sampling", "arrays", "cache", "errors", "memory", "text"},
    "text": {"duplicate_names", "errors", "memory"},
    "onnx_format": {"duplicate_names"},
    "gguf": {"decoding", "arrays", "cache", "errors"},
    "pack": {
        *("decoding", "gguf", "onnx_format", "sampling", "text"),
        *("arrays", "cache", "duplicate_names", "errors", "locks", "memory", "typed_json", "user_notices"),
    },
    "library": {"cache", "engines", "errors", "gguf", "locks", "memory", "pack", "text", "typed_json", "user_notices"},
    "adapters": {"arrays", "decoding", "errors", "gguf", "memory", "onnx_format", "fair_lock", "pack", "typed_json"},
    "engines": {
        *("decoding", "drafters", "pack", "sampling", "text"),
        *("arrays", "cache", "errors", "memory", "open_pack", "options", "pair", "typed_json", "user_notices"),
    },
    "structured": {"arrays", "errors", "text", "typed_json"},
    "switching": {"arrays", "decoding", "drafters", "errors", "sampling"},
    "sessions": {
        *("adapters", "decoding", "drafters", "engines", "pack", "sampling", "schedule", "structured", "switching"),
        "text",
        *("cache", "errors", "fair_lock", "memory", "options", "user_notices"),
    },
}
MAX_LINES = 400
MAX_MODULES = 18
"""Per folder, so that its contents can be taken in at a glance."""

CORE_PACKAGES = {"numpy", "tokenizers", "jinja2", "msgspec"}
TRAINING = {"gguf", "onnx", "onnx_ir", "onnxruntime_genai", "peft", "safetensors", "torch", "transformers"}
HEAVY = {"h11", "huggingface_hub", "matplotlib", "prompt_toolkit", "starlette", "tqdm", "uvicorn"}
ENGINES = {"onnx": {"onnxruntime"}, "llama": {"llama_cpp"}}  # by folder of runtimes/
EXPORT = CORE_PACKAGES | TRAINING | {"elftools", "huggingface_hub", "ml_dtypes", "onnxruntime", "rich"}
EXPORT |= {"tqdm", "builders"}  # the model builder's own package, reached through onnxruntime_genai
APPS = {"h11", "jsonschema_rs", "msgspec", "numpy", "prompt_toolkit", "rich", "starlette", "uvicorn"}
BENCH = EXPORT | APPS | set().union(*ENGINES.values())
LAZY_IMPORTS = {  # inside functions of these files, and nowhere else in the core
    Path("edgedecode/pack/hub.py"): "huggingface_hub",
    Path("edgedecode/library/hub_files.py"): "huggingface_hub",
    Path("edgedecode/memory/process_memory.py"): "psutil",
    Path("edgedecode/structured/guidance.py"): "llguidance",
}
LLAMA_CHILD = Path("export/gguf/llama_tokens.py")  # llama.cpp's tokenizer runs only in a child process
PROGRAMS = {Path("edgedecode/cli.py"), Path("bench/peers/peer.py")}  # their own environment; the latter: of its child
ENVIRONMENT = re.compile(r"environ(\[[^]]+\] = |\.(setdefault|update|pop|clear)\()|\b(put|unset)env\(")
HTP_CHILD = Path("export/npu/htp_child.py")  # so does the compiler for NPUs
BUNDLE_DEVICE = Path("export/bundles/device")  # goes into bundles: neither edgedecode nor its dependencies are there
BUNDLE_RUN = BUNDLE_DEVICE / "run.py"

PRINTERS = {
    Path("edgedecode/cli.py"),
    Path("edgedecode/commands.py"),  # JSON for --json
    BUNDLE_RUN,
    *(path.relative_to(ROOT) for name in ("cli", "bundles/cli") for path in (ROOT / "export" / name).glob("*.py")),
}  # and everything under apps/ and bench/


@dataclass(frozen=True)
class Import:
    """One imported module: the absolute name, the line, and whether importing the file loads it."""

    module: str
    line: int
    on_import: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Source:
    """One source file, with its module name in the installed package."""

    path: Path  # relative to the root
    module: str
    tree: ast.Module
    lines: int

    @property
    def folder(self) -> str:
        return self.path.parts[0]

    def imports(self) -> tuple[Import, ...]:
        return _imports(self)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))


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
    """Return every Python file of the five folders."""
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join([package, *(inside[:-1] if inside[-1] == "__init__" else inside)])
            text = path.read_text(encoding="utf-8")
            found.append(Source(path.relative_to(ROOT), name, ast.parse(text, str(path)), len(text.splitlines())))
    return tuple(found)


def _allowed(source: Source) -> set[str]:
    """Return the third-party packages a file may import, anywhere in it."""
    if source.folder == "edgedecode":
        return CORE_PACKAGES | {LAZY_IMPORTS[source.path]} if source.path in LAZY_IMPORTS else CORE_PACKAGES
    if source.folder == "runtimes":
        return CORE_PACKAGES | (ENGINES.get(source.path.parts[1], set()))
    if source.path == LLAMA_CHILD:
        return CORE_PACKAGES | {"llama_cpp"}
    if source.path == HTP_CHILD:
        return EXPORT | {"onnxruntime_qnn"}
    if source.path.parent == BUNDLE_DEVICE:
        return {"numpy", "onnxruntime", "onnxruntime_qnn"}
    return {"export": EXPORT, "apps": APPS, DEVELOPERS: BENCH}[source.folder]


def _reaches(imported: Import, folders: tuple[str, ...]) -> bool:
    return any(f"{imported.module}.".startswith(f"edgedecode.{folder}.") for folder in folders)


def _where(source: Source, imported: Import) -> str:
    return f"{source.path}:{imported.line} imports {imported.module}"


def _imports_that(is_wrong: Callable[[Source, Import], bool]) -> list[str]:
    return [_where(source, found) for source in sources() for found in source.imports() if is_wrong(source, found)]


def _assert_no_node(is_wrong: Callable[[Source, ast.AST], bool]) -> None:
    wrong = [(source, node) for source in sources() for node in source.nodes if is_wrong(source, node)]
    assert not wrong, "\n".join(f"{source.path}:{node.lineno}" for source, node in wrong)  # type: ignore[attr-defined]


def test_sources_include_all_folders() -> None:
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
def test_imports_resolve_every_form(text: str, expected: str) -> None:
    source = Source(Path("apps/chat.py"), "edgedecode.apps.chat", ast.parse(f"def f():\n    {text}"), 2)
    assert [(found.module, found.on_import) for found in source.imports()] == [(expected, False)]


def test_folders_import_only_their_third_party_packages() -> None:
    """Imports of the other folders are covered by a separate test."""
    free = sys.stdlib_module_names | {"edgedecode", "__future__", *OUTSIDE_CORE}
    wrong = _imports_that(lambda source, found: found.top not in free | _allowed(source))
    assert not wrong, "\n".join(wrong)


def test_core_does_not_import_outer_folders() -> None:
    wrong = _imports_that(lambda source, found: source.folder == "edgedecode" and _reaches(found, OUTSIDE_CORE))
    assert not wrong, "\n".join(wrong)


def test_outer_folders_do_not_import_each_other() -> None:
    def reaches_another(source: Source, found: Import) -> bool:
        return source.folder in OUTER and _reaches(found, tuple({*OUTSIDE_CORE} - {source.folder}))

    wrong = _imports_that(reaches_another)
    assert not wrong, "\n".join(wrong)


def _module(imported: Import, known: set[str]) -> str:
    """Return the module that an import reaches: `a.b` for `from a import b` where that is one, else `a`."""
    return imported.module if imported.module in known else imported.module.rpartition(".")[0]


def test_core_packages_import_only_what_the_table_allows() -> None:
    known = {source.module for source in sources()}
    wrong = []
    for source in sources():
        package = source.path.parts[1] if source.folder == "edgedecode" else ""
        if package in CORE_IMPORTS:
            reached = {(_module(found, known), found.line) for found in source.imports() if found.top == "edgedecode"}
            names = {(name.split(".")[1], line) for name, line in reached if "." in name}
            wrong += [
                f"{source.path}:{line} imports {name}"
                for name, line in names
                if name not in {package, *CORE_IMPORTS[package]}
            ]
    assert not wrong, "\n".join(wrong)


def test_folders_have_few_modules() -> None:
    folders = Counter(source.path.parent for source in sources())
    assert not {str(folder): modules for folder, modules in folders.items() if modules > MAX_MODULES}


def test_modules_do_not_import_each_other_in_cycles() -> None:
    """Imports for type checking and inside functions count too: a cycle has no module to start reading from."""
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


def test_folders_are_imported_by_their_installed_names() -> None:
    """`import export` works only from a checkout. The rule holds for tests too."""
    wrong = _imports_that(lambda _, found: found.top in OUTSIDE_CORE)
    named = re.compile(rf"(from|import|import_module\W+|__import__\W+) ?({'|'.join(OUTSIDE_CORE)})\b")
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if named.search(text) is None:  # parsing all tests takes seconds
            continue
        source = Source(path.relative_to(ROOT), "tests.any", ast.parse(text, str(path)), 0)
        wrong += [_where(source, found) for found in source.imports() if found.top in OUTSIDE_CORE]
    assert not wrong, "\n".join(wrong)


def test_files_that_go_into_bundles_stand_alone() -> None:
    own = f"edgedecode.{'.'.join(BUNDLE_DEVICE.parts)}."

    def leaves(source: Source, found: Import) -> bool:
        return source.path.parent == BUNDLE_DEVICE and found.top == "edgedecode" and not found.module.startswith(own)

    wrong = _imports_that(leaves)
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_imported_only_inside_functions() -> None:
    found = [i for s in sources() for i in s.imports() if LAZY_IMPORTS.get(s.path) == i.top]
    assert {imported.top for imported in found} == set(LAZY_IMPORTS.values())
    assert not [imported for imported in found if imported.on_import]


def test_command_modules_load_no_heavy_package() -> None:
    """The help loads all commands; importing them must not load an engine or a framework, not even indirectly."""
    by_module = {source.module: source for source in sources()}
    for start in [source for source in sources() if source.path.name.endswith("command.py")]:
        todo = [by_module[name] for name in _with_parents(start.module)]
        seen, heavy = {source.module for source in todo}, []
        while todo:
            source = todo.pop()
            for imported in (found for found in source.imports() if found.on_import):
                if imported.top in TRAINING | HEAVY | set().union(*ENGINES.values()):
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


def test_files_are_short() -> None:
    long = [f"{source.path}: {source.lines} lines" for source in sources() if source.lines > MAX_LINES]
    assert not long, "\n".join(long)


def test_print_is_used_only_by_programs() -> None:
    def prints(source: Source, node: ast.AST) -> bool:
        if source.folder in ("apps", DEVELOPERS) or source.path in PRINTERS or not isinstance(node, ast.Call):
            return False
        return isinstance(node.func, ast.Name) and node.func.id == "print"

    _assert_no_node(prints)


def test_only_whole_processes_change_their_environment() -> None:
    """Threads share it, so code that a program calls passes variables to its children instead."""
    assert {each.path for each in sources() if ENVIRONMENT.search((ROOT / each.path).read_text("utf-8"))} == PROGRAMS


def test_modules_have_no_star_imports_and_no_globals() -> None:
    def is_wrong(source: Source, node: ast.AST) -> bool:
        star = isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        return star or isinstance(node, ast.Global)

    _assert_no_node(is_wrong)


def test_modules_contain_only_definitions_at_the_top_level() -> None:
    """Importing does no work: only definitions, constants, imports, and branches for type checking or `__main__`."""
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


def test_modules_have_docstrings() -> None:
    missing = [str(source.path) for source in sources() if not ast.get_docstring(source.tree)]
    assert not missing, "\n".join(missing)
