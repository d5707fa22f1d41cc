"""One run: find what is known, load and measure the rest, record, show."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.bench import table
from experiments.bench.config import Config
from experiments.bench.digest import code_of, libraries_of, measured_code
from experiments.bench.environment import device_name
from experiments.bench.measure import measure
from experiments.bench.progress import progress
from experiments.bench.record import Record, key_of
from experiments.bench.store import Keeper, Store
from experiments.sddmm import methods
from experiments.sddmm.case import definition, device_of, make_case, source_of
from experiments.sddmm.methods import Method


def run(name: str, config: Config) -> list[Record]:
    """Measure the methods on matrix `name`, print the table, return its records.

    A row that the store holds is shown from there; the others are measured, interleaved with each
    other, and the table says which rows are of different runs. Raises RecordsLost or RowsFailed,
    when the table has been printed, if a record was not kept or a row is wrong or failed.
    """
    chosen = methods.select(list(config.methods))
    store = Store(config.records, Record)
    defined = definition(source_of(config))
    keys = {method: _key(config, defined, method, chosen[method]) for method in chosen}
    known = {} if config.force else store.load()
    found = {method: known[key] for method, key in keys.items() if key in known}
    missing = {method: chosen[method] for method in chosen if method not in found}
    keep = Keeper(store)
    measured: list[Record] = []
    if missing:
        store.refuse_unwritable()
        with progress() as say:
            say(f"{name}: loading")
            case = make_case(name, config, defined)
            measured = measure(case, config, missing, keys, say, keep)
    fresh = {record.method: record for record in measured}
    # The same matrix may have been measured under another name.
    records = [fresh.get(m) or replace(found[m], matrix=name) for m in chosen]
    _show(records, device_name(device_of(config)), [record.key for record in found.values()])
    keep.finish({record.method: record.status for record in records})
    return records


def _show(records: Sequence[Record], device: str, cached: Sequence[str]) -> None:
    print(f"on {device}")
    if sentence := methods.introduction(record.method for record in records):
        print(sentence)
    print(table.as_text(table.rows(records, cached)))
    for note in table.notes(records):
        print(f"  {note}")
    print(flush=True)


def _key(config: Config, defined: dict[str, Any], name: str, method: Method) -> str:
    """The digest of what is measured: the case, the method's code, the device."""
    device = device_of(config)
    files = [Path(path)] if (path := getattr(method, "__file__", None)) else []
    return key_of(
        {
            # A file is known by its content, wherever it lies.
            "definition": {what: value for what, value in defined.items() if what != "path"},
            "loader": code_of(Path(inspect.getfile(source_of(config).loader()))),
            "k": config.k,
            "dtype": config.dtype,
            "seed": config.seed,
            "timing": vars(config.timing),
            "method": name,
            "code": measured_code(*files),
            "libraries": libraries_of(*files),
            "device": device_name(device),
            "threads": None if device.startswith("cuda") else torch.get_num_threads(),
        }
    )
