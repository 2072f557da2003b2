"""Rules about the plan, the self-test and llama.cpp's arguments."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from edgedecode.memory.sizes import format_nbytes

from ..bundle import MOST_TOLERANCE
from ..devices import usual_share
from ..llama_commands import llama_commands
from .finding import Fault, LintedBundle

GB = 10**9
CLASSES = (4 * GB, 6 * GB, 8 * GB, 12 * GB)
_AGAIN = "package it again"


def budget(found: LintedBundle) -> Iterator[Fault]:
    plan = found.bundle.plan
    if plan.nbytes > plan.budget_nbytes:
        yield Fault(
            "bundle.json",
            f"plans {format_nbytes(plan.nbytes)}, an app may hold {format_nbytes(plan.budget_nbytes)} there",
            "package it with a shorter --ctx-size, or quantize further",
        )
    if plan.budget_nbytes > plan.memory_nbytes:
        yield Fault("bundle.json", "gives the app more memory than the device has", _AGAIN)


def holders(found: LintedBundle) -> Iterator[Fault]:
    plan = found.bundle.plan
    if (total := sum(plan.holders.values())) != plan.nbytes:
        yield Fault("bundle.json", f"plans {plan.nbytes} bytes, its holders sum to {total}", _AGAIN)
    for role, model in found.bundle.models.items():
        names = [model.gguf or model.weights, *(graph.binary for graph in model.graphs)]
        held = sum(nbytes for name, nbytes in plan.holders.items() if name.startswith(f"weights:{role}"))
        least = min((found.bundle.files[name].nbytes for name in names if name in found.bundle.files), default=0)
        if held < least:
            yield Fault("bundle.json", f"plans {held} bytes for the {role}'s weights, they have {least}", _AGAIN)


def device_classes(found: LintedBundle) -> Iterator[Fault]:
    nbytes = found.bundle.plan.nbytes
    small = [each for each in CLASSES if nbytes > each * usual_share(each)]
    if small:
        shown = ", ".join(format_nbytes(each) for each in small)
        yield Fault(
            "bundle.json",
            f"does not fit phones of {shown} with an app's usual share",
            "make a bundle with --device-memory for them, or exclude them in the store",
        )


def context(found: LintedBundle) -> Iterator[Fault]:
    plan = found.bundle.plan
    for role, model in found.bundle.models.items():
        if plan.context > model.context:
            yield Fault("bundle.json", f"plans a context of {plan.context}, the {role} has {model.context}", _AGAIN)
        slots = min((graph.slots for graph in model.graphs if graph.socs), default=plan.context)
        if plan.context > slots:
            yield Fault("bundle.json", f"plans a context of {plan.context}, the {role}'s graphs have {slots}", _AGAIN)


def drafting(found: LintedBundle) -> Iterator[Fault]:
    plan, models = found.bundle.plan, found.bundle.models
    if plan.draft_length and "draft" not in models:
        yield Fault("bundle.json", f"plans drafts of {plan.draft_length} and has no draft model", _AGAIN)
    if "draft" in models and not plan.draft_length:
        yield Fault(
            "bundle.json",
            "carries a draft model that the plan does not use: drafts are not faster at these speeds",
            "measure on the device and give --profile, or package a pack without it",
        )


def assumed(found: LintedBundle) -> Iterator[Fault]:
    if found.bundle.plan.profile == "assumed":
        yield Fault(
            "bundle.json",
            "has assumed speeds, from which its draft length follows",
            "run `edgedecode bench --json` on the device and package with --profile",
        )


def tolerance(found: LintedBundle) -> Iterator[Fault]:
    providers = {graph.provider for model in found.bundle.models.values() for graph in model.graphs}
    providers |= {"llama"} if found.bundle.commands else set()
    given = found.bundle.plan.tolerance
    for name in sorted(providers - given.keys()):
        yield Fault("bundle.json", f"has no tolerance of the self-test on {name}", _AGAIN)
    for name in sorted(name for name, value in given.items() if value > MOST_TOLERANCE):
        yield Fault(
            "bundle.json", f"lets the self-test on {name} pass {given[name]:g} logits off, which proves nothing", _AGAIN
        )


def commands(found: LintedBundle) -> Iterator[Fault]:
    bundle, text = found.bundle, found.text("run.sh")
    if not any(model.gguf for model in bundle.models.values()):
        return
    if "llama-server" not in bundle.commands:
        yield Fault("bundle.json", "has no arguments of llama-server", _AGAIN)
    planned = llama_commands(bundle)
    for name, words in bundle.commands.items():
        if words != planned.get(name):
            yield Fault("bundle.json", f"starts {name} with other arguments than follow from its plan", _AGAIN)
        if shlex.join(words) not in text:
            yield Fault("run.sh", f"does not start {name} with the arguments of bundle.json", _AGAIN)


def present(found: LintedBundle) -> Iterator[Fault]:
    count = len(_prompts(found))
    if not count:
        yield Fault(found.bundle.selftest.prompts, "has no prompts: the self-test proves nothing", _AGAIN)
    answers, conversations = _answers(found), _conversations(found)
    for name, number in (("expected", len(answers)), ("rounds", len(conversations))):
        if number != count:
            file = getattr(found.bundle.selftest, name)
            yield Fault(file, f"has {number} answers to {count} prompts", _AGAIN)
    if not all(answers) or not all(_listed(one.get("answer")) for one in conversations):
        yield Fault(found.bundle.selftest.expected, "has an empty answer: the self-test proves nothing", _AGAIN)
    if _prompts(found) != [_listed(one.get("prompt")) for one in conversations]:
        yield Fault(found.bundle.selftest.rounds, "has other prompts than the self-test", _AGAIN)


def recorded(found: LintedBundle) -> Iterator[Fault]:
    rows = found.bundle.vocabulary_size
    files = found.bundle.selftest
    for file, texts in ((files.prompts, _prompts(found)), (files.expected, _answers(found))):
        if any(not 0 <= token < rows for tokens in texts for token in tokens):
            yield Fault(file, f"has a token outside the vocabulary of {rows}", _AGAIN)
    for number, one in enumerate(_objects(found, files.prompts, "prompts"), start=1):
        most, tokens = one.get("most"), one.get("tokens")
        if not isinstance(one.get("name"), str) or type(most) is not int or most < 1:
            yield Fault(files.prompts, f"has no name or no limit of tokens in prompt {number}", _AGAIN)
        elif not isinstance(tokens, list) or not tokens or len(tokens) != len(_listed(tokens)):
            yield Fault(files.prompts, f"has no tokens in prompt {number}", _AGAIN)


def replay(found: LintedBundle) -> Iterator[Fault]:
    file = found.bundle.selftest.rounds
    for number, one in enumerate(_conversations(found), start=1):
        known, tokens = len(_listed(one.get("prompt"))), list[int]()
        rounds = one.get("rounds")
        for each in rounds if isinstance(rounds, list) else []:
            each = each if isinstance(each, dict) else {}
            drafts, chosen = _listed(each.get("drafts")), _listed(each.get("chosen"))
            accepted = len(chosen) - 1
            if each.get("known") != known or accepted < 0 or chosen[:accepted] != drafts[:accepted]:
                yield Fault(file, f"has a round in conversation {number} that the loop cannot have made", _AGAIN)
                break
            known += len(chosen)
            tokens += chosen
        else:
            if tokens != _listed(one.get("answer")):
                yield Fault(file, f"has another answer in conversation {number} than its rounds give", _AGAIN)


def _prompts(found: LintedBundle) -> list[list[int]]:
    return [_listed(one.get("tokens")) for one in _objects(found, found.bundle.selftest.prompts, "prompts")]


def _answers(found: LintedBundle) -> list[list[int]]:
    value = found.json(found.bundle.selftest.expected)
    answers = value.get("answers") if isinstance(value, dict) else None
    return [_listed(one) for one in answers] if isinstance(answers, list) else []


def _conversations(found: LintedBundle) -> list[Mapping[str, object]]:
    return _objects(found, found.bundle.selftest.rounds, "conversations")


def _objects(found: LintedBundle, name: str, key: str) -> list[Mapping[str, object]]:
    value = found.json(name)
    items = value.get(key) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _listed(value: object) -> list[int]:
    items: Sequence[object] = value if isinstance(value, list) else []
    return [item for item in items if type(item) is int]
