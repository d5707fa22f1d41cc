"""Public tools for tests and benchmarks of sparse operators.

`assert_close`, `assert_spmm_close`, `assert_softmax_close`, `assert_attention_close` and
`assert_attention_gradients_close` hold a result to its error bound,
`random_pattern` makes patterns, `poisoned_outputs` shows values that nobody wrote, and
`emulated_gpu` runs GPU kernels on the CPU.
"""

from sddmm.testing.accuracy import (
    assert_close,
    assert_softmax_close,
    assert_spmm_close,
    error_bound,
    magnitude,
    reference,
    softmax_error_bound,
    softmax_reference,
    spmm_error_bound,
    spmm_reference,
    tolerance,
)
from sddmm.testing.attention import (
    assert_attention_close,
    assert_attention_gradients_close,
    attention_error_bound,
    attention_gradients_error_bound,
    attention_reference,
)
from sddmm.testing.emulation import H200, emulated_gpu
from sddmm.testing.mismatches import mismatches
from sddmm.testing.outputs import poisoned_outputs
from sddmm.testing.patterns import random_pattern

__all__ = [
    "H200",
    "assert_attention_close",
    "assert_attention_gradients_close",
    "assert_close",
    "assert_softmax_close",
    "assert_spmm_close",
    "attention_error_bound",
    "attention_gradients_error_bound",
    "attention_reference",
    "emulated_gpu",
    "error_bound",
    "magnitude",
    "mismatches",
    "poisoned_outputs",
    "random_pattern",
    "reference",
    "softmax_error_bound",
    "softmax_reference",
    "spmm_error_bound",
    "spmm_reference",
    "tolerance",
]
