"""The verb `eval`: what a pack's models say, measured. Engines load when it runs."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace

from edgedecode.commands import Command, name_list, positive_count
from edgedecode.engines.kernel_noise import POSITIONS
from edgedecode.open_pack import KV_TYPES

__all__ = ["command"]

ROLES = ("target", "draft", "both")


class EvalCommand:
    """What the options choose, one or both; tables first, with --json one line of figures last."""

    name = "eval"
    help = "check what a pack says: one engine against the other, smaller keys and values against float ones"

    def configure(self, parser: ArgumentParser) -> None:
        which = parser.add_argument_group("what is evaluated, at least one of these")
        which.add_argument(
            "--equality",
            action="store_true",
            help="decode the same prompts on two engines, score each one's text with the other, and exit with 1 if "
            "they differ by more than their kernels' noise",
        )
        which.add_argument(
            "--kv-types",
            action="store_true",
            help="on each engine, what smaller types of keys and values do to answers beside float32: perplexity, "
            "leading token, divergence, and greedy answers that stay the same",
        )
        how = parser.add_argument_group("how")
        how.add_argument("--prompts", metavar="FILE", help="jsonl as `bench` takes it (default: the bundled prompts)")
        how.add_argument("--limit", type=positive_count, metavar="N", help="prompts at most, of every family in turn")
        how.add_argument(
            "-n",
            "--max-tokens",
            type=positive_count,
            default=64,
            metavar="N",
            help="an answer's (default: %(default)s)",
        )
        how.add_argument("--role", choices=ROLES, default="both", help="which models (default: all there are)")
        how.add_argument(
            "--runtimes",
            type=name_list,
            metavar="A,B",
            help="engines (default: onnx,llama for --equality, which takes two; all installed ones for --kv-types)",
        )
        how.add_argument(
            "--noise-positions",
            type=positive_count,
            default=POSITIONS,
            metavar="N",
            help="of --equality: positions that kernel noise is measured on where the pack does not state it "
            "(default: %(default)s)",
        )
        parser.add_argument(
            "--save",
            action=BooleanOptionalAction,
            default=None,
            help="keep the result in the pack's manifest (default: where the pack is yours and can be written)",
        )
        parser.add_argument("--json", action="store_true", help="end with one JSON line")
        _add_engine_options(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        names = arguments.runtimes
        if not (arguments.equality or arguments.kv_types):
            arguments.usage_error("say what to evaluate: --equality, --kv-types, or both")
        if names is not None and (len(set(names)) != len(names) or (arguments.equality and len(names) != 2)):
            wanted = "two different runtimes, as onnx,llama does" if arguments.equality else "different runtimes"
            arguments.usage_error(f"--runtimes {','.join(names)} does not name {wanted}")
        from .evaluation import run_evaluation

        return run_evaluation(arguments)


def _add_engine_options(parser: ArgumentParser) -> None:
    """Add what says which pack is opened, and how; of `options.add_pack_options` what holds for two engines."""
    group = parser.add_argument_group("pack and engines")
    group.add_argument("-m", "--model", metavar="PACK", help="folder or hub id of a pack (default: the bundled one)")
    group.add_argument("-t", "--threads", type=positive_count, metavar="N", help="threads of each engine")
    group.add_argument(
        "--memory",
        metavar="SIZE",
        help="hard budget for the whole process, for example 800MB (default: EDGEDECODE_MEMORY; a container's limit "
        "and the machine's memory are kept in any case)",
    )
    group.add_argument(
        "--kv-type",
        choices=KV_TYPES,
        help="of --equality: how both keep keys and values (default: each as it does); of --kv-types: the only type "
        "that is compared with float32",
    )
    group.add_argument("--verify", action="store_true", help="check every file's digest before loading")


command: Command = EvalCommand()
