"""Records a bundle's prompts, and its expected answers with the code that the device runs."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgedecode import LoadOptions, load
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import ExportError
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.text.messages import Message
from edgedecode.text.prompts import Prompt
from edgedecode.text.tokenizer import Tokenizer

from .bundle import Bundle
from .device.run import Opener, Selftest, read_prompts, test_context
from .speeds import LENGTHS

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


class EngineModel:
    """Implements the loop's `Model` with one of edgedecode's engines, which records the answers of bundles for
    llama.cpp and for the native library."""

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
def opened_test(root: Path, bundle: Bundle, pack: Path) -> Iterator[Selftest]:
    """Open a bundle's models as the device does: its ONNX graphs, or the pack's models with the same kernels."""
    described = json.loads(bundle.to_json())
    if any(model.graphs for model in bundle.models.values()):
        opener = Opener(root, described, provider="cpu", soc=None, threads=None)
        target = opener.open("target")
        assert target is not None
        yield Selftest(root, described, target, opener.open("draft"), provider="cpu")
        return
    context = test_context(read_prompts(root, described), described)
    runtime = "llama" if bundle.models["target"].gguf else "onnx"
    adapters = bundle.for_native and bool(bundle.adapters)  # whose graph the library runs
    with load(pack, runtime=runtime, adapters=adapters, options=LoadOptions(context=context)) as pair:
        drafts = pair.draft if "draft" in bundle.models else None
        draft = None if drafts is None else EngineModel(drafts, context=context)
        yield Selftest(root, described, EngineModel(pair.target, context=context), draft, provider=runtime)


def write_replay(root: Path, bundle: Bundle) -> None:
    """Write the recorded answers for `edgedecode-run --replay`: each plainly, and as the scheduler drafts."""
    expected = json.loads((root / bundle.selftest.expected).read_text(encoding="utf-8"))["answers"]
    greedy = SamplingOptions(temperature=0.0)
    session = {name: getattr(greedy, name) for name in ("temperature", *bundle.generation.sampling)}
    lines = []
    for prompt, answer in zip(read_prompts(root, json.loads(bundle.to_json())), expected, strict=True):
        request = {"tokens": prompt["tokens"], "max_tokens": prompt["most"]}
        for options in ({**session, "draft_max": 0}, session):
            line = {"session": options, "request": request, "expected": answer}
            lines += [json.dumps(line) + "\n"]
    (root / bundle.selftest.rounds).write_bytes("".join(lines).encode())
