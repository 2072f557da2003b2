"""Makes a bundle of a pack for one target: copies, plans for the device, records the self-test, writes the listing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import edgedecode
from edgedecode.engines.kernel_choice import engine_kernels
from edgedecode.engines.kernel_noise import measure_noise
from edgedecode.errors import InputError
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import FileEntry
from edgedecode.pack.gate import check_pack
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.new_folder import check_place, new_folder
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import pack_tokenizer
from edgedecode.pack.static_graphs import HEAD_ROWS
from edgedecode.text.prompts import Prompt, interleaved, read_prompts
from edgedecode.text.tokenizer import Tokenizer

from ..checks.model_checks import CheckTexts
from ..native.folder import NativeFolder, write_native_folder
from ..native.text_file import FILE
from ..stages import Stages
from ..trim.texts import bundled_prompts
from .bundle import MOST_TOLERANCE, Bundle, DevicePlan, SelftestFiles, write_bundle
from .device.run import UNPLANNED
from .device_plan import MemoryFit, fit_llama, fit_native, fit_npu
from .llama_commands import llama_commands
from .pack_files import (
    SOC_MAP,
    check_pack_has,
    chosen_manifest,
    copy_adapters,
    copy_models,
    native_adapters,
    soc_map_of,
)
from .recording import opened_test, write_prompts, write_replay
from .request import NATIVE, PackageRequest
from .speeds import LENGTHS, Speeds, assumed_speeds, best_length, measured_speeds
from .template_files import copy_templates

_PROMPTS = 4
"""Self-test prompts by default, each of another kind of task."""
_NOISE_POSITIONS = 50
"""On which rounding is measured if the pack does not say: 6 s for 135M parameters on two cores."""
_LEAST_NOISE = 0.1
"""In logits: other processors round apart even where this one's kernels do not."""
_SELFTEST = SelftestFiles("selftest/prompts.json", "selftest/expected.json", "selftest/rounds.json")
_REPLAY = "selftest/replay.jsonl"


