"""Bench figures as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import mean
from typing import TYPE_CHECKING

from edgedecode.text.printable import shown_lines

from ..measure.cost_meter import Costs
from ..measure.draws import DrawCost
from ..measure.family_results import ArmResult, FamilyResult
from ..measure.overhead import HostWork, LoopRatio
from .conditions import Conditions
from .table_cells import scheduled_row, speed_up_cell, summary_row

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Report"]

WIDTH = 150
"""Columns where the output is not a terminal: a table that is pasted somewhere shall not be folded."""


class Report:
    """Writes tables to standard output, each with its conditions."""

    def __init__(self, conditions: Conditions) -> None:
        from rich.console import Console

        self._console: Console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
        self._conditions = conditions

    def conditions(self) -> None:
        """Show every condition once, in full."""
        for field in fields(self._conditions):
            self._line(f"{field.name:<13} {getattr(self._conditions, field.name)}")
        self._line("")

    def costs(self, costs: Costs) -> None:
        """Show the cost curve."""
        table = self._table(
            f"Cost of a target pass at {costs.context} tokens of context, medians of {costs.samples}, "
            f"one token = {1000 * costs.step_seconds:.3f} ms",
            "n",
            *map(str, costs.target_seconds),
        )
        table.add_row("c(n)", *(f"{costs.c(width):.2f}" for width in costs.target_seconds))
        for head in costs.drafts:
            table.add_row(f"behind {head} steps", *(f"{costs.c(width, head):.2f}" for width in costs.target_seconds))
        table.add_row("1/c(n)", *(f"{1 / costs.c(width):.2f}" for width in costs.target_seconds))
        note = ""
        for head, draft in costs.drafts.items():
            note += f"{head}: d = {costs.d(head):.3f}, a draft step behind a target pass is "
            note += f"{1000 * draft.first_seconds:.3f} ms, behind another step {1000 * draft.next_seconds:.3f} ms\n"
        if costs.read_seconds is not None:
            share = costs.read_seconds / costs.step_seconds
            note += f"the draft model reads a token in {1000 * costs.read_seconds:.4f} ms ({share:.4f} plain steps)\n"
        self._show(table, note=note)

    def scheduled(self, families: Sequence[FamilyResult]) -> None:
        """Show the scheduler against plain decoding and, where fixed arms ran, against the best of them."""
        fixed = any(family.arms for family in families)
        table = self._table(
            "Scheduled over plain decoding: S after the first token, W whole requests; first token: plain, scheduled",
            *("family", "plain tok/s", "S", "S best, worst run", "S predicted", "W"),
            *("first token ms", "tokens/pass"),
            *(["best fixed", "its S", "S/best", "W/best"] if fixed else []),
            "differ",
        )
        for family in families:
            table.add_row(*scheduled_row(family, fixed=fixed))
        for name, pick in (("mean", mean), ("worst", min)) if len(families) > 1 else ():
            table.add_row(*summary_row(name, pick, families, fixed=fixed), style="bold")
        self._show(table)

    def served(self, families: Sequence[FamilyResult]) -> None:
        """Show which drafts the scheduler used, what they gave, and why there were none."""
        table = self._table(
            "What the scheduler did, all repetitions",
            *("family", "rounds", "drafted", "accepted", "wasted", "rounds by drafter", "plain rounds and why"),
        )
        for family in families:
            arm = family.scheduled
            plain = sum(arm.plain_rounds.values())
            table.add_row(
                family.family,
                *map(str, (arm.rounds, arm.proposed, arm.accepted, arm.wasted)),
                ", ".join(f"{name} {count.rounds}" for name, count in arm.drafters.items()) or "none",
                f"{plain}: " + ", ".join(f"{_why(reason)} {rounds}" for reason, rounds in arm.plain_rounds.items()),
            )
        self._show(table)

    def host(self, seconds: Mapping[str, float], *, step_seconds: float) -> None:
        """Show the host's work in a round of each drafter."""
        table = self._table("Host work in a round", "drafter", "median ms", "o, in plain steps")
        for name, value in seconds.items():
            table.add_row(_host_name(name), f"{1000 * value:.3f}", f"{value / step_seconds:.4f}")
        self._show(table)

    def best(self, families: Sequence[FamilyResult]) -> None:
        """Show the best arm of every family, losses included."""
        table = self._table(
            "Best drafter and length of each family, speed-up S over plain decoding of the same run",
            *(
                "family",
                "plain tok/s",
                "best",
                "S measured",
                "S predicted",
                "ratio",
                "tokens/pass",
                "bound",
                "S/bound",
                "differ",
            ),
        )
        for family in families:
            best, bound = family.best, family.bound or 1.0
            if best is None:
                table.add_row(
                    family.family, f"{family.plain_tokens_per_second:.1f}", "-", "-", "-", "-", "-", "-", "-", "most"
                )
                continue
            table.add_row(
                family.family,
                f"{family.plain_tokens_per_second:.1f}",
                best.name,
                speed_up_cell(best.speed_up),
                f"{best.predicted:.2f}",
                f"{best.measured_over_predicted or 0:.2f}",
                f"{best.acceptance_length:.2f}",
                f"{bound:.2f} {family.bound_arm}",
                f"{(best.speed_up or 0) / bound:.2f}",
                f"{best.divergent} of {family.prompts}",
            )
        self._show(table)

    def arms(self, families: Sequence[FamilyResult]) -> None:
        """Show S measured / S predicted of every arm on every family."""
        names = [arm.name for arm in families[0].arms] if families else []
        table = self._table("S measured / S predicted, every arm; losses in red", "family", *names)
        for family in families:
            table.add_row(family.family, *(_measured_and_predicted(arm) for arm in family.arms))
        self._show(table)

    def acceptance(self, families: Sequence[FamilyResult]) -> None:
        """Show, for each drafter's longest length, what was accepted by position, and where the time went."""
        table = self._table(
            "At the longest draft: accepted up to each position, and the time's split",
            *(
                "family",
                "arm",
                "drafted",
                "accepted up to position 1, 2, …",
                "draft",
                "verify",
                "sample",
                "host",
                "prompt read",
            ),
        )
        for family in families:
            for arm in _longest_arms(family):
                total = arm.time.total or 1.0
                parts = (arm.time.draft, arm.time.verify, arm.time.sample, arm.time.host)
                table.add_row(
                    family.family,
                    arm.name,
                    str(arm.proposed),
                    " ".join(f"{share:.0%}" for share in arm.acceptance_per_position) or "nothing drafted",
                    *(f"{part / total:.0%}" for part in parts),
                    f"{arm.reading_share:.0%}",
                )
        self._show(table)

    def equality(self, families: Sequence[FamilyResult]) -> None:
        """Say how many texts differ from plain decoding's: never silently lossy."""
        texts = sum(family.prompts * len(family.all_arms) for family in families)
        differ = sum(arm.divergent for family in families for arm in family.all_arms)
        unstable = sum(family.plain_unstable for family in families)
        self._line(
            f"Text: {texts - differ} of {texts} speculative answers (prompts × arms) equal plain decoding's, {differ} "
            f"differ (near ties that turn with the width of a pass; left out of S)."
        )
        if unstable:
            self._line(f"Plain decoding itself was not the same in every repetition on {unstable} prompts.")

    def host_work(self, works: Sequence[HostWork]) -> None:
        """Show the host's work a round."""
        table = self._table(
            "Host work per token (plain) and per verified round", "arm", "rounds", "median ms", "90% below ms"
        )
        for work in works:
            table.add_row(
                work.arm, str(work.rounds), f"{1000 * work.median_seconds:.3f}", f"{1000 * work.p90_seconds:.3f}"
            )
        self._show(table)

    def draws(self, costs: Sequence[DrawCost]) -> None:
        """Show what drawing from each shape of row costs."""
        table = self._table(
            "Drawing a token from a row of 151,936 logits, median ms", "row", "greedy", "slowest", "its options"
        )
        for cost in costs:
            options = ", ".join(f"{name} {value:g}" for name, value in cost.worst.items())
            table.add_row(cost.shape, f"{1000 * cost.greedy_seconds:.3f}", f"{1000 * cost.worst_seconds:.3f}", options)
        self._show(table)

    def loops(self, ratios: Sequence[LoopRatio], reasons: Sequence[str]) -> None:
        """Show our plain loop against others, and why others are missing."""
        if ratios:
            table = self._table(
                "Plain decoding: our loop's speed / the other loop's, same prompt and tokens, interleaved",
                *("other loop", "ratio", "lowest", "highest", "our tok/s", "its tok/s", "same tokens"),
            )
            for ratio in ratios:
                table.add_row(
                    ratio.loop,
                    f"{ratio.ratio:.3f}",
                    f"{ratio.ratios[0]:.3f}",
                    f"{ratio.ratios[-1]:.3f}",
                    f"{ratio.our_tokens_per_second:.1f}",
                    f"{ratio.tokens_per_second:.1f}",
                    f"{ratio.same_tokens} of {ratio.tokens}",
                )
            self._show(table)
        for ratio in ratios:
            self._line(f"{ratio.loop}: {ratio.setting}")
        for reason in reasons:
            self._line(f"Not compared: {reason}")

    def show(self, table: Table, *, lines: Sequence[str] = ()) -> None:
        """Show a table that was made elsewhere, with its conditions, and lines behind it."""
        self._show(table)
        self.lines(lines)

    def lines(self, lines: Sequence[str]) -> None:
        """Show text as it is."""
        for line in lines:
            self._line(line)

    def _table(self, title: str, *columns: str) -> Table:
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, justify="left" if column in _TEXT_COLUMNS else "right")
        return table

    def _show(self, table: Table, *, note: str = "") -> None:
        self._console.print(table)
        self._line(f"{note}{self._conditions.line()}\n")

    def _line(self, text: str) -> None:
        self._console.print(shown_lines(text), highlight=False, markup=False, soft_wrap=True)


_TEXT_COLUMNS = (
    *("family", "arm", "best", "best fixed", "bound", "drafter", "other loop"),
    *("accepted up to position 1, 2, …", "rounds by drafter", "plain rounds and why"),
)


def _why(reason: str) -> str:
    """Return why a round was plain; where a draft was planned, because the drafter stopped before its first token."""
    return "nothing drafted" if reason in ("pays", "probe") else reason


def _host_name(drafter: str) -> str:
    return "none (plain decoding)" if drafter == "none" else drafter


def _measured_and_predicted(arm: ArmResult) -> str:
    return f"{speed_up_cell(arm.speed_up)}/{arm.predicted:.2f}"


def _longest_arms(family: FamilyResult) -> list[ArmResult]:
    longest = max(arm.length or 0 for arm in family.arms) if family.arms else 0
    return [arm for arm in family.arms if arm.length == longest]
