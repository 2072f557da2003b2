"""Adds static graphs to a pack and compiles them for NPUs: one graph a width, one binary for each chip or group.

Each compilation and each run on the emulator happens in a child process with a time limit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import to_builtins

from edgedecode.engines.child import ChildReply, ask_child, child_command
from edgedecode.errors import ExportError
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.context_check import context_node
from edgedecode.pack.entries import NPU_FOLDER, STATIC, STATIC_PREFIX, CompiledEntry
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import Graph, Manifest
from edgedecode.pack.new_folder import link_or_copy, work_folder
from edgedecode.pack.static_graphs import HEAD_ROWS
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.user_notices import notice

from ..graph.drawing import EXACT_FILE, graph_entry, write_exact
from ..graph.passes.static_shapes import StaticSize, static_shapes
from ..graph.passes.table_lookup import plain_lookup
from ..stages import Stages
from ..trim.texts import bundled_prompts
from .compile_request import CompileRequest, SocGroup, require_compiler
from .htp_child import CheckOrder
from .npu_files import check_changeable, check_room, replace_static, static_graphs

_COMPILE_SECONDS, _CHECK_SECONDS = 3600.0, 900.0
_SOURCES = {"base": STATIC_PREFIX, "lora": f"{STATIC_PREFIX}lora-"}
"""Graphs with a static form, and the prefix of its name."""
_PASSES, _FEW_PASSES = 12, 2
"""Passes on the emulator: for the first chip, and for each further one, whose graph is the same."""
_MOST_ERROR = 0.1
"""Of logits, relative to their deviation: 16-bit floats give 0.004 on the bundled draft, a wrong graph about 1."""
_SECONDS_PER_WEIGHT_ROW = 15e-9
"""Time on the emulator, from the bundled draft: 1.44 million weights, 8 rows, 0.15 s."""
_MOST_SECONDS = 60.0
"""All passes of one graph on the emulator."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One compiled graph: the result for the report. agreed, positions 0: not run on the emulator."""

    role: str
    graph: str
    chip: str
    nbytes: int
    positions: int = 0
    agreed: int = 0
    error: float = 0.0
    """Root mean square difference in logits, relative to the logits' standard deviation."""
    not_run: str = ""
    """Why it was not run on the emulator."""


def compile_pack(root: Path, request: CompileRequest, stages: Stages) -> Sequence[CompiledGraph]:
    """Compile every model of the pack at `root`, replacing earlier compiled graphs.

    Raises EdgeDecodeError, and then leaves the pack as it was.
    """
    if request.socs:
        require_compiler()
    with stages.stage("check the pack"):
        manifest = check_pack(root)
        check_changeable(root, manifest)
        slots = request.slots_of(manifest)
        check_room(root, manifest, copies=len(request.widths) * len(request.socs))
    if earlier := _described(manifest):
        notice(f"the pack's earlier graphs of fixed shapes ({earlier}) will be replaced")
    with work_folder(root.resolve().parent, name=root.resolve().name) as place:
        text = "\n".join(turn for prompt in bundled_prompts() for turn in prompt.turns)
        tokens = Tokenizer.from_file(root / manifest.tokenizer).encode(text)[:slots]
        job = _Job(root, place, manifest, request, slots, stages, tokens)
        for role in manifest.models:
            job.compile_model(role)
        replace_static(root, job.work, job.graphs)
    return job.results


def _described(manifest: Manifest) -> str:
    """Return the widths of a pack's static graphs and the chips that they are compiled for; empty: it has none."""
    graphs = [graph for _, _, graph in static_graphs(manifest)]
    widths = ", ".join(map(str, sorted({graph.width for graph in graphs})))
    chips = sorted({(each.provider, soc) for graph in graphs for each in graph.compiled for soc in each.socs})
    compiled = ", ".join(f"{provider}:{soc}" for provider, soc in chips)
    return f"{widths} rows" + (f", compiled for {compiled}" if compiled else "") if graphs else ""


