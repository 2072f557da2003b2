"""Records a bundle's expected answers in a child process, with the code that the device runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgedecode import LoadOptions, load
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.child import ask_child, child_command, tell_parent
from edgedecode.errors import ExportError
from edgedecode.text.messages import Message
from edgedecode.text.prompts import Prompt
from edgedecode.text.tokenizer import Tokenizer

from .bundle import BUNDLE_NAME
from .device.decode import Round
from .device.run import Opener, Selftest, read_prompts, test_context
from .speeds import LENGTHS

_SECONDS = 1800
_MOST_ROWS = max(LENGTHS) + 1


def write_prompts(path: Path, prompts: Sequence[Prompt], tokenizer: Tokenizer, *, most: int, context: int) -> None:
    """Write the prompts as tokens. Raises ExportError if one leaves no room for an answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = []
    for number, prompt in enumerate(prompts):
        messages = [*prompt.history, Message("user", prompt.turns[0])]
        text = tokenizer.chat_template.render(messages, add_generation_prompt=True)
        tokens = tokenizer.encode(text)
        if len(tokens) + 1 >= context:
            raise ExportError(f"the self-test prompt {number + 1} has {len(tokens)} tokens, the context is {context}")
        name = f"{number + 1} {prompt.family}".strip()
        found.append({"name": name, "text": text, "tokens": tokens, "most": min(most, context - len(tokens))})
    path.write_bytes((json.dumps({"prompts": found}, ensure_ascii=False, indent=1) + "\n").encode())


def try_lengths(root: Path, pack: Path, lengths: Sequence[int]) -> Mapping[int, Sequence[Sequence[Round]]]:
    """Answer the prompts of the bundle at `root` with each draft length; return the rounds of each answer."""
    found = _ask("try_child", root, pack, ",".join(map(str, lengths)))
    return {int(length): [[_round(one) for one in each] for each in answers] for length, answers in found.items()}


def record_answers(root: Path, pack: Path) -> None:
    """Write the expected answers and rounds of the bundle at `root`, at the draft length of its plan."""
    _ask("record_child", root, pack)


def try_child(root: str, pack: str, lengths: str) -> None:
    """Run in the child process."""
    found: dict[str, list[list[Round]]] = {}
    with _opened(Path(root), Path(pack)) as test:
        for length in map(int, lengths.split(",") if lengths else ()):
            test.draft_length = length
            found[str(length)] = [test.answer(one, drafts=True)[1] for one in test.prompts]
    tell_parent(found)


def record_child(root: str, pack: str) -> None:
    """Run in the child process."""
    with _opened(Path(root), Path(pack)) as test:
        test.record()
    tell_parent({})


class EngineModel:
    """Implements the loop's `Model` with one of edgedecode's engines: llama.cpp's answers are recorded with it."""

    def __init__(self, model: LanguageModel, *, context: int) -> None:
        self.context = context
        self._model, self._state = model, model.new_state(context, rows=_MOST_ROWS)

    @property
    def length(self) -> int:
        """How many tokens it has read."""
        return self._state.length

    def read(self, tokens: Sequence[int], *, scored: int) -> FloatArray:
        """As `Model.read`."""
        count = len(tokens)
        logits = self._model.forward(tokens, self._state, rows=range(count - scored, count)).logits.copy()
        self._state.keep(range(count))
        return logits

    def crop(self, length: int) -> None:
        """As `Model.crop`."""
        self._state.crop(length)


@contextmanager
def _opened(root: Path, pack: Path) -> Iterator[Selftest]:
    """Open a bundle's models as the device does: its ONNX graphs, or for llama.cpp the pack's GGUF files."""
    bundle = json.loads((root / BUNDLE_NAME).read_text(encoding="utf-8"))
    if not any(model["gguf"] for model in bundle["models"].values()):
        opener = Opener(root, bundle, provider="cpu", soc=None, threads=None)
        target = opener.open("target")
        assert target is not None
        yield Selftest(root, bundle, target, opener.open("draft"), provider="cpu")
        return
    context = test_context(read_prompts(root, bundle), bundle)
    with load(pack, runtime="llama", options=LoadOptions(context=context)) as pair:
        drafts = pair.draft if "draft" in bundle["models"] else None
        draft = None if drafts is None else EngineModel(drafts, context=context)
        yield Selftest(root, bundle, EngineModel(pair.target, context=context), draft, provider="llama")


def _ask(function: str, *words: str | Path) -> Mapping[str, Sequence[Sequence[tuple[int, list[int], list[int]]]]]:
    command = child_command(f"{__name__}:{function}")
    if command is None:
        raise ExportError("the self-test needs a Python interpreter to run in a process of its own")
    reply = ask_child(command, *map(str, words), seconds=_SECONDS)
    if reply.failure or not reply.told:
        raise ExportError(f"the self-test's answers could not be recorded: {reply.failure or 'no reply'}")
    told: Mapping[str, Sequence[Sequence[tuple[int, list[int], list[int]]]]] = reply.told[-1]
    return told


def _round(value: tuple[int, list[int], list[int]]) -> Round:
    known, drafts, chosen = value
    return Round(known, tuple(drafts), tuple(chosen))
