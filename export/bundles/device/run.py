"""Answers a bundle's self-test prompts on this device and compares the answers with the expected ones.

Run it from the bundle: `python -m selftest.run`. It needs Python, numpy and onnxruntime, for NPUs also onnxruntime-qnn.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from .decode import Model, Round, decode
from .onnx_models import FixedModel, GrowingModel

QNN = "QNNExecutionProvider"
UNPLANNED = 4
"""Draft length where drafts do not pay: the loop is tested even there."""


def main(words: Sequence[str] | None = None) -> int:
    """Test a bundle, by default the one that this file is in; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m selftest.run", description=__doc__)
    parser.add_argument("--provider", choices=("cpu", "qnn"), help="default: the NPU if the bundle has graphs for it")
    parser.add_argument("--soc", type=int, metavar="N", help="the chip of the compiled graphs (default: the first)")
    parser.add_argument("--threads", type=int, metavar="N", help="default: as planned")
    parser.add_argument("--json", action="store_true", help="print one JSON line only")
    parser.add_argument("--bundle", type=Path, default=Path(__file__).parents[1], metavar="DIR", help="another bundle")
    options = parser.parse_args(words)
    root = options.bundle
    bundle = json.loads((root / "bundle.json").read_text(encoding="utf-8"))
    graphs = bundle["models"]["target"]["graphs"]
    provider = options.provider or ("qnn" if any(graph["provider"] == "qnn" for graph in graphs) else "cpu")
    if not any(graph["provider"] == provider for graph in graphs):
        parser.error(f"the bundle has no graphs for {provider}")
    opener = Opener(root, bundle, provider=provider, soc=options.soc, threads=options.threads)
    target = opener.open("target")
    assert target is not None
    test = Selftest(root, bundle, target, opener.open("draft"), provider=provider)
    report = test.compare()
    if not options.json:
        _show(report)
    print(json.dumps(report))
    return 0 if report["passed"] else 1


