"""The public API: the exported names, their documentation and their signatures."""

import importlib
import inspect
import pkgutil
import types
from pathlib import Path

import edgedecode

# Adding or removing a name here needs a line in CHANGELOG.md.
PUBLIC_API = [
    *("BudgetExceeded", "Candidate", "CapabilityError", "Checked", "Chunk", "Completion", "ContextExceeded"),
    *(
        "DecodeSetting",
        "Draft",
        "EdgeDecodeError",
        "ExportError",
        "FinishReason",
        "IncompatiblePair",
        "InputError",
        "LoadOptions",
    ),
    *("ManifestError", "Message", "Pair", "Rule", "RuntimeUnavailable", "SamplingOptions", "Scored", "Session"),
    *(
        "SessionDetails",
        "SessionOptions",
        "Stats",
        "SwitchOptions",
        "TokenLogprob",
        "TokenSet",
        "TurnsDropped",
        "WhenFull",
        "decode",
        "load",
    ),
    "plan",
]
MAX_POSITIONAL = 2
CORE = Path(__file__).parents[1] / "edgedecode"


def _core_modules() -> list[str]:
    found = pkgutil.walk_packages([str(CORE)], "edgedecode.")
    return ["edgedecode", *(module.name for module in found if "._" not in module.name)]


def _functions() -> list[tuple[str, types.FunctionType]]:
    """Return every public function, and every public method of a public class, with its dotted name."""
    found = []
    for name in edgedecode.__all__:
        value = getattr(edgedecode, name)
        if inspect.isfunction(value):
            found.append((name, value))
        elif inspect.isclass(value):
            for attribute, member in vars(value).items():
                function = getattr(member, "__func__", member)  # class and static methods
                generated = "__create_fn__" in getattr(function, "__qualname__", "")
                if inspect.isfunction(function) and not attribute.startswith("_") and not generated:
                    found.append((f"{name}.{attribute}", function))
    return found


def test_public_names_are_not_hidden_by_modules() -> None:
    """Importing a submodule sets it as an attribute of its package and would replace a function of the same name."""
    names = {module.name for module in pkgutil.iter_modules([str(CORE)])}
    assert not names & set(PUBLIC_API)


def test_public_api_is_the_documented_list() -> None:
    assert edgedecode.__all__ == PUBLIC_API


def test_dunder_all_resolves_and_is_sorted() -> None:
    for name in _core_modules():
        module = importlib.import_module(name)
        names = getattr(module, "__all__", [])
        assert [public for public in names if not hasattr(module, public)] == [], name
        assert names == sorted(set(names), key=_by_kind), name


def _by_kind(name: str) -> tuple[int, str]:
    """Return the sort key of ruff's RUF022: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


def test_public_names_are_documented() -> None:
    for name in edgedecode.__all__:
        value = getattr(edgedecode, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            written = value.__doc__ or ""
            assert written, f"{name} has no docstring"
            assert not written.startswith(f"{name}("), f"{name} has only the docstring that dataclass generates"


def test_public_functions_take_few_positional_arguments() -> None:
    kind = inspect.Parameter
    for name, function in _functions():
        parameters = {each.name: each.kind for each in inspect.signature(function).parameters.values()}
        assert not {*parameters.values()} & {kind.VAR_POSITIONAL, kind.VAR_KEYWORD}, f"{name} takes *args or **kwargs"
        by_position = {kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD}
        positional = [each for each, kind in parameters.items() if kind in by_position and each not in ("self", "cls")]
        assert len(positional) <= MAX_POSITIONAL, f"{name} takes {positional} by position"
