"""What is tried on 2 and on 4 ranks. Each check runs on every rank at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import sddmm
from sddmm.distributed import DistributedPattern
from sddmm.testing import assert_spmm_close, poisoned_outputs
from tests.sddmm.distributed import attention, failures, volumes
from tests.sddmm.distributed.cases import (
    Case,
    divided,
    here,
    leaves,
    part,
    sampled,
    skewed,
    with_operands,
)
from tests.sddmm.distributed.host_memory import shared_memory

WAYS = ("ring", "rows", "slices", "row_slices")


def even(size: int) -> list[int]:
    """Cuts of `size` rows into a part for each rank."""
    ranks = dist.get_world_size()
    return [size * r // ranks for r in range(ranks + 1)]


def uneven(size: int) -> list[int]:
    """Cuts that leave the second rank without rows, and give the first one a row."""
    ranks = dist.get_world_size()
    return [0, 1, 1, *even(size)[3:-1], size][: ranks + 1] if ranks > 2 else [0, 0, size]


def require_close(got: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(got, expected, msg=lambda text: f"{what}: {text}")


def check_all_functions(case: Case, what: str) -> None:
    """Results and gradients of every function are this rank's part of one process's."""
    S, whole, own = case.S, case.whole, case.own
    a, b, w = leaves(case.a, case.b, case.weights)
    local = leaves(case.local_a, case.local_b, case.weights[own])
    pieces = [(..., S.rows, slice(None)), (..., S.columns), own]

    def compare(name: str, single: Tensor, mine: Tensor, at: object, used: str = "abw") -> None:
        require_close(mine, single[at], f"{what}: {name}")  # type: ignore[index]
        g = torch.randn(
            single.shape, dtype=single.dtype, generator=torch.Generator().manual_seed(2)
        ).to(single.device)
        chosen = ["abw".index(letter) for letter in used]
        wholes = torch.autograd.grad(single, [(a, b, w)[i] for i in chosen], g)
        locals_ = torch.autograd.grad(mine, [local[i] for i in chosen], g[at])  # type: ignore[index]
        for i, expected, got in zip(chosen, wholes, locals_, strict=True):
            require_close(got, expected[pieces[i]], f"{what}: gradient of {'abw'[i]} in {name}")

    values = (..., own)
    rows, columns = pieces[0], (..., S.columns, slice(None))
    with poisoned_outputs():
        compare("sddmm", sampled(whole, a, b, w, alpha=2.0), sampled(S, *local, alpha=2.0), values)
        compare(
            "sddmm without values",
            sddmm.sddmm(whole, a, b),
            sddmm.sddmm(S, *local[:2]),
            values,
            "ab",
        )
        dense = sddmm.sddmm(whole, a, b) * 0.5 + w * 3.0
        added = sddmm.sampled_addmm(S.with_values(local[2]), *local[:2], beta=3.0, alpha=0.5)
        compare("sampled_addmm", dense, added, values)
        forward = sddmm.spmm(whole, b.mT, values=w), sddmm.spmm(S, local[1].mT, values=local[2])
        compare("spmm", *forward, rows, "bw")
        back = (
            sddmm.spmm(whole, a, values=w, transpose=True, alpha=-1.5),
            sddmm.spmm(S, local[0], values=local[2], transpose=True, alpha=-1.5),
        )
        compare("spmm transposed", *back, columns, "aw")
        compare("softmax", sddmm.softmax(whole, w), sddmm.softmax(S, local[2]), values, "w")


def every_function_agrees_with_one_process() -> None:
    for way in WAYS:
        for cut in (even, uneven):
            case = divided(skewed(23, 23, 160), cut(23), way=way)
            check_all_functions(case, f"{way}, {cut.__name__}")
        check_all_functions(
            divided(skewed(23, 23, 160), even(23), way=way, heads=3), f"{way}, heads"
        )
        rectangular = divided(skewed(11, 30, 90), uneven(11), even(30), way=way)
        check_all_functions(rectangular, f"{way}, rectangular")


def ranks_may_have_no_nonzeros_no_rows_and_no_columns() -> None:
    for way in WAYS:
        check_all_functions(divided(skewed(9, 9, 0), even(9), way=way), f"{way}, no nonzeros")
        few = divided(skewed(1, 2, 3), [0, *[1] * dist.get_world_size()], way=way)
        check_all_functions(few, f"{way}, more ranks than rows")


def half_types_are_rounded_once() -> None:
    """The products of half types stay within the bound of one process's, which rounds once."""
    for way in WAYS:
        case = divided(skewed(40, 40, 900), even(40), way=way, dtype=torch.float16, k=130)
        product = sddmm.spmm(case.S, case.local_b.mT, values=case.weights[case.own])
        parts = [torch.empty(0)] * dist.get_world_size()
        dist.all_gather_object(parts, product.cpu())
        assert_spmm_close(torch.cat(parts).to(here()), case.whole, case.b.mT, values=case.weights)


