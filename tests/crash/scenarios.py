"""The killed commands: set-up, command, and the state a user finds afterwards. Each runs in a child process."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Work = Callable[[Path], object]


@dataclass
class Scenario:
    """A command on a folder; the folder's `cache` is the user's cache."""

    set_up: Work
    run: Work
    state: Callable[[Path], str]
    """Opens everything in use and returns a description; raises where something cannot be opened."""
    leaves: tuple[str, ...] = ("cache/*",)
    """Patterns of files that stay, with any content; a `*` is within one folder."""

    def content(self, work: Path) -> set[str]:
        """Return the names of all files and folders, to find leftovers; a trim's two names count as one."""
        names = {path.relative_to(work).as_posix().replace("-2.", ".") for path in work.rglob("*")}
        return {name for name in names if not any(_matches(name, pattern) for pattern in self.leaves)}


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch, parts, patterns))


def digest(*files: Path) -> str:
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def toy_state(work: Path) -> str:
    """Return a description of the pack after its check."""
    from edgedecode.pack.gate import check_listing
    from edgedecode.pack.integrity import check_files
    from edgedecode.pack.manifest import Manifest
    from edgedecode.pack.pack_lock import opening

    pack = work / "pack"
    with opening(pack):
        manifest = Manifest.load(pack)
        check_listing(manifest, pack)
        check_files(manifest, pack, full=True)
    trimmed, equality = manifest.models["draft"].trimmed, manifest.models["target"].equality
    size = trimmed and manifest.files[trimmed.graph.token_ids].nbytes // 4
    return f"trim {size}, equality {equality and equality.prompts}"


def toy_pack(*sizes: int) -> Work:
    """Write a toy pack that was trimmed to these sizes one after the other."""
    from edgedecode.export.trim import trimmed_graph
    from tests.export.trim.toy_pack import fake_graph, write_toy_pack

    trimmed_graph.write_trimmed = fake_graph

    def set_up(work: Path) -> None:
        write_toy_pack(work / "pack")
        for size in sizes:
            trimmed(size)(work)

    return set_up


def trimmed(size: int) -> Work:
    """Give the pack a trimmed draft of `size` ids."""
    import numpy as np

    from edgedecode.decoding.drafts import TrimmedVocabulary
    from edgedecode.export.trim.trim_pack import save_trimmed
    from edgedecode.pack.manifest import Manifest

    def run(work: Path) -> None:
        vocabulary = TrimmedVocabulary(np.arange(size), Manifest.load(work / "pack").vocabulary_size)
        save_trimmed(work / "pack", vocabulary)

    return run


def removed(work: Path) -> None:
    from edgedecode.errors import InputError
    from edgedecode.export.trim.trim_pack import remove_trimmed

    with suppress(InputError):  # it was killed when all was done
        remove_trimmed(work / "pack")


def compared(work: Path) -> None:
    """Write the result of `eval --equality`."""
    from edgedecode.apps.eval.evaluation import Found, save_found
    from edgedecode.pack.engine_equality import Equality

    found = Equality(
        engines={"a": "1", "b": "2"},
        prompts=3,
        prompts_digest="0",
        max_tokens=8,
        kv_type="",
        tokens=9,
        hits=9,
        divergent=0,
        beyond=0,
        beyond_tokens=0,
        untied=0,
        largest_gap=0.0,
        noise={"a": 0.1, "b": 0.1},
    )
    save_found(work / "pack", Found(equality={"target": found}))


def offered(work: Path) -> None:
    """Put an adapter beside the bundled pack."""
    import shutil

    from edgedecode.library.names import BUNDLED_PACK
    from tests.peft_folders import write_peft

    shutil.copytree(BUNDLED_PACK, work / "pack")
    write_peft(work / "odd", seed=1)


def added(work: Path) -> None:
    from edgedecode.adapters.adapter_change import add_adapter
    from edgedecode.pack.manifest import Manifest

    if not Manifest.load(work / "pack").adapters:  # a user who finds the adapter does not add it again
        add_adapter(work / "pack", "odd", work / "odd")


def taken_out(work: Path) -> None:
    from edgedecode.adapters.adapter_change import remove_adapter
    from edgedecode.pack.manifest import Manifest

    if Manifest.load(work / "pack").adapters:
        remove_adapter(work / "pack", "odd")


def adapted_state(work: Path) -> str:
    from edgedecode.pack.gate import check_pack

    return f"adapters {[*check_pack(work / 'pack', full=True).adapters]}"


