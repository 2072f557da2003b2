"""The verb `plan`: the memory of a session in parts, and the cuts that make it fit a budget."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgedecode import BudgetExceeded, SessionDetails, SessionOptions, SwitchOptions
from edgedecode.commands import Command, add_json, count, print_json
from edgedecode.decoding.verify import Rule
from edgedecode.memory.budget import in_parts
from edgedecode.memory.sizes import decimals, format_nbytes, size_option
from edgedecode.plan_pack import PackPlan, plan
from edgedecode.schedule.predicted_speed import PredictedSpeed

from ..terminal import show_notices, table_console
from ..verb_options import add_mode, add_pack_options, add_rule, add_samples, load_options, locate_pack

if TYPE_CHECKING:
    from rich.table import Table


class PlanCommand:
    """Print a memory plan. Loads only the tokenizer; exits with 1 if no plan fits the budget."""

    name = "plan"
    help = "show how much memory a conversation needs, and what fits a budget"

    def configure(self, parser: ArgumentParser) -> None:
        add_pack_options(parser)
        group = parser.add_argument_group("conversation")
        group.add_argument("--drafter", metavar="NAME", help="plan for this drafter only, or for none")
        group.add_argument("--draft-max", type=count, metavar="N", help="plan for a fixed draft length")
        group.add_argument("--adapter", metavar="NAME", help="plan for answers with this adapter of the pack")
        add_rule(group, "plan for this verification rule")
        group.add_argument("--reproducible", action="store_true", help="refuse any kernels but ours")
        add_mode(group, "switch: plan for switching between the models")
        add_samples(group)
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        show_notices()
        locate_pack(arguments)
        made = plan(
            arguments.model,
            _options(arguments),
            memory=arguments.memory,
            runtime=arguments.runtime,
            threads=arguments.threads,
            kv_type=arguments.kv_type,
            options=load_options(arguments),
        )
        _show(made)
        if arguments.json:
            print_json(_as_dict(made))
        if not made.memory.fits:
            raise _refusal(made)
        return 0


def _options(arguments: Namespace) -> SessionOptions:
    return SessionOptions(
        context=arguments.ctx_size,
        drafter=arguments.drafter,
        draft_max=arguments.draft_max,
        adapter=arguments.adapter,
        details=SessionDetails(
            rule=Rule(arguments.rule),
            reproducible=arguments.reproducible,
            switch=SwitchOptions() if arguments.mode == "switch" else None,
            samples=arguments.samples,
        ),
    )


def _show(made: PackPlan) -> None:
    memory, choice = made.memory, made.memory.choice
    console = table_console()
    console.print(_parts_table(made))
    drafters = f"{', '.join(choice.drafters)}, up to {choice.draft_max} tokens" if choice.drafters else "none"
    kv_type = f", {choice.kv_type} keys and values" if choice.kv_type else ""
    print(f"\nContext: {choice.context} tokens{kv_type}; drafters: {drafters}.")
    for cut in memory.cuts:
        print(f"Cut to fit the budget: {cut.what}, {format_nbytes(cut.nbytes)}: {cut.effect}.")
    if made.speed is not None:
        print(_speed_line(made.speed, made.speed_uncut))
    smallest = size_option(memory.least_running)
    if made.least_with_int8 is not None and made.least_with_int8 < memory.least_running:
        smallest += f", or {size_option(made.least_with_int8)} with --kv-type int8 (answers may differ slightly)"
    print(f"Smallest budget: {smallest}.")


def _speed_line(speed: PredictedSpeed, uncut: PredictedSpeed | None) -> str:
    """Return a line with the predicted speed, and the speed without cuts where that is higher."""
    predicted = f"{speed.plain:.0f} tokens/s without drafts"
    if speed.drafted is not None:
        predicted += f", {speed.drafted:.0f} with the draft model"
    if uncut is not None and uncut.drafted is not None and uncut.drafted > (speed.drafted or speed.plain):
        predicted += f" ({uncut.drafted:.0f} without a budget)"
    return f"Predicted from earlier runs on this machine: {predicted}; repetitive text is faster."


def _parts_table(made: PackPlan) -> "Table":
    from rich.table import Table

    memory, limit = made.memory, made.limit
    title = f"{made.pack} on {made.engine}"
    table = Table(title=title if limit is None else f"{title}, {format_nbytes(limit.nbytes)} ({limit.name})")
    table.add_column("part")
    table.add_column("memory", justify="right")
    for part, nbytes in in_parts(memory.holders).items():
        table.add_row(part, format_nbytes(nbytes))
    table.add_section()
    places = 1 if limit is None else decimals(memory.nbytes, limit.nbytes)
    table.add_row("sum", format_nbytes(memory.nbytes, places))
    return table


def _as_dict(made: PackPlan) -> dict[str, object]:
    memory = made.memory
    return {
        "pack": made.pack,
        "engine": made.engine,
        "limit": None if made.limit is None else {"nbytes": made.limit.nbytes, "name": made.limit.name},
        "fits": memory.fits,
        "nbytes": memory.nbytes,
        "choice": asdict(memory.choice),
        "holders": {holder.name: holder.nbytes for holder in memory.holders},
        "cuts": [asdict(cut) for cut in memory.cuts],
        "least_running": memory.least_running,
        "least_speculating": memory.least_speculating,
        "least_with_int8": made.least_with_int8,
        "tokens_per_second": None if made.speed is None else made.speed._asdict(),
        "tokens_per_second_uncut": None if made.speed_uncut is None else made.speed_uncut._asdict(),
    }


def _refusal(made: PackPlan) -> BudgetExceeded:
    memory, limit = made.memory, made.limit
    assert limit is not None
    size = format_nbytes(limit.nbytes) if limit.nbytes >= 10**5 else f"{limit.nbytes} bytes"
    return BudgetExceeded(
        f"no plan fits {size} ({limit.name}), this pack needs {size_option(memory.least_running)}",
        limit.raised(memory.least_running),
        table="",
        needed_nbytes=memory.least_running,
    )


command: Command = PlanCommand()