def panels_change_no_bits_and_all_calls_have_the_same() -> None:
    case = divided(skewed(31, 31, 300), even(31), dtype=torch.float32, k=64)
    # A backend that adds each sum in one order, whatever the panel.
    request = {"k": 64, "dtype": torch.float32, "backend": "reference"}
    values = sddmm.plan(case.S, **request).run(case.local_a, case.local_b)
    expected = sddmm.plan(case.whole, **request).run(case.a, case.b)
    if here().type == "cpu":  # on a GPU, torch adds in an order that depends on the shape
        assert torch.equal(values, expected[case.own])
    require_close(values, expected[case.own], "a plan of the reference")
    for way in WAYS:
        case = divided(skewed(31, 31, 300), even(31), dtype=torch.float32, k=64, way=way)
        results = []
        for _ in range(3):
            a, b = leaves(case.local_a, case.local_b)
            sddmm.sddmm(case.S, a, b).square().sum().backward()
            results.append((a.grad, b.grad))
        for again in results[1:]:
            assert all(map(torch.equal, results[0], again)), way


def second_derivatives_agree_with_one_process() -> None:
    case = divided(skewed(13, 13, 60), even(13))

    def second(S: object, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        a, b = leaves(a, b)
        first = torch.autograd.grad(sddmm.sddmm(S, a, b).pow(3).sum(), (a, b), create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), (a, b))

    expected = second(case.whole, case.a, case.b)
    got = second(case.S, case.local_a, case.local_b)
    require_close(got[0], expected[0][case.S.rows], "second derivative in a")
    require_close(got[1], expected[1][:, case.S.columns], "second derivative in b")


def a_matrix_is_scattered_or_made_by_a_function_with_as_many_nonzeros_everywhere() -> None:
    whole = skewed(50, 50, 2000)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    longest = int(whole.major_indices.diff().max())
    shuffle = torch.randperm(whole.nnz, generator=torch.Generator().manual_seed(3)).to(here())
    coo = torch.sparse_coo_tensor(
        torch.stack([whole.row_ids, whole.col_indices])[:, shuffle], shuffle.double(), whole.shape
    )
    scattered = DistributedPattern.scatter(coo if rank == 0 else None)
    made = DistributedPattern.from_rows(lambda begin, end: part(whole, begin, end), whole.shape)
    assert made.row_cuts == scattered.row_cuts
    for S in (scattered, made):
        assert S.nnz <= whole.nnz / ranks + longest
        assert sum(S.counts.rows) == 50
    check_all_functions(with_operands(whole, made), "from_rows")
    # Each value of `coo` says which nonzero of `whole` it is.
    own = with_operands(whole, scattered).own
    values = scattered.values
    assert values is not None
    assert torch.equal(
        values.sort().values, torch.arange(own.start, own.stop, device=here()).double()
    )
    assert torch.equal(whole.col_indices[values.long()], scattered.local.col_indices)


def autocast_casts_operands_as_in_one_process() -> None:
    case = divided(skewed(20, 20, 100), even(20), dtype=torch.float32)
    with torch.autocast(here().type, dtype=torch.bfloat16):
        values = sddmm.sddmm(case.S, case.local_a, case.local_b)
        assert values.dtype == torch.bfloat16
        expected = sddmm.sddmm(case.whole, case.a, case.b)
    require_close(values, expected[case.own], "autocast")


def a_plan_runs_and_explains_volume_way_and_refusals() -> None:
    case = divided(skewed(23, 23, 3000), even(23))
    plan = sddmm.plan(case.S, k=5, dtype=torch.float64, alpha=2.0)
    assert torch.equal(
        plan.run(case.local_a, case.local_b),
        sddmm.sddmm(case.S, case.local_a, case.local_b, alpha=2.0),
    )
    text, own = plan.explain(), case.S.columns
    received = (23 - (own.stop - own.start)) * 5 * 8
    assert f"{case.S.way}: this rank receives {received:,} bytes a run" in text
    assert "not      rows: " in text
    assert "panel 1: " in text


