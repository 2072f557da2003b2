"""Runs one hostile input and says what is wrong with how it ended: the invariant of everything in this folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings

BUDGET_NBYTES = 160_000_000
"""What `--memory` says wherever a model is opened."""
UNBUDGETED_NBYTES = 300_000_000
"""For what opens no model."""
GROWTH = int(os.environ.get("EDGEDECODE_FUZZ", "1"))
INPUTS = {
    "manifests": 190,
    "graphs": 90,
    "tokenizers": 40,
    "templates": 15,
    "gguf": 105,
    "transcripts": 30,
    "command lines": 90,
}
"""How many of each kind the ordinary suite tries; EDGEDECODE_FUZZ=10 tries ten times as many."""
_CODES = (0, 1, 2, 130)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STAGE = re.compile(r"check|digests|(target|draft): [a-z. ]+")
_NO_ADDRESSES = re.compile(r"bad_alloc|MemoryError|[Ff]ailed to allocate|[Cc]annot allocate")
"""What the limit of the server's forks looks like: without it the machine would have been asked for the memory."""
_TABLE = re.compile(r"  \S.* MB$")


def fuzzed(kind: str) -> Callable[[Any], Any]:
    """Try as many inputs as INPUTS says, the same on every run; a failure prints its input, unshrunk."""
    return settings(
        max_examples=INPUTS[kind] * GROWTH,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True)
class Outcome:
    """How a command line ended."""

    words: Sequence[str]
    code: int
    peak: int
    seconds: float
    out: str
    err: str

    def complaints(self, *, limit: int, plain: bool) -> list[str]:
        """Say what is wrong. plain: nothing printed may be a control character, as in text a model did not write."""
        found = []
        if self.code not in _CODES:
            found.append(f"exit code {self.code}")
        if "Traceback" in self.err or "panicked at" in self.err:
            found.append("a traceback")
        if self.code == 1 and not _plainly_refused(self.err, talks=self.words[0] == "chat"):
            found.append("no plain refusal")
        if "EP Error" in self.out:
            found.append("the engine speaks")
        if self.code == 2 and "usage: " not in self.err:
            found.append("no usage")
        if self.code != 2 and _CONTROLS.search(self.err + (self.out if plain else "")):  # usage repeats its words
            found.append("control characters")
        if _NO_ADDRESSES.search(self.err):
            found.append("it ran into the limit of the address space")
        if self.peak > limit:
            found.append(f"a peak of {self.peak / 1e6:.0f} MB over {limit / 1e6:.0f} MB")
        return found


def _plainly_refused(err: str, *, talks: bool) -> bool:
    """Notices and the refusal, a line each, a budget's with its table; of an import also the stages before it.

    talks: remarks on a conversation may stand before it.
    """
    lines = [line for line in err.splitlines() if not _TABLE.fullmatch(line) and not _STAGE.fullmatch(line)]
    return bool(lines) and all(line.startswith("edgedecode: ") for line in (lines[-1:] if talks else lines))


class Fuzz:
    """A server of forks, and a folder for the input of the moment."""

    def __init__(self, root: Path) -> None:
        self.place = root / "place"
        self._root = root
        environment = {
            "EDGEDECODE_CACHE": str(root / "cache"),
            "EDGEDECODE_RUNTIME": "onnx",
            "HF_HUB_OFFLINE": "1",
            "HOME": str(root / "home"),
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "150",
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **environment},
        )

    def close(self) -> None:
        self._server.communicate(timeout=60)

    def fresh(self) -> Path:
        """Return the folder, empty."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        return self.place

    def check(
        self,
        *words: str,
        stdin: bytes = b"",
        limit: int = UNBUDGETED_NBYTES,
        plain: bool = False,
        makes: str | None = None,
        tries: bool = True,
    ) -> Outcome:
        """Run the words and raise AssertionError where the invariant does not hold.

        makes: what the command makes in the folder where it ends with 0. tries: `import` lets llama.cpp try a file, in
        processes of its own.
        """
        before = self._listing()
        outcome = self._run(words, stdin=stdin, tries=tries)
        complaints = outcome.complaints(limit=limit, plain=plain)
        after = self._listing()
        if outcome.code == 0 and makes is not None:
            after = [line for line in after if line[0].split("/")[0] != makes]
        if after != before:
            complaints.append(f"the folder changed: {sorted(set(after) ^ set(before))[:4]}")
        assert not complaints, self._report(outcome, complaints)
        return outcome

    def _report(self, outcome: Outcome, complaints: Sequence[str]) -> str:
        said = f"stdout: {outcome.out[-400:]!r}\nstderr: {outcome.err[-1500:]!r}"
        return f"{', '.join(complaints)}\nedgedecode {' '.join(map(repr, outcome.words))}\n{said}"

    def _run(self, words: Sequence[str], *, stdin: bytes, tries: bool) -> Outcome:
        streams = {name: self._root / name for name in ("stdin", "stdout", "stderr")}
        streams["stdin"].write_bytes(stdin)
        request = {"words": list(words), "folder": str(self.place), "tries": tries}
        request |= {name: str(path) for name, path in streams.items()}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        out, err = (streams[name].read_text(encoding="utf-8", errors="replace") for name in ("stdout", "stderr"))
        return Outcome(words=words, out=out, err=err, **answer)

    def _listing(self) -> list[tuple[str, int, int]]:
        return sorted(
            (str(path.relative_to(self.place)), found.st_size if path.is_file() else 0, found.st_mtime_ns)
            for path in self.place.rglob("*")
            for found in [path.lstat()]
        )
