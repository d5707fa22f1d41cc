"""Archives of numpy arrays."""

from __future__ import annotations

import io
from typing import Any

import numpy as np


def npz(**members: Any) -> bytes:
    """The .npz file of these arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, **members)
    return buffer.getvalue()
