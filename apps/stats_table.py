"""Statistics of one answer and the memory of the process, for the user: as tables, lines and JSON."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgedecode import FinishReason, Stats
from edgedecode.decoding.stats import DrafterCount
from edgedecode.memory.process_memory import ProcessMemory, memory_now, peak_nbytes
from edgedecode.memory.sizes import format_nbytes
from edgedecode.text.printable import counted

from .colour import kind_of

if TYPE_CHECKING:
    from rich.table import Table


def stats_table(stats: Stats, *, finish_reason: FinishReason) -> "Table":
    """Return the table of `--stats full` and /stats."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _rows(stats, finish_reason):
        table.add_row(name, value)
    return table


def show_stats(stats: Stats, *, finish_reason: FinishReason, full: bool) -> None:
    """Print an answer's statistics on standard error, in two lines or in full."""
    if not full:
        print(stats_lines(stats, finish_reason=finish_reason), file=sys.stderr)
        return
    from rich.console import Console

    Console(stderr=True).print(stats_table(stats, finish_reason=finish_reason))


def stats_lines(stats: Stats, *, finish_reason: FinishReason) -> str:
    """Return the two lines of --stats: speed and drafts, then memory."""
    first = f"first token after {1000 * stats.time_to_first_token:.0f} ms"
    line = stats_line(stats, finish_reason=finish_reason)
    return f"{line} · {first}\nmemory: {memory_line(stats.planned_nbytes, stats.peak_nbytes)}"


def stats_line(stats: Stats, *, finish_reason: FinishReason) -> str:
    """Return the line that chat shows below an answer."""
    parts = [counted(stats.tokens, "token"), f"{stats.tokens_per_second:.0f} tok/s"]
    if stats.mode == "switch":
        parts.append(_switching(stats))
    elif stats.mode == "plain":
        parts.append("no drafts")
    else:
        parts.append(_drafted(stats))
    if stats.alone_tokens:
        parts.append(f"{stats.alone_tokens} by the device's model alone")
    if finish_reason is not FinishReason.STOP:
        parts.append(_why(stats, finish_reason))
    return " · ".join(parts)


def _drafted(stats: Stats) -> str:
    """Summarise the drafts in the words of the web page. The speed-up is included only if it was measured."""
    if not stats.proposed:
        why = max(stats.plain_rounds, key=lambda reason: stats.plain_rounds[reason], default="")
        return f"no drafts{': ' * bool(why)}{why}"
    kinds = Counter[str]()
    for name, count in stats.drafters.items():
        kinds[kind_of(name).name] += count.accepted
    sources = ", ".join(f"{name} {accepted}" for name, accepted in kinds.most_common() if accepted)
    found = f"{stats.accepted} of {stats.proposed} drafted tokens accepted{f' ({sources})' * bool(sources)}"
    gain = f"{stats.speed_up or 0:.2f}"
    return f"{found} · {gain} times plain decoding" if float(gain) > 1 else found


def drafts_line(stats: Stats) -> str:
    """Return which drafters were used, how many rounds had no draft and why, and the speed-up if it was measured."""
    parts = [
        f"{name} {count.rounds}x ({count.accepted} of {count.proposed} tokens accepted{_cut_short(count)})"
        for name, count in sorted(stats.drafters.items(), key=lambda item: -item[1].rounds)
    ]
    if plain := sum(stats.plain_rounds.values()):
        reasons = ", ".join(f"{why} {rounds}" for why, rounds in stats.plain_rounds.items())
        rounds = max(plain, stats.rounds - 1)  # the prompt's own pass has no draft, unless the draft model began
        parts.append(f"no draft in {plain} of {counted(rounds, 'round')} ({reasons})")
    if stats.speed_up is not None:
        parts.append(f"{stats.speed_up:.2f} times the speed of this answer's rounds without drafts")
    return "drafts: " + ("; ".join(parts) or "none yet")


def _cut_short(count: DrafterCount) -> str:
    return f", {count.cut_short / count.rounds:.0%} cut short by the trimmed vocabulary" if count.cut_short else ""


