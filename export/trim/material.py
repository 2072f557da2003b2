"""Gathers the texts of a trim: counted, held out, and per category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgedecode import Pair
from edgedecode.errors import InputError
from edgedecode.text.messages import Message
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

_TIMED_PROMPTS = 4
"""Prompts per category on which full answers are timed."""


@dataclass(frozen=True, slots=True)
class Material:
    """Texts by their purpose."""

    counted: tuple[ScoredText, ...]
    """Texts whose token frequencies rank the ids."""
    choosing: tuple[ScoredText, ...]
    """Held-out texts on which a size is chosen."""
    categories: Mapping[str, tuple[ScoredText, ...]]
    """Texts that are reported on; first the calibration's other held-out part, on which no size was chosen."""
    prompts: Mapping[str, tuple[Prompt, ...]]
    """Some prompts of each category, to time full answers on."""
    calibration: str
    """One line that describes the counted texts."""


@dataclass(frozen=True, slots=True)
class _Calibration:
    texts: Sequence[ScoredText]
    prompts: Sequence[Prompt]
    line: str


def gather(pair: Pair, request: TrimRequest, stages: Stages) -> Material:
    """Read the files and answer the prompts. Raises InputError for unusable files, OSError as `open` does."""
    prompts = None if request.text is not None else _prompts(request)
    rows = _rows(request)
    kept = KeptAnswers.of(pair)
    calibration = _of_text(pair, request) if prompts is None else _of_prompts(pair, prompts, request, kept, stages)
    split = split_texts(calibration.texts, seed=request.seed)
    choosing, reported = split.halves()
    groups = {text.group for text in reported}
    reported_prompts = [prompt for group, prompt in enumerate(calibration.prompts) if group in groups]
    counted = sum(len(text.scored) for text in split.counted)
    return Material(
        counted=split.counted,
        choosing=choosing,
        categories={CALIBRATION: reported, **_texts(pair, rows, request, kept, stages)},
        prompts=_timed_prompts(pair, reported_prompts, rows),
        calibration=f"{counted} tokens of {calibration.line}, seed {request.seed}",
    )


def _prompts(request: TrimRequest) -> list[Prompt]:
    """Return the prompts to calibrate on, interleaved by family."""
    prompts = bundled_prompts() if request.calibrate is None else read_prompts(request.calibrate, family="")
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
    """Return each category's texts; the target answers prompts without an answer greedily."""
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


def _timed_prompts(
    pair: Pair, calibration: Sequence[Prompt], rows: Sequence[CategoryRow]
) -> dict[str, tuple[Prompt, ...]]:
    """Return a few prompts of each category after which a full answer to the first turn fits into the context."""
    context = _context(pair)
    found: dict[str, list[Prompt]] = {CALIBRATION: [], **{row.category: [] for row in rows}}
    for name, prompt in [(CALIBRATION, each) for each in calibration] + [(row.category, row.prompt) for row in rows]:
        messages = (*prompt.history, Message("user", prompt.turns[0]))
        if len(found[name]) < _TIMED_PROMPTS and answered(messages, "", pair.tokenizer).start + MAX_TOKENS <= context:
            found[name].append(prompt)
    return {name: tuple(prompts) for name, prompts in found.items()}


def _context(pair: Pair) -> int:
    """Return the number of tokens that fit both models' contexts."""
    draft = pair.draft
    return pair.target.card.context if draft is None else min(pair.target.card.context, draft.card.context)
