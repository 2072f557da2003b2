"""A server under load: more clients than its memory budget holds, of which some leave and some send garbage.

    python -m tests.load --minutes 5 --clients 64

Starts `edgedecode serve` with the bundled pack, or with copies of it (--models 3 --memory 190MB: not all fit at once),
and compares every stream with the answer of a lone session with the same seed. Prints a report; exits with 1 if a text
differs, the budget is exceeded, or something is left behind.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from subprocess import Popen
from time import monotonic, sleep
from typing import Any

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import PROCESS
from edgedecode.memory.process_memory import memory_of
from edgedecode.memory.sizes import format_nbytes
from tests.apps.serving import serving

QUESTIONS, SEEDS, MOST = 24, 4, 80
"""Prompts, seeds of each, and tokens of an answer: the lone answers take a minute."""
LEAVING, GARBAGE = 1 / 3, 1 / 10
"""Shares of the clients' requests that are left in the middle of their answer, and that are no requests."""
BROKEN = (
    b"{",
    b"\xff\xfe",
    b"[]",
    b"[" * 5000,
    b'{"model": "demo"}',
    b'{"model": "demo", "messages": []}',
    b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "temperature": -1}',
    b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", '
    b'"json_schema": {"strict": true, "schema": {"not": {}}}}}',
)


