"""Hostile packs: copies of the bundled pack's draft, each corrupted in one place.

A case changes a copy's files or its manifest. `list_files` then updates the digests, so that they match.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from edgedecode.library.names import BUNDLED_PACK
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import Tensor
from edgedecode.onnx_format.wire import bytes_field, integer_field, message_field, pair_field, text_field
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME

Document = dict[str, Any]
Corruption = Callable[[Path], None]
BASE, WEIGHTS = "draft/base.onnx", "draft/weights.bin"
_NAMES = ("tokenizer.json", "chat_template.jinja", BASE, WEIGHTS, "draft/lora.onnx")


def base_pack(root: Path) -> Path:
    """Write a valid pack of 3 MB: the bundled draft as its target."""
    for name in _NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(BUNDLED_PACK / name, root / name)
    value = json.loads((BUNDLED_PACK / MANIFEST_NAME).read_text(encoding="utf-8"))
    entry = value["models"]["draft"]
    entry["graphs"] = {name: entry["graphs"][name] for name in ("base", "lora")}
    entry |= {"trim": None, "trimmed": None, "gguf_plan": ""}
    value |= {"models": {"target": entry}, "files": {}}
    (root / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    list_files(root)
    return root


def copy_of(pack: Path, root: Path) -> Path:
    """Copy a pack by hard links; `write` replaces a linked file before changing it."""
    return Path(shutil.copytree(pack, root, copy_function=os.link))


def read(root: Path) -> Document:
    value: Document = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    return value


def write(path: Path, content: bytes) -> None:
    """Replace a file, which may be a hard link to that of another pack."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def list_files(root: Path, more: Sequence[str] = ()) -> None:
    """List the pack's present files, and those of `more`, in the manifest with their sizes and digests."""
    value = read(root)
    names = [name for name in (*_NAMES, *more) if (root / name).is_file()]
    value["files"] = {
        name: {"nbytes": (root / name).stat().st_size, "sha256": file_sha256(root / name)} for name in names
    }
    write(root / MANIFEST_NAME, json.dumps(value).encode())


def number(key: str, value: object) -> Corruption:
    """Set a value of the target's entry, or of the manifest itself if the key begins with a dot."""

    def corrupt(root: Path) -> None:
        manifest = read(root)
        place = manifest["models"]["target"]
        *path, last = key.split(".")
        if path[:1] == [""]:
            place, path = manifest, path[1:]
        for part in path:
            place = place[part]
        place[last] = value
        write(root / MANIFEST_NAME, json.dumps(manifest).encode())

    return corrupt


def text(change: Callable[[str], str]) -> Corruption:
    """Change the manifest's text."""
    return lambda root: write(root / MANIFEST_NAME, change((root / MANIFEST_NAME).read_text("utf-8")).encode())


def graph(change: Callable[[GraphFile], None]) -> Corruption:
    """Change the base graph."""

    def corrupt(root: Path) -> None:
        file = GraphFile.parse((root / BASE).read_bytes())
        change(file)
        write(root / BASE, file.serialize())
        list_files(root)

    return corrupt


def content(change: Callable[[bytes], bytes]) -> Corruption:
    """Change the base graph's bytes."""

    def corrupt(root: Path) -> None:
        write(root / BASE, change((root / BASE).read_bytes()))
        list_files(root)

    return corrupt


def _first(file: GraphFile) -> Tensor:
    return next(tensor for tensor in file.initializers.values() if tensor.external is not None)


def tensor(**changes: Any) -> Corruption:
    """Change the location, shape or type of the first external tensor."""

    def change(file: GraphFile) -> None:
        old = _first(file)
        assert old.external is not None
        shape = {key: value for key, value in changes.items() if key in ("dims", "data_type")}
        place = {key: value for key, value in changes.items() if key not in shape}
        file.initializers[old.name] = replace(old, external=replace(old.external, **place), **shape)

    return graph(change)


def _external_tensor(location: str = "/etc/passwd", *more: bytes) -> bytes:
    """Encode an external tensor of 16 bytes."""
    places = [pair_field(13, pair) for pair in (("location", location), ("offset", "0"), ("length", "16"))]
    fields = [integer_field(1, 16), integer_field(2, 2), text_field(8, "t"), *places, integer_field(14, 1), *more]
    return b"".join(fields)


def _node_with_attribute(value: bytes, *, number: int = 5, kind: str = "Constant", domain: str = "") -> bytes:
    """Encode a node with one attribute."""
    attribute = [text_field(1, "value"), bytes_field(number, value), integer_field(20, number - 1)]
    return b"".join([text_field(2, "c"), text_field(4, kind), message_field(5, attribute), text_field(7, domain)])


