"""Run one hostile input and check how it ended: the invariant of all tests in this folder."""

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
"""`--memory` of every command that opens a model."""
UNBUDGETED_NBYTES = 300_000_000
"""Limit for commands that open no model."""
GROWTH = int(os.environ.get("EDGEDECODE_FUZZ", "1"))
INPUTS = {
    "manifests": 190,
    "graphs": 45,
    "tokenizers": 40,
    "templates": 15,
    "gguf": 90,
    "transcripts": 30,
    "command lines": 90,
}
"""Inputs of each kind in the ordinary suite; EDGEDECODE_FUZZ=10 tries ten times as many."""
_CODES = (0, 1, 2, 130)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STAGE = re.compile(r"check|digests|(target|draft): [a-z. ]+")
_NO_ADDRESSES = re.compile(r"bad_alloc|MemoryError|[Ff]ailed to allocate|[Cc]annot allocate")
"""Messages of the forks' address limit: without it the command would have allocated the memory."""
_TABLE = re.compile(r"  \S.* MB$")


def fuzzed(kind: str) -> Callable[[Any], Any]:
    """Try INPUTS[kind] inputs, the same on every run; a failure prints its input unshrunk."""
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
    """The outcome of a command line."""

    words: Sequence[str]
    code: int
    peak: int
    seconds: float
    out: str
    err: str

    def complaints(self, *, limit: int, plain: bool) -> list[str]:
        """Return the violations. plain: no control characters may be printed, as for text that no model generated."""
        found = []
        if self.code not in _CODES:
            found.append(f"exit code {self.code}")
        if "Traceback" in self.err or "panicked at" in self.err:
            found.append("a traceback")
        if self.code == 1 and not _plainly_refused(self.err, talks=self.words[0] == "chat"):
            found.append("no plain refusal")
        if "EP Error" in self.out:
            found.append("output of the engine")
        if self.code == 2 and "usage: " not in self.err:
            found.append("no usage")
        if self.code != 2 and _CONTROLS.search(self.err + (self.out if plain else "")):  # usage errors repeat the words
            found.append("control characters")
        if _NO_ADDRESSES.search(self.err):
            found.append("it reached the limit of the address space")
        if self.peak > limit:
            found.append(f"a peak of {self.peak / 1e6:.0f} MB over {limit / 1e6:.0f} MB")
        return found


def _plainly_refused(err: str, *, talks: bool) -> bool:
    """Return whether there are only notices and a refusal, a line each, with a budget's table or an import's stages.

    talks: messages about a conversation may come first.
    """
    lines = [line for line in err.splitlines() if not _TABLE.fullmatch(line) and not _STAGE.fullmatch(line)]
    return bool(lines) and all(line.startswith("edgedecode: ") for line in (lines[-1:] if talks else lines))


class Fuzz:
    """A fork server, and a folder for the current input."""

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
            "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "0",  # its compiler takes more memory than a command may
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
        """Empty the folder and return it."""
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

        makes: the name that the command creates in the folder when it succeeds. tries: `import` lets llama.cpp try a
        file in separate processes.
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
        output = f"stdout: {outcome.out[-400:]!r}\nstderr: {outcome.err[-1500:]!r}"
        return f"{', '.join(complaints)}\nedgedecode {' '.join(map(repr, outcome.words))}\n{output}"

    def _run(self, words: Sequence[str], *, stdin: bytes, tries: bool) -> Outcome:
        streams = {name: self._root / name for name in ("stdin", "stdout", "stderr")}
        streams["stdin"].write_bytes(stdin)
        request = {"words": list(words), "folder": str(self.place), "tries": tries}
        request |= {name: str(path) for name, path in streams.items()}
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
