"""Parts that the adapters for torch and for vLLM share. They work with any version of torch."""

import torch

# The ringtree type for each torch type, and the number of ringtree elements per torch element.
DTYPES = {
    torch.float32: ("f32", 1),
    torch.float64: ("f64", 1),
    torch.float16: ("f16", 1),
    torch.bfloat16: ("bf16", 1),
    torch.int8: ("i8", 1),
    torch.uint8: ("u8", 1),
    torch.int16: ("i16", 1),
    torch.uint16: ("u16", 1),
    torch.int32: ("i32", 1),
    torch.uint32: ("u32", 1),
    torch.int64: ("i64", 1),
    torch.uint64: ("u64", 1),
    torch.bool: ("u8", 1),
    torch.complex64: ("f32", 2),
    torch.complex128: ("f64", 2),
}


class Store:
    """An adapter from torch's store to ringtree.Store."""

    def __init__(self, store):
        self._store = store

    def set(self, key, value):
        self._store.set(key, value)

    def get(self, key, at_most):
        return self._store.get(key) if self._store.check([key]) else None

    def add(self, key, amount):
        return self._store.add(key, amount)