@dataclass
class Tally:
    """What the clients saw. Several threads append to it."""

    wanted: dict[tuple[str, int], str]
    models: tuple[str, ...] = ("demo",)
    """Names of the pack and of its copies, which answer the same."""
    counts: Counter[str] = field(default_factory=Counter)
    first_seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def lone_answers() -> dict[tuple[str, int], str]:
    """Return the answer to each prompt and seed by a session that has the pair to itself."""
    prompts = [prompt.turns[0] for prompt in bundled_prompts()[:: 240 // QUESTIONS]]
    found: dict[tuple[str, int], str] = {}
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        for text in prompts:
            for seed in range(SEEDS):
                options = SessionOptions(sampling=SamplingOptions(temperature=1.0), seed=seed)
                with pair.session(options) as session:
                    found[text, seed] = session.generate(text, max_tokens=MOST).text
    return found


def client(address: str, tally: Tally, rng: random.Random, *, until: float) -> None:
    """Send requests one after the other."""
    while monotonic() < until:
        kind = rng.random()
        try:
            if kind < GARBAGE:
                outcome = garbage(address, rng.choice(BROKEN))
            else:
                model, asked = rng.choice(tally.models), rng.choice(list(tally.wanted))
                outcome = ask(address, tally, *asked, model=model, leaves=kind < GARBAGE + LEAVING)
        except (OSError, ValueError, http.client.HTTPException) as error:
            outcome = "error"
            tally.errors.append(repr(error))
        tally.counts[outcome] += 1
        if outcome == "busy":
            sleep(1)  # as its Retry-After says


def garbage(address: str, body: bytes) -> str:
    connection = http.client.HTTPConnection(address, timeout=300)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return "garbage refused" if 400 <= reply.status < 500 else f"garbage answered with {reply.status}"


def ask(address: str, tally: Tally, text: str, seed: int, *, model: str, leaves: bool) -> str:
    """Stream an answer and compare it; leave after some tokens if asked to."""
    message = {"role": "user", "content": text}
    body = {"model": model, "messages": [message], "seed": seed, "temperature": 1, "max_tokens": MOST, "stream": True}
    connection = http.client.HTTPConnection(address, timeout=300)
    began, found, wanted = monotonic(), "", tally.wanted[text, seed]
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status == 503:
            return "busy"
        if reply.status != 200:
            tally.errors.append(f"{reply.status} {reply.read(300)!r}")
            return "error"
        for part in pieces(reply):
            if part and not found:
                tally.first_seconds.append(monotonic() - began)
            found += part
            if leaves and len(found) > len(wanted) // 3:
                return "left, beginning equal" if wanted.startswith(found) else "other"
        return "same" if found == wanted else "other"
    finally:
        connection.close()


def pieces(reply: http.client.HTTPResponse) -> Iterator[str]:
    """Yield the texts of a stream's events. Raises ValueError for an error event, or a stream that was cut off."""
    for line in reply:
        if line.strip() == b"data: [DONE]":
            return
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"]["message"])
            yield from (choice["delta"].get("content") or "" for choice in event["choices"])
    raise ValueError("the stream ended without its last event")


@dataclass
class Watch:
    """Samples of the server while it is under load."""

    resident: int = 0
    anonymous: int = 0
    leased: int = 0
    running: list[int] = field(default_factory=list)


@contextmanager
def watching(process: Popen[str], address: str) -> Iterator[Watch]:
    watch, done = Watch(), threading.Event()

    def sample() -> None:
        while not done.wait(0.2):
            found = memory_of(process.pid)
            if found is not None:
                watch.resident = max(watch.resident, found.resident)
                watch.anonymous = max(watch.anonymous, found.anonymous or 0)
            with suppress(OSError, ValueError):
                now = memory(address)
                watch.leased = max(watch.leased, now["leased_nbytes"])
                watch.running.append(now["answers_running"])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()


def memory(address: str) -> dict[str, Any]:
    """Return what /memory says, with the bytes of each holder as `holders`."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/memory")
    found = json.loads(connection.getresponse().read())
    connection.close()
    return {**found, "holders": Counter({each["name"]: each["nbytes"] for each in found["holders"]})}


def settled(address: str, models: Sequence[str]) -> dict[str, Any]:
    """Return what /memory says once nothing runs or waits, or after half a minute. models: leave memory first."""
    deadline = monotonic() + 30
    while True:
        for model in models:
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("POST", "/api/generate", json.dumps({"model": model, "keep_alive": 0}))
            connection.getresponse().read()
            connection.close()
        found = memory(address)
        loaded = models and any(name.startswith("weights") for name in found["holders"])
        if monotonic() > deadline or not (loaded or found["answers_running"] + found["requests_waiting"]):
            return found
        sleep(0.1)


@dataclass(frozen=True)
class Ended:
    """A run: what clients saw, what the server held meanwhile, and /memory before and after."""

    tally: Tally
    watch: Watch
    clients: int
    seconds: float
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def changes(self) -> dict[str, int]:
        """The bytes that each holder has leased more than before."""
        before, after = self.before["holders"], self.after["holders"]
        names = sorted({*before, *after} - {PROCESS})  # which is measured again with each model
        return {name: after[name] - before[name] for name in names if after[name] != before[name]}

    def claims(self) -> dict[str, bool]:
        """Return what has to hold. Under pressure the draft model is released, so less may be leased than before."""
        counts, watch = self.tally.counts, self.watch
        idle = not self.after["answers_running"] and not self.after["requests_waiting"]
        return {
            "every text is that of a lone session": not counts["other"] and counts["same"] > 0,
            "no error": not counts["error"] and not any(name.startswith("garbage answered") for name in counts),
            "memory is within the budget": max(watch.anonymous, watch.leased) <= self.before["limit_nbytes"],
            "nothing is left behind": idle and all(nbytes < 0 for nbytes in self.changes.values()),
        }


def report(ended: Ended) -> None:
    tally, watch = ended.tally, ended.watch
    print(f"{ended.clients} clients for {ended.seconds:.0f} s, {sum(tally.counts.values())} requests:")
    for name, count in sorted(tally.counts.items(), key=lambda each: -each[1]):
        print(f"  {name}: {count}")
    for error in [*dict.fromkeys(tally.errors)][:5]:
        print(f"    {error}")
    report_waiting(ended)
    print(
        f"memory: {format_nbytes(watch.anonymous)} anonymous (RssAnon), {format_nbytes(watch.resident)} resident, "
        f"{format_nbytes(watch.leased)} leased at most; the budget is {format_nbytes(ended.before['limit_nbytes'])}"
    )
    print(
        f"afterwards: {ended.after['answers_running']} running, {ended.after['requests_waiting']} waiting, "
        f"{sum(ended.changes.values()):+d} bytes leased {ended.changes or ''}"
    )
    for claim, holds in ended.claims().items():
        print(f"{'yes' if holds else 'NO '} {claim}")


def report_waiting(ended: Ended) -> None:
    """Print the times to the first token, and what they would be if nothing but the others' answers delayed them."""
    counts, seconds = ended.tally.counts, ended.tally.first_seconds
    answered = counts["same"] + counts["left, beginning equal"] + counts["other"]
    places, rate = median(ended.watch.running or [0]), answered / ended.seconds
    if len(seconds) < 2 or not rate:
        return
    ideal = max(0.0, ended.clients - places) / rate
    print(
        f"first token after {median(seconds):.2f} s (median), {quantiles(seconds, n=20)[-1]:.2f} s (95th percentile); "
        f"ideal: {ideal:.2f} s\n  = (C - P) / r: of C = {ended.clients} clients P = {places:g} are answered at a time "
        f"(median), the others\n  wait for their turn, and r = {rate:.2f} answers end in a second"
    )


@contextmanager
def library(names: Sequence[str]) -> Iterator[None]:
    """Let the library have copies of the bundled pack under these names."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            shutil.copytree(BUNDLED_PACK, Path(folder, name))
        if names:
            os.environ["EDGEDECODE_MODELS"] = folder
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description="A server under load.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--memory", default="230MB")
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--models", type=int, default=1, help="number of copies of the bundled pack to serve")
    arguments = parser.parse_args()
    copies = tuple(f"copy-{number}" for number in range(arguments.models)) if arguments.models > 1 else ()
    tally = Tally(lone_answers(), copies or ("demo",))
    options = ("--memory", arguments.memory, "--parallel", str(arguments.parallel))
    with library(copies), serving(*options, models=tally.models) as (process, url):
        address = url.removeprefix("http://")
        for model in tally.models:
            ask(address, tally, *next(iter(tally.wanted)), model=model, leaves=False)
        garbage(
            address, BROKEN[-1].replace(b"{}", b"7").replace(b"not", b"const")
        )  # a schema: what sessions and grammars share is leased from now on
        tally.first_seconds.clear()
        before, began = settled(address, copies), monotonic()
        until = began + 60 * arguments.minutes
        with watching(process, address) as watch:
            threads = [
                threading.Thread(target=client, args=(address, tally, random.Random(number)), kwargs={"until": until})
                for number in range(arguments.clients)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = monotonic() - began
        after = settled(address, copies)
    ended = Ended(tally, watch, clients=arguments.clients, seconds=seconds, before=before, after=after)
    report(ended)
    return 0 if all(ended.claims().values()) else 1


if __name__ == "__main__":
    sys.exit(main())
