"""Makes the pack of GGUF files that are used without an import: the files themselves stay where they are."""

import errno
import os
from pathlib import Path

from edgedecode.cache import unwritable
from edgedecode.errors import ExportError, ManifestError

from ..heads.shipped import add_shipped_head
from ..stages import Stages
from .gguf_import import import_gguf_pair
from .imported_pack import ImportRequest


def pack_of_gguf(target: Path, draft: Path | None, out: Path, name: str) -> None:
    """Make the pack `out` of a target's file, and of a draft's. Raises ManifestError, after removing what it wrote."""
    request = ImportRequest(target=target, draft=draft, out=out, name=name, checked=False)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(out.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        import_gguf_pair(request, Stages())
        if draft is None:
            add_shipped_head(out, target)
    except OSError as error:
        raise ManifestError(unwritable(out.parent, error)) from None
    except ExportError as error:
        raise ManifestError(str(error)) from None
