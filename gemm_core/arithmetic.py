"""Arithmetic of sizes, for kernels of any device."""


def ceil_div(a: int, b: int) -> int:
    """The least integer that is not below a / b: the number of parts of size b that cover a."""
    return -(-a // b)


def loads_of_16_bytes(row_bytes: int) -> int:
    """The loads that 16 bytes of a row take, where rows of so many bytes are adjacent."""
    bits = row_bytes | 16
    return 16 // (bits & -bits)
