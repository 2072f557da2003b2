"""The verb `import`: a finished ONNX model becomes a pack. Arguments and output; the work is loaded to run."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from edgedecode.commands import Command

from ..arguments import count
from ..quiet import quiet

__all__ = ["command"]


class ImportCommand:
    """Folders with ONNX graphs become a pack that uses their weights where they lie."""

    name = "import"
    help = "make a pack of ONNX models that onnxruntime-genai or optimum made"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("--onnx", required=True, type=Path, metavar="FOLDER", help="folder of the large model")
        parser.add_argument("--draft-onnx", type=Path, metavar="FOLDER", help="folder of the small model")
        parser.add_argument("--out", required=True, type=Path, metavar="PACK", help="folder to make; must not exist")
        parser.add_argument(
            "--copy",
            action="store_true",
            help="copy the weights into the pack, which can then be moved (default: use them where they lie)",
        )
        parser.add_argument("--name", help="the pack's name (default: its folder's)")
        parser.add_argument("--license", help="licence of the models, where their folders do not say")
        parser.add_argument(
            "--noise-positions",
            type=count,
            default=2000,
            metavar="N",
            help="positions the kernels' noise is measured on (default 2000; 0: not measured)",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON line")

    def run(self, arguments: Namespace) -> int:
        from ..frameworks import require_frameworks

        require_frameworks("import")
        from ..report import LiveDisplay, pair_report, show_pair
        from ..stages import Stages
        from .pair import ImportRequest, import_pair

        request = ImportRequest(
            target=arguments.onnx,
            draft=arguments.draft_onnx,
            out=arguments.out,
            copy=arguments.copy,
            name=arguments.name,
            license=arguments.license,
            noise_positions=arguments.noise_positions,
        )
        with quiet(debug=arguments.debug), LiveDisplay() as display:
            stages = Stages(display)
            manifest = import_pair(request, stages)
        show_pair(manifest, stages.records, out=arguments.out)
        for name, outside in manifest.outside.items():
            print(f"{name} stays at {outside.path}")
        for role, entry in manifest.models.items():
            for note in entry.notes:
                print(f"{role}: {note}")
        if arguments.json:
            print(json.dumps(pair_report(manifest, stages.records, out=arguments.out)))
        return 0


command: Command = ImportCommand()
