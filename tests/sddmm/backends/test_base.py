"""Every backend keeps one protocol, so a plan does not ask which one it has."""

from __future__ import annotations

import inspect

import pytest
import torch

from sddmm.backends.base import BACKENDS, MANY_CALLS, Backend, by_head, refusal
from sddmm.backends.selection import select_backend
from sddmm.problem import make_problem
from sddmm.products import product_problem
from sddmm.testing import random_pattern

PATTERN = random_pattern(6, 5, 12, layout="coo", shuffled=True)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_every_backend_prepares_with_the_same_arguments(backend: Backend) -> None:
    protocol = inspect.signature(Backend.prepare).parameters
    arguments = inspect.signature(backend.prepare).parameters
    assert list(arguments) == list(protocol)[1:]  # without self
    assert [arguments[name].default for name in ("kernel", "calls")] == [None, MANY_CALLS]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_what_a_backend_prepares_computes_and_tells_notes(backend: Backend) -> None:
    problem = make_problem(PATTERN, k=3, dtype=torch.float32)
    if refusal(backend, problem) is not None:
        assert isinstance(refusal(backend, problem), str)
        return
    a, b, values = torch.randn(6, 3), torch.randn(3, 5), torch.randn(12)
    out = torch.empty(12)
    executor = backend.prepare(PATTERN, problem, None, 1)
    executor(a, b, values, 2.0, out)
    expected = 2 * (a @ b)[PATTERN.row_ids, PATTERN.col_indices] * values
    torch.testing.assert_close(out, expected)
    assert all(isinstance(note, str) for note in executor.notes)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_every_backend_checks_the_pattern_that_it_prepares(backend: Backend) -> None:
    wrong = random_pattern(6, 5, 12, layout="coo")
    wrong.col_indices[3] = 5
    problem = make_problem(wrong, k=3, dtype=torch.float32)
    if refusal(backend, problem) is None:
        with pytest.raises(ValueError, match=r"col_indices\[3\] is 5"):
            backend.prepare(wrong, problem)


def test_a_backend_that_no_one_knows_is_refused_with_those_that_exist() -> None:
    problem = make_problem(PATTERN, k=3, dtype=torch.float32)
    with pytest.raises(ValueError, match="must be one of cuda, cpu, torch_csr, reference, got"):
        select_backend(problem, "gpu")


def test_operands_are_walked_head_by_head() -> None:
    a, b_t, out = torch.randn(2, 6, 3), torch.randn(2, 5, 3), torch.empty(2, 12)
    assert [x.shape for x, _, _ in by_head(a, b_t, out)] == [(6, 3), (6, 3)]
    assert len(list(by_head(a[0], b_t[0], out[0]))) == 1


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("heads", [None, 2])
def test_every_backend_computes_products_with_any_weights(
    backend: Backend, heads: int | None
) -> None:
    lead = () if heads is None else (heads,)
    values, factors, dense = torch.randn(*lead, 12), torch.randn(12), torch.randn(*lead, 5, 3)
    problem = product_problem(PATTERN, values, dense, factors, False, None)
    if backend.available() is not None or backend.refuses_product(problem) is not None:
        return
    out = torch.empty(*lead, 6, 3)
    execute = backend.prepare_product(PATTERN, problem)
    execute(values, factors, dense, 2.0, out)
    matrix = torch.zeros(*lead, 6, 5)
    matrix[..., PATTERN.row_ids, PATTERN.col_indices] = 2 * values * factors
    torch.testing.assert_close(out, matrix @ dense)
    assert all(isinstance(note, str) for note in execute.notes)
