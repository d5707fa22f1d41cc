"""One random use of the package, as plain fields, and how it is drawn from a seed."""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass
from typing import Any

HALF = ("float16", "bfloat16")
DTYPES = (*HALF, "float32", "float64")
SCIPY = ("scipy_coo", "scipy_csr", "scipy_csc")
NUMPY = (*SCIPY, "tuple_numpy", "pattern_numpy")
KINDS = (
    "torch_csr", "torch_coo", "torch_coo_uncoalesced", "torch_bsr", "pattern_csr", "pattern_coo",
    "pattern_bsr", "tuple", *NUMPY,
)  # fmt: skip
WITH_VALUES = ("torch_csr", "torch_coo", "torch_coo_uncoalesced", "torch_bsr", *SCIPY)
BLOCKED = ("torch_bsr", "pattern_bsr")
COMPRESSED = ("torch_csr", "pattern_csr", "scipy_csr", "scipy_csc", *BLOCKED)
DENSITIES = ("empty", "one", "row", "column", "full", "tiles", "diagonal", "power", "random")
STRIDES = (
    "contiguous", "transposed", "stepped", "every_second_row", "padded", "offset", "misaligned",
    "broadcast_rows", "broadcast_all", "broadcast_heads", "heads_inner", "negated",
)  # fmt: skip
SPECIALS = ("nan", "inf", "inf_rows", "mixed", "subnormal", "zeros", "large", "wide", "near_max")
ENTRIES = ("sddmm", "sampled_addmm", "plan", "plan_out", "op", "spmm", "attention")
_DRAWN_ENTRIES = ENTRIES[:-1]
AGAIN = ("repeat", "copy", "deepcopy", "pickle")
CHANGES = ("values", "in_place", "original", "data", "refill", "fresh", "out_of_range")
HOSTILE = (
    "k", "m", "n", "dtype_b", "one_dimension", "heads", "integer_a", "complex_a", "sparse_a",
    "meta_a", "index_high", "index_negative", "crow_falls", "precision", "backend", "kernel",
    "out_dtype", "out_shape", "out_strides", "values_dtype",
)  # fmt: skip

_EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 151, 152, 153, 223, 224, 225, 255, 256)
_EDGES = (*_EDGES, 257)
_INNER = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200)
_BLOCKS = (1, 2, 3, 7, 16, 17, 32, 64)
_LONG_INNER = (255, 256, 257, 512, 1000, 1024, 1030, 2053)
_ALPHAS = (0.0, -1.0, 0.5, -2.75, 0.1, 1e-6, 1e6, 1e-30, 1e30, 3e-39)
# Elements of both operands, and products, of one case at most.
_ELEMENTS = {"cpu": 400_000, "cuda": 4_000_000, "emulated": 60_000}
_PRODUCTS = {"cpu": 1_500_000, "cuda": 40_000_000, "emulated": 300_000}


@dataclass(frozen=True)
class Case:
    """What is called, and with what. `seed` decides the numbers, the other fields the rest.

    kind: of S. order: of the nonzeros, "sorted", "shuffled" or "columns" (unsorted within a row).
    again: what follows the first call on the same object. change: what happens to S before one more
    call. hostile: what is wrong with the arguments. gradients: with respect to a, b, S's values.
    device: "cpu", "cuda", or "emulated", where GPU kernels run on CPU tensors. block_m, block_n: of
    BSR, the size of its blocks. max_nnz: nonzeros are cut off there. An entry "spmm" multiplies by
    b's rows, (n, k), or with `transpose` by a; values_have_heads: each head then has its own. An
    entry "attention" has a as q, b's rows as k and v, alpha as the scale and, with `scale`, the
    values as bias; dropout: the probability with which it drops a weight.
    """

    seed: int = 0
    device: str = "cpu"
    m: int = 5
    n: int = 4
    k: int = 3
    heads: int | None = None
    dtype: str = "float32"
    out_dtype: str | None = None
    precision: str = "ieee"
    kind: str = "pattern_coo"
    index_dtype: str = "int64"
    order: str = "sorted"
    block_m: int = 1
    block_n: int = 1
    density: str = "random"
    filled: float = 0.1
    duplicates: str = "none"
    max_nnz: int = 20_000
    index_strides: int = 1
    value_strides: int = 1
    strides_a: str = "contiguous"
    strides_b: str = "transposed"
    numpy_operands: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    scale: bool = True
    transpose: bool = False
    values_have_heads: bool = False
    dropout: float = 0.0
    backend: str | None = None
    kernel: str | None = None
    special: str | None = None
    entry: str = "sddmm"
    gradients: str = ""
    again: str | None = None
    change: str | None = None
    hostile: str | None = None
    threads: int = 1

    def __str__(self) -> str:
        """As Python makes it again: the fields that are not the default."""
        told = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Case({', '.join(told)})"

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @property
    def on(self) -> str:
        """The device of the tensors."""
        return "cuda" if self.device == "cuda" else "cpu"

    @property
    def out(self) -> str:
        """The dtype of the values that come out."""
        return self.out_dtype or self.dtype

    @property
    def has_values(self) -> bool:
        return self.kind in WITH_VALUES or self.entry in ("op", "spmm", "attention")

    @property
    def dense(self) -> str:
        """The operand that spmm multiplies by."""
        return "a" if self.transpose else "b"

    @property
    def weighted(self) -> bool:
        """Whether S's values take part."""
        if self.entry in ("sampled_addmm", "spmm"):
            return self.has_values
        return self.has_values and self.scale


