"""Adapters saved by PEFT: scales, patterns, number types, and one-line errors for unusable files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.adapters.peft_folder import CONFIG, WEIGHTS, PeftAdapter, read_peft_adapter
from edgedecode.errors import ManifestError

LAYER = "base_model.model.model.layers.{}.{}.lora_{}.weight"
DOWN = np.arange(8, dtype=np.float32).reshape(2, 4) / 4
UP = np.arange(6, dtype=np.float32).reshape(3, 2) / 2


def safetensors(tensors: Mapping[str, np.ndarray], *, kind: str = "F32", **changed: Any) -> bytes:
    """Return a file of these tensors; `changed` replaces fields of the first tensor's header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        if kind == "BF16":
            part = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        else:
            part = values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    first = next(name for name in header if name != "__metadata__")
    header[first] |= changed
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def pair(layer: int = 0, module: str = "self_attn.q_proj") -> dict[str, np.ndarray]:
    return {LAYER.format(layer, module, "A"): DOWN, LAYER.format(layer, module, "B"): UP}


def saved(folder: Path, weights: bytes | None = None, **config: Any) -> PeftAdapter:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 6, **config}), encoding="utf-8")
    (folder / WEIGHTS).write_bytes(safetensors(pair()) if weights is None else weights)
    return read_peft_adapter(folder / CONFIG, folder / WEIGHTS)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_read_peft_adapter_supports_every_number_type(tmp_path: Path, kind: str) -> None:
    """The values are exact in each type."""
    found = saved(tmp_path / "own", safetensors(pair(), kind=kind))
    (matrix,) = found.matrices()
    assert (matrix.layer, matrix.module, found.rank, found.modules) == (0, "q_proj", 2, ("q_proj",))
    np.testing.assert_array_equal(matrix.down, DOWN)
    np.testing.assert_array_equal(matrix.up, 3 * UP)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6 / 2**0.5),
        ({"lora_alpha": None}, 4.0),
        ({"alpha_pattern": {"q_proj": 8}}, 4.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 8}}, 4.0),
        ({"alpha_pattern": {"proj": 8, "k_proj": 9}}, 3.0),
        ({"rank_pattern": {"q_proj": 2}, "r": 3}, 3.0),
        ({"init_lora_weights": "Gaussian"}, 3.0),
        ({"init_lora_weights": False}, 3.0),
    ],
    ids=str,
)
def test_read_peft_adapter_applies_the_scale(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    (matrix,) = saved(tmp_path / "own", **config).matrices()
    np.testing.assert_allclose(matrix.up, np.float32(scale) * UP, rtol=1e-6)


def test_read_peft_adapter_keeps_invocation_tokens(tmp_path: Path) -> None:
    assert saved(tmp_path / "own", alora_invocation_tokens=[1, 307]).invocation == (1, 307)
    assert saved(tmp_path / "own", alora_invocation_tokens=None).invocation == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "is of type IA3"),
        ({"use_dora": True}, "uses use_dora"),
        ({"lora_bias": True, "modules_to_save": ["head"]}, "uses modules_to_save, lora_bias"),
        ({"r": 0}, "r"),
        ({"r": "two"}, "r"),
        ({"lora_alpha": float("nan")}, "the scale of .* is not a number"),
        ({"alpha_pattern": {"(a+)+$": 2}}, "only names are supported"),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens"),
        ({"r": 8}, "matrices of rank 2 for layer 0 q_proj, but adapter_config.json gives rank 8"),
        ({"rank_pattern": {"q_proj": 3}}, "gives rank 3"),
        ({"init_lora_weights": "pissa_niter_16"}, "'pissa_niter_16', which changes the base model's weights"),
        ({"init_lora_weights": "olora"}, "changes the base model's weights"),
        ({"init_lora_weights": "corda"}, "changes the base model's weights"),
        ({"init_lora_weights": "loftq"}, "changes the base model's weights"),
        ({"init_lora_weights": [1]}, "init_lora_weights"),
    ],
    ids=str,
)
def test_read_peft_adapter_refuses_unusable_configurations(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ManifestError, match=message) as raised:
        saved(tmp_path / "own", **config)
    assert "\n" not in str(raised.value)


