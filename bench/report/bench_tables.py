"""Tables of bench figures. A column is a title and a function that returns the cell for a row's object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import mean
from typing import TypeAlias, TypeVar

from edgedecode.apps.terminal import table_console
from edgedecode.plot_file import write_plot
from edgedecode.text.printable import shown_lines

from ..measure.cost_meter import Costs
from ..measure.extraction import WayRight
from ..measure.family_results import ArmResult, FamilyResult, Hindsight
from ..measure.structured import WaySpeed
from .conditions import Conditions, SweepConditions
from .speed_chart import speed_figure

_TEXT = {
    *("family", "arm", "way", "best", "best fixed", "bound", "drafter", "other loop"),
    *("accepted up to position 1, 2, …", "rounds by drafter", "rounds without a draft"),
    *("its speculation, best setting of each kind", "verdict", "drafters", "cuts"),
}
"""Columns of text, which are aligned to the left."""

_Row = TypeVar("_Row")
_FamilyColumns: TypeAlias = dict[str, Callable[[FamilyResult], str]]


class Report:
    """Prints tables, each with the conditions of the run."""

    def __init__(self, conditions: Conditions | SweepConditions) -> None:
        self._console = table_console()
        self._conditions = conditions

    def conditions(self) -> None:
        """Print all conditions, one per line."""
        self.lines(f"{field.name:<13} {getattr(self._conditions, field.name)}" for field in fields(self._conditions))
        self.lines([""])

    def table(
        self,
        title: str,
        columns: Mapping[str, Callable[[_Row], str]],
        rows: Iterable[_Row],
        *,
        summaries: Iterable[Sequence[str]] = (),
        note: str = "",
    ) -> None:
        """Print a table, and the conditions below it. summaries: rows of text, after the others."""
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, justify="left" if column in _TEXT else "right")
        for row in rows:
            table.add_row(*(cell(row) for cell in columns.values()))
        for summary in summaries:
            table.add_row(*summary, style="bold")
        self._console.print(table)
        self.lines([f"{note}{self._conditions.line()}\n"])

    def lines(self, lines: Iterable[str]) -> None:
        """Print lines of text."""
        for line in lines:
            self._console.print(shown_lines(line), highlight=False, markup=False, soft_wrap=True)

    def costs(self, costs: Costs) -> None:
        """Print the cost curves."""
        widths = costs.target_seconds
        curves = {"c(n)": {n: costs.c(n) for n in widths}}
        curves |= {f"c(n) after {head} steps": {n: costs.c(n, head) for n in widths} for head in costs.drafts}
        curves["1/c(n)"] = {n: 1 / costs.c(n) for n in widths}

        def at(width: int) -> Callable[[str], str]:
            return lambda curve: f"{curves[curve][width]:.2f}"

        note = "".join(
            f"{head}: d = {costs.d(head):.3f}, a draft step after a target pass takes {_ms(draft.first_seconds)} ms, "
            f"after another step {_ms(draft.next_seconds)} ms\n"
            for head, draft in costs.drafts.items()
        )
        if costs.read_seconds is not None:
            share = costs.read_seconds / costs.step_seconds
            note += f"prefill of the draft model: {1000 * costs.read_seconds:.4f} ms per token ({share:.4f} steps)\n"
        self.table(
            f"Cost of a target pass over n tokens, in plain decoding steps of {_ms(costs.step_seconds)} ms, at "
            f"{costs.context} tokens of context, medians of {costs.samples}",
            {"n": str, **{str(width): at(width) for width in widths}},
            curves,
            note=note,
        )

    def scheduled(self, families: Sequence[FamilyResult]) -> None:
        """Print the scheduler against plain decoding and, if fixed arms ran, against the best of them."""
        fixed = any(family.arms for family in families)
        columns: _FamilyColumns = {
            "family": lambda family: family.family,
            "plain tok/s": lambda family: f"{family.plain_tokens_per_second:.1f}",
            "S": lambda family: ratio_cell(family.scheduled.speed_up),
            "S best, worst run": lambda family: _spread(family.scheduled.speed_ups),
            "S predicted": lambda family: f"{family.scheduled.predicted:.2f}",
            "W": lambda family: ratio_cell(family.scheduled.whole_speed_up),
            "TTFT ms": lambda family: (
                f"{1000 * family.plain_first_token_seconds:.1f}, {1000 * family.scheduled.first_token_seconds:.1f}"
            ),
            "tokens/pass": lambda family: f"{family.scheduled.acceptance_length:.2f}",
            **(_hindsight_columns() if fixed else {}),
            "differ": lambda family: f"{family.scheduled.divergent} of {family.prompts}",
        }
        summaries = [_summary(name, pick, families, columns) for name, pick in (("mean", mean), ("worst", min))]
        self.table(
            "Speed-up of scheduled over plain decoding: S after the first token, W full requests; TTFT: time to first "
            "token, plain and scheduled",
            columns,
            families,
            summaries=summaries if len(families) > 1 else (),
        )

    def served(self, families: Sequence[FamilyResult]) -> None:
        """Print the scheduler's drafters, their accepted tokens, and the reasons for rounds without drafts."""
        columns: _FamilyColumns = {
            "family": lambda family: family.family,
            "rounds": lambda family: str(family.scheduled.rounds),
            "drafted": lambda family: str(family.scheduled.proposed),
            "accepted": lambda family: str(family.scheduled.accepted),
            "wasted": lambda family: str(family.scheduled.wasted),
            "rounds by drafter": lambda family: (
                ", ".join(f"{name} {count.rounds}" for name, count in family.scheduled.drafters.items()) or "none"
            ),
            "rounds without a draft": lambda family: _plain_rounds(family.scheduled.plain_rounds),
        }
        self.table("Rounds of the scheduler, all repetitions", columns, families)

    def host(self, seconds: Mapping[str, float], *, step_seconds: float) -> None:
        """Print the host overhead per round of each drafter."""
        columns: dict[str, Callable[[str], str]] = {
            "drafter": lambda name: "none (plain decoding)" if name == "none" else name,
            "median ms": lambda name: _ms(seconds[name]),
            "o, in plain decoding steps": lambda name: f"{seconds[name] / step_seconds:.4f}",
        }
        self.table("Host overhead per round", columns, seconds)

    def best(self, families: Sequence[FamilyResult]) -> None:
        """Print the best arm of every family, losses included."""

        def of_best(cell: Callable[[ArmResult], str]) -> Callable[[FamilyResult], str]:
            return lambda family: "-" if family.best is None else cell(family.best)

        columns: _FamilyColumns = {
            "family": lambda family: family.family,
            "plain tok/s": lambda family: f"{family.plain_tokens_per_second:.1f}",
            "best": of_best(lambda arm: arm.name),
            "S measured": of_best(lambda arm: ratio_cell(arm.speed_up)),
            "S predicted": of_best(lambda arm: f"{arm.predicted:.2f}"),
            "ratio": of_best(lambda arm: f"{arm.measured_over_predicted or 0:.2f}"),
            "tokens/pass": of_best(lambda arm: f"{arm.acceptance_length:.2f}"),
            "bound": lambda family: f"{family.bound or 1:.2f} {family.bound_arm}",
            "S/bound": lambda family: of_best(lambda arm: f"{(arm.speed_up or 0) / (family.bound or 1):.2f}")(family),
            "differ": lambda family: of_best(lambda arm: f"{arm.divergent} of {family.prompts}")(family),
        }
        title = "Best drafter and length of each family, speed-up S over plain decoding of the same run"
        self.table(title, columns, families)

    def arms(self, families: Sequence[FamilyResult]) -> None:
        """Print S measured / S predicted of every arm on every family."""

        def of(index: int) -> Callable[[FamilyResult], str]:
            return lambda family: f"{ratio_cell(family.arms[index].speed_up)}/{family.arms[index].predicted:.2f}"

        arms = families[0].arms if families else ()
        columns: _FamilyColumns = {
            "family": lambda family: family.family,
            **{arm.name: of(index) for index, arm in enumerate(arms)},
        }
        self.table("S measured / S predicted, every arm; losses in red", columns, families)

    def acceptance(self, families: Sequence[FamilyResult]) -> None:
        """Print, for each drafter's longest length, the acceptance rates by position and the split of the time."""
        rows = [(family.family, arm) for family in families for arm in family.arms]
        longest = max((arm.length or 0 for _, arm in rows), default=0)

        def share(part: str) -> Callable[[tuple[str, ArmResult]], str]:
            return lambda row: f"{getattr(row[1].time, part) / (row[1].time.total or 1.0):.0%}"

        columns: dict[str, Callable[[tuple[str, ArmResult]], str]] = {
            "family": lambda row: row[0],
            "arm": lambda row: row[1].name,
            "drafted": lambda row: str(row[1].proposed),
            "accepted up to position 1, 2, …": lambda row: (
                " ".join(f"{each:.0%}" for each in row[1].acceptance_per_position) or "nothing drafted"
            ),
            **{part: share(part) for part in ("draft", "verify", "sample", "host")},
            "draft prefill": lambda row: f"{row[1].reading_share:.0%}",
        }
        title = "At the longest draft length: acceptance rate up to each position, and split of the time"
        self.table(title, columns, [row for row in rows if row[1].length == longest])

    def chart(self, families: Sequence[FamilyResult], path: Path) -> None:
        """Write a chart of S and W of each family. Raises InputError if the file cannot be written."""
        write_plot(path, speed_figure(families, conditions=self._conditions.line()))

    def equality(self, families: Sequence[FamilyResult]) -> None:
        """Print how many texts differ from plain decoding's."""
        texts = sum(family.prompts * len(family.all_arms) for family in families)
        differ = sum(arm.divergent for family in families for arm in family.all_arms)
        self.lines(
            [
                f"Text: {texts - differ} of {texts} speculative answers (prompts × arms) equal plain decoding's, "
                f"{differ} differ (near ties decided differently at another pass width; left out of S)."
            ]
        )
        if unstable := sum(family.plain_unstable for family in families):
            self.lines([f"Plain decoding itself differed between repetitions on {unstable} prompts."])

    def structured(self, speeds: Sequence[WaySpeed], *, prompts: int) -> None:
        """Print the speed of answers under a grammar."""
        columns: dict[str, Callable[[WaySpeed], str]] = {
            "way": lambda speed: speed.way,
            "tok/s": lambda speed: f"{speed.tokens_per_second:.1f}",
            "S": lambda speed: f"{speed.ratio:.2f}",
            "tokens/pass": lambda speed: f"{speed.tokens_per_pass:.2f}",
            "forced": lambda speed: str(speed.forced),
            "differ": lambda speed: "-" if speed.differ is None else f"{speed.differ} of {prompts}",
        }
        title = (
            "Answers that follow a JSON Schema of six fields, after the first token: S against every token masked; "
            "forced tokens of all prompts; texts that differ from the first"
        )
        self.table(title, columns, speeds)

    def right(self, ways: Sequence[WayRight], *, prompts: int) -> None:
        """Print whether answers that extract facts have the right values."""
        columns: dict[str, Callable[[WayRight], str]] = {
            "way": lambda way: way.way,
            "valid": lambda way: f"{way.valid} of {prompts}",
            "right": lambda way: f"{way.right} of {prompts}",
            "values": lambda way: f"{way.same_values} of {prompts}",
            "tok/s": lambda way: f"{way.tokens_per_second:.1f}",
        }
        title = (
            "Facts of a text as JSON, scheduled: valid are objects of answers that ended by themselves, right are "
            "those with the text's values under the asked keys, values those that have them under any keys"
        )
        self.table(title, columns, ways)


