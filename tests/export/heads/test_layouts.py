"""One head in four layouts becomes the same bytes; what is no head, or a damaged one, is refused in one line."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from safetensors.torch import load_file, save_file

from edgedecode.errors import ExportError
from edgedecode.export.heads.gguf_head import write_gguf_head
from edgedecode.export.heads.layouts import read_head

from .written import LAYOUTS, VARIANTS, TinyHead, full, write_flat, write_gguf, write_speculators

pytestmark = pytest.mark.export


def written(source: Path, *, bits: int = 8) -> bytes:
    """Return the bytes of a head's file in a pack."""
    head, out = read_head(source), BytesIO()
    write_gguf_head(out, head, bits=bits, taps=head.shape.taps)
    return out.getvalue()


@pytest.mark.parametrize("name", VARIANTS)
def test_one_head_in_every_layout_becomes_the_same_bytes(name: str, tmp_path: Path) -> None:
    found = {layout: written(write(tmp_path / layout, VARIANTS[name])) for layout, write in LAYOUTS.items()}
    assert len({*found.values()}) == 1
    assert all(read_head(tmp_path / layout).shape.taps == (2, 4, 5) for layout in ("flat", "speculators", "nemo"))


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_a_written_head_is_read_back_as_it_is(bits: int, tmp_path: Path) -> None:
    first = written(write_flat(tmp_path / "flat", VARIANTS["everything"]), bits=bits)
    (tmp_path / "head.gguf").write_bytes(first)
    assert written(tmp_path / "head.gguf", bits=bits) == first