class Selftest:
    """The prompts of a bundle, and its models, opened on one provider."""

    def __init__(
        self, root: Path, bundle: Mapping[str, Any], target: Model, draft: Model | None, *, provider: str
    ) -> None:
        self._bundle, self._target, self._draft, self.provider = bundle, target, draft, provider
        self._files = {name: root / file for name, file in bundle["selftest"].items()}
        self.prompts = read_prompts(root, bundle)
        self.draft_length = int(bundle["plan"]["draft_length"]) or UNPLANNED

    def record(self) -> None:
        """Write the expected answers, and the rounds that an app's own tests replay."""
        rounds: list[dict[str, Any]] = []
        answers: list[list[int]] = []
        for one in self.prompts:
            answer, _ = self.answer(one, drafts=False)
            drafted, found = self.answer(one, drafts=True)
            answers.append(answer)
            rounds.append({
                "prompt": one["tokens"], "most": one["most"], "ends": self._ends, "draft_length": self.draft_length,
                "context": self._target.context, "draft_context": getattr(self._draft, "context", self._target.context),
                "answer": drafted, "rounds": [each._asdict() for each in found],
            })  # fmt: skip
        versions = {"provider": self.provider, "onnxruntime": _version()}
        _write(self._files["expected"], {"recorded_on": versions, "answers": answers})
        _write(self._files["rounds"], {"conversations": rounds})

    def compare(self) -> dict[str, Any]:
        """Answer each prompt plainly and with drafts; compare, and score the expected answers.

        A device passes if each expected token is its own likeliest, or is less likely by no more than the rounding of
        products explains, `tolerance` in logits; so too for what it wrote with drafts.
        """
        expected = json.loads(self._files["expected"].read_text(encoding="utf-8"))
        tolerance = self._bundle["plan"]["tolerance"][self.provider]
        found: list[dict[str, Any]] = []
        started = perf_counter()
        for one, wanted in zip(self.prompts, expected["answers"], strict=True):
            plain, _ = self.answer(one, drafts=False)
            drafted, rounds = self.answer(one, drafts=True)
            gaps = np.zeros(len(wanted)) if plain == wanted else self._gaps(one["tokens"], wanted)
            others = np.zeros(0) if drafted == plain else self._gaps(one["tokens"], drafted)
            found.append({
                "name": one["name"], "tokens": len(wanted), "equal": plain == wanted, "lossless": drafted == plain,
                "likeliest": int((gaps == 0).sum()),
                "largest_gap": float(max(gaps.max(initial=0), others.max(initial=0))),
                "rounds": len(rounds), "drafted": sum(len(each.drafts) for each in rounds),
                "accepted": sum(_accepted(each) for each in rounds),
            })  # fmt: skip
        return {
            "provider": self.provider, "machine": platform.machine(), "onnxruntime": _version(),
            "seconds": round(perf_counter() - started, 2),
            "tolerance": tolerance, "passed": all(each["largest_gap"] <= tolerance for each in found), "prompts": found,
        }  # fmt: skip

    @property
    def _ends(self) -> list[int]:
        return [*self._bundle["generation"]["end_token_ids"]]

    def answer(self, prompt: Mapping[str, Any], *, drafts: bool) -> tuple[list[int], list[Round]]:
        """Answer one of `prompts` greedily; return the answer and its rounds."""
        for model in (self._target, self._draft):
            if model is not None:
                model.crop(0)
        return decode(
            self._target, self._draft if drafts else None, prompt["tokens"], most=prompt["most"], ends=self._ends,
            draft_length=self.draft_length, least_chance=self._bundle["plan"]["least_chance"],
        )  # fmt: skip

    def _gaps(self, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return how far each token of an answer is below the likeliest, in logits."""
        self._target.crop(0)
        rows = [self._target.read(prompt, scored=1)]
        rows += [self._target.read([token], scored=1) for token in answer[:-1]]
        logits = np.concatenate(rows)[: len(answer)]
        return np.asarray(logits.max(axis=1) - logits[np.arange(len(answer)), answer])


class Opener:
    """Opens a bundle's models on one provider, for its self-test prompts. soc: the chip; None: the first."""

    def __init__(
        self, root: Path, bundle: Mapping[str, Any], *, provider: str, soc: int | None, threads: int | None
    ) -> None:
        self._root, self._bundle, self._provider, self._soc = root, bundle, provider, soc
        self._threads = threads or bundle["plan"]["threads"]
        self._context = test_context(read_prompts(root, bundle), bundle)

    def open(self, role: str) -> Model | None:
        """Return the model of a role; None: the bundle has none."""
        model = self._bundle["models"].get(role)
        if model is None:
            return None
        graphs = [graph for graph in model["graphs"] if graph["provider"] == self._provider]
        if self._provider == "cpu":
            return GrowingModel(self._session(graphs[0]["file"], None), context=self._context)
        soc = self._soc or graphs[0]["socs"][0]
        fitting = [graph for graph in graphs if soc in graph["socs"]]
        if not fitting:
            raise SystemExit(f"the bundle has no graphs for the chip {soc}")
        sessions = {graph["width"]: self._session(graph["file"], soc) for graph in fitting}
        return FixedModel(sessions, context=fitting[0]["slots"], window=model["window"])

    def _session(self, file: str, soc: int | None) -> Any:  # noqa: ANN401  (onnxruntime has no types)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        path = str(self._root / file)
        if soc is None:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        _use_npu(options, soc, self._root)
        return onnxruntime.InferenceSession(path, options)


def read_prompts(root: Path, bundle: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the self-test's prompts: `tokens`, and `most` tokens of an answer."""
    prompts: list[dict[str, Any]] = json.loads((root / bundle["selftest"]["prompts"]).read_text("utf-8"))["prompts"]
    return prompts


def test_context(prompts: Sequence[Mapping[str, Any]], bundle: Mapping[str, Any]) -> int:
    """Return the positions that the prompts and their answers need, at most those planned."""
    needed: int = max(len(one["tokens"]) + one["most"] for one in prompts) + 16
    planned: int = bundle["plan"]["context"]
    return min(planned, needed)


def _use_npu(options: Any, soc: int, root: Path) -> None:  # noqa: ANN401
    """Add the NPU's provider and allow no other; on x86-64 Linux its library emulates the chip."""
    import onnxruntime
    import onnxruntime_qnn

    if all(device.ep_name != QNN for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(QNN, onnxruntime_qnn.get_library_path())
    settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
    if platform.machine() in ("x86_64", "AMD64"):
        chips = json.loads((root / "soc_map.json").read_text(encoding="utf-8"))["chips"]
        generation = next(one["htp_arch"] for one in chips if one["soc"] == soc)
        settings |= {"soc_model": str(soc), "htp_arch": str(generation)}
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN]
    if not devices:
        raise SystemExit("onnxruntime-qnn finds no NPU here: it needs a Snapdragon with its driver")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(devices[:1], settings)


def _accepted(one: Round) -> int:
    return sum(draft == token for draft, token in zip(one.drafts, one.chosen, strict=False))


def _version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def _write(path: Path, value: object) -> None:
    path.write_bytes((json.dumps(value) + "\n").encode())


def _show(report: Mapping[str, Any]) -> None:
    for one in report["prompts"]:
        words = [
            f"{one['name']}: {one['tokens']} tokens",
            "as expected" if one["equal"] else f"differs, {one['likeliest']} expected tokens are the likeliest",
            "same with drafts" if one["lossless"] else "other text with drafts",
            f"{one['accepted']} of {one['drafted']} drafts accepted",
            f"largest gap {one['largest_gap']:.3f}",
        ]
        print(", ".join(words))
    outcome = "passed" if report["passed"] else f"failed: a gap is above {report['tolerance']:.3f}"
    print(f"{report['provider']}, onnxruntime {report['onnxruntime']}: {outcome} in {report['seconds']} s")


if __name__ == "__main__":
    sys.exit(main())
