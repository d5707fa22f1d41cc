"""What the objective `distributed` does on two ranks; `tests/sddmm/distributed` starts them."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from experiments.bench.config import Timing
from experiments.bench.sources import Uniform
from experiments.distributed.measure import divide, measure
from experiments.distributed.objective import DISTRIBUTED
from experiments.distributed.operations import OPERATIONS, verify
from experiments.sddmm.config import Config
from experiments.training.case import make_case

K, NNZ = 9, 400


def the_laboratory_verifies_and_measures_every_operation() -> None:
    config = Config(
        objective="distributed", matrix=Uniform(rows=50, cols=70, nnz=NNZ), k=K, device="cpu"
    )
    case = make_case("test", config)
    divided = divide(case, "ring", 1, torch.device("cpu"))
    fields = {**DISTRIBUTED.case_fields(case), "key": "key", "session": "one"}
    timing = Timing(seconds=0.0, min_samples=2, max_samples=3)
    for name, (call, _) in OPERATIONS.items():
        record = measure(name, divided, timing, fields)
        assert record.status == "ok", record.reason
        values = {"sddmm": NNZ, "spmm": 50 * K, "training": NNZ + (50 + 70) * K}
        assert record.checked == values[name]
        assert len(record.samples_ms) == len(record.ranks_ms[1]) == 2
        assert record.samples_ms[0] == max(record.ranks_ms[0][0], record.ranks_ms[1][0])
        assert len(record.one_ms) == (2 if dist.get_rank() == 0 else 0)
        assert record.messages_ms
        assert record.predicted_messages_ms
        kinds = [span[0] for span in record.spans[0]]
        assert kinds.count("compute") == (6 if name == "training" else 2)
        moved = {"sddmm": 35, "spmm": 35, "training": 3 * 35}  # of the 70 rows, the other rank's
        assert record.received_bytes == [moved[name] * K * 4] * 2
        results = call(divided.own)
        for i, result in enumerate(results):
            wrong = [x.clone() for x in results]
            wrong[i].view(-1)[-1] += 1 + result.abs().max()
            assert verify(name, case, divided.S, tuple(wrong)).wrong == 1, (name, i)
    on_wrong_rows = replace(divided.own, a=divided.own.a.flip(0))
    assert verify("sddmm", case, divided.S, OPERATIONS["sddmm"][0](on_wrong_rows)).wrong > 0
