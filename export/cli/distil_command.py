"""The verb `distil`: trains a drafting head or a draft model. Heavy modules are imported only when it runs."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, positive_count, print_json, real_number
from edgedecode.errors import InputError
from edgedecode.library.find import find_pack
from edgedecode.pack.pack_change import check_own
from edgedecode.text.printable import counted, shown

from ..frameworks import require_frameworks
from .common import notices_shown, quiet

if TYPE_CHECKING:
    from ..distil.adding import Outcome
    from ..distil.distil import Progress
    from ..distil.plan import DistilPlan
    from .display import Report

_MINUTES = 60.0
_WHAT = {"head": "head", "draft": "draft model"}
"""The kinds, in words."""
_LEAST_GAIN = 0.02


class DistilCommand:
    """Trains a drafting head or a draft model on the target's answers, and adds it to the pack if that is faster."""

    name = "distil"
    help = "train a drafting head (EAGLE-3) or a draft model for a model on this machine"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("pack", metavar="MODEL", help="the target: a pack, a GGUF file, or a name of `list`")
        parser.add_argument("--kind", choices=tuple(_WHAT), default="head", help="what is trained (default head)")
        length = parser.add_mutually_exclusive_group()
        length.add_argument("--minutes", type=real_number, metavar="M", help="of the whole work (default 60)")
        length.add_argument("--tokens", type=positive_count, metavar="N", help="of the answers that are written")
        length.add_argument("--remove", action="store_true", help="remove the pack's head or draft model of --kind")
        texts = parser.add_mutually_exclusive_group()
        texts.add_argument("--prompts", type=Path, metavar="FILE.jsonl", help="prompts (default: bundled ones)")
        texts.add_argument(
            "--answers", type=Path, metavar="FILE.jsonl", help="texts in ids, as OUT/texts.jsonl has them"
        )
        parser.add_argument("--init", type=Path, metavar="FOLDER", help="start from one that was trained before")
        parser.add_argument("--adapter", metavar="NAME", help="the target answers with this adapter of the pack")
        parser.add_argument("--out", type=Path, metavar="FOLDER", help="of result and work (default: MODEL-KIND)")
        parser.add_argument("--resume", action="store_true", help="go on with the work in --out")
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        if arguments.remove:
            return _remove(arguments)
        with quiet(debug=arguments.debug):
            report = _run(arguments)
        if arguments.json:
            print_json(report)
        return 0


def _run(arguments: Namespace) -> Report:
    require_frameworks("distil")
    from ..distil.adding import add_if_better
    from ..distil.distil import Distillation, DistilRequest
    from .display import live_stages

    root = find_pack(arguments.pack)
    check_own(root, "change")  # not only when the head is there, after hours
    if arguments.minutes is not None and arguments.minutes <= 0:
        raise InputError(f"--minutes {arguments.minutes:g} leaves no time: give more than 0")
    minutes = arguments.minutes or (None if arguments.tokens else _MINUTES)
    out = arguments.out or Path(f"{Path(arguments.pack).stem}-{arguments.kind}")
    files = {name: getattr(arguments, name) for name in ("prompts", "answers", "init")}
    length = {"minutes": minutes, "tokens": arguments.tokens}
    more = {"adapter": arguments.adapter, "resume": arguments.resume}
    request = DistilRequest(root, out, arguments.kind, **length, **files, **more)

    def announce(plan: DistilPlan) -> None:
        print(plan.line, file=sys.stderr, flush=True)

    def show(progress: Progress) -> None:
        print(_line(progress), file=sys.stderr, flush=True)

    with notices_shown(), live_stages() as stages, Distillation(request, stages, planned=announce, report=show) as work:
        try:
            outcome = add_if_better(root, out, work.kind, work.run(), stages, adapter=arguments.adapter)
        except (KeyboardInterrupt, SystemExit):
            print(f"edgedecode: what is done is in {out}: the same command with --resume goes on", file=sys.stderr)
            raise
    if not arguments.json:
        print(_result(out, _WHAT[arguments.kind], outcome))
    best = work.best
    assert best is not None
    return {
        "folder": str(out),
        "tokens": best.tokens,
        "tokens_a_round": best.acceptance.length(),
        "accepted": {str(depth): share for depth, share in enumerate(best.acceptance.shares, start=1)},
        "predicted": best.speed_up,
        "before": outcome.before,
        "after": outcome.after,
        "gain": outcome.gain.mean,
        "gain_error": outcome.gain.error if isfinite(outcome.gain.error) else None,
        "added": outcome.added,
    }


def _remove(arguments: Namespace) -> int:
    from ..distil.kinds.draft_pack import remove_draft
    from ..heads.pack_head import remove_head

    root = find_pack(arguments.pack)
    check_own(root, "change")
    removed = (remove_head if arguments.kind == "head" else remove_draft)(root)
    line = {"pack": str(root), "removed": removed.source}
    print_json(line) if arguments.json else print(shown(f"removed the {_WHAT[arguments.kind]} {removed.source}"))
    return 0


def _line(progress: Progress) -> str:
    total, trend = progress.total, progress.trend
    kinds = ", ".join(f"{kind or 'all'} {each.length():.2f}" for kind, each in sorted(progress.kinds.items()))
    shares = " ".join(f"{share:.2f}" for share in total.shares)
    line = (
        f"{progress.seconds / 60:.0f} min: {total.length():.2f} tokens a round ({kinds}), accepted by depth {shares}; "
        f"predicted {progress.speed_up:.2f} times plain decoding, drafting alone"
    )
    if trend is None or not progress.hourly:  # a resumed work that was complete
        return line
    later = trend.at(progress.tokens + progress.hourly)
    more = later / total.length() - 1
    return f"{line}; another hour: {later:.2f}" + (", hardly more" if more < _LEAST_GAIN else "")


def _result(out: Path, what: str, outcome: Outcome) -> str:
    unit = f"tokens a round against the earlier {what}" if outcome.replaces else "times"
    line = (
        f"{out}: {outcome.after:.2f} times plain decoding with the {what}, {outcome.before:.2f} before; "
        f"{outcome.gain.mean:+.2f} ± {outcome.gain.error:.2f} {unit} on {counted(outcome.texts, 'held-out text')}"
    )
    if not outcome.added:
        return f"{line}, no clear gain; the model was left as it was"
    kind = next(kind for kind, words in _WHAT.items() if words == what)
    return f"{line}; the {what} was added (`edgedecode distil MODEL --kind {kind} --remove` removes it)"


distil: Command = DistilCommand()
