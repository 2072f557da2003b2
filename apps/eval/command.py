"""The verb `eval`: measure answers to tasks, compare two engines and KV cache types. Engines load later."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence

from edgedecode.commands import Command, add_json, add_pack, name_list, positive_count, scaled_name
from edgedecode.engines.kernel_noise import POSITIONS
from edgedecode.open_pack import KV_TYPES
from edgedecode.sampling.weights import sampling_table

from ..verb_options import add_sampling_options
from .arm_names import arm_list

__all__ = ["command"]

ROLES = ("target", "draft", "both")
PROMPT_TOKENS = 64
"""Most tokens of an answer where -n is not given, except for --tasks."""
TASK_OPTIONS = ("--arms", "--adapter", "--compare-with", "--perplexity", "--answers", "--resume", "--plot", "--seed")
"""Options that need --tasks; so do those for sampling."""
OTHER_OPTIONS = ("--equality", "--kv-types", "--prompts", "--role", "--save", "--noise-positions")


class EvalCommand:
    """Run the chosen comparisons: print tables, and with --json one line of figures last."""

    name = "eval"
    help = "measure a pack's answers to tasks; compare two engines, or smaller KV cache types with float32"

    def configure(self, parser: ArgumentParser) -> None:
        which = parser.add_argument_group("evaluations (at least one)")
        which.add_argument(
            "--equality",
            action="store_true",
            help="decode the same prompts on two engines, score each engine's text with the other, and exit with 1 if "
            "they differ by more than kernel noise",
        )
        which.add_argument(
            "--kv-types",
            action="store_true",
            help="compare smaller KV cache types with float32 on each engine: perplexity, top token, divergence, and "
            "greedy answers that stay the same",
        )
        which.add_argument(
            "--tasks",
            action="append",
            metavar="FILE",
            help="answer the tasks of a jsonl file and judge the answers; repeatable. Forms of a line: "
            "ours {family, messages, answer}; GSM8K {question, answer}; HumanEval and MBPP {task_id, prompt, "
            "entry_point, test} or {task_id, text, test_list}, judged by running the code in a sandbox; MT-bench and "
            "Spec-Bench {category, turns}, not judged; {question or prompt, answer}",
        )
        _add_task_options(parser)
        how = parser.add_argument_group("prompts, models and engines")
        how.add_argument(
            "--prompts", metavar="FILE", help="prompts as jsonl, as in `bench` (default: the bundled prompts)"
        )
        how.add_argument(
            "--limit",
            type=positive_count,
            metavar="N",
            help="use at most N prompts or tasks, evenly from every family",
        )
        how.add_argument(
            "-n",
            "--max-tokens",
            type=positive_count,
            metavar="N",
            help=f"end each answer after N tokens (default: {PROMPT_TOKENS}; 256 for --tasks)",
        )
        how.add_argument("--role", choices=ROLES, help="models to evaluate (default: both, if the pack has both)")
        how.add_argument(
            "--runtimes",
            type=name_list,
            metavar="A,B",
            help="engines (default: onnx,llama for --equality, which takes two; all installed for --kv-types; for "
            "--tasks, which takes one, the faster one)",
        )
        how.add_argument(
            "--noise-positions",
            type=positive_count,
            metavar="N",
            help="for --equality: positions to measure kernel noise on if the pack does not state it (default: "
            f"{POSITIONS})",
        )
        parser.add_argument(
            "--save",
            action=BooleanOptionalAction,
            default=None,
            help="save the result in the pack's manifest (default: save if the pack is writable and neither bundled "
            "nor downloaded)",
        )
        add_json(parser)
        _add_engine_options(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        names = arguments.runtimes
        if arguments.tasks:
            return self._run_tasks(arguments)
        sampling = [
            option.flag.split()[0] for option in sampling_table() if getattr(arguments, option.name) is not None
        ]
        sampling += ["--logit-bias"] if arguments.logit_bias else []
        if used := _given(arguments, TASK_OPTIONS) + sampling:
            arguments.usage_error(f"{used[0]} needs --tasks")
        if not (arguments.equality or arguments.kv_types):
            arguments.usage_error("choose what to evaluate: --tasks FILE, --equality, --kv-types, or the last two")
        arguments.max_tokens = arguments.max_tokens or PROMPT_TOKENS
        arguments.role = arguments.role or "both"
        arguments.noise_positions = arguments.noise_positions or POSITIONS
        if names is not None and (len(set(names)) != len(names) or (arguments.equality and len(names) != 2)):
            wanted = "two different runtimes, such as onnx,llama" if arguments.equality else "each runtime once"
            arguments.usage_error(f"--runtimes {','.join(names)}: name {wanted}")
        from .evaluation import run_evaluation

        return run_evaluation(arguments)

    def _run_tasks(self, arguments: Namespace) -> int:
        if used := _given(arguments, OTHER_OPTIONS):
            arguments.usage_error(f"{used[0]} is not for --tasks: leave it out")
        if arguments.resume and arguments.answers is None:
            arguments.usage_error("--resume needs --answers FILE")
        if arguments.runtimes is not None and len(arguments.runtimes) != 1:
            arguments.usage_error(f"--runtimes {','.join(arguments.runtimes)}: name one runtime for --tasks")
        from .task_run import run_tasks

        return run_tasks(arguments)


def _given(arguments: Namespace, names: Sequence[str]) -> list[str]:
    """Return the options of these names that were given."""
    values = {name: getattr(arguments, name.strip("-").replace("-", "_")) for name in names}
    return [name for name, value in values.items() if value is not None and (value is not False or name == "--save")]


def _add_task_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("for --tasks")
    group.add_argument(
        "--arms",
        type=arm_list,
        metavar="A,B",
        help="ways to answer: target (plain decoding), draft (the draft model alone), verified (speculation), "
        "switch:QUALITY and switch@THRESHOLD (entropy switching), and with +ADAPTER, such as target+summaries; "
        "compared with the first (default: target,draft,verified)",
    )
    group.add_argument(
        "--adapter",
        type=scaled_name,
        metavar="NAME[:SCALE]",
        help="LoRA adapter of the pack for all arms without their own, except draft",
    )
    group.add_argument(
        "--compare-with",
        action="append",
        metavar="PACK",
        help="another pack, whose target answers too, as an arm with the name of its folder; repeatable",
    )
    group.add_argument("--perplexity", action="store_true", help="measure the perplexity of the references too")
    group.add_argument(
        "--answers", metavar="FILE", help="write each answer with its judgement to a jsonl file, as it comes"
    )
    group.add_argument("--resume", action="store_true", help="continue the file of --answers after an interruption")
    group.add_argument("--plot", metavar="FILE", help="plot accuracy against speed, as .svg or .png")
    add_sampling_options(parser, defaults="greedy; only for --tasks", first_seed="0, if the temperature is above 0")


def _add_engine_options(parser: ArgumentParser) -> None:
    """Add the options of `verb_options.add_pack_options` that apply to more than one engine."""
    group = parser.add_argument_group("pack and engines")
    add_pack(parser, group)
    group.add_argument("-t", "--threads", type=positive_count, metavar="N", help="number of threads for each engine")
    group.add_argument(
        "--memory",
        metavar="SIZE",
        help="hard limit on the memory of the process, for example 800MB (default: EDGEDECODE_MEMORY; the container's "
        "limit and the machine's memory always apply)",
    )
    group.add_argument(
        "--kv-type",
        choices=KV_TYPES,
        help="for --equality: KV cache type of both engines (default: each engine's own); for --kv-types: the only "
        "type to compare with float32",
    )
    group.add_argument("--verify", action="store_true", help="check every file's digest before loading")


command: Command = EvalCommand()
