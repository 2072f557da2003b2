"""Tables of bench figures. A column is a title and a function that returns the cell for a row's object."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from statistics import mean
from typing import TypeAlias, TypeVar

from edgedecode.apps.terminal import table_console
from edgedecode.text.printable import shown_lines

from ..measure.cost_meter import Costs
from ..measure.families import FamilyResult, Hindsight
from ..measure.structured import WayResult
from .conditions import Conditions

_TEXT = {
    *("family", "grammar", "arm", "best fixed", "rounds by drafter", "target", "draft"),
    *("its speculation, best setting of each kind", "verdict", "drafters", "cuts"),
}
"""Columns of text, which are aligned to the left."""

_Row = TypeVar("_Row")
_FamilyColumns: TypeAlias = dict[str, Callable[[FamilyResult], str]]


def show_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    for line in lines:
        table_console().print(shown_lines(line), highlight=False, markup=False, soft_wrap=True)


def show_table(
    title: str,
    columns: Mapping[str, Callable[[_Row], str]],
    rows: Iterable[_Row],
    *,
    summaries: Iterable[Sequence[str]] = (),
) -> None:
    """Print a table. summaries: rows of text, after the others."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in _TEXT else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    for summary in summaries:
        table.add_row(*summary, style="bold")
    table_console().print(table)


class Report:
    """Prints tables, each with the conditions of the run."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions

    def conditions(self) -> None:
        """Print all conditions, one per line."""
        names = [field.name for field in fields(self._conditions)]
        show_lines([*(f"{name:<13} {getattr(self._conditions, name)}" for name in names), ""])

    def table(
        self,
        title: str,
        columns: Mapping[str, Callable[[_Row], str]],
        rows: Iterable[_Row],
        *,
        summaries: Iterable[Sequence[str]] = (),
        note: str = "",
    ) -> None:
        """Print a table, and a note and the conditions below it."""
        show_table(title, columns, rows, summaries=summaries)
        show_lines([f"{note}{self._conditions.line()}\n"])

    def costs(self, costs: Costs) -> None:
        """Print the cost curves."""
        widths = costs.target_seconds
        curves = {"c(n)": {n: costs.c(n) for n in widths}}
        curves |= {f"c(n) after {name} steps": {n: costs.c(n, name) for n in widths} for name in costs.drafts}

        def at(width: int) -> Callable[[str], str]:
            return lambda curve: f"{curves[curve][width]:.2f}"

        note = "".join(
            f"{name}: d = {costs.d(name):.3f}, a draft step after a target pass takes {_ms(draft.first_seconds)} ms, "
            f"after another step {_ms(draft.next_seconds)} ms\n"
            for name, draft in costs.drafts.items()
        )
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
            "W": lambda family: ratio_cell(family.scheduled.whole_speed_up),
            "TTFT ms": lambda family: (
                f"{1000 * family.plain_first_token_seconds:.1f}, {1000 * family.scheduled.first_token_seconds:.1f}"
            ),
            "tokens/pass": lambda family: f"{family.scheduled.acceptance_length:.2f}",
            "rounds by drafter": _drafters,
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

    def arms(self, families: Sequence[FamilyResult]) -> None:
        """Print S of every fixed arm on every family."""

        def of(index: int) -> Callable[[FamilyResult], str]:
            return lambda family: ratio_cell(family.arms[index].speed_up)

        arms = families[0].arms if families else ()
        columns: _FamilyColumns = {
            "family": lambda family: family.family,
            **{arm.name: of(index) for index, arm in enumerate(arms)},
        }
        self.table("S of every drafter at every length; losses in red", columns, families)

    def equality(self, families: Sequence[FamilyResult]) -> None:
        """Print how many texts differ from plain decoding's."""
        texts = sum(family.prompts * len(family.all_arms) for family in families)
        differ = sum(arm.divergent for family in families for arm in family.all_arms)
        line = (
            f"Text: {texts - differ} of {texts} speculative answers (prompts × arms) equal plain decoding's, "
            f"{differ} differ (near ties decided differently at another pass width; left out of S)."
        )
        unstable = sum(family.plain_unstable for family in families)
        more = f"Plain decoding itself differed between repetitions on {unstable} prompts."
        show_lines([line, *([more] if unstable else [])])

    def structured(self, ways: Sequence[WayResult], *, prompts: int) -> None:
        """Print the speed of answers under a grammar, and whether they have the right values."""
        columns: dict[str, Callable[[WayResult], str]] = {
            "grammar": lambda way: way.grammar,
            "arm": lambda way: way.arm,
            "tok/s": lambda way: f"{way.tokens_per_second:.1f}",
            "tokens/pass": lambda way: f"{way.tokens_per_pass:.2f}",
            "forced": lambda way: str(way.forced),
            "valid": lambda way: f"{way.valid} of {prompts}",
            "right": lambda way: f"{way.right} of {prompts}",
            "values": lambda way: f"{way.same_values} of {prompts}",
        }
        title = (
            "Facts of a text as JSON: valid are objects of answers that ended by themselves, right are those with the "
            "text's values under the asked keys, values those that have them under any keys"
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


def _drafters(family: FamilyResult) -> str:
    """Return the scheduler's rounds by drafter, and those without a draft."""
    found = family.scheduled
    rounds = {name: count.rounds for name, count in found.drafters.items()}
    rounds["none"] = found.rounds - sum(rounds.values())
    return ", ".join(f"{name} {count}" for name, count in rounds.items() if count)


def _spread(speed_ups: Sequence[float]) -> str:
    return f"{speed_ups[-1]:.2f}, {speed_ups[0]:.2f}" if speed_ups else "-"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}"
