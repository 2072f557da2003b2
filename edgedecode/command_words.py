"""What the words of a command line mean: packs and prompts without an option, and names known from other programs."""

import re
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from edgedecode.text.printable import shown

_VERBS: Mapping[str, str] = {
    **dict.fromkeys(("ls", "ps", "models", "search", "tags"), "did you mean `edgedecode list`?"),
    **dict.fromkeys(("download", "get", "fetch", "install"), "did you mean `edgedecode pull`?"),
    **dict.fromkeys(("remove", "delete", "uninstall"), "did you mean `edgedecode rm`?"),
    **dict.fromkeys(("create", "convert", "quantize"), "`edgedecode export` makes a pack, `edgedecode import` of GGUF"),
    **dict.fromkeys(("complete", "prompt", "ask", "cli"), "did you mean `edgedecode generate`?"),
    **dict.fromkeys(("server", "start", "api"), "did you mean `edgedecode serve`?"),
    **dict.fromkeys(("info", "inspect"), "did you mean `edgedecode show`?"),
    **dict.fromkeys(("ui", "web", "open"), "did you mean `edgedecode run`?"),
    "perplexity": "did you mean `edgedecode eval`?",
    "help": "did you mean `edgedecode --help`?",
    "version": "did you mean `edgedecode --version`?",
}
"""Commands of other programs, with what does the same here."""
_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("n-predict", "predict", "num-predict", "max-new-tokens", "max-length", "tokens"), "--max-tokens"),
    **dict.fromkeys(("temperature", "t"), "--temp"),
    **dict.fromkeys(("s", "random-seed"), "--seed"),
    **dict.fromkeys(("f", "prompt-file"), "--file"),
    **dict.fromkeys(("ngl", "gpu-layers", "n-gpu-layers", "num-gpu", "dev", "device", "gpu"), "--provider"),
    **dict.fromkeys(("ctk", "ctv", "cache-type-k", "cache-type-v", "kv-cache-type", "kv-cache-dtype"), "--kv-type"),
    **dict.fromkeys(("ctx", "num-ctx", "n-ctx", "context", "context-length", "max-model-len"), "--ctx-size"),
    **dict.fromkeys(("sys", "system-prompt", "instructions"), "--system"),
    **dict.fromkeys(("grammar-file", "gbnf"), "--grammar"),
    **dict.fromkeys(("j", "schema", "format", "response-format"), "--json-schema"),
    **dict.fromkeys(("num-threads", "tb", "threads-batch", "n-threads"), "--threads"),
    **dict.fromkeys(("np", "n-parallel"), "--parallel"),
    **dict.fromkeys(("md", "model-draft", "draft-model", "assistant", "speculative-model"), "--draft"),
    **dict.fromkeys(("draft-n", "num-speculative-tokens", "speculative-tokens"), "--draft-max"),
    **dict.fromkeys(("api-key", "key"), "--api-key-file"),
    **dict.fromkeys(("verbose", "v", "timings"), "--stats"),
    **dict.fromkeys(("engine", "backend"), "--runtime"),
    **dict.fromkeys(("output", "o", "outfile", "output-file"), "--out"),
    "in-file": "--add",
    "gguf": "--target",
}
"""Options of other programs, without hyphens in front, and ours."""
QUOTES = "put quotes around a text of several words"


def verb_hint(word: str, verbs: Iterable[str]) -> str:
    """Return what to use instead of a command that does not exist."""
    from edgedecode.library.find import names_pack  # late, to start fast

    if names_pack(word):
        return f"did you mean `edgedecode run {shown(word)}`?"
    if re.search(r"\s", word):
        return "did you mean `edgedecode generate`, which answers a prompt?"
    plain = word.lower()
    known = [*verbs]
    near = [*get_close_matches(plain, _VERBS, 1, 0.8), *get_close_matches(plain, known, 1)]
    near += [verb for verb in known if verb.startswith(plain)]
    if not near:
        return "`edgedecode --help` lists the commands"
    return _VERBS.get(near[0], f"did you mean `edgedecode {near[0]}`?")


def option_hint(option: str, parser: ArgumentParser) -> str:
    """Return a hint at the option of `parser` that was probably meant; empty: none is near."""
    known = _options(parser)
    plain = option.partition("=")[0].lstrip("-").replace("_", "-")
    if option.partition("=")[0] in known:
        return ": it is an option of another action"
    meant = {name.lstrip("-"): name for name in known}
    meant |= {other: ours for other, ours in _OPTIONS.items() if ours in known}
    named = plain if plain in meant else plain.lower()
    near = [named] if named in meant else get_close_matches(named, meant, 1, 0.7) if len(plain) > 2 else []
    if plain in {"v", "V"} and "--version" in known:
        near = ["version"]
    return f": did you mean {meant[near[0]]}?" if near else ""


def choice_hint(message: str) -> str:
    """Return a hint at the value that was probably meant, of argparse's message about one that is no choice."""
    found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
    near = get_close_matches(found[1].lower(), re.findall(r"[\w.-]+", found[2]), 1) if found else []
    return f": did you mean {near[0]}?" if near else ""


def unknown_option(arguments: Sequence[str], parser: ArgumentParser) -> str | None:
    """Return the first option that `parser` does not have; also one like `-ctk`, which argparse takes for `-c tk`,
    where `-c` takes a number."""
    known = _options(parser)
    for word in arguments:
        if word == "--":
            return None
        if re.fullmatch(r"--\S+|-[A-Za-z]", word) and word.partition("=")[0] not in known:
            return word
        if re.fullmatch(r"-[A-Za-z][A-Za-z_-]+(=.*)?", word) and (known.get(word[:2]) or word[1:] in _OPTIONS):
            return word
    return None


def _options(parser: ArgumentParser) -> dict[str, bool]:
    """Return the options of a parser and of its actions, and whether each takes a number or the like."""
    found: dict[str, bool] = {}
    for action in parser._actions:
        found |= dict.fromkeys(action.option_strings, action.type is not None)
        if isinstance(action, _SubParsersAction):
            for inner in action.choices.values():
                found |= _options(inner)
    return found


def sort_words(given: Namespace, loose: Sequence[str]) -> str:
    """Put the words without an option into `model` and `prompt_text`; return what is wrong with them, or nothing.

    loose: words that argparse left over because they follow an option. A verb with `packs` takes several, and nothing
    else.
    """
    from edgedecode.library.find import could_be_pack, names_pack  # late, to start fast

    words = [word for word in (given.pack, getattr(given, "prompt_text", None), *loose) if word is not None]
    if hasattr(given, "packs"):
        given.packs = list(dict.fromkeys((*([given.model] if given.model is not None else []), *words)))
        given.model = given.pack = given.packs[0] if len(given.packs) == 1 else None
        return ""
    answers = hasattr(given, "prompt_text")
    prompted = any(getattr(given, name, None) is not None for name in ("prompt", "file"))
    prompt = pack = None
    if answers and not prompted and words:
        alone = given.model is not None or not names_pack(words[0])
        if (len(words) == 1 and alone) or (len(words) == 2 and could_be_pack(words[0])):
            prompt = words.pop()
    if len(words) == 1 and (could_be_pack(words[0]) or not answers):
        pack = words.pop()
    if words:
        names = "; a model is a name of `edgedecode list`, a hub id or a path" if answers else ""
        return f"unrecognized arguments: {shown(' '.join(words))} ({QUOTES}{names})"
    if pack is not None and given.model not in (None, pack):
        return f"two packs are named, {pack!r} and {given.model!r}: name one of them"
    given.model = given.pack = given.model if pack is None else pack
    if answers:
        given.prompt_text = prompt
    return ""
