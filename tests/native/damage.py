"""Damaged folders and requests for the native library: what of them is an error, and that none is a crash.

`python -m tests.native.damage CHECK FOLDER ENGINE SECONDS SEED` tries more of them, for example on a build with
`-DEDGEDECODE_SANITIZE=address;undefined`: CHECK is its `edgedecode-check`, FOLDER a packaged folder.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

VALUES: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 2, 15, 16, 257, 1000, 65536, 2**24, 2**31 - 1, 2**31, -(2**31), 2**48, 2**63 - 1),
    *(-(2**63), 2**63, 2**64 - 1, 2**64, 10**30, 0.5, -0.0, 1e-320, 1e308, -1e308, "", " ", "frog", "x" * 5000),
    *("../native.json", "/etc/passwd", "tokenizer.bin", "target/graph.onnx", "a\nb", "\0", "🦙", "float16", "int8"),
    *([], [[]], [0] * 2000, {}, {"": {}}, {"a": [1, {"b": None}]}),
)
SESSION: dict[str, object] = json.loads(
    r"""{"system": "You are brief.", "drafter": "suffix", "draft_max": 4, "seed": 3, "ignore_eos": true,
    "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1, "penalty_window": 64,
    "frequency_penalty": 0.1, "presence_penalty": 0.1, "top_n_sigma": 2, "typical_p": 0.9, "xtc_probability": 0.1,
    "xtc_threshold": 0.1, "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1, "dry_multiplier": 0.8,
    "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", "a"],
    "logit_bias": {"17": -3.5, "20": 100}}"""
)
PROMPTS: dict[str, object] = {"message": "Name a frog.", "tokens": [1, 2, 3], "prompt": "A frog"}
REQUEST: dict[str, object] = {"max_tokens": 6, "stop": ["x", "."], "seed": 5, "temperature": 0.5}
_DEPTHS = {"accepted": [1.0] * 64, "tried": [2.0] * 64}
_PLAIN = {"history": {"suffix:1": _DEPTHS}, "stops": {"suffix": 0.1}, "balances": {"suffix": 0.5}}
EXPERIENCE: dict[str, object] = {
    "tables": {"0": {"step": 0.001, "plain": 4, "beta": {"2": 1.2}, "seen": {"2": 3.0}}},
    "drafts": {"trim": {"step": 0.0001, "read": None}},
    "host": {"suffix": 0.00001},
    "kinds": {"{}": _PLAIN},
    "plain": _PLAIN,
}
"""Only written to a path of our own: the library replaces the file."""


def _places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _places(each, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _changed(chance: random.Random, value: Any) -> Any:
    """Return JSON of which one value is another, or is gone, or is written under another name."""
    value = json.loads(json.dumps(value))
    places = [*_places(value)]
    path = chance.choice(places[1:] or places)
    if not path:
        return chance.choice(VALUES)
    holder, key = _at(value, path[:-1]), path[-1]
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1:
            holder[key] = json.loads(json.dumps(_at(value, chance.choice(places))))
        case 2 if isinstance(holder, dict):
            holder[chance.choice(("", "frog", f"{key}x"))] = holder.pop(key)
        case 3 if isinstance(holder[key], int | float):
            holder[key] = chance.choice((holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 2**20))
        case _:
            holder[key] = chance.choice(VALUES)
    return value


def damaged_text(chance: random.Random, value: Any) -> bytes:
    """Return JSON with a damage or two: in its values, in its text, or in its bytes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        value = _changed(chance, value)
    text = json.dumps(value).encode()
    place = chance.randrange(len(text) + 1)
    match chance.randrange(14):
        case 0:
            return text[:place]
        case 1:
            return text[:place] + bytes(chance.choices(range(1, 256), k=chance.randint(1, 4))) + text[place + 1 :]
        case 2:
            return text[:place] + b"[" * chance.choice((10, 70, 100_000)) + text[place:]
        case 3 if text.startswith(b"{"):
            return b'{"frog": 1, "frog": 2, ' + text[1:]
        case 4:
            return text[:place] + chance.choice((b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u12", b"1e999", b"-"))
        case 5:
            return text.replace(b"0", b"1" * chance.choice((5, 400)), chance.randint(1, 3))
    return text


def _damaged_bytes(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) or 1)
    match chance.randrange(5):
        case 0:
            return data[:place]
        case 1:
            return data + bytes(chance.randint(1, 70000))
        case 2:
            return b""
        case 3:
            return data[:place] + chance.randbytes(64) + data[place + 64 :]
    head = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        head[chance.randrange(min(len(head), 2000))] = chance.randrange(256)
    return bytes(head)


def _damaged_graph(chance: random.Random, data: bytes) -> bytes:
    """Return a graph of which an operator of ours has another attribute, or the weights another place."""
    graph = onnx.load_from_string(data)
    numbers = [each for node in graph.graph.node if node.domain == "edgedecode" for each in node.attribute]
    places = [each for tensor in graph.graph.initializer for each in tensor.external_data if each.key != "location"]
    if chance.random() < 0.2:
        chance.choice(places).value = str(chance.choice((-1, 0, 1, 4096, 2**31, 2**63 - 1, 2**64, "frog")))
    else:
        attribute = chance.choice(numbers)
        if attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = chance.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
        else:
            known = (-1, 0, 1, 2, 7, 32, 255, 4096, 2**31, 2**40, 2**62, -(2**63), attribute.i + 1, attribute.i * 2)
            attribute.i = chance.choice(known)
    found: bytes = graph.SerializeToString()
    return found


class Tries:
    """A running `edgedecode-check tries`. `counts` has the answers of each kind, `longest` the longest sentence."""

    def __init__(self, check: Path, engine: Path, folder: Path, out: Path) -> None:
        self.engine, self.folder, self.out = engine, folder, out
        self.counts, self.longest, self.peak = Counter[str](), "", 0
        self._process = subprocess.Popen(
            [str(check), "tries"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._said = self._process.stdin, self._process.stdout
        self._manifest = json.loads((folder / "native.json").read_text(encoding="utf-8"))

    def close(self) -> None:
        """End it. Raises AssertionError if it found a fault at the end."""
        self._asked.close()
        assert self._process.wait() == 0
        self._said.close()

    def _say(self, what: str) -> None:
        self._asked.write(f"{self.out}\n")
        self._asked.flush()
        line = self._said.readline()
        assert line, f"it crashed: {self.out} is what it was given"
        said = json.loads(line)
        error = said["error"]
        if what == "whole":
            assert not error, error
        self.counts[f"{what}: {said['step']} {'refused' if error else 'passed'}"] += 1
        self.longest, self.peak = max(self.longest, error, key=len), max(self.peak, said["peak"])
        unclear = ("std::", "vector", "map::", "basic_string", "bad_alloc", "unknown error", "stoi")
        assert "\n" not in error, error
        assert len(error.encode()) < 700, error
        assert not any(word in error for word in unclear), error

    def _write(self, name: str, data: bytes) -> None:
        (self.out / name).unlink(missing_ok=True)
        (self.out / name).write_bytes(data)

    def start(self) -> None:
        """Fill the folder with links to the undamaged folder's files."""
        shutil.rmtree(self.out, ignore_errors=True)
        for path in self.folder.rglob("*"):
            if path.is_file():
                place = self.out / path.relative_to(self.folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(path)
        self._write("options", json.dumps({"engine": str(self.engine), "memory": 2 * 10**9, "context": 256}).encode())
        self._write("session", b"{}")
        self._write("request", b'{"message": "Name a frog.", "max_tokens": 3}')

    def manifest(self, chance: random.Random) -> None:
        """Try a folder whose native.json is damaged."""
        self.start()
        self._write("native.json", damaged_text(chance, self._manifest))
        self._say("native.json")

    def files(self, chance: random.Random) -> None:
        """Try a folder of which a file has another content or length, as native.json says of it."""
        self.start()
        name = chance.choice([each for each in self._manifest["files"] if not each.startswith("licenses")])
        damage = _damaged_graph if name.endswith(".onnx") else _damaged_bytes
        data = damage(chance, (self.folder / name).read_bytes())
        self._write(name, data)
        listed = {**self._manifest["files"], name: {**self._manifest["files"][name], "nbytes": len(data)}}
        self._write("native.json", json.dumps({**self._manifest, "files": listed}).encode())
        self._say(name)

    def options(self, chance: random.Random) -> None:
        """Try to open a whole folder with damaged options, and with a damaged file of experience."""
        self.start()
        whole: dict[str, object] = {"engine": str(self.engine), "memory": 10**9, "context": 256, "threads": 1}
        self._write("options", damaged_text(chance, {**whole, "drafts": True, "verify": True}))
        self._say("options")
        self._write("experience", damaged_text(chance, EXPERIENCE))
        self._write("options", json.dumps({**whole, "experience": str(self.out / "experience")}).encode())
        self._say("experience")

    def requests(self, chance: random.Random, count: int) -> None:
        """Try damaged options of sessions, and damaged requests, on one open pack."""
        self.start()
        self._say("whole")
        (self.out / "options").unlink()
        for _ in range(count):
            session = {name: SESSION[name] for name in chance.sample([*SESSION], chance.randint(0, 5))}
            prompt = chance.choice([*PROMPTS])
            request = {prompt: PROMPTS[prompt], **REQUEST}
            damaged = chance.random() < 0.5
            self._write("session", damaged_text(chance, session) if damaged else json.dumps(session).encode())
            self._write("request", json.dumps(request).encode() if damaged else damaged_text(chance, request))
            self._say("session" if damaged else "request")


def main() -> None:
    """Try kinds of damage in turn until the time is over."""
    check, folder, engine, seconds, seed = sys.argv[1:]
    chance, until = random.Random(int(seed)), time.monotonic() + float(seconds)
    with tempfile.TemporaryDirectory() as out:
        tries = Tries(Path(check), Path(engine), Path(folder), Path(out) / "folder")
        while time.monotonic() < until:
            for kind in (tries.manifest, tries.manifest, tries.files, tries.options):
                kind(chance)
            tries.requests(chance, 12)
        tries.close()
        for what, count in sorted(tries.counts.items()):
            print(f"{count:6} {what}")
        total = sum(tries.counts.values())
        print(f"{total} tries, peak {tries.peak / 1e6:.0f} MB; the longest sentence: {tries.longest}")


if __name__ == "__main__":
    main()