def dtensors_give_dtensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh(here().type, (dist.get_world_size(),))
    whole = skewed(21, 21, 150)
    S = DistributedPattern.scatter(whole, cut="rows", mesh=mesh)
    case = with_operands(whole, S)
    x = distribute_tensor(case.b.mT.contiguous(), mesh, [Shard(0)]).requires_grad_()
    y = sddmm.spmm(S, x, values=case.weights[case.own])
    assert isinstance(y, DTensor)
    assert y.placements == (Shard(0),)
    dense = case.b.mT.detach().contiguous().requires_grad_()
    expected = sddmm.spmm(whole, dense, values=case.weights)
    require_close(y.full_tensor(), expected, "spmm of a DTensor")
    y.to_local().square().sum().backward()
    expected.square().sum().backward()
    assert isinstance(x.grad, DTensor)
    require_close(x.grad.full_tensor(), dense.grad, "gradient of a DTensor")
    a = distribute_tensor(case.a, mesh, [Shard(0)])
    values = sddmm.sddmm(S, a, x.detach().mT)
    require_close(values, sddmm.sddmm(whole, case.a, case.b)[case.own], "sddmm of DTensors")
    failures.of_dtensors(S, case, mesh)
    mesh = init_device_mesh(here().type, (1, dist.get_world_size()))
    S = DistributedPattern.scatter(whole, cut="rows", mesh=mesh)
    x = distribute_tensor(dense.detach(), mesh, [Shard(0), Shard(0)])
    y = sddmm.spmm(S, x, values=case.weights[case.own])
    require_close(y.full_tensor(), expected.detach(), "a DTensor on a mesh of two dimensions")