def draw(seed: int, number: int, device: str = "cpu", kernels: tuple[str, ...] = ()) -> Case:
    """Case `number` of `seed`. kernels: names that may be demanded (where there is a GPU)."""
    rng = random.Random(f"sddmm {seed} {number}")
    fields: dict[str, Any] = {"seed": rng.randrange(2**31), "device": device}
    for part in (_sizes, _types, _pattern, _operands, _scaling):
        part(rng, fields)
    _call(rng, fields, kernels)
    _later(rng, fields)
    others = random.Random(f"sddmm attention {seed} {number}")
    if others.random() < 0.12:
        fields.update(entry="attention", backend=None, kernel=None)
        fields["dropout"] = _rarely(others, 0.3, (0.2, 0.7, 1.0), 0.0)
    _fit(rng, fields)
    return Case(**fields)


def _rarely(rng: random.Random, probability: float, options: tuple[Any, ...], usual: Any) -> Any:
    return rng.choice(options) if rng.random() < probability else usual


def _size(rng: random.Random) -> int:
    draw = rng.random()
    if draw < 0.03:
        return 0
    if draw < 0.1:
        return 1
    if draw < 0.35:
        return rng.randrange(2, 15)
    return rng.choice(_EDGES) if draw < 0.8 else rng.randrange(2, 400)


def _sizes(rng: random.Random, fields: dict[str, Any]) -> None:
    m, n = _size(rng), _size(rng)
    large = fields["device"] == "cuda" and rng.random() < 0.15
    if large:
        m, n = rng.randrange(500, 5000), rng.randrange(500, 5000)
    elif rng.random() < 0.1:  # skinny
        m, n = rng.randrange(1, 5), rng.randrange(300, 3000)
        m, n = (m, n) if rng.random() < 0.5 else (n, m)
    heads = _rarely(rng, 0.25, (1, 2, 3, 3, 3), None)
    heads = 0 if rng.random() < 0.01 else heads
    long = rng.random() < 0.15 and fields["device"] != "emulated"
    k = rng.choice(_LONG_INNER if long else _INNER)
    inner = [x for x in (k, *_INNER[::-1]) if x <= k]
    most = _ELEMENTS[fields["device"]]
    k = next(x for x in inner if (m + n) * x * (heads or 1) <= most)
    products = _PRODUCTS[fields["device"]] // max(1, k * (heads or 1))
    most_nnz = max(50, min(300_000 if large else 20_000, products))
    fields.update(m=m, n=n, k=k, heads=heads, max_nnz=most_nnz)


def _types(rng: random.Random, fields: dict[str, Any]) -> None:
    dtype = rng.choice(DTYPES)
    out = rng.choice(DTYPES) if rng.random() < 0.15 else _rarely(rng, 0.3, ("float32",), None)
    if fields["device"] == "emulated" and out is not None:
        out = "float32"  # each other one is another kernel to compile
    precision = "ieee"
    if dtype == "float32":
        precision = _rarely(rng, 0.35, ("tf32x3", "tf32"), "ieee")
    fields.update(dtype=dtype, out_dtype=out, precision=precision)


