"""How much a body asks to think, by the names that programs use for it; all of them mean one thing."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from edgedecode import InputError
from edgedecode.text.thinking import MOST_THOUGHT, NO_LIMIT, Effort

_MEANS = "Most tokens of a thought; 0: none, -1: no limit."
LastWords: TypeAlias = Annotated[str, Meta(max_length=1000, description="The last words of a thought that is cut.")]
Budget: TypeAlias = Annotated[int, Meta(ge=NO_LIMIT, le=MOST_THOUGHT, description=_MEANS)]


class ThinkingField(Struct, frozen=True, kw_only=True):
    """Anthropic's `thinking`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class ReasoningField(Struct, frozen=True, kw_only=True):
    """OpenAI's `reasoning`, with LM Studio's budget. summary: none, as this server's reasoning is not hidden."""

    effort: Effort | None = None
    budgetTokens: Budget | None = None  # noqa: N815 (LM Studio's name)
    summary: str | None = None
    generate_summary: str | None = None


BUDGETS = (
    *("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"),  # llama.cpp's
    *("thinking_token_budget", "budgetTokens"),  # vLLM's and LM Studio's
)


def read_thinking(
    effort: Effort | None,
    budgets: Mapping[str, int | None],
    *,
    thinking: ThinkingField | None,
    reasoning: ReasoningField | None,
) -> tuple[str, int | None]:
    """Return how much to think and the most tokens, as in `SessionDetails`. Raises InputError for budgets that differ.

    budgets: by the names of their fields.
    """
    found = dict(budgets)
    if reasoning is not None:
        effort = effort or reasoning.effort
        found["reasoning.budgetTokens"] = reasoning.budgetTokens
    think: str = effort or ""
    if thinking is not None:
        think = "off" if thinking.type == "disabled" else think or "on" if thinking.type == "enabled" else think
        found["thinking.budget_tokens"] = thinking.budget_tokens
    given = {name: tokens for name, tokens in found.items() if tokens is not None}
    if len({*given.values()}) > 1:
        raise InputError(f"{' and '.join(given)} differ: give one of them")
    return think, next(iter(given.values()), None)
