"""One shape: every variant that serves it verified, then timed in turns with cuBLAS."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from experiments.bench.config import GemmConfig
from experiments.bench.digest import ROOT, libraries_of, measured_code
from experiments.bench.environment import device_name, environment
from experiments.bench.errors import ExperimentError
from experiments.bench.progress import progress
from experiments.bench.record import key_of, now
from experiments.bench.store import Keeper, Store
from experiments.bench.timing import interleaved_ms
from experiments.gemm import report, verify
from experiments.gemm.record import GemmRecord
from gemm_core.ladder.api import gemm, problem_of
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KERNEL_FOLDER, KernelSpec
from gemm_core.runtime.compile import compile_all, compile_kernel
from gemm_core.runtime.device import device

CUBLAS, CUBLAS_TF32 = "cublas", "cublas_tf32"

Product = Callable[[Tensor, Tensor, Tensor], None]


def run(config: GemmConfig) -> list[GemmRecord]:
    """Measure the variants at one shape, print the table, return the records.

    Variants that the store holds are shown from there, with cuBLAS of their session; the others are
    measured, and cuBLAS with them. Raises RecordsLost or RowsFailed, when the table has been
    printed, if a record was not kept or a row is wrong or failed.
    """
    if not torch.cuda.is_available():
        raise ExperimentError("gemm compares GPU kernels, but torch sees no CUDA device")
    store = Store(config.records, GemmRecord)
    chosen = variants(config)
    keys = {name: _key(config, name, spec) for name, spec in chosen.items()}
    records = [] if config.force else held(store.records(), keys)
    known = {record.variant for record in records}
    missing = [name for name in chosen if name not in known]
    keep = Keeper(store)
    if missing:
        store.refuse_unwritable()
        with progress() as say:
            measured = [name for name in chosen if name in missing or chosen[name] is None]
            records += _measure(config, {name: keys[name] for name in measured}, say, keep)
    print(
        f"{config.shape} {config.dtype}, sums in {config.accumulate}, b in rows of {config.b_rows}"
    )
    print(report.as_text(records), flush=True)
    keep.finish({record.variant: record.status for record in records})
    return records


def held(records: Sequence[GemmRecord], keys: dict[str, str]) -> list[GemmRecord]:
    """The newest record of each of these keys, and cuBLAS's of the same sessions."""
    wanted = {keys[name]: name for name in keys}
    own = [record for record in records if record.key in wanted]
    newest = {record.variant: record for record in own if not record.is_cublas}
    sessions = {record.session for record in newest.values()}
    cublas = {(r.session, r.variant): r for r in own if r.is_cublas and r.session in sessions}
    return sorted(
        [*cublas.values(), *newest.values()],
        key=lambda r: (r.date, r.session, list(keys).index(r.variant)),
    )


def variants(config: GemmConfig) -> dict[str, KernelSpec | None]:
    """cuBLAS, and the variants that compute this dtype with these sums, in the ladder's order."""
    dtype = getattr(torch, config.dtype)
    serving = {
        name: spec
        for name, spec in KERNELS.items()
        if dtype in spec.dtypes
        and config.accumulate in spec.accumulates
        and _B_LAYOUT[config.b_rows] in spec.b_layouts
    }
    for name in config.variants:
        if name not in serving:
            raise ExperimentError(
                f"no variant {name!r} of {config.dtype} with sums in {config.accumulate}; choose "
                f"from: {', '.join(serving)}"
            )
    chosen = {name: serving[name] for name in config.variants or serving}
    tf32 = any(spec.precision == "tf32" for spec in chosen.values())
    return {CUBLAS: None, **({CUBLAS_TF32: None} if tf32 else {}), **chosen}


# What measures a variant; and what stands behind a call, the list of the other variants aside.
_LAB = ROOT / "experiments"
_MEASURING = (
    *(_LAB / name for name in ("gemm/run.py", "gemm/verify.py", "bench/timing.py")),
    *(ROOT / "gemm_core" / "ladder" / name for name in ("api.py", "spec.py")),
)
_HOST = tuple(
    ROOT / "gemm_core" / "runtime" / name for name in ("compile.py", "launch.py", "tensor_map.py")
)

# The option b_rows names the rows of B as they are stored: n rows of k elements, or k rows of n.
_B_LAYOUT = {"n": "nk", "k": "kn"}


def _key(config: GemmConfig, name: str, spec: KernelSpec | None) -> str:
    """The digest of what is measured: the product, the variant with its code, the device."""
    files = [] if spec is None else [*_HOST, KERNEL_FOLDER / spec.source]
    return key_of(
        {
            "shape": config.shape,
            "dtype": config.dtype,
            "accumulate": config.accumulate,
            "b_rows": config.b_rows,
            "seed": config.seed,
            "timing": vars(config.timing),
            "variant": name,
            "device": device_name("cuda"),
            "spec": repr(
                spec and replace(spec, h200_tflops=0.0)
            ),  # by which choose() ranks, no more
            "code": measured_code(*files, measuring=_MEASURING),
            "libraries": libraries_of(*files),
        }
    )