def _pattern(rng: random.Random, fields: dict[str, Any]) -> None:
    kinds = KINDS if fields["device"] == "cpu" else tuple(x for x in KINDS if x not in NUMPY)
    fields.update(
        kind=rng.choice(kinds),
        block_m=rng.choice(_BLOCKS),
        block_n=rng.choice(_BLOCKS),
        index_dtype=rng.choice(("int32", "int64")),
        order=rng.choice(("sorted", "sorted", "shuffled", "columns")),
        density=rng.choice(DENSITIES) if rng.random() < 0.6 else "random",
        filled=rng.choice((0.002, 0.01, 0.03, 0.1, 0.3, 0.6)),
        duplicates=_rarely(rng, 0.2, ("some", "some", "one_position", "more_than_mn"), "none"),
        index_strides=_rarely(rng, 0.15, (2, 3), 1),
        value_strides=_rarely(rng, 0.1, (2, 3), 1),
    )


def _operands(rng: random.Random, fields: dict[str, Any]) -> None:
    fields.update(
        strides_a=_rarely(rng, 0.6, STRIDES, "contiguous"),
        strides_b=_rarely(rng, 0.6, STRIDES, rng.choice(("contiguous", "transposed"))),
        special=_rarely(rng, 0.3, SPECIALS, None),
        numpy_operands=fields["kind"] in NUMPY and rng.random() < 0.4,
    )


def _scaling(rng: random.Random, fields: dict[str, Any]) -> None:
    fields.update(
        alpha=_rarely(rng, 0.5, _ALPHAS, 1.0),
        beta=_rarely(rng, 0.6, (*_ALPHAS, 0.0), 1.0),
        scale=rng.random() < 0.8,
        transpose=rng.random() < 0.5,
        values_have_heads=rng.random() < 0.5,
    )


def _call(rng: random.Random, fields: dict[str, Any], kernels: tuple[str, ...]) -> None:
    entry = rng.choice(_DRAWN_ENTRIES)
    if entry == "sampled_addmm" and fields["kind"] not in WITH_VALUES and rng.random() < 0.95:
        entry = "sddmm"
    if entry == "op" and fields["kind"] in NUMPY:
        entry = "plan"
    backend = kernel = None
    if entry in ("plan", "plan_out"):
        mine, other = ("cpu", "cuda") if fields["device"] == "cpu" else ("cuda", "cpu")
        backend = _rarely(rng, 0.4, ("torch_csr", "torch_csr", "reference", mine), None)
        if rng.random() < 0.01:
            backend = other
        if kernels and rng.random() < 0.6:
            backend, kernel = None, rng.choice(kernels)
            _suit(rng, fields, kernel)
    gradients = ""
    if rng.random() < 0.25:
        gradients = rng.choice(("a", "b", "ab", "ab", "v", "abv", "abv"))
    fields.update(entry=entry, backend=backend, kernel=kernel, gradients=gradients)
    fields["threads"] = rng.choice((1, 1, 2, 3))


def _suit(rng: random.Random, fields: dict[str, Any], kernel: str) -> None:
    """A dtype and a precision that the kernel computes, nine times out of ten."""
    if rng.random() < 0.1:
        return
    if "tf32" in kernel:
        precision = "tf32x3" if "tf32x3" in kernel else "tf32"
        fields.update(dtype="float32", precision=precision)
    elif kernel.startswith("tile_wmma"):
        fields.update(dtype="float16", precision="ieee")
    elif kernel.startswith("block_simt"):
        fields.update(dtype="float32")
    elif kernel.startswith(("tile", "block")):
        fields.update(dtype=rng.choice(HALF), precision="ieee")


def _later(rng: random.Random, fields: dict[str, Any]) -> None:
    fields.update(
        again=_rarely(rng, 0.35, AGAIN, None),
        change=_rarely(rng, 0.3, CHANGES, None),
        hostile=_rarely(rng, 0.06, HOSTILE, None),
    )


