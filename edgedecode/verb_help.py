"""The texts of --help: the common options first, all of them on request, and the commands in groups."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

ALL = "--help-all"

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "use a model": ("run", "chat", "generate", "serve", "demo"),
    "models on this machine": ("list", "pull", "rm", "show", "plan"),
    "your own models": ("export", "import", "trim", "imatrix", "adapter", "head", "distil", "calibrate"),
    "devices": ("devices", "package", "compile", "lint", "selftest"),
    "measure": ("bench", "eval", "cache"),
}
_OTHERS = "added by other packages"

RARE = frozenset(
    (
        *("--prompt", "--model", "--raw", "--ignore-eos", "--color", "--debug", "--no-history"),
        *("--samples", "--choose", "--answer-pattern", "--expect"),
        *("--runtime", "--provider", "--draft-on", "--threads", "--kv-type", "--no-mmap", "--no-repack"),
        *("--verify", "--draft-max", "--rule", "--reproducible", "--adapter", "--template-arg"),
        *("--target-url", "--target-kind", "--target-model", "--target-key-env", "--offline", "--verify-drafts"),
        *("--think-tokens", "--think-message"),
        *("--regex", "--grammar", "--mode", "--quality", "--switch-threshold"),
        *("--top-k", "--min-p", "--top-n-sigma", "--repeat-penalty", "--frequency-penalty"),
        *("--typical-p", "--xtc-probability", "--xtc-threshold", "--dry-multiplier", "--dry-base"),
        *("--mirostat", "--mirostat-ent", "--mirostat-lr"),
        *("--dry-allowed-length", "--dry-penalty-last-n", "--dry-sequence-breaker"),
        *("--presence-penalty", "--repeat-last-n", "--logit-bias", "--allow-host", "--allow-origin", "--strict-model"),
        *("--parallel", "--queue", "--noise-positions", "--dry-run", "--no-cache", "--head-bits"),
        *("--mixed", "--calibrated", "--calibrate-text", "--activations", "--lora-rank"),
        *("--block-size", "--widths", "--imatrix", "--write-imatrix"),
    )
)
"""Options that few users need: --help leaves them out, --help-all shows them."""


def overview(verbs: Mapping[str, str], description: str) -> str:
    """Return the help of the program: its commands in groups. verbs: what each command does, by its name."""
    grouped = {name for names in _GROUPS.values() for name in names}
    groups = {**_GROUPS, _OTHERS: tuple(name for name in verbs if name not in grouped)}
    lines = ["usage: edgedecode COMMAND ...", "", description]
    for title, names in groups.items():
        if shown := [name for name in names if name in verbs]:
            lines += ["", f"{title}:", *(f"  {name:<10} {verbs[name]}" for name in shown)]
    return "\n".join([*lines, "", f"`edgedecode COMMAND --help` shows its common options, `{ALL}` all of them."])


class HelpParser(argparse.ArgumentParser):
    """Leaves rarely used options out of its help, and the list of options out of the usage above it."""

    def format_help(self) -> str:
        with self._short() as left_out:
            text = self.complete_help()
        return text + (f"\n{left_out} more options: {self.prog} {ALL}\n" if left_out else "")

    def complete_help(self) -> str:
        """Return the help with all options."""
        return super().format_help()

    @contextmanager
    def _short(self) -> Iterator[int]:
        """Hide the rare options, and shorten the usage; yield how many are hidden."""
        hidden = [each for each in self._actions if not RARE.isdisjoint(each.option_strings)]
        texts, usage = [each.help for each in hidden], self.usage
        words = [f"[{each.metavar}]" for each in self._actions if not each.option_strings and each.nargs == "?"]
        needed = [
            f"{each.option_strings[-1]} {each.metavar}"
            for each in self._actions
            if each.option_strings and each.required
        ]
        if usage is None and hidden:
            self.usage = " ".join(["%(prog)s", *needed, "[options]", *words])
        for each in hidden:
            each.help = argparse.SUPPRESS
        try:
            yield len(hidden)
        finally:
            self.usage = usage
            for each, text in zip(hidden, texts, strict=True):
                each.help = text


class ShowAll(argparse.Action):
    """The option --help-all: print the help with all options, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=argparse.SUPPRESS)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, HelpParser)
        parser._print_message(parser.complete_help(), sys.stdout)
        parser.exit()