def replicas_agree_with_one_process() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    ranks = dist.get_world_size()
    mesh = init_device_mesh(here().type, (ranks // 2, 2))
    for way in WAYS:
        for cut in (even, uneven) if way == "ring" else (uneven,):
            case = divided(skewed(23, 23, 160), cut(23), way=way, mesh=mesh)
            check_all_functions(case, f"replicas, {way}, {cut.__name__}")
            attention.check(case, f"attention, replicas, {way}")
            volumes.check(case, f"replicas, {way}, {cut.__name__}")
    check_all_functions(
        divided(skewed(23, 23, 160), even(23), mesh=mesh, heads=2), "replicas, heads"
    )
    of_one = init_device_mesh(here().type, (1, ranks))
    check_all_functions(divided(skewed(9, 12, 50), even(9), even(12), mesh=of_one), "no ring")


def ranks_write_into_each_others_memory() -> None:
    """Between GPUs of one host all other checks do; here processes stand for them."""
    if here().type != "cpu":
        return
    with shared_memory():
        for way in WAYS:
            for cut in (even, uneven) if way == "ring" else (uneven,):
                case = divided(skewed(23, 23, 160), cut(23), way=way)
                check_all_functions(case, f"memory, {way}, {cut.__name__}")
                attention.check(case, f"memory, attention, {way}")
                volumes.check(case, f"memory, {way}, {cut.__name__}")
                failures.of_one_rank(case)
            heads = divided(skewed(23, 29, 160), even(23), uneven(29), way=way, heads=3)
            check_all_functions(heads, f"memory, {way}, heads")
            check_all_functions(divided(skewed(9, 9, 0), even(9), way=way), "no nonzeros")
        large = divided(skewed(40, 3000, 900), even(40), even(3000), way="slices", k=300)
        w = large.weights[large.own]
        assert sddmm.spmm(large.S, large.local_b.mT, values=w).isfinite().all()
        if dist.get_world_size() == 4:
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh("cpu", (2, 2))
            for way in WAYS:
                case = divided(skewed(23, 23, 160), uneven(23), way=way, mesh=mesh)
                check_all_functions(case, f"memory, replicas, {way}")
                attention.check(case, f"memory, attention, replicas, {way}")


def a_group_of_some_ranks_computes_while_the_others_do_not() -> None:
    group = dist.new_group([3, 1])
    if dist.get_rank() in (1, 3):
        check_all_functions(divided(skewed(9, 9, 40), [0, 4, 9], group=group), "group")


def attention_merges_panels_to_what_one_process_gives() -> None:
    for way in WAYS:
        for heads in (None, 2) if way == "ring" else (2,):
            case = divided(skewed(23, 23, 160), uneven(23), way=way, heads=heads)
            attention.check(case, f"attention, {way}, {heads} heads")
            if (way, heads) in (("ring", None), ("row_slices", 2)):
                attention.check_dropout(case, f"dropout, {way}, {heads} heads")
        attention.check(divided(skewed(9, 12, 0), even(9), even(12), way=way), "no nonzeros")
    attention.check_volume(divided(skewed(23, 23, 160), even(23), way="ring"))


class _NoNewMemory(TorchDispatchMode):
    """Fails where a result is in memory of none of the arguments."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            given = (x for x in (*args, *(kwargs or {}).values()) if isinstance(x, Tensor))
            memory = {x.untyped_storage().data_ptr() for x in given}
            assert result.untyped_storage().data_ptr() in memory, f"{func} allocates"
        return result


def messages_after_kernels_as_on_a_gpu_change_nothing() -> None:
    """A GPU's ranks launch a panel's kernels before they agree and before the next rows travel; on
    its other stream nothing is allocated."""

    def behind_now(device: torch.device, start: Callable[[], object]) -> Callable[[], object]:
        def begin() -> object:
            with _NoNewMemory():
                return start()

        return begin

    with mock.patch("sddmm.distributed.travel.behind_now", behind_now):
        for way in ("ring", "rows"):
            case = divided(skewed(23, 23, 160), uneven(23), way=way)
            check_all_functions(case, f"{way}, messages after kernels")
            attention.check(case, f"attention, {way}, messages after kernels")
            failures.of_one_rank(case)


def rows_that_are_multiplied_early_change_no_result() -> None:
    for way in ("slices", "row_slices"):
        with mock.patch("sddmm.distributed.early.LEAST", 3):
            case = divided(skewed(23, 23, 160), even(23), way=way)
            check_all_functions(case, f"{way}, early rows")
            early = case.S.block.early
            if early is not None:
                assert (
                    early.own.pattern.nnz + early.others.pattern.nnz + early.rest.pattern.nnz
                    == case.S.nnz
                )
            is_there = [False] * dist.get_world_size()
            dist.all_gather_object(is_there, early is not None)
            assert any(is_there)
            heads = divided(skewed(23, 29, 300), even(23), uneven(29), way=way, heads=3, k=300)
            check_all_functions(heads, f"{way}, early rows, heads")
            if here().type == "cpu":
                with shared_memory():
                    check_all_functions(
                        divided(skewed(23, 23, 160), even(23), way=way), f"{way}, early, memory"
                    )


def volumes_equal_the_formulas() -> None:
    for way in WAYS:
        for heads in (None, 2):
            case = divided(skewed(23, 23, 90), uneven(23), way=way, heads=heads)
            volumes.check(case, f"{way}, {heads} heads")
    volumes.check_choice()
    with shared_memory():
        volumes.check_choice()


def the_laboratory_measures() -> None:
    from tests.experiments.distributed import checks  # which takes a second to import

    # Chunks of 100 elements, so that operands have several.
    with mock.patch("experiments.distributed.case.CHUNK", 100):
        checks.the_laboratory_verifies_and_measures_every_operation(here())
        checks.the_laboratory_finds_wrong_results_of_every_operation(here())
        checks.ranks_and_one_process_make_the_same_operands(here())


COMMON: list[Callable[[], None]] = [
    every_function_agrees_with_one_process,
    ranks_may_have_no_nonzeros_no_rows_and_no_columns,
    half_types_are_rounded_once,
    panels_change_no_bits_and_all_calls_have_the_same,
    a_matrix_is_scattered_or_made_by_a_function_with_as_many_nonzeros_everywhere,
    volumes_equal_the_formulas,
    attention_merges_panels_to_what_one_process_gives,
    messages_after_kernels_as_on_a_gpu_change_nothing,
    ranks_write_into_each_others_memory,
    rows_that_are_multiplied_early_change_no_result,
]
CHECKS: dict[int, list[Callable[[], None]]] = {
    2: [
        *COMMON,
        second_derivatives_agree_with_one_process,
        autocast_casts_operands_as_in_one_process,
        a_plan_runs_and_explains_volume_way_and_refusals,
        dtensors_give_dtensors,
        the_laboratory_measures,
        *failures.OF_TWO_RANKS,
    ],
    4: [
        *COMMON,
        replicas_agree_with_one_process,
        a_group_of_some_ranks_computes_while_the_others_do_not,
        failures.of_meshes,
    ],
    8: [*COMMON, replicas_agree_with_one_process],
}
