"""The models that a server may load: those of the library, or some that were named when it was started."""

from argparse import Namespace
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from threading import Lock
from time import monotonic

from edgedecode import CapabilityError, InputError, ManifestError, Pair, SessionOptions
from edgedecode.library.facts import facts_of
from edgedecode.library.find import find_pack, pack_at
from edgedecode.library.names import BUNDLED, BUNDLED_PACK, expanded
from edgedecode.library.stored import StoredModel
from edgedecode.library.stores import stored_models
from edgedecode.memory.budget import SharedBudget
from edgedecode.options import DEFAULT_CONTEXT
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest

from ...verb_options import open_located, session_options
from ..offered import Listed, adapter_names, listed_pack, modes
from ..requests.asked import PLAIN

_FRESH_SECONDS = 5.0
"""For which the folders are not read again."""
_NEAR = 3
_SHOWN = 8


class ModelShelf:
    """names: the models, as the user gave them; empty: all of the library, and the bundled one. Thread-safe.

    arguments: how they are opened, and the options of their sessions.
    """

    def __init__(self, arguments: Namespace, names: list[str]) -> None:
        self._arguments = arguments
        self._context = arguments.ctx_size or DEFAULT_CONTEXT
        self._named: dict[str, Path] = {}
        for word in names:
            root = find_pack(word)
            name = Manifest.load(root).name if expanded(word).exists() else word
            if name in self._named:
                raise InputError(f"two of the models are named {name!r}: name one of them")
            self._named[name] = root
        self._lock = Lock()
        self._found: list[Listed] = []
        self._stored: dict[str, StoredModel] = {}
        self._refused: dict[str, str] = {}
        self._read = -_FRESH_SECONDS

    @property
    def is_library(self) -> bool:
        """Whether these are all models of the library."""
        return not self._named

    def listed(self) -> list[Listed]:
        """Return what is known about each model, in the order of names; the library is read again after a while."""
        with self._lock:
            if monotonic() - self._read >= _FRESH_SECONDS:
                found = self._of_packs(self._named) if self._named else self._of_library()
                self._found = [replace(each, embeds=self._arguments.embeddings) for each in found]
                self._read = monotonic()
            return self._found

    def changed(self) -> None:
        """Read the library again: a model was pulled or deleted."""
        with self._lock:
            self._read = -_FRESH_SECONDS

    def open(self, name: str, budget: SharedBudget) -> tuple[Pair, SessionOptions]:
        """Load a model within a budget. Raises EdgeDecodeError."""
        arguments = Namespace(**vars(self._arguments))
        arguments.model, arguments.draft = str(self._root(name)), None
        pair = self._opened(arguments, budget)
        try:
            options = session_options(arguments, pair)
        except BaseException:
            pair.close()
            raise
        if options.context is not None:
            options = replace(options, context=min(options.context, pair.target.card.context))
        return pair, options

    def _opened(self, arguments: Namespace, budget: SharedBudget) -> Pair:
        """Open a pack; without embeddings if it has none, which requests for them are told."""
        try:
            return open_located(arguments, budget, swaps=True)
        except CapabilityError:
            if not arguments.embeddings:
                raise
            arguments.embeddings = False
            return open_located(arguments, budget, swaps=True)

    def unknown(self, name: str) -> str:
        """Return the message about a name that none of the models has."""
        listed = self.listed()
        spelled = {word.casefold(): each.name for each in listed for word in (*each.aliases, each.name)}
        plain = name.casefold()
        if plain in self._refused:
            return f"the model {name[:80]!r} does not run here: {self._refused[plain]}"
        near = [known for word, known in spelled.items() if plain and plain in word]
        near += [spelled[word] for word in get_close_matches(plain, spelled, _NEAR, 0.6)]
        near = list(dict.fromkeys(near))[:_NEAR]
        if near:
            return f"there is no model {name[:80]!r}: did you mean {' or '.join(near)}?"
        names = [each.name for each in listed]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"there is no model {name[:80]!r}; this server has: {', '.join(names[:_SHOWN]) or 'none'}{more}"

    def stored(self, name: str) -> StoredModel | None:
        """Return the model of the library that is listed under a name; None: it is another's, or bundled."""
        self.listed()
        return self._stored.get(name)

    def _root(self, name: str) -> Path:
        if name in self._named:
            return self._named[name]
        if (model := self.stored(name)) is not None:
            return pack_at(model.path, title=name)
        return BUNDLED_PACK

    def _of_packs(self, roots: dict[str, Path]) -> list[Listed]:
        found = []
        for name, root in roots.items():
            created = int((root / MANIFEST_NAME).stat().st_mtime)
            found.append(listed_pack(name, Manifest.load(root), created=created, context=self._context))
        return found

    def _of_library(self) -> list[Listed]:
        self._stored, self._refused, found = {}, {}, list[Listed]()
        for model in stored_models():
            if model.name in self._stored or model.name == BUNDLED:
                continue
            facts = facts_of(model)
            if facts.refused:
                self._refused |= dict.fromkeys((name.casefold() for name in model.names), facts.refused)
                continue
            try:
                state = model.path.stat()
                manifest = Manifest.load(model.path) if model.path.is_dir() else None
            except (ManifestError, OSError):  # removed meanwhile
                continue
            self._stored[model.name] = model
            found.append(
                Listed(
                    name=model.name,
                    identity=f"{model.path} {state.st_size} {state.st_mtime_ns}",
                    created=int(state.st_mtime),
                    nbytes=model.nbytes,
                    format="gguf" if model.path.is_file() else "onnx",
                    architecture=facts.architecture,
                    parameters=facts.parameters,
                    quantization=facts.weights.partition(",")[0],
                    context=min(self._context, facts.context),
                    trained=facts.context,
                    aliases=model.aliases,
                    adapters=() if manifest is None else adapter_names(manifest),
                    modes=(PLAIN,) if manifest is None else modes(manifest),
                )
            )
        if BUNDLED_PACK.is_dir():
            try:
                found += self._of_packs({BUNDLED: BUNDLED_PACK})
            except (ManifestError, OSError) as error:
                self._refused[BUNDLED] = str(error)
        return found
