"""The texts that a head learns from: prompts, and what the target answers, greedy and at 0.8 in turns."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import NamedTuple

from edgedecode import Completion, Message, Pair, SamplingOptions, SessionDetails, SessionOptions
from edgedecode.errors import InputError
from edgedecode.text.prompts import Prompt, parse_prompts

MOST_ANSWER, MOST_PROMPT = 320, 512
"""The longest answer and prompt, in tokens, if the target's context holds both."""
CONTEXT = MOST_PROMPT + MOST_ANSWER
TOGETHER, MOST_ROWS = 16, 4096
"""Texts that are written at once, half of them greedy, and most rows of their KV cache. SmolLM2-135M: 1.2 to 1.9 times
as fast as one by one; 64 at once are slower, since attention still reads the rows of answers that have ended."""
HELD_OUT = 6
"""One bundled or given prompt of this many is never trained on."""
_LEAST_PROMPT = 4
_TEMPERATURE = 0.8
_OWN_PROMPTS = SamplingOptions(temperature=0.9)
_MARK = "@@@"


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt's tokens as the template renders it, and the answer's, the end of the turn included."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    kind: str = ""
    held_out: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer

    @property
    def line(self) -> bytes:
        """The text in its file."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Lengths:
    """The tokens of the longest answer and prompt; targets of fewer positions have both in the same proportion."""

    answer: int
    prompt: int

    @property
    def context(self) -> int:
        return self.answer + self.prompt

    @classmethod
    def of(cls, pair: Pair) -> "Lengths":
        context = min(CONTEXT, pair.target.card.context)
        answer = context * MOST_ANSWER // CONTEXT
        return cls(answer, context - answer)


def bundled_prompts() -> list[Prompt]:
    """Return the prompts that come with the program."""
    return parse_prompts(files(__package__).joinpath("prompts.jsonl").read_bytes(), "the bundled prompts")


def read_texts(path: Path, *, vocabulary_size: int) -> list[Text]:
    """Read texts, one JSON object a line; a last line without its end is left out. Raises InputError."""
    texts = []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
            prompt, answer = (tuple(int(each) for each in found[name]) for name in ("prompt", "answer"))
            if not answer or not all(0 <= each < vocabulary_size for each in prompt + answer):
                raise ValueError("the answer is empty, or an id is outside the target's vocabulary")
            held_out = found.get("held_out") is True
            texts.append(Text(prompt, answer, float(found.get("temperature", 0)), str(found.get("kind", "")), held_out))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is no text of prompt and answer in ids: {error}") from None
    return texts


def without_shared(texts: Sequence[Text]) -> list[Text]:
    """Return the texts without those for training whose prompt is held out, too."""
    held_out = {text.prompt for text in texts if text.held_out}
    return [text for text in texts if text.held_out or text.prompt not in held_out]


def write_texts(
    pair: Pair, prompts: Sequence[Prompt], path: Path, *, advance: Callable[[Text], bool], adapter: str | None = None
) -> None:
    """Let the target answer until `advance` says that it is enough; go on after the texts of an earlier call.

    adapter: that it answers with. advance: is told of each text. First come the given prompts, greedy and sampled in
    turns, then prompts that the target writes itself, as the given ones are few and greedy answers do not differ. Each
    text depends only on its number: the file is the same however often the writing stopped.
    """
    kept = read_texts(path, vocabulary_size=pair.tokenizer.size) if path.exists() else []
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(file.seek(sum(len(text.line) for text in kept)))
        if kept and not all(advance(text) for text in kept):
            return
        for text in _texts(pair, prompts, first=len(kept), adapter=adapter):
            file.write(text.line)
            file.flush()
            if not advance(text):
                return


def _texts(pair: Pair, prompts: Sequence[Prompt], *, first: int, adapter: str | None) -> Iterator[Text]:
    begin, lengths = _beginning(pair), Lengths.of(pair)
    for start in count(first, TOGETHER):
        numbers = range(start, start + TOGETHER)
        more = [number for number in numbers if number >= len(prompts)]
        own = _own(pair, begin, lengths, numbers=more) if begin else {}
        asked = [_asked(number, prompts, own.get(number)) for number in numbers]
        tokens = [_rendered(pair, each.prompt) for each in asked]
        answers = dict[int, tuple[int, ...]]()
        for temperature in (0.0, _TEMPERATURE):
            here = [index for index, each in enumerate(asked) if each.temperature == temperature]
            sampling = SamplingOptions(temperature=temperature)
            seeds = [numbers[index] for index in here]
            given = [tokens[index] for index in here]
            found = _answered(pair, given, sampling, seeds, most=lengths.answer, adapter=adapter)
            answers |= {index: each.tokens for index, each in zip(here, found, strict=True)}
        for index, each in enumerate(asked):
            yield Text(tokens[index], answers[index], each.temperature, each.prompt.family, each.held_out)


class _Asked(NamedTuple):
    prompt: Prompt
    temperature: float
    held_out: bool


def _asked(number: int, prompts: Sequence[Prompt], own: Prompt | None) -> _Asked:
    """Return what the text of this number answers: a given prompt, the target's `own`, or a given one again."""
    temperature = _TEMPERATURE * (number % 2)
    if number < len(prompts):
        held_out = number % HELD_OUT == 0
        return _Asked(prompts[number], 0.0 if held_out else temperature, held_out)
    if own is not None:
        return _Asked(own, temperature, held_out=False)
    place = number % len(prompts)  # and not one that is held out
    return _Asked(prompts[place if place % HELD_OUT else (place + 1) % len(prompts)], _TEMPERATURE, held_out=False)