def bundled(work: Path) -> None:
    import shutil

    from edgedecode.library.names import BUNDLED_PACK

    shutil.copytree(BUNDLED_PACK, work / "pack")
    removed(work)


def real_state(work: Path) -> str:
    """Return the result of `show --verify` and a few tokens, drafted with the trimmed draft where there is one."""
    import edgedecode
    from edgedecode.cli import main

    pack = work / "pack"
    assert main(["show", str(pack), "--verify"]) == 0
    with edgedecode.load(pack, runtime="onnx", threads=1) as pair:
        trimmed = pair.manifest.models["draft"].trimmed
        drafters = ("none", "model", *(("trim",) if trimmed else ()))
        texts = {_answer(pair, drafter) for drafter in drafters}
    assert len(texts) == 1, texts
    return f"trim {trimmed and pair.manifest.located('trim').rows}: {texts.pop()!r}"


def _answer(pair: Any, drafter: str) -> str:
    from edgedecode import SessionOptions

    with pair.session(SessionOptions(drafter=drafter, draft_max=0 if drafter == "none" else 2)) as session:
        return str(session.generate("What is the capital of France?", max_tokens=8).text)


def used(work: Path) -> None:
    """Open a pack with a separate cache, generate and close, so that everything that is cached is written."""
    import edgedecode

    with edgedecode.load(work / "pack", runtime="onnx", threads=None) as pair, pair.session() as session:
        session.generate("What is the capital of France?", max_tokens=8)


def used_state(work: Path) -> str:
    import edgedecode

    with edgedecode.load(work / "pack", runtime="onnx", threads=None) as pair:
        return _answer(pair, "none")


def learnt(work: Path) -> None:
    """Save a pack's experience and the other data kept as JSON."""
    from edgedecode.cache import cache_folder
    from edgedecode.decoding.policy import RoundCost
    from edgedecode.schedule.experience import Experience
    from edgedecode.sessions.experience_file import store_experience

    folder = cache_folder("costs")
    assert folder is not None
    experience = Experience()
    for _ in range(4):
        experience.costs.observe(RoundCost(width=1, pass_seconds=0.5), context_tokens=1)
    store_experience(folder / "some.json", experience)


def learnt_before(work: Path) -> None:
    from edgedecode.cache import cache_folder
    from edgedecode.schedule.experience import Experience
    from edgedecode.sessions.experience_file import store_experience

    folder = cache_folder("costs")
    assert folder is not None
    store_experience(folder / "some.json", Experience())


def learnt_state(work: Path) -> str:
    from edgedecode.schedule.prices import step_seconds
    from edgedecode.sessions.experience_file import load_experience

    path = work / "cache" / "costs" / "some.json"
    json.loads(path.read_text())  # a damaged file would be started again, with less than before
    return str(step_seconds(load_experience(path).costs, 1))


def saved(name: str) -> Work:
    from edgedecode.apps.chat.saved_messages import save_messages
    from edgedecode.text.messages import Message

    return lambda work: save_messages(work / "chat.json", [Message("user", name)])


def saved_state(work: Path) -> str:
    from edgedecode.apps.chat.saved_messages import load_messages

    return load_messages(work / "chat.json")[0].content


class Hub:
    """The hub with two commits of a pack; its client writes files and deletes none."""

    def __init__(self, latest: str) -> None:
        self.latest = latest

    def model_info(self, name: str, *, timeout: float, files_metadata: bool = False) -> SimpleNamespace:
        if self.latest == "away":
            raise ConnectionError("no route to the hub")
        manifest = SimpleNamespace(rfilename="edgedecode.json", size=1, lfs=None)
        return SimpleNamespace(sha=self.latest * 40, siblings=[manifest])

    def snapshot_download(self, name: str, *, revision: str, allow_patterns: list[str], local_dir: Path) -> str:
        source = local_dir.parents[2] / "hub" / revision[0]
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            each = path.relative_to(source)
            notes = local_dir / ".cache" / "huggingface" / "download" / f"{each}.metadata"
            for parent in (notes.parent, (local_dir / each).parent):
                parent.mkdir(parents=True, exist_ok=True)
            (local_dir / each).write_bytes(path.read_bytes())
            notes.write_text(f"{revision}\netag\n0\n")
        return str(local_dir)


def hub(latest: str) -> None:
    import sys

    from edgedecode.pack import model_checks

    stands_in = Hub(latest)
    client: Any = SimpleNamespace(snapshot_download=stands_in.snapshot_download, HfApi=lambda: stands_in)
    sys.modules["huggingface_hub"] = client
    setattr(model_checks, "check_models", lambda *_: None)  # noqa: B010 (the graphs of these packs are a few letters)