def acceptance_per_position(stats: Stats) -> list[float]:
    """Return, for draft position j, the share of drafts at least j + 1 long whose first j + 1 tokens were accepted."""
    return [accepted / reached for accepted, reached in zip(stats.survival, stats.reached, strict=True) if reached]


_WHY = {
    FinishReason.LENGTH: "stopped at the token limit",
    FinishReason.CANCELLED: "interrupted",
    FinishReason.STOP: "complete",
}


def _why(stats: Stats, finish_reason: FinishReason) -> str:
    return "stopped: the context is full" if stats.context_full else _WHY[finish_reason]


def _rows(stats: Stats, finish_reason: FinishReason) -> Iterator[tuple[str, str]]:
    modes = {
        "plain": "plain (no drafts)",
        "auto": "auto (drafts where they pay)",
        "switch": "switch (partly by the draft model alone)",
    }
    yield "decoding", modes.get(stats.mode, f"drafter {stats.mode} alone")
    if stats.mode != "plain":
        yield "drafts", drafts_line(stats).removeprefix("drafts: ")
    yield "finished", _why(stats, finish_reason)
    if stats.seed is not None:
        yield "seed", f"{stats.seed}  (repeat with --seed)"
    yield "prompt", f"{counted(stats.prompt_tokens, 'token')}, {stats.cached_tokens} of them cached"
    if stats.dropped_turns:
        again = (
            f", {counted(stats.reread_tokens, 'token')} prefilled again during the answer"
            if stats.reread_tokens
            else ""
        )
        yield "oldest turns dropped", f"{stats.dropped_turns}{again}"
    if stats.mode == "switch":
        yield "tokens", f"{stats.tokens}: {_switching(stats)}"
    else:
        yield "tokens", f"{stats.verified_tokens}, all verified by the target"
    yield "target passes", f"{stats.rounds}, acceptance length {stats.acceptance_length:.2f} tokens per pass"
    if stats.proposed:
        yield "drafted", f"{stats.proposed}, accepted {stats.accepted} ({stats.accepted / stats.proposed:.0%})"
        yield "accepted by position", "  ".join(f"{share:.0%}" for share in acceptance_per_position(stats))
    yield "time", _split(stats)
    prefill = f"{stats.prefill_tokens_per_second:.0f} tokens/s" if stats.prefill_seconds else "not needed"
    yield "speed", f"{stats.tokens_per_second:.1f} tokens/s after the first token; prefill {prefill}"
    yield "time to first token", f"{1000 * stats.time_to_first_token:.1f} ms"
    yield "memory", memory_line(stats.planned_nbytes, stats.peak_nbytes)


def _switching(stats: Stats) -> str:
    return (
        f"{stats.unverified_tokens} by the draft model, unverified, {stats.verified_tokens} by the target "
        f"({stats.target_share:.0%}), {stats.switches} switches"
    )


def _split(stats: Stats) -> str:
    time, total = stats.time, stats.time.total or 1.0
    shares = (("draft", time.draft), ("verify", time.verify), ("sample", time.sample), ("host", time.host))
    return f"{1000 * time.total:.1f} ms: " + ", ".join(f"{name} {part / total:.0%}" for name, part in shares)


KINDS = ("resident", "anonymous", "proportional")


def memory_line(planned: int, peak: int | None) -> str:
    """Return the plan and the resident peak in one line."""
    known = "not available on this system" if peak is None else f"{format_nbytes(peak)} resident"
    return f"planned {format_nbytes(planned)}; peak of the process: {known}"


def memory_table(planned: int) -> "Table":
    """Return a table of this process's planned, current and peak memory."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "planned", *KINDS):
        table.add_column(column, justify="right" if column else "left")
    peak = peak_nbytes()
    for name, memory in (("now", memory_now()), ("peak", None if peak is None else ProcessMemory(peak))):
        cells = (None if memory is None else getattr(memory, kind) for kind in KINDS)
        table.add_row(name, format_nbytes(planned), *("-" if each is None else format_nbytes(each) for each in cells))
    return table
