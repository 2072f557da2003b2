"""The heads that come with a target's GGUF file: in it, or with the program, found by the target's weights."""

from hashlib import sha256
from pathlib import Path

from edgedecode.errors import ExportError
from edgedecode.gguf.contents import read_contents
from edgedecode.gguf.encoding import F32
from edgedecode.user_notices import notice

from .gguf_head import model_layers
from .mtp_layer import has_mtp
from .pack_head import add_head

_FOLDER = Path(__file__).parent / "shipped"


def add_shipped_head(pack: Path, target: Path) -> None:
    """Add the head for a target's GGUF file to the pack that was made of it, if there is one. Raises as `add_head`.

    An MTP layer in the file that is of another kind than those that run is left out with a notice.
    """
    head, contents = _FOLDER / f"{weights_digest(target)[:16]}.gguf", read_contents(target)
    if head.is_file():
        add_head(pack, head)
    elif has_mtp(contents.tensors, model_layers(contents)):
        try:
            add_head(pack, target)
        except ExportError as error:
            notice(f"its layers for multi-token prediction are left out: {error}")


def weights_digest(target: Path) -> str:
    """Return the digest of a model's norms: files of one model have the same, whatever the types of its matrices."""
    contents, digest = read_contents(target), sha256()
    with target.open("rb") as file:
        for name, tensor in sorted(contents.tensors.items()):
            if tensor.type == F32 and len(tensor.shape) == 1:
                file.seek(contents.start + tensor.offset)
                digest.update(name.encode() + file.read(tensor.nbytes))
    return digest.hexdigest()