def _rendered(pair: Pair, prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens up to the first answer."""
    messages = [*prompt.history, Message("user", prompt.turns[0])]
    return tuple(pair.tokenizer.encode(pair.tokenizer.render(messages)))


def short_enough(pair: Pair, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts that leave room for an answer. Raises InputError if none does."""
    most = Lengths.of(pair).prompt
    if found := [prompt for prompt in prompts if len(_rendered(pair, prompt)) <= most]:
        return found
    raise InputError(f"every prompt has more than {most} tokens with the template: give shorter ones (--prompts)")


def _beginning(pair: Pair) -> tuple[int, ...]:
    """Return the tokens with which the template begins a user's turn; empty if it changes what a user says."""
    rendered = pair.tokenizer.render([Message("user", _MARK)])
    before, mark, _ = rendered.partition(_MARK)
    return tuple(pair.tokenizer.encode(before)) if mark else ()


def _own(pair: Pair, begin: Sequence[int], lengths: Lengths, *, numbers: Sequence[int]) -> dict[int, Prompt]:
    """Return the prompts that the target writes for the texts of these numbers, for which it writes any."""
    written = _answered(pair, [begin] * len(numbers), _OWN_PROMPTS, numbers, most=lengths.prompt // 4)
    return {
        number: Prompt("written", (), (text,))
        for number, each in zip(numbers, written, strict=True)
        if len(each.tokens) > _LEAST_PROMPT and (text := each.text.strip())
    }


def _answered(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingOptions,
    seeds: Sequence[int],
    *,
    most: int,
    adapter: str | None = None,
) -> list[Completion]:
    """Return what the target continues each of these prompts with: without an adapter, all at once where it can."""
    if not prompts:
        return []
    card = pair.target.card
    at_once = card.tree and adapter is None
    longest = max(map(len, prompts)) + most
    together = SessionDetails(samples=len(prompts)) if at_once else SessionDetails()
    context = min(longest * len(prompts) if at_once else longest, MOST_ROWS, card.context)
    options = SessionOptions(sampling, adapter, context=max(longest, context), details=together)
    if at_once:
        with pair.session(options) as session:
            return session.completions(prompts, seeds=seeds, max_tokens=most)
    found = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        with pair.session(replace(options, seed=seed)) as session:
            found.append(session.collect(session.complete(prompt, max_tokens=most)))
    return found
