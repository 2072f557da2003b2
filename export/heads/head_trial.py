"""Answers a few prompts with a pack's head alone, and counts how many of its tokens the target accepts."""

from pathlib import Path

from edgedecode import SamplingOptions, SessionOptions, load

from ..stages import Stages
from ..trim.texts import chosen_prompts

_PROMPTS, _TOKENS, _DRAFT = 5, 48, 3


def accepted_shares(root: Path, stages: Stages) -> tuple[float, ...]:
    """Return the share of its drafts of which the target accepted the first token, the first two, and all three.

    Raises as `load` and a session do, where the head or its target does not run.
    """
    options = SessionOptions(drafter="head", draft_max=_DRAFT, sampling=SamplingOptions(temperature=0.0))
    accepted, drafted = [0] * _DRAFT, [0] * _DRAFT
    prompts = chosen_prompts(None, most=_PROMPTS)
    with stages.stage("answering prompts with the head", _PROMPTS) as advance, load(root, runtime="onnx") as pair:
        for prompt in prompts:
            with pair.session(options, messages=prompt.history) as session:
                session.generate(prompt.turns[0], max_tokens=_TOKENS)
                for total, counts in ((accepted, session.stats.survival), (drafted, session.stats.reached)):
                    for place, count in enumerate(counts):
                        total[place] += count
            advance(1)
    return tuple(count / all_ for count, all_ in zip(accepted, drafted, strict=True) if all_)