def in_graph(number: int, encoded: bytes) -> Corruption:
    """Add an encoded field to the base graph."""
    return graph(lambda file: file.graph_rest.append((number, encoded)))


def attribute(value: bytes, **how: Any) -> Corruption:
    """Add a node with this attribute to the base graph."""
    return in_graph(1, bytes_field(1, _node_with_attribute(value, **how)))


def rest(number: int, message: bytes) -> Corruption:
    return graph(lambda file: file.model_rest.append((number, bytes_field(number, message))))


def _nested_graphs(levels: int) -> bytes:
    inner = b""
    for _ in range(levels):
        inner = bytes_field(1, _node_with_attribute(inner, number=6, kind="If"))
    return _node_with_attribute(inner, number=6, kind="If")


def _operator(op_type: str, domain: str) -> Corruption:
    return graph(lambda file: file.nodes.append(Node(op_type, domain, outputs=["x"])))


def _grow(path: Path) -> None:
    path.unlink()
    with path.open("wb") as file:
        file.truncate(100_000_000)


def _grow_graph(root: Path) -> None:
    _grow(root / BASE)
    list_files(root)


def _named(key: str, value: object, said: str) -> tuple[Corruption, str]:
    """Return the case of a value whose refusal names its key and the value, and then says this."""
    shown = "10+" if value == _HUGE else re.escape(str(value))
    return number(key, value), rf"{re.escape(key.removeprefix('.'))} is .{shown}.: expected {said}"


_HUGE = 10**400
NUMBERS: dict[str, tuple[Corruption, str]] = {
    "a billion layers": _named("layers", 10**9, "int <= 512"),
    "more layers": (number("layers", 3), "has layers 2, the manifest says 3"),
    "fewer layers": (number("layers", 1), "has layers 2, the manifest says 1"),
    "a billion positions": _named("context", 10**9, "int <="),
    "more positions than tables": (number("context", 4096), "serves 2048 positions, .* a context of 4096"),
    "a wide model": _named("hidden_size", 10**7, "int <="),
    "a model wider than its weights": (number("hidden_size", 10**5), r"8192 rows of 100000 weights, .* has 2164736"),
    "another width": (number("hidden_size", 256), r"norms have widths \[128\], the manifest says 256"),
    "other rows": (number("rows", 8000), "has rows 8192, the manifest says 8000"),
    "other KV heads": (number("kv_heads", 2), "has KV heads 1, the manifest says 2"),
    "another head size": (number("head_size", 32), "has head size 64, the manifest says 32"),
    "a negative number": _named("kv_heads", -1, "int >= 1"),
    "a boolean": _named("layers", True, "int, got bool"),
    "a float": _named("rows", 8192.0, "int, got float"),
    "a number of 400 digits": _named("rows", _HUGE, "int <="),
    "a size of 400 digits": (
        number(".files.a", {"nbytes": _HUGE, "sha256": ""}),
        "files.a.nbytes is .10+.: expected int",
    ),
    "NaN": _named("kernel_noise", float("nan"), "float"),
    "infinity": _named("parity.a", float("inf"), "float"),
    "64 bits per weight": _named("bits", 64, "int <= 32"),
    "a block of billions": _named("block_size", 10**9, "int <= 65536"),
    "a window of billions": _named("window", 10**9, "int <="),
    "no inputs": _named("graphs.base.inputs", [], "array of length >= 1"),
    "no outputs": _named("graphs.base.outputs", [], "array of length >= 1"),
    "other inputs": (number("graphs.base.inputs", ["input_ids"]), "its inputs are not those of the manifest"),
    "an adapter of rank a billion": _named("graphs.lora.lora_rank", 10**9, "int <="),
    "an end token of billions": (number(".generation.end_token_ids", [10**9]), "end token 1000000000, .* 8192 rows"),
    "a negative end token": (number(".generation.end_token_ids", [-1]), r"_ids\[0\] is .-1.: expected int >= 0"),
    "an end token of 400 digits": (
        number(".generation.end_token_ids", [_HUGE]),
        r"_ids\[0\] is .10+.: expected int <=",
    ),
    "a billion ids": _named(".vocabulary_size", 10**9, "int <="),
    "a deeply nested manifest": (text(lambda old: '{"a":' * 100_000), "nested too deeply"),
    "a duplicate key": (text(lambda old: '{"name": "a", ' + old[1:]), "key 'name' appears twice"),
    "a manifest of 100 MB": (lambda root: _grow(root / MANIFEST_NAME), "is not a manifest: it has 100000000 bytes"),
    "a manifest that is a pipe": (lambda root: _pipe(root / MANIFEST_NAME), "is not a manifest: .* not a regular file"),
    "a manifest that is a link": (lambda root: _link(root / MANIFEST_NAME), "is a link, as in the .*: .* `cp -rL`"),
}


