"""Options that several verbs share: pack and engine, drafting, sampling."""

import json
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode import InputError, Message, Pair, Rule, SessionDetails, SessionOptions, SwitchOptions, WhenFull, load
from edgedecode.commands import (
    add_pack,
    count,
    positive_count,
    real_number,
    scaled_name,
    template_argument,
    thinking_budget,
)
from edgedecode.decoding.policy import NO_DRAFTER, FixedLength
from edgedecode.engines.interface import TARGET_KINDS
from edgedecode.engines.registry import RUNTIMES, drafter_names, find_drafter, installed
from edgedecode.errors import cause
from edgedecode.library.find import find_pack
from edgedecode.memory.budget import SharedBudget
from edgedecode.open_pack import KV_TYPES, LoadOptions
from edgedecode.options import DEFAULT_QUALITY
from edgedecode.pack.manifest import Generation, Manifest
from edgedecode.text.printable import checked_text, file_text
from edgedecode.text.thinking import EFFORTS, OFF
from edgedecode.user_notices import notice

from .interrupts import leaving_at_once
from .sampling_options import add_sampling_options, sampling_of
from .terminal import show_notices

if TYPE_CHECKING:
    from edgedecode.engines.target_server import TargetServer
    from edgedecode.structured.grammar import Grammar

VOTE, LIKELIEST = "vote", "mean-logprob"
"""Ways to choose one of several answers."""


def add_shared_pack_options(parser: ArgumentParser, *, kv_type: str) -> _ArgumentGroup:
    """Add the options of the pack and its memory that apply to several engines too. kv_type: the help of --kv-type."""
    group = parser.add_argument_group("pack and engine")
    add_pack(parser, group)
    group.add_argument("-t", "--threads", type=positive_count, metavar="N", help="number of threads for the engine")
    group.add_argument(
        "--memory",
        metavar="SIZE",
        help="hard limit on the memory of the process, for example 800MB (default: EDGEDECODE_MEMORY; the container's "
        "limit and the machine's memory always apply)",
    )
    group.add_argument("--kv-type", choices=KV_TYPES, help=kv_type)
    group.add_argument("--verify", action="store_true", help="check every file's digest before loading")
    return group


def add_pack_options(parser: ArgumentParser) -> None:
    """Add the options that choose the pack, the engine and the memory limits."""
    group = add_shared_pack_options(
        parser,
        kv_type="type of the KV cache; int8 takes a quarter of float32's memory and changes results slightly (lossy). "
        "onnx: float32 (default), or int8 if the pack was exported with --graphs base,kv8; llama: float32 for float "
        "weights, float16 for others (defaults), or int8",
    )
    group.add_argument(
        "--draft",
        metavar="MODEL",
        help="draft model for a GGUF file: another of `edgedecode list`, best with its tokenizer",
    )
    group.add_argument(
        "--runtime",
        metavar="NAME",
        help=f"engine: {', '.join(installed(RUNTIMES))}, or auto: onnx where it can run the pack, else llama "
        "(default: EDGEDECODE_RUNTIME, else auto)",
    )
    group.add_argument(
        "--provider",
        default="cpu",
        help="execution provider of the engine, as listed by `edgedecode devices` (default: %(default)s)",
    )
    group.add_argument(
        "--draft-on",
        metavar="ENGINE[:PROVIDER]",
        help="run the draft model on another engine or provider than the target, for example onnx:webgpu",
    )
    group.add_argument(
        "-c", "--ctx-size", type=positive_count, metavar="N", help="context size in tokens to plan memory for"
    )
    group.add_argument(
        "--no-mmap",
        action="store_true",
        help="llama: read the weights instead of mapping their file, so that memory holds them once, not twice, at "
        "the same speed; automatic when --memory has no room for both",
    )
    group.add_argument(
        "--no-repack",
        action="store_true",
        help="llama: use the weights as they are in the file instead of repacking a copy for the CPU's kernels: "
        "slower, but memory holds them once, in pages that the system can reclaim",
    )


def add_target_options(parser: ArgumentParser) -> None:
    """Add the options of a target on a server."""
    group = parser.add_argument_group("target on a server (the pack's model drafts here; the text leaves this device)")
    group.add_argument(
        "--target-url", metavar="URL", help="server whose model verifies the drafts, as http://host:8000"
    )
    group.add_argument(
        "--target-kind",
        choices=TARGET_KINDS,
        help=f"kind of server (default: {TARGET_KINDS[0]}, run with `serve --verify-drafts`)",
    )
    group.add_argument("--target-model", default="", metavar="NAME", help="the model's name there")
    group.add_argument("--target-key-env", default="", metavar="VARIABLE", help="environment variable with its key")
    group.add_argument(
        "--offline",
        choices=("draft",),
        help="draft: where the server does not answer, the pack's model goes on alone, and what it wrote is counted",
    )