INVALID_WEIGHTS = {
    "empty": b"",
    "no header": (10**6).to_bytes(8, "little") + b"{}",
    "invalid JSON": (2).to_bytes(8, "little") + b"{]",
    "a list": (2).to_bytes(8, "little") + b"[]",
    "deeply nested": (20000).to_bytes(8, "little") + b"[" * 20000,
    "too short": safetensors(pair())[:-1],
    "another type": safetensors(pair(), kind="F64"),
    "offsets outside": safetensors(pair(), data_offsets=[0, 10**9]),
    "offsets swapped": safetensors(pair(), data_offsets=[32, 0]),
    "huge shape": safetensors(pair(), shape=[2**40, 2**40]),
    "negative shape": safetensors(pair(), shape=[-2, -4]),
    "no tensors": (2).to_bytes(8, "little") + b"{}",
    "another tensor": safetensors({"base_model.model.lm_head.lora_A.weight": DOWN}),
    "only one of the two matrices": safetensors({LAYER.format(0, "self_attn.q_proj", "A"): DOWN}),
    "mismatched ranks": safetensors({**pair(), LAYER.format(0, "self_attn.q_proj", "B"): UP[:, :1]}),
    "not a matrix": safetensors({**pair(), LAYER.format(0, "self_attn.q_proj", "B"): UP[None]}),
    "two matrices of one name": safetensors({**pair(module="experts.0.w1"), **pair(module="experts.1.w1")}),
}


@pytest.mark.parametrize("case", INVALID_WEIGHTS)
def test_read_peft_adapter_refuses_unusable_weights(tmp_path: Path, case: str) -> None:
    with pytest.raises(ManifestError) as raised:
        saved(tmp_path / "own", INVALID_WEIGHTS[case])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("tensors", "alpha"),
    [
        ({LAYER.format(0, "self_attn.q_proj", "A"): DOWN + np.float32("inf")}, 6),
        ({LAYER.format(0, "self_attn.q_proj", "B"): UP + np.float32("nan")}, 6),
        ({}, 1e300),
        ({}, 4e38),
    ],
    ids=["infinite", "nan", "alpha", "product"],
)
@pytest.mark.filterwarnings("error")
def test_check_values_refuses_values_that_are_not_finite(
    tmp_path: Path, tensors: dict[str, np.ndarray], alpha: float
) -> None:
    found = saved(tmp_path / "own", safetensors(pair() | tensors), lora_alpha=alpha)
    with pytest.raises(ManifestError, match=r"q_proj.* that are not finite numbers, or too large ones") as raised:
        found.check_values()
    assert "\n" not in str(raised.value)
    (matrix,) = found.matrices()
    with pytest.raises(ManifestError, match="that are not finite numbers"):
        matrix.product()


def test_peft_matrices_are_read_on_use(tmp_path: Path) -> None:
    found = saved(tmp_path / "own")
    (matrix,) = found.matrices()
    last = matrix.piece("up_proj", 1, 3)
    np.testing.assert_array_equal(last.up, 3 * UP[1:])
    (tmp_path / "own" / WEIGHTS).unlink()
    assert (matrix.rank, matrix.shapes, last.shapes) == (2, ((2, 4), (3, 2)), ((2, 4), (2, 2)))
    with pytest.raises(ManifestError, match="cannot be read"):
        matrix.product()


def test_read_peft_adapter_reports_a_missing_file(tmp_path: Path) -> None:
    saved(tmp_path / "own")
    for name in (WEIGHTS, CONFIG):
        (tmp_path / "own" / name).unlink()
        with pytest.raises(ManifestError, match="cannot be read"):
            read_peft_adapter(tmp_path / "own" / CONFIG, tmp_path / "own" / WEIGHTS)
