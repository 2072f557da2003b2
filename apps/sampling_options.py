"""Options of sampling that several verbs share."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from edgedecode import SamplingOptions
from edgedecode.commands import answer_seed, biased_token, count, real_number
from edgedecode.options import sampling_defaults
from edgedecode.pack.manifest import Generation
from edgedecode.sampling.weights import sampling_table


def add_sampling_options(parser: ArgumentParser) -> None:
    """Add the options of sampling, as the table of `SamplingOptions` has them, and --seed."""
    group = parser.add_argument_group("sampling (defaults: the pack's)")
    for option in sampling_table():
        flag, metavar = option.flag.split()
        kind = count if option.whole else real_number
        group.add_argument(flag, dest=option.name, type=kind, metavar=metavar, help=option.help)
    group.add_argument(
        "--logit-bias",
        action="append",
        type=biased_token,
        metavar="ID=X",
        help="add X to the logit of a token id, -100 (never) to 100; may be repeated",
    )
    group.add_argument(
        "--dry-sequence-breaker",
        action="append",
        metavar="TEXT",
        help='DRY ends at tokens that contain TEXT (default: newline : " *); none: nowhere; may be repeated',
    )
    group.add_argument("--seed", type=answer_seed, metavar="N", help="seed of the first answer (default: random)")


def sampling_of(arguments: Namespace, generation: Generation) -> SamplingOptions:
    """Return the pack's options with the given ones in their place. Raises InputError for a value out of range."""
    given = {option.name: getattr(arguments, option.name) for option in sampling_table()}
    given["logit_bias"] = arguments.logit_bias and dict(arguments.logit_bias)
    if breakers := arguments.dry_sequence_breaker:
        given["dry_sequence_breakers"] = tuple(each for each in breakers if each != "none")
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(sampling_defaults(generation), **chosen)
