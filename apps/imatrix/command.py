"""The verb `imatrix`: measure how much each column of a GGUF file's matrices counts, as llama.cpp's llama-imatrix."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode import InputError, load
from edgedecode.commands import Command, add_json, positive_count, print_json
from edgedecode.decoding.model import SquaresModel
from edgedecode.gguf.importance import CHUNK, Sums, check_file, read_sums, write_sums
from edgedecode.library.find import find_pack
from edgedecode.open_pack import LoadOptions
from edgedecode.pack.manifest import Manifest
from edgedecode.text.encoder import BYTE_NBYTES, TOKEN_NBYTES
from edgedecode.text.printable import counted, file_text
from edgedecode.text.tokenizer import Tokenizer

from ..terminal import show_notices, tracked

Squares: TypeAlias = Mapping[str, npt.NDArray[np.float64]]


class ImatrixCommand:
    """Write sums of squares over whole chunks of a text; the file is complete or does not appear."""

    name = "imatrix"
    help = "measure how much each column of a GGUF file's matrices counts (an importance matrix)"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="a GGUF file, or a name of `edgedecode list`")
        parser.add_argument(
            "-f",
            "--file",
            required=True,
            type=Path,
            metavar="FILE",
            help="text to measure on; - is standard input. Its special tokens are read as text, and the rest after the "
            "last whole chunk is left out",
        )
        parser.add_argument("-o", "--out", required=True, type=Path, metavar="FILE", help="importance file to write")
        parser.add_argument(
            "--add", type=Path, metavar="FILE", help="importance file of the same model, to which the sums are added"
        )
        parser.add_argument(
            "-c",
            "--ctx-size",
            type=positive_count,
            metavar="N",
            help=f"tokens of a chunk, each read without the others (default: {CHUNK}, or the model's context)",
        )
        parser.add_argument("-t", "--threads", type=positive_count, metavar="N", help="number of threads")
        parser.add_argument("--memory", metavar="SIZE", help="hard limit on the memory of the process")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        show_notices()
        check_file(arguments.out, option="--out")
        read = [each for each in (Path(arguments.model), arguments.file) if each.exists()]
        if arguments.out.exists() and any(arguments.out.samefile(each) for each in read):
            raise InputError(f"{arguments.out} is itself measured: give another --out")
        text = file_text(arguments.file).removesuffix("\n")
        known, texts = ({}, ()) if arguments.add is None else read_sums(arguments.add)
        root = find_pack(arguments.model)
        if Manifest.load(root).models["target"].graphs:
            raise InputError(f"{arguments.model} is no GGUF file: for a pack, use `export --write-imatrix FILE`")
        options = LoadOptions(squares=True)
        with load(root, memory=arguments.memory, runtime="onnx", threads=arguments.threads, options=options) as pair:
            model = pair.target
            assert isinstance(model, SquaresModel)
            if known and (difference := _difference(known, model.squares)):
                raise InputError(f"{arguments.add} is the importance file of another model: {difference}")
            size = arguments.ctx_size or min(CHUNK, model.card.context)
            state = model.new_state(size)
            with pair.budget.reserve("encoding the text", (BYTE_NBYTES + TOKEN_NBYTES) * len(text.encode())):
                chunks = chunks_of(pair.tokenizer, text, size=size)
            if not chunks:
                raise InputError(f"{arguments.file} is shorter than {size} tokens: give more, or shorter chunks (-c)")
            for chunk in tracked(chunks, "chunks"):
                model.forward(chunk, state, rows="none")
                state.crop(0)
            sums = {**known, **_added(known, model.squares, tokens=size * len(chunks))}
        if not all(np.isfinite(values).all() for values, _ in sums.values()):
            raise InputError(f"the activations of {arguments.model} are not finite on {arguments.file}")
        write_sums(arguments.out, sums, texts=[*texts, arguments.file.name], chunk=size)
        tokens = round(max(count for _, count in sums.values()))
        matrices, parts = counted(len(sums), "matrix", "matrices"), counted(len(chunks), "chunk")
        print(f"{arguments.out}: {matrices}, {parts} of {size} tokens, {tokens} tokens in total")
        if arguments.json:
            print_json({"matrices": len(sums), "tokens": tokens, "chunks": len(chunks), "chunk_size": size})
        return 0


def chunks_of(tokenizer: Tokenizer, text: str, *, size: int) -> list[list[int]]:
    """Cut a text into chunks of `size` tokens, without the rest.

    A token that begins texts takes the place of each chunk's first one, as in llama-imatrix.
    """
    alone, begun = (tokenizer.encode("a", add_special=each) for each in (False, True))
    start = begun[: begun.index(alone[0])]
    tokens = start + tokenizer.encode(tokenizer.without_controls(text))
    places = range(0, len(tokens) - size + 1, size)
    return [[*start, *tokens[place + len(start) : place + size]] for place in places]


def _difference(known: Sums, squares: Squares) -> str:
    """Return what an importance file has that one of this model would not have; empty: nothing."""
    for name, values in squares.items():
        if name not in known:
            return f"it has no {name}"
        if len(known[name][0]) != len(values):
            return f"its {name} has {len(known[name][0])} columns, not {len(values)}"
    more = [name for name in known if name.startswith("blk.") and name not in squares]
    return f"it has {more[0]} too" if more else ""


def _added(known: Sums, squares: Squares, *, tokens: int) -> Sums:
    """Return the sums over this many tokens, with those that are known already."""
    found = {}
    for name, values in squares.items():
        before, count = known.get(name, (0, 0))
        found[name] = (values + before).astype(np.float32), count + tokens
    return found


command: Command = ImatrixCommand()
