"""The verb `eval`: compare two engines, and KV cache types. Engines load later."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace

from edgedecode.commands import Command, add_json, name_list, positive_count

from ..verb_options import add_shared_pack_options

ROLES = ("target", "draft", "both")
PROMPT_TOKENS = 64
"""Most tokens of an answer."""


class EvalCommand:
    """Run the chosen comparisons: print tables, and with --json one line of figures last."""

    name = "eval"
    help = "compare two engines on a pack, or smaller KV cache types with float32"

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
        how = parser.add_argument_group("prompts, models and engines")
        how.add_argument(
            "--prompts", metavar="FILE", help="prompts as jsonl, as in `bench` (default: the bundled prompts)"
        )
        how.add_argument(
            "--limit", type=positive_count, metavar="N", help="use at most N prompts, evenly from every family"
        )
        how.add_argument(
            "-n",
            "--max-tokens",
            type=positive_count,
            default=PROMPT_TOKENS,
            metavar="N",
            help="end each answer after N tokens (default: %(default)s)",
        )
        how.add_argument(
            "--role", choices=ROLES, default="both", help="models to evaluate (default: both, if the pack has both)"
        )
        how.add_argument(
            "--runtimes",
            type=name_list,
            metavar="A,B",
            help="engines (default: onnx,llama for --equality, which takes two; all installed for --kv-types)",
        )
        parser.add_argument(
            "--save",
            action=BooleanOptionalAction,
            default=None,
            help="save the result in the pack's manifest (default: save if the pack is writable and neither bundled "
            "nor downloaded)",
        )
        add_json(parser)
        add_shared_pack_options(
            parser,
            kv_type="for --equality: KV cache type of both engines (default: each engine's own); for --kv-types: the "
            "only type to compare with float32",
        )
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        names = arguments.runtimes
        if not (arguments.equality or arguments.kv_types):
            arguments.usage_error("choose what to evaluate: --equality, --kv-types, or both")
        if names is not None and (len(set(names)) != len(names) or (arguments.equality and len(names) != 2)):
            wanted = "two different runtimes, such as onnx,llama" if arguments.equality else "each runtime once"
            arguments.usage_error(f"--runtimes {','.join(names)}: name {wanted}")
        from .evaluation import run_evaluation

        return run_evaluation(arguments)


command: Command = EvalCommand()
