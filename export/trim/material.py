"""The texts of a trim: what is counted, what is held out, and what each category says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedecode import Pair
from edgedecode.errors import InputError
from edgedecode.text.messages import Message
from edgedecode.text.printable import file_text
from edgedecode.text.prompts import Prompt, interleaved, read_prompts

from ..stages import Stages
from .answers import Answering, KeptAnswers, answer_prompts
from .sweep import TrimRequest
from .timing import MAX_TOKENS
from .trim_texts import (
    CALIBRATION,
    CategoryRow,
    ScoredText,
    answered,
    bundled_categories,
    bundled_prompts,
    read_categories,
    read_text_file,
    split_texts,
)

__all__ = ["Material", "gather"]

_ASKED_AGAIN = 4
"""Prompts of a category that whole answers are timed on."""


@dataclass(frozen=True, slots=True)
class Material:
    """Texts by what they are for."""

    counted: tuple[ScoredText, ...]
    choosing: tuple[ScoredText, ...]
    """Held-out text that a size is chosen on."""
    categories: Mapping[str, tuple[ScoredText, ...]]
    """First the calibration's: another held-out part, which tells what was chosen."""
    prompts: Mapping[str, tuple[Prompt, ...]]
    """Of each category, some to ask again."""
    calibration: str
    """What was counted, in a line."""


@dataclass(frozen=True, slots=True)
class _Calibration:
    texts: Sequence[ScoredText]
    prompts: Sequence[Prompt]
    line: str


def gather(pair: Pair, request: TrimRequest, stages: Stages) -> Material:
    """Read and answer everything. Raises InputError for files that cannot be used, OSError as `open` does."""
    prompts = None if request.text is not None else _prompts(request)
    rows = _rows(request)
    kept = KeptAnswers.of(pair)
    calibration = _of_text(pair, request) if prompts is None else _of_prompts(pair, prompts, request, kept, stages)
    split = split_texts(calibration.texts, seed=request.seed)
    choosing, telling = split.halves()
    groups = {text.group for text in telling}
    asked = [prompt for group, prompt in enumerate(calibration.prompts) if group in groups]
    counted = sum(len(text.scored) for text in split.counted)
    return Material(
        counted=split.counted,
        choosing=choosing,
        categories={CALIBRATION: telling, **_texts(pair, rows, request, kept, stages)},
        prompts=_asked(pair, asked, rows),
        calibration=f"{counted} tokens of {calibration.line}, seed {request.seed}",
    )


def _prompts(request: TrimRequest) -> list[Prompt]:
    """Return the prompts to calibrate on, interleaved by family."""
    if request.calibrate is None:
        prompts = bundled_prompts()
    else:
        file_text(request.calibrate)  # no text at all is said plainer than "line 1 is not JSON"
        prompts = read_prompts(request.calibrate, family="")
    mixed = interleaved(prompts, name=lambda prompt: prompt.family)
    return mixed[: request.prompts]


def _rows(request: TrimRequest) -> list[CategoryRow]:
    rows = bundled_categories() if request.categories is None else read_categories(request.categories)
    return interleaved(rows, name=lambda row: row.category, most=request.per_category)


def _of_text(pair: Pair, request: TrimRequest) -> _Calibration:
    assert request.text is not None
    texts = read_text_file(request.text, tokenizer=pair.tokenizer, context=_context(pair))
    return _Calibration(texts, (), f"{request.text.name}")


def _of_prompts(
    pair: Pair, prompts: Sequence[Prompt], request: TrimRequest, kept: KeptAnswers, stages: Stages
) -> _Calibration:
    answering = Answering(request.max_tokens, request.answers, request.seed)
    with stages.stage("calibration text", len(prompts) * request.answers) as advance:
        answers = answer_prompts(pair, prompts, answering, kept=kept, advance=advance)
    source = "the bundled prompts" if request.calibrate is None else request.calibrate.name
    line = f"the target's answers to {len(prompts)} of {source}, {request.answers} each, {request.max_tokens} at most"
    context = _context(pair)
    return _Calibration([text.cut(context) for texts in answers for text in texts], prompts, line)


def _texts(
    pair: Pair, rows: Sequence[CategoryRow], request: TrimRequest, kept: KeptAnswers, stages: Stages
) -> dict[str, tuple[ScoredText, ...]]:
    """Return each category's texts; the target answers greedily what has no answer."""
    found: dict[str, list[ScoredText]] = {}
    context = _context(pair)
    with stages.stage("category text", len(rows)) as advance:
        for row in rows:
            texts = found.setdefault(row.category, [])
            if row.answer is None:
                texts += answer_prompts(pair, [row.prompt], Answering(request.max_tokens), kept=kept)[0]
            else:
                texts.append(answered(row.messages, row.answer, pair.tokenizer))
            advance(1)
    found = {name: [text.cut(context) for text in texts] for name, texts in found.items()}
    if empty := [name for name, texts in found.items() if not any(text.scored for text in texts)]:
        raise InputError(f"the category {empty[0]} has no text that fits a context of {context}")
    return {name: tuple(text for text in texts if text.scored) for name, texts in found.items()}


def _asked(pair: Pair, calibration: Sequence[Prompt], rows: Sequence[CategoryRow]) -> dict[str, tuple[Prompt, ...]]:
    """Return some prompts of each category whose first turn's answer fits behind it, whatever it says.

    Of these, no text of the category was cut down to nothing.
    """
    found: dict[str, list[Prompt]] = {CALIBRATION: [], **{row.category: [] for row in rows}}
    for name, prompt in [(CALIBRATION, each) for each in calibration] + [(row.category, row.prompt) for row in rows]:
        messages = (*prompt.history, Message("user", prompt.turns[0]))
        if len(found[name]) < _ASKED_AGAIN and answered(messages, "", pair.tokenizer).start + MAX_TOKENS <= _context(
            pair
        ):
            found[name].append(prompt)
    return {name: tuple(prompts) for name, prompts in found.items()}


def _context(pair: Pair) -> int:
    """Return how many tokens of a text both models can read."""
    draft = pair.draft
    return pair.target.card.context if draft is None else min(pair.target.card.context, draft.card.context)