@dataclass(frozen=True, slots=True)
class _Job:
    """The compilation of one pack, in the folder `work`, laid out as the pack. tokens: a text to check with."""

    root: Path
    work: Path
    manifest: Manifest
    request: CompileRequest
    slots: int
    stages: Stages
    tokens: Sequence[int]
    graphs: dict[str, dict[str, Graph]] = field(default_factory=dict)
    """The new graphs by role and name."""
    results: list[CompiledGraph] = field(default_factory=list)

    def compile_model(self, role: str) -> None:
        """Write the static graphs of a model and compile each for every group of chips."""
        import onnx_ir as ir

        entry = self.manifest.models[role]
        if "base" not in entry.graphs:
            raise ExportError(f"the pack's {role} has no base graph: export it again")
        self.graphs[role] = {}
        folder = self.work / Path(entry.graphs["base"].file).parent
        folder.mkdir(parents=True, exist_ok=True)
        link_or_copy(self.root / entry.weights, folder / Path(entry.weights).name)
        # The NPU does not round activations to 8 bits, so it is compared with products that do not either.
        write_exact(ir.load(self.root / entry.graphs["base"].file), folder / EXACT_FILE)
        for name, prefix in _SOURCES.items():
            if name not in entry.graphs:
                continue
            for width in self.request.widths:
                self._compile_width(role, entry.graphs[name], f"{prefix}{width}", width=width)

    def _compile_width(self, role: str, source: Graph, name: str, *, width: int) -> None:
        import onnx_ir as ir

        size = StaticSize(width, self.slots, source.lora_rank if "lora" in source.capabilities else 0)
        model = ir.load(self.root / source.file)
        static_shapes(model, size)
        folder = Path(source.file).parent
        made = graph_entry(model, f"{folder.as_posix()}/{name}.onnx")
        graph = replace(
            source,
            file=made.file,
            inputs=made.inputs,
            outputs=made.outputs,
            capabilities=(*source.capabilities, STATIC),
            width=width,
            slots=self.slots,
        )
        ir.save(model, self.work / graph.file)
        if not self.request.socs:
            self.graphs[role][name] = graph
            return
        plain_lookup(model, width=width)
        ready = self.work / folder / f"htp-{name}.onnx"
        ir.save(model, ready)
        compiled: tuple[CompiledEntry, ...] = ()
        for group in self.request.socs:
            out = self.work / NPU_FOLDER / group.folder / f"{role}-{name}_ctx.onnx"
            out.parent.mkdir(parents=True, exist_ok=True)
            with self.stages.stage(f"{role}: {name} for {group.folder}"):
                nbytes = self._compiled(ready, out, group)
            result, entry = CompiledGraph(role, name, group.folder, nbytes), self._compiled_entry(out, group)
            pass_seconds = self.manifest.models[role].parameters * width * _SECONDS_PER_WEIGHT_ROW
            most = _FEW_PASSES if any(each.agreement is not None for each in compiled) else _PASSES
            if len(group.socs) > 1:
                result = replace(result, not_run="binary of several chips")
            elif passes := min(most, int(_MOST_SECONDS / pass_seconds)):
                with self.stages.stage(f"{role}: {name} on the emulator of {group.folder}"):
                    result = self._checked(result, replace(graph, compiled=(entry,)), group, passes=passes)
                entry = replace(entry, agreement=result.agreed / result.positions)
            else:
                result = replace(result, not_run=f"{pass_seconds:.0f} s a pass")
            self.results.append(result)
            compiled += (entry,)
        self.graphs[role][name] = replace(graph, compiled=compiled)

    def _compiled(self, ready: Path, out: Path, group: SocGroup) -> int:
        reply = _ask("compile_graph", str(ready), str(out), json.dumps(group.options), seconds=_COMPILE_SECONDS)
        if reply.failure or not out.is_file():
            raise ExportError(
                f"{ready.stem.removeprefix('htp-')} was not compiled for {group.folder}: {_words(reply)}; leave out "
                f"this chip, or report this with --debug"
            )
        return int(reply.told[0]["nbytes"])

    def _checked(self, result: CompiledGraph, graph: Graph, group: SocGroup, *, passes: int) -> CompiledGraph:
        entry = self.manifest.models[result.role]
        base = replace(entry.graphs["base"], file=str(Path(entry.graphs["base"].file).with_name(EXACT_FILE)))
        graphs = {"base": base, result.graph: graph}
        if graph.width > HEAD_ROWS:  # the runtime opens no wide graph alone
            made = self.graphs[result.role].values()
            graphs["narrow"] = next(each for each in made if each.capabilities == graph.capabilities)
        order = CheckOrder(
            replace(entry, graphs=graphs, trimmed=None),
            root=str(self.work),
            chip=group.numbers[0],
            width=graph.width,
            tokens=tuple(self.tokens[: self.slots // 2]),
            passes=passes,
        )
        reply = _ask("check_graph", seconds=_CHECK_SECONDS, given=json.dumps(to_builtins(order)))
        if reply.failure or not reply.told:
            raise ExportError(f"{result.graph} for {result.chip} fails on the emulator: {_words(reply)}")
        result = replace(result, **reply.told[0])
        if not result.error < _MOST_ERROR:
            raise ExportError(
                f"{result.graph} for {result.chip}: its logits differ from the processor's by "
                f"{result.error:.0%} of their deviation; leave out this chip, or report this"
            )
        return result

    def _compiled_entry(self, out: Path, group: SocGroup) -> CompiledEntry:
        node = context_node(GraphFile.parse(out.read_bytes()))
        binary, sdk = node.attributes["ep_cache_context"], node.attributes.get("ep_sdk_version", b"")
        assert isinstance(binary, bytes)
        assert isinstance(sdk, bytes)
        folder = out.parent.relative_to(self.work).as_posix()
        return CompiledEntry(
            file=f"{folder}/{out.name}",
            binary=f"{folder}/{binary.decode()}",
            provider=self.request.device,
            socs=group.numbers,
            sdk=sdk.decode().removeprefix("v"),
        )


def _ask(function: str, *words: str, seconds: float, given: str = "") -> ChildReply:
    command = child_command(f"{__package__}.htp_child:{function}")
    if command is None:
        raise ExportError("this Python cannot start the compiler's process: use an ordinary installation of Python")
    return ask_child(command, *words, seconds=seconds, given=given)


def _words(reply: ChildReply) -> str:
    """Return the child's last words without the engine's prefixes."""
    return (reply.failure or "it wrote no file").rpartition(" : ")[2]
