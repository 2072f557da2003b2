"""The verb `show`: the contents of a pack by its manifest; with --verify, check the files against it."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from edgedecode.commands import Command, add_json, add_pack, print_json
from edgedecode.library.find import find_pack
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_lock import opening

from ..terminal import progress, table_console


class ShowCommand:
    """Print what a pack holds, shortly or in full, without an engine and without loading weights."""

    name = "show"
    help = "show the contents of a pack, and check its files"

    def configure(self, parser: ArgumentParser) -> None:
        add_pack(parser, parser)
        parser.add_argument("--verify", action="store_true", help="hash every file and compare it with the manifest")
        parser.add_argument("--full", action="store_true", help="list every fact of the manifest")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        root = find_pack(arguments.model)
        with opening(root):
            manifest = Manifest.load(root)
            checked = _checked(manifest, root) if arguments.verify else ""
        value = json.loads(manifest.to_json())
        from .manifest_tables import full_table, summary_table

        # Outside the lock: a slow reader of the output must not block other processes.
        table_console().print(full_table(value) if arguments.full else summary_table(manifest, root))
        if checked:
            print(f"\n{checked}")
        if arguments.json:
            value = {"pack": str(root), "nbytes": manifest.nbytes, **value}
            print_json(value | ({"verified": True} if arguments.verify else {}))
        return 0


def _checked(manifest: Manifest, root: Path) -> str:
    """Hash every file with a progress bar and return the result line. Raises ManifestError for the first bad file."""
    nbytes = manifest.nbytes + sum(file.nbytes for file in manifest.outside.values())
    with progress("hashing, MB", round(nbytes / 1e6)) as advance:
        check_pack(root, full=True, progress=lambda done: advance(done / 1e6))
    return f"OK: all {len(manifest.files) + len(manifest.outside)} files match the manifest"


command: Command = ShowCommand()
