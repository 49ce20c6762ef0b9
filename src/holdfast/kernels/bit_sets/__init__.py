"""Sets of rows, one bit per row, on the device of the table they belong to.

A set is uint8; row ``i`` is bit ``i & 7`` of byte ``i >> 3``. Its length is a multiple of 8 bytes, so that kernels may
view it as 32- or 64-bit words; bits past the last row are zero. ``arrays`` has the functions for NumPy arrays,
``tensors`` for torch's: both choose by what is installed, Numba or else NumPy on a CPU, Triton or else plain torch
elsewhere, all with the same result, bit for bit.
"""
