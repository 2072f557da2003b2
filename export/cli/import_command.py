"""The verb `import`: arguments and output. Heavy modules are imported only when it runs."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, print_json

from .common import quiet

if TYPE_CHECKING:
    from edgedecode.pack.manifest import Manifest

    from ..stages import Stages


class ImportCommand:
    """Makes a pack from ONNX folders or GGUF files, using their weights in place by default."""

    name = "import"
    help = "make a pack from GGUF files, or from ONNX models made by onnxruntime-genai"

    def configure(self, parser: ArgumentParser) -> None:
        large = parser.add_mutually_exclusive_group(required=True)
        large.add_argument("--target", type=Path, metavar="FILE", help="GGUF file of the large model, or its name")
        large.add_argument("--onnx", type=Path, metavar="FOLDER", help="folder of the large model's ONNX graph")
        parser.add_argument("--draft", type=Path, metavar="FILE", help="GGUF file of the small model, or its name")
        parser.add_argument("--draft-onnx", type=Path, metavar="FOLDER", help="folder of the small model's ONNX graph")
        parser.add_argument(
            "-o", "--out", required=True, type=Path, metavar="PACK", help="folder to create; must not exist yet"
        )
        parser.add_argument(
            "--copy",
            action="store_true",
            help="copy the weights into the pack, which can then be moved (default: use the original files)",
        )
        parser.add_argument("--name", help="the pack's name (default: the folder's name)")
        parser.add_argument("--license", help="licence of the models, overriding the one that they name")
        add_json(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        _check_ways(arguments)
        if arguments.onnx is not None:
            from ..frameworks import require_frameworks

            require_frameworks("import")
        from .pack_tables import shown

        with quiet(debug=arguments.debug):
            report = shown(lambda stages: _imported(arguments, stages), out=arguments.out)
        if arguments.json:
            print_json(report)
        return 0


def _check_ways(arguments: Namespace) -> None:
    """Exit with a usage error if ONNX and GGUF options are mixed."""
    if arguments.onnx is not None and arguments.draft is not None:
        arguments.usage_error("argument --draft: it goes with --target, not with --onnx")
    if arguments.target is not None and arguments.draft_onnx is not None:
        arguments.usage_error("argument --draft-onnx: it goes with --onnx, not with --target")


def _imported(arguments: Namespace, stages: "Stages") -> "Manifest":
    from edgedecode.library.find import find_file

    from ..imports.imported_pack import ImportRequest

    request = ImportRequest(
        target=find_file(arguments.target) if arguments.target else arguments.onnx,
        draft=find_file(arguments.draft) if arguments.draft else arguments.draft_onnx,
        out=arguments.out,
        copy=arguments.copy,
        name=arguments.name,
        license=arguments.license,
    )
    if arguments.target is not None:
        from edgedecode.pack.manifest import Manifest

        from ..heads.shipped import add_shipped_head
        from ..imports.gguf_import import import_gguf_pair

        manifest = import_gguf_pair(request, stages)
        if request.draft is None:
            add_shipped_head(request.out, request.target)
            manifest = Manifest.load(request.out)
        return manifest
    from ..imports.onnx_import import import_pair

    return import_pair(request, stages)


command: Command = ImportCommand()