def ratio_cell(value: float | None) -> str:
    """Return a speed-up as markup, red below 1 and green otherwise."""
    return "-" if value is None else f"[{'red' if value < 1 else 'green'}]{value:.2f}[/]"


def _hindsight_columns() -> _FamilyColumns:
    def of(cell: Callable[[Hindsight], str]) -> Callable[[FamilyResult], str]:
        return lambda family: "-" if family.hindsight is None else cell(family.hindsight)

    return {
        "best fixed": of(lambda best: best.arm),
        "its S": of(lambda best: f"{best.speed_up:.2f}"),
        "S/best": of(lambda best: ratio_cell(best.ratio)),
        "W/best": of(lambda best: ratio_cell(best.whole_ratio)),
    }


def _summary(
    name: str, pick: Callable[[list[float]], float], families: Sequence[FamilyResult], columns: Iterable[str]
) -> list[str]:
    """Return a row with `pick` (mean or worst) over all families, in the columns that have ratios."""
    bests = [family.hindsight for family in families if family.hindsight is not None]
    values: dict[str, list[float | None]] = {
        "S": [family.scheduled.speed_up for family in families],
        "W": [family.scheduled.whole_speed_up for family in families],
        "S/best": [best.ratio for best in bests],
        "W/best": [best.whole_ratio for best in bests],
    }
    known = {column: [each for each in given if each is not None] for column, given in values.items()}
    cells = {column: ratio_cell(pick(given) if given else None) for column, given in known.items()}
    differ = str(sum(family.scheduled.divergent for family in families)) if pick is mean else ""
    return [({"family": name, "differ": differ} | cells).get(column, "") for column in columns]


def _plain_rounds(rounds: Mapping[str, int]) -> str:
    """Return the number of rounds without a draft and the reasons."""
    return f"{sum(rounds.values())}: " + ", ".join(f"{reason} {count}" for reason, count in rounds.items())


def _spread(speed_ups: Sequence[float]) -> str:
    return f"{speed_ups[-1]:.2f}, {speed_ups[0]:.2f}" if speed_ups else "-"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}"