_BOMBS = ("ConstantOfShape", "Range", "Expand", "Tile", "EyeLike", "RandomNormal", "OneHot", "Pad")
"""Operators with a few bytes of input and any size of output."""


def _cast_often(file: GraphFile) -> None:
    name = max(file.initializers, key=lambda name: prod(file.initializers[name].dims))
    for i in range(60):
        file.nodes.append(Node("Cast", inputs=[name], outputs=[f"cast.{i}"], attributes={"to": 1}))


def _share(file: GraphFile) -> None:
    first = min((t for t in file.initializers.values() if t.external), key=lambda t: t.external and t.external.offset)
    for i in range(60):
        file.initializers[f"share.{i}"] = replace(first, name=f"share.{i}")


def _overlap(file: GraphFile) -> None:
    old = _first(file)
    assert old.external is not None
    place = replace(old.external, offset=4, length=4)
    file.initializers["overlap"] = replace(old, name="overlap", dims=(4,), data_type=2, external=place)


_MEMORY = "*/_ORT_MEM_ADDR_/*"
_OUTSIDE = integer_field(14, 1)
"""The encoded data_location of an external tensor."""
_HALVES = _node_with_attribute(_external_tensor()) + message_field(5, [bytes_field(5, b""), bytes_field(5, b"")])
_ELSEWHERE = "is stored in '/etc/passwd'"
GRAPHS: dict[str, tuple[Corruption, str]] = {
    "an absolute path": (tensor(location="/etc/passwd"), "is stored in '/etc/passwd', where only 'weights.bin'"),
    "a path above the folder": (tensor(location="../tokenizer.json"), r"is stored in '\.\./tokenizer\.json'"),
    "a path with a leading dot": (tensor(location="./weights.bin"), r"is stored in '\./weights\.bin'"),
    "an address in the engine's memory": (tensor(location=_MEMORY), "is stored in .*_ORT_MEM_ADDR_"),
    "past the end of the file": (tensor(offset=2_164_736), "ends at byte"),
    "far past the end of the file": (tensor(offset=10**18), "ends at byte 1000000000001048576"),
    "longer than its shape": (tensor(length=4), "has 4 bytes, but its shape needs"),
    "an unknown type": (tensor(data_type=99), "of the unknown type 99"),
    "a tensor of texts": (tensor(data_type=8), "holds texts, which may not be external"),
    "a negative size": (tensor(dims=(-1, 4)), "2 dimensions, or a negative one"),
    "many dimensions": (tensor(dims=(1,) * 17), "17 dimensions"),
    "prepacked parts": (tensor(others={"prepacked_0": "a"}), "unknown external entry 'prepacked_0'"),
    "a large size in few bytes": (
        graph(lambda file: file.initializers.__setitem__("t", Tensor("t", 1, (10**12,), b""))),
        "claims 1000000000000 elements in",
    ),
    "external in an attribute": (attribute(_external_tensor()), _ELSEWHERE),
    "external in a list of tensors": (attribute(_external_tensor(), number=10), _ELSEWHERE),
    "external in an inner graph": (attribute(bytes_field(5, _external_tensor()), number=6, kind="If"), _ELSEWHERE),
    "external in a node of an inner graph": (
        attribute(bytes_field(1, _node_with_attribute(_external_tensor())), number=6, kind="If"),
        _ELSEWHERE,
    ),
    "a location without data_location": (attribute(_external_tensor().replace(_OUTSIDE, b"")), _ELSEWHERE),
    "data_location without a location": (attribute(integer_field(2, 2) + _OUTSIDE), "is stored in ''"),
    "data_location of 33 bits": (
        attribute(_external_tensor().replace(_OUTSIDE, integer_field(14, 2**32 + 1))),
        "unknown data location 4294967297",
    ),
    "two locations": (attribute(_external_tensor("weights.bin", pair_field(13, ("location", "x")))), "appears twice"),
    "two halves of an attribute": (in_graph(1, bytes_field(1, _HALVES)), _ELSEWHERE),
    "a sparse initializer": (in_graph(15, bytes_field(15, b"")), "holds a sparse tensor"),
    "a sparse attribute": (attribute(b"", number=22), "holds a sparse tensor"),
    "functions": (rest(25, b""), "holds functions"),
    "training": (rest(20, b""), "holds training steps"),
    "a second graph": (rest(7, b""), "holds one graph, this one 2"),
    **{
        f"the operator {kind}": (_operator(kind, ""), f"no model of this kind needs its operator '{kind}'.* or upgrade")
        for kind in _BOMBS
    },
    "a weight converted many times": (graph(_cast_often), "'Cast' computes .* elements of constants"),
    "tensors over the same bytes": (graph(_share), "its tensors overlap at byte 0 of weights.bin"),
    "tensors that overlap": (graph(_overlap), "its tensors overlap at byte 4"),
    "an unknown domain": (_operator("Run", "com.example"), "'Run' is of the unknown domain 'com.example'"),
    "the domain of EdgeDecode's kernels": (
        _operator("RowsProduct", "edgedecode"),
        "of the unknown domain 'edgedecode'",
    ),
    "a loop": (attribute(b"", number=6, kind="Loop"), "'Loop' holds a graph"),
    "an operator that reads files": (_operator("EPContext", "com.microsoft"), "EPContext reads files"),
    "deeply nested graphs": (in_graph(1, bytes_field(1, _nested_graphs(40))), "nested more than"),
    "too many fields": (in_graph(13, b"\x6a\x00" * 2**18), "more than 131072"),
    "too many fields of an input": (in_graph(11, bytes_field(11, b"\x1a\x00" * 2**20)), "more than 131072"),
}
BYTES: dict[str, tuple[Corruption, str]] = {
    "empty file": (content(lambda old: b""), "it is empty"),
    "truncated": (content(lambda old: old[:-3]), "cut off"),
    "an endless varint": (content(lambda old: old + b"\x80" * 40), "cut off or too long"),
    "a length past the end": (content(lambda old: old + b"\x7a\xff\xff\xff\xff\x0f"), "cut off"),
    "a group": (content(lambda old: old + b"\x0b"), "unknown wire type 3"),
    "noise": (content(lambda old: b"\x93" * len(old)), "is refused: .*(?:field|number)"),
    "the engine's own format": (content(lambda old: b"\x7a\x06\0\0ORTM" + old), "ONNX Runtime's own format"),
    "huge": (_grow_graph, "has 100000000 bytes, a graph of 2 layers needs less"),
}


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.rename(path.with_name("real.json"))
    path.symlink_to("real.json")