def target_server(arguments: Namespace) -> "TargetServer | None":
    """Return the server of the target; None: it is on this device. Raises InputError for options without one."""
    url: str | None = getattr(arguments, "target_url", None)
    if url is None:
        for name in ("target_kind", "target_model", "target_key_env", "offline"):
            if getattr(arguments, name, None):
                raise InputError(f"--{name.replace('_', '-')} needs --target-url: the server that it is about")
        return None
    from edgedecode.engines.target_server import TargetServer  # late: most targets are on this device

    return TargetServer(
        url,
        kind=arguments.target_kind or TARGET_KINDS[0],
        model=arguments.target_model,
        key_variable=arguments.target_key_env,
        offline=arguments.offline is not None,
    )


def add_session_options(parser: ArgumentParser) -> None:
    """Add the options for drafting, verification and sampling."""
    group = parser.add_argument_group("drafting")
    names = ", ".join([*drafter_names(), NO_DRAFTER])
    group.add_argument("--drafter", metavar="NAME", help=f"{names} (default: the fastest of each round, or none)")
    group.add_argument(
        "--draft-max",
        type=count,
        metavar="N",
        help="fixed number of tokens to draft per round; 0: no speculation (default: chosen by measured costs)",
    )
    thinking = parser.add_argument_group("chat template")
    thinking.add_argument(
        "--think",
        choices=EFFORTS,
        metavar="EFFORT",
        help="how much the model thinks first: off, on, auto, low, medium, high, ...",
    )
    thinking.add_argument(
        *("--think-tokens", "--reasoning-budget"),
        type=thinking_budget,
        metavar="N",
        help="end a thought after N tokens; 0: at once, -1: never (default: 256 with --think low, 1024 with medium, "
        "4096 with high)",
    )
    thinking.add_argument(
        *("--think-message", "--reasoning-budget-message"),
        default="",
        metavar="TEXT",
        help="the last words of a thought that --think-tokens ends",
    )
    thinking.add_argument(
        "--template-arg",
        action="append",
        type=template_argument,
        default=[],
        metavar="NAME=VALUE",
        help="a variable of the chat template, as JSON or text; repeatable",
    )
    structure = parser.add_argument_group("structured output")
    form = structure.add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema",
        metavar="SCHEMA",
        help="answers follow this JSON Schema, a file or the text itself (needs edgedecode[structured])",
    )
    form.add_argument("--regex", metavar="TEXT", help="answers match this regular expression")
    form.add_argument("--grammar", type=Path, metavar="FILE", help="answers follow this grammar (Lark or GBNF)")
    add_rule(group, "verification rule for sampled drafts; both preserve the target's distribution")
    group.add_argument(
        "--reproducible",
        action="store_true",
        help="same seed, same text, whatever is drafted: so it is with our kernels, and this refuses any others, whose "
        "rounding may decide a near tie differently",
    )
    group.add_argument(
        "--adapter",
        metavar="NAME[:SCALE]",
        type=scaled_name,
        help="LoRA adapter of the pack to answer with, and the scale of its change (default: 1)",
    )
    _add_switching_options(parser)
    add_sampling_options(parser)


def add_rule(group: _ArgumentGroup, help: str) -> None:
    """Add --rule."""
    default, choices = Rule.MATCH.value, [rule.value for rule in Rule]
    group.add_argument("--rule", choices=choices, default=default, help=f"{help} (default: %(default)s)")


def add_samples(group: ArgumentParser | _ArgumentGroup) -> None:
    """Add --samples."""
    help = "answer N times at once, with seeds that count up from --seed, for little more than the time of one"
    group.add_argument("--samples", type=positive_count, default=1, metavar="N", help=help)


def add_choice(parser: ArgumentParser) -> None:
    """Add the options that choose one of several answers."""
    choose = "print one of the answers: the one that most agree with, or the one with the likeliest tokens"
    parser.add_argument("--choose", choices=(VOTE, LIKELIEST), help=choose)
    pattern = "what the vote is about: its last match, or first group (default: the last number)"
    parser.add_argument("--answer-pattern", metavar="REGEX", help=pattern)


def add_mode(group: _ArgumentGroup, help: str) -> None:
    """Add --mode."""
    choices = ("verify", "switch")
    group.add_argument("--mode", choices=choices, default="verify", help=f"{help} (default: %(default)s)")


def _add_switching_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("switching between the models (answers may be worse)")
    add_mode(
        group, "verify: every token is the target's; switch: the draft model writes what it is sure of, unverified"
    )
    group.add_argument(
        "--quality",
        type=real_number,
        metavar="Q",
        help=f"with --mode switch: share of the target's accuracy to keep, by the pack's calibrated curve (default: "
        f"{DEFAULT_QUALITY}); see `edgedecode calibrate`",
    )
    group.add_argument(
        "--switch-threshold",
        type=real_number,
        metavar="H",
        help="with --mode switch: hand over to the target at this entropy in nats, without a curve",
    )


def _switch_options(arguments: Namespace) -> SwitchOptions | None:
    """Return the options of --mode switch. Raises InputError for those that need it."""
    if arguments.mode == "switch":
        return SwitchOptions(quality=arguments.quality, threshold=arguments.switch_threshold)
    given = {"--quality": arguments.quality is not None, "--switch-threshold": arguments.switch_threshold is not None}
    if names := [name for name, used in given.items() if used]:
        raise InputError(f"{names[0]} needs --mode switch: without it, every token is verified by the target")
    return None