def published(work: Path) -> None:
    from tests.unit.test_hub import Hub as Published
    from tests.unit.test_hub import publish

    (work / "hub").mkdir()
    for commit, heads in (("a", "heads"), ("b", "heads-2")):
        publish(Published(), commit, work / "hub" / commit, heads=heads)


def downloaded(commit: str) -> Work:
    from edgedecode.library.find import find_pack

    def run(work: Path) -> None:
        hub(commit)
        find_pack("owner/name")

    return run


def downloaded_state(work: Path) -> str:
    """Return the state of the pack without the hub."""
    from edgedecode.library.find import find_pack
    from edgedecode.pack.integrity import check_files
    from edgedecode.pack.manifest import Manifest

    hub("away")
    root = find_pack("owner/name")
    check_files(Manifest.load(root), root, full=True)
    return ", ".join(path.name for path in sorted((root / "draft").glob("heads*")))


def first_model(work: Path) -> None:
    from tests.export.tiny import TinyModel, write_model

    write_model(work / "source", TinyModel(layers=1))


def exported(work: Path) -> None:
    from edgedecode.export.graph.quantize import Scheme
    from edgedecode.export.graph.recipe import Recipe
    from edgedecode.export.pair_export import PairRequest, export_pair
    from edgedecode.export.stages import Stages

    if (work / "out").exists():
        return  # a user who finds the pack does not export it again
    recipe = Recipe(Scheme(8, 32), Scheme(8, 32))
    source = str(work / "source")
    export_pair(PairRequest(source, None, work / "out", recipe, noise_positions=0, activations="8"), Stages())


def exported_state(work: Path) -> str:
    import edgedecode
    from edgedecode.pack.gate import check_pack

    if not (work / "out").exists():
        return "nothing"
    check_pack(work / "out", full=True)
    with edgedecode.load(work / "out", runtime="onnx", threads=1) as pair:
        return repr(_answer(pair, "none"))


def first_file(work: Path) -> None:
    from tests.imports.files import write_file
    from tests.small_tokenizers import byte_level

    (work / "files").mkdir()
    write_file(work / "files" / "model.gguf", byte_level())


def imported(work: Path) -> None:
    from edgedecode.export.imports import gguf_import as pair
    from edgedecode.export.imports.imported_pack import ImportRequest
    from edgedecode.export.stages import Stages

    if not (work / "out").exists():
        pair.engine_fault = lambda: "not probed"  # type: ignore[assignment]
        request = ImportRequest(work / "files" / "model.gguf", None, work / "out", copy=True)
        pair.import_gguf_pair(request, Stages())


def imported_state(work: Path) -> str:
    from edgedecode.pack.gate import check_pack

    if not (work / "out").exists():
        return "nothing"
    return f"{len(check_pack(work / 'out', full=True).files)} files"


def nothing(work: Path) -> None:
    pass


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "trim": lambda: Scenario(toy_pack(), trimmed(300), toy_state),
    "trim again": lambda: Scenario(toy_pack(200), trimmed(300), toy_state),
    "trim --remove": lambda: Scenario(toy_pack(200), removed, toy_state),
    "eval --equality": lambda: Scenario(toy_pack(200), compared, toy_state),
    "adapter add": lambda: Scenario(offered, added, adapted_state),
    "adapter remove": lambda: Scenario(_twice(offered, added), taken_out, adapted_state, LEFT),
    "trim of the bundled pack": lambda: Scenario(bundled, trimmed(2048), real_state, ("cache/costs/*", "cache/*")),
    "a first use": lambda: Scenario(bundled, used, used_state, ("cache/*/*",)),
    "experience": lambda: Scenario(learnt_before, learnt, learnt_state, ()),
    "chat /save": lambda: Scenario(saved("before"), saved("now"), saved_state),
    "a download": lambda: Scenario(_twice(published, downloaded("a")), downloaded("b"), downloaded_state, DOWNLOADS),
    "export": lambda: Scenario(first_model, exported, exported_state, ("cache/*/*",)),
    "import": lambda: Scenario(first_file, imported, imported_state, ("cache/*/*",)),
}
LEFT = ("cache/*", "pack/adapters", "pack/adapters/*", "pack/adapters/*/*")
"""A removal that was killed after its manifest leaves unlisted files, which the pack's check ignores."""
DOWNLOADS = ("cache/verified/*", "cache/locks/*")


def _twice(first: Work, second: Work) -> Work:
    return lambda work: (first(work), second(work))
