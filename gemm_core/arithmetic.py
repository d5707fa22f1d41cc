"""Arithmetic of sizes, for kernels of any device."""


def ceil_div(a: int, b: int) -> int:
    """The least integer that is not below a / b: the number of parts of size b that cover a."""
    return -(-a // b)