@pytest.mark.parametrize("bits", [4, 8])
def test_llama_reads_a_packs_head(bits: int, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    (tmp_path / "head.gguf").write_bytes(written(write_speculators(tmp_path / "head", TinyHead()), bits=bits))
    program = (
        "import llama_cpp, sys\n"
        "options = llama_cpp.llama_model_default_params()\n"
        "sys.exit(not llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), options))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "head.gguf")], check=True)  # it may crash


def test_a_pickle_of_tensors_alone_is_read(tmp_path: Path) -> None:
    plain = written(write_flat(tmp_path / "safetensors", TinyHead()))
    assert written(write_flat(tmp_path / "bin", TinyHead(), pickled=True)) == plain


def test_rows_are_put_in_the_order_of_their_ids(tmp_path: Path) -> None:
    plain = written(write_flat(tmp_path / "plain", TinyHead()))
    tensors = load_file(write_flat(tmp_path / "mixed", TinyHead()) / "model.safetensors")
    order = torch.randperm(TinyHead().rows, generator=torch.Generator().manual_seed(1))
    ids = tensors["d2t"] + torch.arange(len(order))
    tensors["lm_head.weight"] = tensors["lm_head.weight"][order].contiguous()
    tensors["d2t"] = ids[order] - torch.arange(len(order))
    save_file(tensors, tmp_path / "mixed" / "model.safetensors")
    assert written(tmp_path / "mixed") == plain


def test_marks_alone_name_the_ids(tmp_path: Path) -> None:
    plain = written(write_flat(tmp_path / "plain", TinyHead()))
    assert written(change(write_flat(tmp_path / "head", TinyHead()), lambda tensors: tensors.pop("d2t"))) == plain


@pytest.mark.parametrize("maps", ["zero", "missing"])
def test_a_map_of_zeros_or_none_means_all_ids(maps: str, tmp_path: Path) -> None:
    whole = full(TinyHead())
    folder = write_flat(tmp_path / "head", whole)
    tensors = load_file(folder / "model.safetensors")
    assert not tensors["d2t"].any()
    if maps == "missing":
        del tensors["d2t"], tensors["t2d"]
        save_file(tensors, folder / "model.safetensors")
    assert read_head(folder).ids is None


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """Edit the tensors of a folder in place."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    return folder


def _out_of_range(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][-1] = 1000


def _twice(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][1] = tensors["d2t"][0] - 1
    del tensors["t2d"]


def _disagreeing(tensors: dict[str, torch.Tensor]) -> None:
    tensors["t2d"] = ~tensors["t2d"]


def _renamed(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[new] = tensors.pop(old)

    return edit


def _cut(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name][..., :-1]

    return edit


TENSORS = {
    "ids out of range": (_out_of_range, "d2t and t2d name different tokens"),
    "an id twice": (_twice, r"d2t names the token \d+ twice"),
    "maps that disagree": (_disagreeing, "d2t and t2d name different tokens"),
    "a missing tensor": (_renamed("norm.weight", "verifier_norm.weight"), "lacks 1 tensor, norm.weight: download"),
    "some missing tensors": (
        lambda tensors: [tensors.pop(f"midlayer.{name}.weight") for name in ("hidden_norm", "self_attn.q_proj")],
        r"lacks 2 tensors, midlayer.hidden_norm.weight, midlayer.self_attn.q_proj.weight: download",
    ),
    "an unknown tensor": (
        lambda tensors: tensors.update({"midlayer.extra.weight": torch.zeros(2)}),
        "has 1 tensor that no head known here has, blk.0.extra.weight: it is another kind",
    ),
    "another shape": (_cut("midlayer.mlp.up_proj.weight"), r"makes midlayer.mlp.up_proj.weight \[96, 64\].*\[96, 63\]"),
    "EAGLE-1": (lambda tensors: tensors.update({"fc.weight": torch.zeros(64, 128)}), "an EAGLE-1 or EAGLE-2 head"),
    "MTP": (_renamed("fc.weight", "mtp.fc.weight"), "its MTP layer lacks enc.token_norm.weight"),
    "no vocabulary's matrix": (_renamed("lm_head.weight", "verifier_lm_head.weight"), "lacks 1 tensor, lm_head.weight"),
    "a number for a matrix": (lambda tensors: tensors.update({"lm_head.weight": torch.tensor(1.0)}), "has 0 rows"),
    "a norm of no numbers": (lambda tensors: tensors["norm.weight"].fill_(torch.inf), "output_norm.weight.*not finite"),
    "a map of no numbers": (
        lambda tensors: tensors.update({"d2t": tensors["d2t"] * torch.nan}),
        "d2t has values that lead to no token",
    ),
    "a map of zeros for some rows": (
        lambda tensors: (tensors["d2t"].zero_(), tensors.pop("t2d")),
        "96 rows of 160 ids and no d2t that says which",
    ),
    "no maps": (lambda tensors: [tensors.pop(name) for name in ("d2t", "t2d")], "96 rows of 160 ids and no d2t"),
    "a layer twice": (
        lambda tensors: tensors.update({"layers.0.hidden_norm.weight": torch.zeros(64)}),
        "two tensors that are blk.0.attn_norm_2.weight",
    ),
    "no head": (_renamed("fc.weight", "model.embed.weight"), "no drafting head of EAGLE-3's form"),
    "two layers": (
        lambda tensors: tensors.update({"layers.1.hidden_norm.weight": torch.zeros(64)}),
        r"more than one layer \(layers.1.hidden_norm.weight\)",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_damaged_tensors_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    edit, message = TENSORS[name]
    folder = change(write_flat(tmp_path / "head", TinyHead()), edit)
    with pytest.raises(ExportError, match=message) as error:
        written(folder)
    assert "\n" not in str(error.value)


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        _out_of_range(tensors)
        del tensors["t2d"]

    with pytest.raises(ExportError, match="d2t names the token 1095, the target has 160"):
        read_head(change(write_flat(tmp_path / "head", TinyHead()), edit))


CONFIGS = {
    "Medusa": ({"medusa_num_heads": 5, "hidden_size": None}, "holds Medusa heads, which are not supported"),
    "DFlash": ({"dflash_config": {}}, "does not say block_size"),
    "RoPE by kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        "RoPE parameters by kind of layer",
    ),
    "a share of RoPE": ({"partial_rotary_factor": float("inf")}, "RoPE rotates inf of a head's values"),
    "an odd share of RoPE": ({"partial_rotary_factor": 0.1}, "rotates 3 of 32 values"),
    "layers": ({"num_hidden_layers": 2}, "2 layers"),
    "rope": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "RoPE scaling is 'yarn'"),
    "activation": ({"hidden_act": "gelu"}, "activation is 'gelu'"),
    "draft vocabulary": ({"draft_vocab_size": 95}, "draft_vocab_size 95, lm_head has 96 rows"),
    "norm": ({"norm_before_fc": True}, "there is input_norm.weight, which the head lacks"),
    "hidden size": ({"hidden_size": 72}, r"config.*makes.*download both again"),
    "no size": ({"hidden_size": "wide"}, "hidden_size is 'wide': expected int"),
    "no object": ({"eagle_config": [1]}, "eagle_config is .*: expected object"),
    "layers of another type": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a"]}}, "expected int, got str"),
    "no layer's name": ({"architectures": 3}, "architectures is '3': expected array"),
    "a window below 0": ({"sliding_window": -1}, "the head's window is -1"),
    "a huge context": ({"max_position_embeddings": 1 << 40}, "the head's context is 1099511627776"),
    "a base below 0": ({"rope_theta": -1.0}, "the head's base is -1.0"),
    "no number": ({"rms_norm_eps": float("nan")}, "the head's epsilon is nan"),
    "KV heads": ({"num_key_value_heads": 3}, "4 query heads do not share 3 KV heads"),
    "half a scaling": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "factors of 8.0, 0.0 and 0.0"),
    "no scale": ({"rope_scaling": {"type": "linear"}}, "the head's stretch is 0.0"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_other_configurations_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    value, message = CONFIGS[name]
    folder = write_flat(tmp_path / "head", TinyHead(), **value)
    with pytest.raises(ExportError, match=message) as error:
        read_head(folder)
    assert "\n" not in str(error.value)


def test_other_speculators_are_refused_by_name(tmp_path: Path) -> None:
    for kind, name in (
        ("eagle", "EAGLE-1"),
        ("mtp", "MTP"),
        ("dflash", "a speculators' DSpark or DFlash head"),
        ("peagle", "P-EAGLE"),
    ):
        folder = write_speculators(tmp_path / kind, TinyHead(), speculators_model_type=kind)
        with pytest.raises(ExportError, match=name):
            read_head(folder)


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_flat(tmp_path / "cut", TinyHead())
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(ExportError, match="not a usable safetensors file"):
        read_head(folder)
    tensors = load_file(write_flat(tmp_path / "fp8", TinyHead()) / "model.safetensors")
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "fp8" / "model.safetensors")
    with pytest.raises(
        ExportError, match=r"fc\.weight is of type F8_E4M3, not F32, F16, BF16\): save it in one of these"
    ):
        read_head(tmp_path / "fp8")
    path = write_gguf(tmp_path / "gguf", TinyHead())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ExportError, match="truncated or damaged"):
        read_head(path)
    folder = write_flat(tmp_path / "pickle", TinyHead(), pickled=True)
    torch.save({1: torch.zeros(2)}, folder / "pytorch_model.bin")
    with pytest.raises(ExportError, match="no drafting head"):
        read_head(folder)
    for odd in (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, 2).to_sparse(), torch.zeros(2, device="meta")):
        torch.save({"fc.weight": odd}, folder / "pytorch_model.bin")
        with pytest.raises(ExportError, match="is damaged, or holds more than tensors"):
            read_head(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Path}))
    with pytest.raises(ExportError, match="holds more than tensors: a file of safetensors is needed") as error:
        read_head(folder)
    assert "\n" not in str(error.value)
    (folder / "config.json").write_text(json.dumps([]), encoding="utf-8")
    with pytest.raises(ExportError, match=r"no config\.json"):
        read_head(folder)


def test_layers_are_the_inputs_in_every_layout(tmp_path: Path) -> None:
    head = replace(TinyHead(), layers=(3, 9, 14))
    for layout, write in LAYOUTS.items():
        assert read_head(write(tmp_path / layout, head)).shape.taps == (3, 9, 14)
    folder = write_flat(tmp_path / "unsaid", head, eagle_config=None)
    assert read_head(folder).shape.taps == ()


def test_quantized_matrices_of_a_file_keep_their_blocks(tmp_path: Path) -> None:
    first = written(write_flat(tmp_path / "flat", TinyHead()), bits=8)
    (tmp_path / "head.gguf").write_bytes(first)
    assert written(tmp_path / "head.gguf", bits=4) == first
    assert np.array_equal(read_head(tmp_path / "head.gguf").ids, TinyHead().ids())
