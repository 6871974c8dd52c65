"""Products on a CPU: what other packages multiply is what our schemes say, in as many bytes.

If these fail, the Speed section compares times of something else than it names.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from explorer.analysis.report import sqnr_of
from explorer.core.quantize import quantize
from explorer.cpu import kernels, llama, torch_kernels
from explorer.cpu.kernels import Library, thread_counts, torch_threads
from explorer.cpu.products import CPU_PRODUCTS, FIRST, FORMER, ROWS, find, in_order, product_of, products_for
from explorer.cpu.sentences import TERNARY
from explorer.products.gemms import GEMMS
from explorer.schemes import SCHEMES
from tests.covering import by_pairs, parts_of

M, N, K = 3, 64, 512
X_ROUNDED_BLOCKS_DB = 42.0
"""What 8 bits in blocks leave of X."""
X_ROUNDED_DB = 29.0
"""At least that exact is a product whose X is rounded to 8 bits, or to 7 with one scale for all of it."""
EVERY = {f"{row.name}-{kernel.name}": (row, kernel) for row in ROWS for kernel in row.kernels}


def kinds(name: str) -> tuple[object, ...]:
    """A kernel's library, the types that it multiplies, and its scheme's format and block."""
    row, kernel = EVERY[name]
    return kernel.library.label, kernel.core, *parts_of(row.w)[:2]


@pytest.fixture(scope="module")
def sides() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(M, K, generator=generator), torch.randn(N, K, generator=generator) / math.sqrt(K)


@pytest.mark.parametrize("name", by_pairs(list(EVERY), kinds))
def test_a_kernel_multiplies_by_the_weights_of_its_scheme(name: str, sides: tuple[Tensor, Tensor]) -> None:
    """Against the float64 product of the restored weights; llama.cpp chooses codes of its own, which are at
    most 2 dB worse than ours. Bytes are those that the scheme has, scales included."""
    row, kernel = EVERY[name]
    if kernel.library.missing:
        pytest.skip(kernel.library.missing)
    x, w = sides
    restored = quantize(w, row.w).dequantize()
    held = kernel.hold(w, row.w)
    y = held.bind(x, 1)().double()
    assert y.shape == (M, N)
    if row.name.removeprefix("w_") in llama.BY_SCHEME:
        exact = x.double() @ w.double().t()
        ours = sqnr_of(exact, x.double() @ restored.double().t())
        together = -10 * math.log10(10 ** (-ours / 10) + 10 ** (-X_ROUNDED_BLOCKS_DB / 10))
        assert sqnr_of(exact, y) > together - 2.0
        assert held.nbytes * 8 == row.w.bits_per_element((N, K)).total * w.numel()
    else:
        assert sqnr_of(x.double() @ restored.double().t(), y) > X_ROUNDED_DB
        bits = 2 if row.name == TERNARY else row.w.format.bits
        assert 0.8 * bits <= held.nbytes * 8 / w.numel() <= bits + 1


def test_ternary_weights_take_as_many_bits_as_their_types_say(sides: tuple[Tensor, Tensor]) -> None:
    """TQ1_0 packs five of them into a byte, TQ2_0 four; each block of 256 has a float16."""
    if llama.LLAMA.missing:
        pytest.skip(llama.LLAMA.missing)
    bits = [kernel.hold(sides[1], CPU_PRODUCTS[TERNARY].w).nbytes * 8 / (N * K) for kernel in llama.TERNARY]
    assert bits == [2.0625, 1.6875]


def test_what_a_library_cannot_multiply_is_said(sides: tuple[Tensor, Tensor]) -> None:
    if llama.LLAMA.missing:
        pytest.skip(llama.LLAMA.missing)
    with pytest.raises(ValueError, match=r"256.*64"):
        llama.BY_SCHEME["q4_k"].hold(sides[1][:, :64].contiguous(), SCHEMES["q4_k"])


@pytest.mark.parametrize("columns", [1, 40, 48])
def test_what_torch_would_read_beyond_its_end_is_refused(columns: int) -> None:
    """The process ended, for a visitor's product of [7, 3, 40]."""
    row = CPU_PRODUCTS["w8_row"]
    with pytest.raises(ValueError, match="multiple of 32"):
        row.kernels[0].hold(torch.ones(3, columns), row.w)


@pytest.mark.parametrize("shape", [(1 << 22, 1), (1 << 22, 16), (1, 1 << 26)])
def test_what_torch_would_write_beyond_its_end_is_refused(shape: tuple[int, int]) -> None:
    """The page ended for everybody, by one link."""
    with pytest.raises(ValueError, match="linear_prepack"):
        torch_kernels.DYNAMIC.hold(torch.ones(1).expand(shape), SCHEMES["int8_row"])


def test_groups_of_uneven_rows_are_refused_in_words() -> None:
    """The refusal was torch's, of a shape that nobody had asked for."""
    row = CPU_PRODUCTS["w4_group32"]
    kernel = next(one for one in row.kernels if one.name.startswith("ONNX Runtime"))
    with pytest.raises(ValueError, match="rows of 40 values are no whole groups of 32"):
        kernel.hold(torch.ones(3, 40), row.w)


def test_a_build_without_a_function_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, another version of the package ends the process."""
    if llama.LLAMA.missing:
        pytest.skip(llama.LLAMA.missing)
    monkeypatch.setitem(llama._FUNCTIONS, "ggml_nope", (None,))
    with pytest.raises(ValueError, match="ggml_nope"):
        llama._Ggml()


def test_rows_are_found_by_name_and_by_scheme() -> None:
    """One table model: a CPU's rows and a GPU's carry the same facts, and a scheme finds those of either."""
    assert list(CPU_PRODUCTS) == list(dict.fromkeys(row.name for row in ROWS))
    assert set(FIRST) <= set(CPU_PRODUCTS) and set(in_order(CPU_PRODUCTS)) == set(CPU_PRODUCTS)
    assert in_order(["bf16", "w4_group32"]) == ["w4_group32", "bf16"]
    assert all(find(old) is CPU_PRODUCTS[new] for old, new in FORMER.items())
    for name in set(CPU_PRODUCTS) & set(GEMMS):
        assert CPU_PRODUCTS[name].label == GEMMS[name].label and CPU_PRODUCTS[name].w == GEMMS[name].w
    assert products_for(SCHEMES["int4_group128"], True) == ["w4_group128"]
    assert "w4a16_group128" in products_for(SCHEMES["int4_group128"], False)
    assert product_of("w4_group128", False) is None and product_of("nvfp4", False) is GEMMS["nvfp4"]
    with pytest.raises(ValueError, match=r"nvfp4.*fp32"):
        find("nvfp4")


def test_a_missing_library_says_how_to_install_it() -> None:
    assert Library("torch", ("torch",), "").missing == ""
    said = Library("x", ("nope_a", "torch", "nope_b"), "pip install nope-a nope-b").missing
    assert "nope_a and nope_b" in said and "pip install nope-a nope-b" in said


def test_threads_are_tried_in_powers_of_two_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable_threads", lambda: 6)
    assert thread_counts() == (1, 2, 4, 6)
    monkeypatch.setattr(kernels, "usable_threads", lambda: 1)
    assert thread_counts() == (1,)
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