def _measure(
    config: GemmConfig,
    keys: dict[str, str],
    say: Callable[[str], None],
    keep: Callable[[GemmRecord], None],
) -> list[GemmRecord]:
    """Records of the variants that have a key, kept as soon as nothing will change them."""
    session, date = uuid.uuid4().hex, now()
    chosen = {name: spec for name, spec in variants(config).items() if name in keys}
    m, n, k = config.sizes
    say(f"{config.shape}: float64 reference")
    random = verify.operands(*_draw(config, torch.randn))
    integers = verify.operands(*_draw(config, _small_integers))
    out = torch.empty(m, n, dtype=random.a.dtype, device="cuda")
    say(f"{config.shape}: compiling")
    _compile(chosen, config, random, out)
    records, runs, first_ms = {}, {}, {}
    for name, spec in chosen.items():
        say(f"{config.shape}: verifying {name}")
        record = records[name] = GemmRecord(
            key=keys[name],
            session=session,
            m=m,
            n=n,
            k=k,
            dtype=config.dtype,
            accumulate=config.accumulate,
            b_rows=config.b_rows,
            variant=name,
            baseline=CUBLAS_TF32 if spec is not None and spec.precision == "tf32" else CUBLAS,
            status="failed",
            environment=environment("cuda"),
            date=date,
        )
        product = _product(config, name, spec)
        if _is_right(record, spec, product, random, integers, out):
            runs[name] = partial(product, random.a, random.b, out)
            first_ms[name] = 0.0
        else:
            keep(record)
    say(f"{config.shape}: timing {len(runs)} variants")
    for name, samples in interleaved_ms(runs, first_ms, config.timing, "cuda").items():
        records[name].samples_ms = samples
        keep(records[name])
    return list(records.values())


def _compile(
    chosen: dict[str, KernelSpec | None], config: GemmConfig, random: verify.Operands, out: Tensor
) -> None:
    """What will be launched, by all cores instead of one after the other."""
    jobs = []
    for spec in filter(None, chosen.values()):
        problem = problem_of(random.a, random.b, out, config.accumulate, spec.precision)
        if spec.refuses(problem, device(0)) is None:
            jobs.append((KERNEL_FOLDER / spec.source, spec.macros(problem), device(0).arch))
    compile_all(jobs)


def _draw(config: GemmConfig, make: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    m, n, k = config.sizes
    generator = torch.Generator("cuda").manual_seed(config.seed)
    dtype = getattr(torch, config.dtype)
    a = make(m, k, generator=generator, device="cuda").to(dtype)
    if config.b_rows == "n":
        return a, make(n, k, generator=generator, device="cuda").to(dtype).T
    return a, make(k, n, generator=generator, device="cuda").to(dtype)


def _small_integers(rows: int, cols: int, **options: object) -> Tensor:
    """-1, 0, 1: sums over k of ten thousand are exact even in halves."""
    return torch.randint(-1, 2, (rows, cols), **options)  # type: ignore[call-overload, no-any-return]


def _product(config: GemmConfig, name: str, spec: KernelSpec | None) -> Product:
    if spec is None:
        return partial(_cublas, tf32=name == CUBLAS_TF32, accumulate=config.accumulate)
    options = {"kernel": name, "accumulate": config.accumulate, "precision": spec.precision}
    return lambda a, b, out: gemm(a, b, out=out, **options)


def _cublas(a: Tensor, b: Tensor, out: Tensor, *, tf32: bool, accumulate: str) -> None:
    with _settings(allow_tf32=tf32, allow_fp16_accumulation=accumulate == "fp16"):
        torch.mm(a, b, out=out)


@contextlib.contextmanager
def _settings(**wanted: bool) -> Iterator[None]:
    """torch.backends.cuda.matmul with these switches; one that is missing cannot be turned on."""
    switches = torch.backends.cuda.matmul
    before = {}
    for name, value in wanted.items():
        if not hasattr(switches, name):
            if value:
                raise ExperimentError(f"torch {torch.__version__} has no {name} for torch.mm")
            continue
        before[name] = getattr(switches, name)
        setattr(switches, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(switches, name, value)


def _is_right(
    record: GemmRecord,
    spec: KernelSpec | None,
    product: Product,
    random: verify.Operands,
    integers: verify.Operands,
    out: Tensor,
) -> bool:
    """Fills in the record's status, error and resources."""
    precision = "tf32" if record.variant == CUBLAS_TF32 else "ieee"
    if spec is not None:
        problem = problem_of(random.a, random.b, out, record.accumulate, spec.precision)
        reason = spec.refuses(problem, device(0))
        if reason is not None:
            record.status, record.reason = "skipped", reason
            return False
        macros, arch = spec.macros(problem), device(0).arch
        resources = compile_kernel(KERNEL_FOLDER / spec.source, macros, arch).resources
        record.registers, record.spill_bytes = resources.registers, resources.spill_bytes
        record.shared_bytes = spec.shared_bytes
        precision = spec.precision
    try:
        product(integers.a, integers.b, out.fill_(torch.nan))
        exact = verify.exact(out, integers)
        product(random.a, random.b, out.fill_(torch.nan))
        wrong = int((~verify.within_bound(out, random, record.accumulate, precision)).sum())
        record.error = verify.relative_error(out, random)
    except Exception as error:
        record.reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return False
    if not exact or wrong:
        told = "small integers are not exact" if not exact else f"{wrong} values beyond the bound"
        record.status, record.reason = "wrong", told
        return False
    record.status = "ok"
    return True
