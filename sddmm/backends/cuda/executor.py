"""Launching prepared kernels: what a kernel's plan is, and the executor that runs plans."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from gemm_core.runtime.launch import Kernel, Parameters
from sddmm.backends.base import resolve_lazy_view
from sddmm.backends.cuda import loader

LaunchFn = Callable[[int, int, float], None]
"""launch(values, out, alpha): launch on operands at known addresses; values is 0 for none."""

PER_CALL = ("values", "out", "alpha")
"""The parameters that change from call to call; all others follow from the
addresses and the strides of the operands."""

Explanation = Callable[[], list[str]]
"""Formats the explanation of a kernel choice, with the reasons of the kernels that do not serve the
problem; called only by explain()."""


class KernelPlan(NamedTuple):
    """One launch of a kernel, prepared for a pattern.

    bind(a, b_t): returns the launch on two operands at their present addresses and strides.
    accepts(x): whether the kernel can read x without a copy. to_accepted(x): returns a copy that it
    can read. takes_any_indices: whether the launch reads nothing outside the operands, even if the
    analysis, which may still run, finds the pattern invalid. launch_once(a, b_t, values, out,
    alpha): launches on operands at addresses that may not come again, without binding them.
    """

    bind: Callable[[Tensor, Tensor], LaunchFn]
    accepts: Callable[[Tensor], bool]
    to_accepted: Callable[[Tensor], Tensor] = Tensor.contiguous
    takes_any_indices: bool = False
    launch_once: Callable[[Tensor, Tensor, int, int, float], None] | None = None


PlanT = TypeVar("PlanT")


class PlansExecutor(Generic[PlanT]):
    """Holds the plans of a problem and what was said of them; a subclass runs them.

    device_index: that of the device whose kernels the plans launch.
    """

    def __init__(
        self, plans: tuple[PlanT, ...], explanation: Explanation, device_index: int
    ) -> None:
        self._plans, self._explanation = plans, explanation
        self._device_index = device_index
        # That of the runtime whose kernels these are: an emulated one refuses to run outside.
        self._current_device = loader.runtime.current_device

    @property
    def notes(self) -> list[str]:
        return self._explanation()


class GpuExecutor(PlansExecutor[KernelPlan]):
    """Launches the plans of a problem, one after the other, on torch's current stream.

    The launches on the last operands are cached for the next call with the same ones.
    """

    # Replaced whole, never changed: another thread may be about to use it.
    _last: tuple[object, list[LaunchFn]] = (None, [])
    # The signature of the last operands, if the only plan was launched on them once.
    _came_once: object = None

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        if self._device_index != self._current_device():
            with torch.cuda.device(self._device_index):  # the driver launches in this context
                return self(a, b, values, alpha, out)
        a, b = _in_memory(a), _in_memory(b)
        if values is not None:
            values = _in_memory(values).contiguous()
        signature = _signature(a, b)
        last_signature, launches = self._last
        if last_signature != signature:
            plan = self._plans[0]
            if plan.launch_once is not None and self._came_once != signature:
                self._came_once = signature
                a, b_t = (x if plan.accepts(x) else plan.to_accepted(x) for x in (a, b.mT))
                address_of_values = 0 if values is None else values.data_ptr()
                plan.launch_once(a, b_t, address_of_values, out.data_ptr(), alpha)
                return None
            launches, copies = self._bind(a, b.mT)
            if not copies:  # copies hold the numbers of this call alone
                self._last = (signature, launches)
        for launch in launches:
            launch(0 if values is None else values.data_ptr(), out.data_ptr(), alpha)
        return None

    def _bind(self, a: Tensor, b_t: Tensor) -> tuple[list[LaunchFn], list[Tensor]]:
        """The launches on these operands, and copies that must live until they are launched."""
        launches, copies = [], []
        for plan in self._plans:
            operands = [x if plan.accepts(x) else plan.to_accepted(x) for x in (a, b_t)]
            launches.append(plan.bind(operands[0], operands[1]))
            copies += [x for x in operands if x is not a and x is not b_t]
        return launches, copies


def _signature(a: Tensor, b: Tensor) -> object:
    """What the launches on two operands depend on."""
    return a.data_ptr(), b.data_ptr(), a.stride(), b.stride()


def _in_memory(x: Tensor) -> Tensor:
    """x, or what torch would read from it where x is a lazy view.

    The test stands here too, so that plain tensors cost no call of another function.
    """
    return resolve_lazy_view(x) if x.is_neg() or x._is_zerotensor() else x


def make_launch(
    kernel: Kernel, blocks: int, arguments: Mapping[str, Any], per_call: tuple[str, ...] = PER_CALL
) -> Callable[..., None]:
    """The launch of a kernel with these arguments; it is called with those named in `per_call`.

    The first call packs all arguments into the kernel's own memory. Memory that keeps them packed
    takes longer to make, so the second call makes it: many operands come at an address once.
    """
    positions = _positions(kernel.parameters)
    assert arguments.keys() <= positions.keys(), (kernel.name, arguments.keys() - positions)
    values = [arguments.get(name, 0) for name in positions]
    changing = [positions[name] for name in per_call]
    packed: Parameters | None = None
    is_first = True

    def launch(*call_values: float) -> None:
        nonlocal packed, is_first
        if packed is not None:
            for slot, value in zip(packed.slots, call_values, strict=True):
                slot.value = value
            kernel.launch(blocks, packed)
        elif is_first:
            is_first = False
            own = values.copy()  # another thread may launch too
            for position, value in zip(changing, call_values, strict=True):
                own[position] = value
            kernel(blocks, *own)
        else:
            packed = Parameters(kernel.parameters, values, changing)
            launch(*call_values)

    return launch


@functools.cache
def _positions(parameters: type[ctypes.Structure]) -> dict[str, int]:
    """The position of each field of a parameter struct."""
    return {name: position for position, (name, *_) in enumerate(parameters._fields_)}


def operand_args(a: Tensor, b_t: Tensor) -> tuple[dict[str, int], int]:
    """The addresses and pitches of the operands, by the name of the parameter; and the largest
    power of two, up to 16, that divides the address of every row of a and of b_t."""
    address_a, address_b = a.data_ptr(), b_t.data_ptr()
    strides_a, strides_b = a.stride(), b_t.stride()
    pitch_a, pitch_b = strides_a[-2], strides_b[-2]
    head_a, head_b = (strides_a[0], strides_b[0]) if len(strides_a) == 3 else (0, 0)
    pitches = pitch_a | pitch_b | head_a | head_b
    bits = address_a | address_b | pitches * a.element_size() | 16
    args = {
        "a": address_a, "b": address_b, "pitch_a": pitch_a, "pitch_b": pitch_b,
        "head_a": head_a, "head_b": head_b,
    }  # fmt: skip
    return args, bits & -bits


def row_pitch(x: Tensor) -> int:
    """Elements from row to row."""
    return x.stride(-2)


def rows_are_contiguous(x: Tensor) -> bool:
    return x.stride(-1) == 1 or x.shape[-1] <= 1


def address(x: Tensor | None) -> int:
    """The address of the first element; 0 for None."""
    return 0 if x is None else x.data_ptr()
