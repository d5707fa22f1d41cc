"""The rates of a device for the cost model: an H200's, scaled by measurements on the device."""

from __future__ import annotations

import functools

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.measure_device import Measurement, measure_device

# Measured on an H200 of 132 multiprocessors (docs/results/h200).
H200_MULTIPROCESSORS = 132
H200_L2_BYTES, H200_MEMORY_BYTES, H200_SHARED_BYTES = 9.1e12, 3.9e12, 24e12
H200_LAUNCH_US = 2.0
# What measure_device measures on it.
H200_MEASUREMENT = Measurement(gather_bytes=8.6e12, copy_bytes=4.0e12, mm_flops=866e12)

_NEAR = 1.25  # measurements that differ by less are taken to be equal


@functools.cache
def device_model(device: Device) -> DeviceModel:
    """The model of a device, in proportion to what is measured of it and of an H200."""
    measurement = measure_device(device)
    if measurement is None:
        return scaled_by_sm_count(device)
    return _scaled(
        device,
        _ratio(measurement.gather_bytes, H200_MEASUREMENT.gather_bytes),
        _ratio(measurement.copy_bytes, H200_MEASUREMENT.copy_bytes),
        _ratio(measurement.mm_flops, H200_MEASUREMENT.mm_flops),
    )


def _ratio(measured: float, reference: float) -> float:
    """A measurement in proportion to an H200's; 1 if they are near, as clocks and temperature alone
    make such a difference, which would otherwise disturb the ranking of kernels."""
    ratio = measured / reference
    return 1.0 if 1 / _NEAR < ratio < _NEAR else ratio


def scaled_by_sm_count(device: Device) -> DeviceModel:
    """The model of a device that cannot be measured, in proportion to its multiprocessors."""
    part = device.sm_count / H200_MULTIPROCESSORS
    return _scaled(device, part, part, part)


def _scaled(device: Device, l2: float, memory: float, tensor_cores: float) -> DeviceModel:
    return DeviceModel(
        device=device,
        l2_bytes=H200_L2_BYTES * l2,
        memory_bytes=H200_MEMORY_BYTES * memory,
        shared_bytes=H200_SHARED_BYTES * l2,
        launch_us=H200_LAUNCH_US,
        tensor_cores=tensor_cores,
        stores=l2,
    )
