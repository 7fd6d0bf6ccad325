"""The memory manager as PyTorch's allocator for CUDA memory.

    import memmgr_torch
    memmgr_torch.install()          # before the first CUDA tensor

    import torch
    ...
    print(memmgr_torch.stats())     # what torch refuses to tell with a pluggable allocator

It needs libmemmgr.so: its path in MEMMGR_LIBRARY, or where the system looks for libraries.
"""

import ctypes
import ctypes.util
import os

__all__ = ["Error", "PoolStats", "allocator", "install", "library", "prometheus", "register", "snapshot", "stats",
           "take_failure", "trim"]

_library = None
_REMEDY = (
    "set MEMMGR_LIBRARY to the path of libmemmgr.so "
    "(`cargo xtask install-c --prefix FOLDER` makes FOLDER/lib/libmemmgr.so)"
)
_registered = {}


class PoolStats(ctypes.Structure):
    """What a pool holds, in bytes, and what it has done (`memmgr_pool_stats` in memmgr.h)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "in_use", "reserved", "idle", "pending", "largest_idle", "peak_in_use", "peak_reserved",
        )
    ] + [
        (name, ctypes.c_uint64)
        for name in ("allocations", "frees", "reuses", "waits", "growths", "failures")
    ] + [
        (name, ctypes.c_size_t)
        for name in ("live_blocks", "internal_waste", "largest_miss")
    ] + [
        (name, ctypes.c_uint64) for name in ("steals", "splits", "merges")
    ]

    def as_dict(self):
        """The figures by name."""
        return {name: getattr(self, name) for name, _ in self._fields_}

    def __repr__(self):
        return "PoolStats(" + ", ".join(f"{k}={v}" for k, v in self.as_dict().items()) + ")"


class Error(RuntimeError):
    """What a call had to say that failed."""


def library():
    """libmemmgr, loaded once."""
    global _library
    if _library is None:
        path = os.environ.get("MEMMGR_LIBRARY") or ctypes.util.find_library("memmgr")
        if not path:
            raise Error(f"libmemmgr.so was not found: {_REMEDY}")
        try:
            loaded = ctypes.CDLL(path)
            for name in ("memmgr_last_error", "memmgr_backend", "memmgr_version"):
                getattr(loaded, name).restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise Error(f"{path} cannot be used: {error}: {_REMEDY}") from error
        loaded.path = path
        _library = loaded
    return _library


def _check(status):
    if status:
        raise Error(library().memmgr_last_error().decode())


def allocator():
    """A `torch.cuda.memory.CUDAPluggableAllocator` with every hook set. `install` makes it torch's own; for a
    `torch.cuda.MemPool`, pass its `.allocator()`."""
    import torch

    loaded = library()
    made = torch.cuda.memory.CUDAPluggableAllocator(
        loaded.path, "memmgr_torch_alloc", "memmgr_torch_free"
    )
    inner = made.allocator()
    for setter, function in (
        ("set_record_stream_fn", "memmgr_torch_record_stream"),
        ("set_reset_fn", "memmgr_torch_reset"),
        ("set_memory_fraction_fn", "memmgr_torch_memory_fraction"),
        ("set_base_alloc_fn", "memmgr_torch_base_allocation"),
        ("set_begin_allocate_to_pool", "memmgr_torch_begin_allocate_to_pool"),
        ("set_end_allocate_to_pool_fn", "memmgr_torch_end_allocate_to_pool"),
        ("set_release_pool", "memmgr_torch_release_pool"),
    ):
        address = ctypes.cast(getattr(loaded, function), ctypes.c_void_p).value
        getattr(inner, setter)(address)
    return made


def install(pool_size=None, prefer_memory=False):
    """Makes the manager torch's allocator. To be called before the first CUDA tensor, or torch refuses.

    `pool_size`: how many bytes each device's pool reserves at its first allocation.
    `prefer_memory`: wait for what has been freed before a pool grows (MEMMGR_REUSE=memory), which holds less and may delay the
    first steps. It must be said before anything else has used the library.
    """
    import torch

    if prefer_memory:
        os.environ["MEMMGR_REUSE"] = "memory"
    if pool_size is not None:
        _check(library().memmgr_set_device_pool_size(ctypes.c_size_t(pool_size)))
    made = allocator()
    torch.cuda.memory.change_current_allocator(made)
    return made


def register(stream):
    """Registers a `torch.cuda.Stream`, so that allocations on it ask CUDA less. The stream is kept alive."""
    handle = ctypes.c_uint64()
    _check(
        library().memmgr_stream_register(
            ctypes.c_void_p(stream.cuda_stream), ctypes.byref(handle)
        )
    )
    _registered[handle.value] = stream


def stats(device=0):
    """The figures of a device's pool."""
    figures = PoolStats()
    _check(
        library().memmgr_device_stats(
            ctypes.c_int32(device), ctypes.c_int32(0), ctypes.byref(figures),
            ctypes.c_size_t(ctypes.sizeof(figures)),
        )
    )
    return figures


def prometheus():
    """All figures as a text in Prometheus' exposition format."""
    function, needed = library().memmgr_stats_prometheus, ctypes.c_size_t()
    _check(function(None, ctypes.c_size_t(0), ctypes.byref(needed)))
    # Figures may have grown by a few digits, or by a device, when they are asked for again.
    text = ctypes.create_string_buffer(needed.value + 65536)
    _check(function(text, ctypes.c_size_t(len(text)), None))
    return text.value.decode()


def reset_peaks():
    """Lets the peaks begin anew."""
    _check(library().memmgr_reset_peaks())


def take_failure():
    """What went wrong where torch could not be told, in a free for example, since it was last asked; None if nothing has."""
    if library().memmgr_take_failure():
        return library().memmgr_last_error().decode()
    return None


def trim():
    """Gives idle memory back to CUDA: how many bytes."""
    released = ctypes.c_size_t()
    _check(library().memmgr_trim(ctypes.byref(released)))
    return released.value


def snapshot(path=None):
    """The figures of every device as a dictionary.

    With a path, all segments and blocks are written there too, and the last events that MEMMGR_EVENT_RING keeps: as JSON if
    the name ends in .json, otherwise as a pickle in the form of `torch.cuda.memory._dump_snapshot`, which PyTorch's viewer
    and `memmgr report` open.
    """
    import torch

    taken = {
        "backend": library().memmgr_backend().decode(),
        "version": library().memmgr_version().decode(),
        "devices": [
            dict(stats(device).as_dict(), device=device)
            for device in range(torch.cuda.device_count())
        ],
    }
    if path is not None:
        name = os.fsencode(path)
        _check(library().memmgr_snapshot(name, 1 if name.endswith(b".json") else 0))
    return taken