def _fit(rng: random.Random, fields: dict[str, Any]) -> None:
    """Leave out what cannot be built: it is no matter of the package."""
    kind, entry = fields["kind"], fields["entry"]
    _fit_blocks(fields)
    if kind in SCIPY:
        if fields["dtype"] in HALF:
            fields["dtype"] = rng.choice(("float32", "float64"))
        if fields["out_dtype"] in HALF and rng.random() < 0.9:
            fields["out_dtype"] = None
    if fields["dtype"] != "float32":
        fields["precision"] = "ieee"
    if entry == "sampled_addmm":
        fields.update(out_dtype=None, precision="ieee")
    if kind in ("torch_coo", "torch_coo_uncoalesced") and entry != "op":
        fields["index_dtype"] = "int64"  # torch converts to these
    if kind == "torch_coo":  # coalesced
        fields.update(order="sorted", duplicates="none")
    if kind in COMPRESSED and fields["order"] == "shuffled":
        fields["order"] = "columns"
    if fields["numpy_operands"]:
        if fields["dtype"] == "bfloat16":
            fields["dtype"] = "float16"
        if fields["out_dtype"] == "bfloat16":
            fields["out_dtype"] = None
        fields["gradients"] = ""
    if fields["heads"] is None:
        for name in ("strides_a", "strides_b"):
            if fields[name] in ("broadcast_heads", "heads_inner"):
                fields[name] = "contiguous"
    has_values = kind in WITH_VALUES or entry in ("op", "spmm", "attention")
    if fields["change"] == "values" and not has_values:
        fields["change"] = None
    if "v" in fields["gradients"] and not has_values:
        fields["gradients"] = fields["gradients"].replace("v", "") or "a"
    if kind in SCIPY and not fields["numpy_operands"]:  # which carry no gradients
        fields["gradients"] = _rarely(rng, 0.02, ("a", "b", "ab"), "")
    if entry == "plan_out" and rng.random() < 0.9:
        fields["gradients"] = ""
    if kind == "torch_coo_uncoalesced" and entry != "op":  # of whose values torch has no gradient
        sparse = entry in ("sddmm", "sampled_addmm")
        fields["gradients"] = "" if sparse else fields["gradients"].replace("v", "")
    if (
        kind in ("torch_csr", "torch_coo", "torch_bsr")
        and "plan" in entry
        and fields["change"] is not None
    ):
        # The values of a tensor that requires a gradient are a view, which forbids changes of it.
        fields["gradients"] = fields["gradients"].replace("v", "")
    if fields["again"] == "deepcopy" and kind in ("torch_csr", "torch_bsr") and "plan" not in entry:
        fields["again"] = "copy"  # torch copies no compressed tensor
    if fields["again"] in ("copy", "deepcopy", "pickle") and kind in WITH_VALUES:
        # torch copies leaves only, and S is none if its values require a gradient
        fields["gradients"] = fields["gradients"].replace("v", "")
    if fields["hostile"] is not None:
        fields.update(again=None, change=None, gradients="", backend=None, kernel=None)
        if entry == "sampled_addmm" and not has_values:
            fields["entry"] = "sddmm"
    if fields["entry"] in ("spmm", "attention"):
        _fit_product(fields)
    else:
        fields.update(transpose=False, values_have_heads=False)


def _fit_blocks(fields: dict[str, Any]) -> None:
    """Sizes that the blocks divide."""
    for size, block in (("m", "block_m"), ("n", "block_n")):
        if fields["kind"] not in BLOCKED:
            fields[block] = 1
            continue
        fields[block] = max(1, min(fields[block], fields[size]))
        fields[size] -= fields[size] % fields[block]
    if fields["kind"] in BLOCKED:
        fields["value_strides"] = 1  # torch makes blocks of them without a copy


def _fit_product(fields: dict[str, Any]) -> None:
    """Leave out what only an SDDMM has, and what is wrong with the arguments of one."""
    fields["precision"] = "ieee"
    if fields["hostile"] not in ("index_high", "index_negative", "crow_falls", "out_dtype", None):
        fields["hostile"] = None
    dense = "a" if fields["transpose"] else "b"
    if fields["heads"] is None or fields["kind"] in WITH_VALUES:
        fields["values_have_heads"] = False
    if fields["entry"] == "attention":
        _fit_attention(fields)
        return
    kept = dense if fields["kind"] in (*SCIPY, "torch_coo_uncoalesced") else dense + "v"
    fields["gradients"] = "".join(x for x in fields["gradients"] if x in kept)


def _fit_attention(fields: dict[str, Any]) -> None:
    """Scores of moderate size: exponentials make all of the others infinite, or nothing."""
    fields.update(out_dtype=None, transpose=False)
    if abs(fields["alpha"]) > 3 or 0 < abs(fields["alpha"]) < 1e-20:
        fields["alpha"] = 1.0
    if fields["special"] not in ("nan", "zeros", "subnormal"):
        fields["special"] = None
    if fields["special"] == "nan" or not fields["scale"]:
        fields["gradients"] = fields["gradients"].replace("v", "")
    if fields["special"] == "nan":
        fields["gradients"] = ""
    if fields["change"] == "values":  # S's own are not read
        fields["change"] = None
    if fields["hostile"] == "out_dtype":
        fields["hostile"] = None