def make_bundle(request: PackageRequest, stages: Stages) -> Bundle:
    """Write the bundle to `request.out`, which appears complete or not at all.

    Raises ExportError, with the remedy, for a pack without the target's format, a device that is too small, or a full
    disk; ManifestError for a damaged pack; InputError for prompts or a profile that cannot be read.
    """
    if request.out.resolve().is_relative_to(request.pack.resolve()):
        raise InputError(f"--out {request.out} is inside the pack {request.pack}, which holds only its own files")
    with opening(request.pack):
        manifest = check_pack(request.pack)
        check_pack_has(request, manifest)
        native = request.target.provider == NATIVE
        chosen = manifest if native else chosen_manifest(request, manifest)
        prompts = _prompts(request)
        tokenizer = pack_tokenizer(chosen, request.pack, Budget())
        fit = _fit(request, chosen, tokenizer)
        speeds = _speeds(request, chosen, fit)
        needed = manifest.nbytes + sum(entry.nbytes for entry in manifest.outside.values()) + 10_000_000
        check_place(request.out, nbytes=needed * 5 // 4)
        with new_folder(request.out) as root:
            noise = 0.0 if native else _noise(request.pack, chosen, tokenizer, stages)
            folder = None
            if native:
                folder = write_native_folder(request.pack, root / NATIVE, stages, drafts=fit.drafts)
            with stages.stage("copy"):
                bundle = _copied(root, request, chosen, fit, speeds, noise=noise, folder=folder)
            with stages.stage("self-test"):
                most = min(fit.context, manifest.models["target"].context)
                write_prompts(root / bundle.selftest.prompts, prompts, tokenizer, most=request.tokens, context=most)
                bundle = _recorded(root, request, bundle, fit, speeds)
            with stages.stage("listing"):
                copy_templates(root, request, bundle)
                bundle = replace(bundle, files=_listed(root))
                write_bundle(root, bundle)
    return bundle


def _prompts(request: PackageRequest) -> list[Prompt]:
    if request.prompts is not None:
        return read_prompts(request.prompts, family="")
    return interleaved(bundled_prompts(), name=lambda prompt: prompt.family, most=1)[:_PROMPTS]


def _fit(request: PackageRequest, manifest: Manifest, tokenizer: Tokenizer) -> MemoryFit:
    if request.target.provider == "qnn":
        return fit_npu(manifest, request.pack, device=request.device, context=request.context)
    if request.target.provider:
        return fit_native(manifest, request.pack, tokenizer, device=request.device, context=request.context)
    models = {}
    for role in manifest.models:
        entry = manifest.located(role)
        file = request.pack / entry.gguf  # if it is not made yet, it has about the weights' size
        models[role] = (entry, file.stat().st_size if entry.gguf else manifest.weights_nbytes(role))
    return fit_llama(models, name=manifest.name, device=request.device, context=request.context)


def _speeds(request: PackageRequest, manifest: Manifest, fit: MemoryFit) -> Speeds:
    widths = sorted({graph.width for graph in manifest.models["target"].graphs.values() if graph.compiled})
    if request.profile is not None:
        return measured_speeds(request.profile, pack=manifest.name).padded(widths)
    draft = manifest.weights_nbytes("draft") if fit.drafts and "draft" in manifest.models else 0
    speeds = assumed_speeds(request.device, target_nbytes=manifest.weights_nbytes("target"), draft_nbytes=draft)
    return speeds.padded(widths)


def _noise(pack: Path, manifest: Manifest, tokenizer: Tokenizer, stages: Stages) -> float:
    """Return how far kernels round the target's logits apart, as the pack says or as it is measured here."""
    entry = manifest.models["target"]
    if entry.kernel_noise:
        return entry.kernel_noise
    ends, context = manifest.generation.end_token_ids, entry.context
    prompts = CheckTexts.of(tokenizer, template=tokenizer.chat_template, ends=ends, context=context).prompts
    runtime = "onnx" if entry.graphs else "llama"
    with (
        stages.stage("rounding", _NOISE_POSITIONS) as advance,
        engine_kernels(),
        edgedecode.load(pack, runtime=runtime) as pair,
    ):
        noise = measure_noise(pair.target, prompts, ends=ends, positions=_NOISE_POSITIONS, progress=advance)
        return max(noise.percentile, _LEAST_NOISE)


def _lengths(bundle: Bundle) -> tuple[int, ...]:
    """Return the draft lengths to try: with passes of fixed widths, those that fill one."""
    widths = {graph.width for graph in bundle.models["target"].graphs if graph.socs}
    return tuple(width - 1 for width in sorted(widths) if 1 < width <= HEAD_ROWS) if widths else LENGTHS


def _copied(
    root: Path,
    request: PackageRequest,
    manifest: Manifest,
    fit: MemoryFit,
    speeds: Speeds,
    *,
    noise: float,
    folder: NativeFolder | None,
) -> Bundle:
    """Copy everything but the templates; return the bundle without its listing. folder: the native library's."""
    target, device = request.target, request.device
    roles = [role for role in manifest.models if role != "draft" or fit.drafts] if folder is None else [*folder.models]
    models = copy_models(root, request, manifest, roles=roles)
    adapters = copy_adapters(root, request, manifest, roles=roles) if folder is None else {}
    native = folder is not None  # it has these files in its own forms
    if folder is not None:
        models = {role: replace(each, rows=folder.models[role].rows) for role, each in models.items()}
        adapters = native_adapters(folder, manifest)
    texts = ((manifest.tokenizer, "tokenizer.json"), (manifest.chat_template, "chat_template.jinja"))
    for source, name in () if native else texts:
        if source is not None:
            shutil.copyfile(request.pack / source, root / "models" / name)
    licenses = request.pack / "licenses"
    if licenses.is_dir() and not native:
        shutil.copytree(licenses, root / "licenses")
    if target.provider == "qnn":
        text = json.dumps(soc_map_of(models), indent=1) + "\n"
        (root / SOC_MAP).write_bytes(text.encode())
    plan = DevicePlan(
        device=device.soc,
        memory_nbytes=device.memory_nbytes,
        budget_nbytes=device.budget_nbytes,
        nbytes=fit.nbytes,
        holders=fit.holders,
        context=fit.context,
        kv_type="float16" if not target.provider else "float32",
        threads=device.threads,
        draft_length=0,
        least_chance=speeds.least_chance,
        # between other processors, and twice that between engines, whose products round differently
        tolerance={
            name: min(round(times * noise, 4), MOST_TOLERANCE)
            for name, times in (() if native else (("cpu", 2), ("qnn", 4), ("llama", 4)))
        },
        profile=speeds.name,
        cuts=fit.cuts,
    )
    return Bundle(
        target=target.name,
        name=manifest.name,
        created_by=f"edgedecode {edgedecode.__version__}",
        abi=target.abi,
        min_sdk=target.min_sdk,
        runtime=target.runtime,
        models=models,
        vocabulary_size=manifest.vocabulary_size,
        tokenizer=f"{NATIVE}/{FILE}" if native else "models/tokenizer.json",
        tokenizer_digest=manifest.tokenizer_digest,
        chat_template=None if native or manifest.chat_template is None else "models/chat_template.jinja",
        generation=manifest.generation,
        plan=plan,
        selftest=replace(_SELFTEST, rounds=_REPLAY) if native else _SELFTEST,
        files={},
        adapters=adapters,
        libraries=target.libraries,
    )


def _recorded(root: Path, request: PackageRequest, bundle: Bundle, fit: MemoryFit, speeds: Speeds) -> Bundle:
    """Choose the draft length and record the answers on this machine's processor."""
    with opened_test(root, bundle, request.pack) as test:
        rounds = {}
        for length in _lengths(bundle) if "draft" in bundle.models else ():  # how long a head's are the library learns
            test.draft_length = length
            rounds[length] = [test.answer(one, drafts=True)[1] for one in test.prompts]
        plain, best = best_length(speeds, rounds)
        test.draft_length = best.length or UNPLANNED
        test.record()
    drafted = best.per_second if best.length else None
    plan = replace(
        bundle.plan, draft_length=best.length, tokens_per_second=plain.per_second, drafted_per_second=drafted
    )
    bundle = replace(bundle, plan=plan)
    if request.target.provider == NATIVE:
        write_replay(root, bundle)  # in place of the rounds, which its own scheduler plans
    return bundle if request.target.provider else replace(bundle, commands=llama_commands(bundle))


def _listed(root: Path) -> dict[str, FileEntry]:
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return {name: file_entry(root / name) for name in names if name not in {"bundle.json", "SHA256SUMS"}}