def padded(name: str, nbytes: int) -> Corruption:
    """Pad the end of a file with this many blanks."""

    def corrupt(root: Path) -> None:
        write(root / name, (root / name).read_bytes().rstrip() + b" " * nbytes)
        list_files(root)

    return corrupt


def _listed(name: str) -> Corruption:
    def corrupt(root: Path) -> None:
        write(root / name, b"x" * 1000)
        list_files(root, [name])

    return corrupt


def _file(name: str) -> Corruption:
    return lambda root: write(root / name, b"x")


FOLDERS: dict[str, tuple[Corruption, str]] = {
    "a hidden file": (_file("draft/.m.bin"), r"draft/\.m\.bin is not listed"),
    "a hidden file next to the manifest": (_file(".m.bin"), r"\d/\.m\.bin is not listed"),
    "an unlisted file": (_file("draft/other.bin"), r"draft/other\.bin is not listed"),
    "an unlisted file next to the manifest": (_file("other.bin"), r"\d/other\.bin is not listed"),
    "a folder": (lambda root: (root / "draft" / "more").mkdir(), "draft/more is not listed"),
    "a hidden folder": (_file("draft/.more/m.bin"), r"draft/\.more is not listed"),
    "a model named LICENSE": (_file("LICENSE.onnx"), r"LICENSE\.onnx is not listed"),
    "a folder named like a system file": (_file("draft/._more/m.bin"), r"draft/\._more is not listed"),
    "a link": (lambda root: (root / "draft" / "m.bin").symlink_to("/etc/passwd"), r"draft/m\.bin is a link"),
    "a link to nothing": (lambda root: (root / "m.bin").symlink_to("nothing"), r"m\.bin is a link"),
    "a link as README": (lambda root: (root / "README.md").symlink_to("/etc/passwd"), r"README\.md is a link"),
    "a link to a folder": (lambda root: (root / ".git").symlink_to("/etc"), r"\.git is a link"),
    "a long template": (padded("chat_template.jinja", 300_000), r"jinja has 300\d\d\d bytes, the limit is 262144"),
    "a long tokenizer": (padded("tokenizer.json", 70_000_000), r"json has 70\d* bytes, the limit is 67108864"),
    "a pipe": (lambda root: _pipe(root / "draft" / "m.bin"), r"draft/m\.bin is not an ordinary file"),
    "listed weights that no model uses": (
        _listed("draft/second.bin"),
        r"second\.bin is listed, but no model refers to it: .*upgrade edgedecode: the pack was created by edgedecode",
    ),
}


def corrupted_copy(pack: Path, root: Path, corrupt: Corruption) -> Path:
    """Return a corrupted copy of a valid pack."""
    copy = copy_of(pack, root)
    corrupt(copy)
    return copy
