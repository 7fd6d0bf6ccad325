"""The memory manager as CuPy's allocator for device and pinned memory.

    import memmgr_cupy
    memmgr_cupy.install()

Each block belongs to the stream that was current when it was allocated, and is given back in that stream's order. It needs
libmemmgr.so: its path in MEMMGR_LIBRARY, or where the system looks for libraries.
"""

import ctypes
import ctypes.util
import os

__all__ = ["Error", "install", "library", "pinned_allocator"]

_library = None
_REMEDY = (
    "set MEMMGR_LIBRARY to the path of libmemmgr.so "
    "(`cargo xtask install-c --prefix FOLDER` makes FOLDER/lib/libmemmgr.so)"
)


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
            loaded.memmgr_last_error.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise Error(f"{path} cannot be used: {error}: {_REMEDY}") from error
        _library = loaded
    return _library


def _text():
    return library().memmgr_last_error().decode()


def _device_allocator():
    import cupy

    streams = {}
    loaded = library()

    def malloc(size, device):
        stream = cupy.cuda.get_current_stream()
        block = ctypes.c_void_p()
        if loaded.memmgr_allocate_device_at_on(
            ctypes.c_int32(device), ctypes.c_size_t(size), ctypes.c_void_p(stream.ptr), ctypes.byref(block)
        ):
            raise cupy.cuda.memory.OutOfMemoryError(size, 0) from Error(_text())
        # The stream is kept until the block is freed in its order.
        if block.value:
            streams[block.value] = (stream, device)
        return block.value or 0

    def free(ptr, device):
        if not ptr:
            return
        stream, device = streams.pop(ptr)
        loaded.memmgr_free_device_at_on(
            ctypes.c_int32(device), ctypes.c_void_p(ptr), ctypes.c_void_p(stream.ptr)
        )

    return cupy.cuda.PythonFunctionAllocator(malloc, free)


def pinned_allocator(size):
    """For `cupy.cuda.set_pinned_memory_allocator`."""
    import cupy

    class Memory(cupy.cuda.PinnedMemory):
        """A block of the pinned pool, given back at the end of its life."""

        def __init__(self, size):
            block = ctypes.c_void_p()
            if library().memmgr_allocate_pinned(ctypes.c_size_t(size), ctypes.byref(block)):
                raise MemoryError(_text())
            self.ptr = block.value or 0
            self.size = size

        def __del__(self):
            if self.ptr:
                library().memmgr_free_pinned(ctypes.c_void_p(self.ptr))

    return cupy.cuda.PinnedMemoryPointer(Memory(size), 0)


def install(pinned=True):
    """Makes the manager CuPy's allocator for device memory and, if `pinned`, for pinned memory."""
    import cupy

    cupy.cuda.set_allocator(_device_allocator().malloc)
    if pinned:
        cupy.cuda.set_pinned_memory_allocator(pinned_allocator)