def open_pair(arguments: Namespace, *, swaps: bool = False) -> Pair:
    """Open the pack that the arguments name.

    Invalid option values are refused before anything is loaded. swaps: a session may choose any adapter of the pack
    later, not only the one that the arguments name.
    """
    check_early(arguments)
    show_notices()
    locate_pack(arguments)
    with leaving_at_once():
        return open_located(arguments, arguments.memory, swaps=swaps)


def open_located(arguments: Namespace, memory: str | SharedBudget | None, *, swaps: bool) -> Pair:
    """Open the pack whose folder is in the arguments. swaps: as for `open_pair`."""
    adapter = getattr(arguments, "adapter", None)
    adapters, server = adapter is not None, target_server(arguments)
    if adapter is not None or (swaps and server is None):  # before the engines are measured
        manifest = Manifest.load(Path(arguments.model))
        if adapter is not None:
            manifest.located_adapter(adapter[0])
        elif manifest.adapters and arguments.kv_type is None:  # no ONNX graph has both
            adapters = manifest.models["target"].takes_adapters
    return load(
        arguments.model,
        memory=memory,
        runtime=arguments.runtime,
        threads=arguments.threads,
        kv_type=arguments.kv_type,
        adapters=adapters,
        options=replace(load_options(arguments), context=arguments.ctx_size, verify=arguments.verify),
    )


def load_options(arguments: Namespace) -> LoadOptions:
    """Return where and how the models that the arguments name are opened."""
    return LoadOptions(
        provider=arguments.provider,
        draft_on=arguments.draft_on,
        mmap=not arguments.no_mmap,
        repack=not arguments.no_repack,
        hidden=getattr(arguments, "embeddings", False),
        server=target_server(arguments),
    )


def locate_pack(arguments: Namespace) -> None:
    """Put the folder of the pack that the arguments name in the place of its name. May download it."""
    arguments.model, arguments.draft = str(find_pack(arguments.model, arguments.draft)), None


def session_options(arguments: Namespace, pair: Pair) -> SessionOptions:
    """Return the session's options; the pack's generation defaults fill in those not given. Raises InputError."""
    if arguments.drafter == NO_DRAFTER and arguments.draft_max:
        raise InputError(
            f"--draft-max {arguments.draft_max} contradicts --drafter {NO_DRAFTER}: leave one of the two out"
        )
    adapter, scale = arguments.adapter or (None, 1.0)
    if arguments.think in OFF and pair.shared.thinking is None and not getattr(arguments, "json", False):
        from edgedecode.text.template_switches import idle_switch  # late: it parses the template

        if idle := idle_switch(pair.tokenizer.chat_template.source, arguments.think):
            notice(idle)
    return SessionOptions(
        sampling=sampling_of(arguments, pair.manifest.generation),
        adapter=adapter,
        drafter=arguments.drafter,
        draft_max=arguments.draft_max,
        context=arguments.ctx_size,
        seed=arguments.seed,
        grammar=_grammar(arguments),
        details=SessionDetails(
            adapter_scale=scale,
            rule=Rule(arguments.rule),
            reproducible=arguments.reproducible,
            ignore_eos=getattr(arguments, "ignore_eos", False),
            when_full=WhenFull(getattr(arguments, "when_full", WhenFull.DROP)),
            switch=_switch_options(arguments),
            template_arguments=dict(arguments.template_arg),
            think=arguments.think or "",
            think_tokens=arguments.think_tokens,
            think_message=checked_text(arguments.think_message, "--think-message"),
            samples=getattr(arguments, "samples", 1),
        ),
    )


def _grammar(arguments: Namespace) -> "Grammar | None":
    """Return what answers have to follow. Raises InputError for a file that cannot be read."""
    path = arguments.json_schema or arguments.grammar
    if path is arguments.regex is None:
        return None
    from edgedecode.structured.grammar import Grammar, GrammarKind

    if path is None:
        return Grammar(GrammarKind.REGEX, arguments.regex)
    try:
        text = path if str(path).lstrip().startswith("{") else file_text(Path(path))
        if arguments.grammar is not None:
            return Grammar.of_rules(text)
        return Grammar.of_schema(json.loads(text))
    except (OSError, ValueError, RecursionError) as error:
        flag = "--json-schema" if arguments.grammar is None else "--grammar"
        raise InputError(f"{flag} {str(path)[:60]} cannot be used: {cause(error)}") from None


def system_messages(text: str | None) -> list[Message]:
    """Return the transcript to begin with: the system message, if there is one."""
    return [] if text is None else [Message("system", checked_text(text, "--system"))]


def check_early(arguments: Namespace) -> None:
    """Raise InputError for values of options that no pack takes."""
    target_server(arguments)
    if hasattr(arguments, "rule"):  # the verb has all session options
        sampling_of(arguments, Generation(end_token_ids=()))
        FixedLength(arguments.draft_max or 0)
        _switch_options(arguments)
        _grammar(arguments)
        if arguments.drafter not in (None, NO_DRAFTER):
            find_drafter(arguments.drafter)
