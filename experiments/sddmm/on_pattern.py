"""The part that objectives on a sparse matrix share: SDDMM, SpMM, attention, training steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from experiments.bench.arguments import is_file_option
from experiments.bench.digest import Code, file_of
from experiments.bench.environment import device_name
from experiments.bench.methods import Method, MethodFolder, Run
from experiments.bench.objective import Objective
from experiments.sddmm import ahead, columns, reproduce
from experiments.sddmm.case import definition, device_of, source_of
from experiments.sddmm.config import Config, default_records
from experiments.sddmm.folder import cases_of
from experiments.sddmm.forced_kernel import ForcedKernel
from experiments.sddmm.labels import shown_names
from experiments.sddmm.problems import problems_of
from experiments.sddmm.record import Record
from experiments.sddmm.unseen import OfPattern
from sddmm import testing

if TYPE_CHECKING:
    from experiments.pictures.picture import Picture


# A case also has the fields of a record that name it, apart from the sizes.
CaseT = TypeVar("CaseT", bound=OfPattern)
RecordT = TypeVar("RecordT", bound=Record)


class OnPattern(Objective[Config, Method, CaseT, RecordT]):
    """An objective whose cases are a matrix, an inner dimension, heads and a dtype."""

    command = "run"
    implied = frozenset({"sparsity"})
    # The value of the key `objective` that chooses it.
    name: ClassVar[str]
    # The files of its methods.
    folder: ClassVar[MethodFolder]
    # Makes a case of its label, its configuration and, if it is known, its matrix's definition.
    draw_case: Callable[..., CaseT]
    # What `ahead.py` says of them.
    compiled_nnz: int | None = None
    compiled_apart: Collection[str] = ()
    # sddmm/__init__.py names sddmm.testing, so the digest follows it, but no time depends on it.
    unmeasured = tuple(file_of(testing).parent.glob("*.py"))
    columns, short = columns.ON_PATTERN, columns.SHORT

    def names(self) -> Sequence[str]:
        return self.folder.names()

    def methods(self, config: Config) -> Mapping[str, Method]:
        kernels = self.forced_kernels() if config.kernels else {}
        return {**self.folder.select(list(config.methods)), **kernels}

    def forced_kernels(self) -> Mapping[str, Method]:
        """Each of our kernels as a method, for studies of the planner's choice."""
        return {}

    def cases(self, config: Config, choices: Mapping[str, str]) -> Sequence[tuple[str, Config]]:
        if config.folder or choices.get("study") == "folder":
            return cases_of(config)
        return problems_of(config) if config.problems else super().cases(config, choices)

    def warm_caches(self, configs: Sequence[Config]) -> None:
        if len(configs) > 1 and configs[0].warm:
            self.fill_caches(configs)

    def fill_caches(self, configs: Sequence[Config]) -> None:
        """Generate and compile in parallel what these cases need."""
        ahead.fill_caches(self, configs)

    def compiled_ahead(self, config: Config) -> Sequence[str]:
        """The names of the methods, and of the kernels, that are compiled before a study."""
        return (self.ours, *self.forced_kernels())

    def device(self, config: Config) -> str:
        return device_of(config)

    def label(self, config: Config, choices: Mapping[str, str]) -> str:
        name = choices["matrix"]
        return str(config.matrix.path) if is_file_option(name) else name

    def identity(self, config: Config) -> dict[str, Any]:
        source = source_of(config)
        loader = Code((file_of(source.loader()),), measuring=())
        return {
            # A file is identified by its content, whatever its path.
            "definition": {key: v for key, v in definition(source).items() if key != "path"},
            "loader": loader.digest(),
            "k": config.k,
            "dtype": config.dtype,
            "heads": config.heads,
            "seed": config.seed,
        }

    def make_case(self, label: str, config: Config, identity: Mapping[str, Any]) -> CaseT:
        return self.draw_case(label, config, identity["definition"])

    def case_fields(self, case: CaseT) -> dict[str, Any]:
        names = ("matrix", "definition", "k", "dtype", "seed", "heads", "family")
        m, n = case.pattern.shape
        return {name: getattr(case, name) for name in names} | {
            "m": m, "n": n, "nnz": case.pattern.nnz
        }  # fmt: skip

    def method_identity(self, method: Method) -> dict[str, Any]:
        return {"kernel": method.kernel} if isinstance(method, ForcedKernel) else {}

    def method_fields(self, name: str, method: Method) -> dict[str, Any]:
        return {"method": name, "kernel": getattr(method, "kernel", "")}

    def times_first_call(self, method: Method) -> bool:
        """Neither a kernel by its name nor a yardstick is a call that a user makes once."""
        return not isinstance(method, ForcedKernel) and not is_yardstick(method)

    def first_call(self, method: Method, case: Any) -> Run:
        """The method's public call, or prepare and run, on a copy of the indices."""
        unseen = case.with_unseen_indices()
        public_call: Callable[[Any], Run] | None = getattr(method, "public_call", None)
        if public_call is not None:
            return public_call(unseen)
        return lambda: method.prepare(unseen)()

    def renamed(self, record: RecordT, label: str) -> RecordT:
        """The record under the name `label`: its matrix may have been measured under another."""
        return replace(record, matrix=label)

    def heading(self, config: Config) -> str:
        return f"on {device_name(device_of(config))}"

    @property
    def default_records(self) -> str:
        return default_records(self.name)

    def case_title(self, label: str, config: Config) -> str:
        heads = f", {config.heads} heads" if config.heads > 1 else ""
        scaled = ", scaled" if config.scaled else ""
        return f"{label}, K {config.k}, {config.dtype}{heads}{scaled}"

    def labels(self, records: Sequence[RecordT]) -> dict[tuple[object, ...], dict[str, str]]:
        names = shown_names(records)
        several_heads = any(r.heads > 1 for r in records)
        some_scaled = any(r.scaled for r in records)
        return {
            r.case: {
                "matrix": names[r.case],
                "nnz": f"{r.nnz:,}",
                "sparsity": f"{r.sparsity * 100:.4f}".rstrip("0").rstrip(".") + "%",
                "K": str(r.k),
                "dtype": r.dtype,
                **({"heads": str(r.heads)} if several_heads else {}),
                **({"scaled": "yes" if r.scaled else "no"} if some_scaled else {}),
            }
            for r in records
        }

    def csv_case(self, record: RecordT) -> dict[str, object]:
        names = ("matrix", "m", "n", "nnz", "sparsity", "k", "dtype", "heads", "seed")
        return {name: getattr(record, name) for name in names}

    def commands(self, records: Sequence[RecordT]) -> list[str]:
        return reproduce.commands(self.name, records)

    def order(self, record: RecordT) -> tuple[Any, ...]:
        """By device, then size, then method."""
        r = record
        device, threads = r.place
        sizes = (r.m * r.n, r.matrix, r.dtype, -r.nnz, r.k, r.heads, r.seed)
        content = json.dumps(r.definition, sort_keys=True, default=str)
        names = self.names()
        rank = names.index(r.method) if r.method in names else len(names)
        return (device, threads or 0, *sizes, content, rank, r.method)

    def role(self, record: RecordT) -> str:
        return "kernel" if record.is_forced else super().role(record)

    def pictures(
        self, records: Sequence[RecordT], reference: str
    ) -> dict[str, Callable[[], Picture]]:
        from experiments.pictures import on_pattern

        return on_pattern.pictures(self, records, reference)


def is_yardstick(method: Method) -> bool:
    """Whether a method computes something else, which its function `reference` verifies."""
    return hasattr(method, "reference")
