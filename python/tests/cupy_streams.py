"""CuPy on two streams, with the manager for its device and pinned memory: every element is verified."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import cupy
import memmgr_cupy
import numpy

memmgr_cupy.install()

streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
results = []
for turn in range(200):
    with streams[turn % 2]:
        numbers = cupy.arange(100_000 + turn, dtype=cupy.int64)
        squares = numbers * numbers + turn
        results.append((turn, squares.sum()))
        del numbers, squares
for stream in streams:
    stream.synchronize()
for turn, result in results:
    numbers = numpy.arange(100_000 + turn, dtype=numpy.int64)
    assert int(result) == int((numbers * numbers + turn).sum()), turn

# Through pinned memory and back.
pinned = cupy.cuda.alloc_pinned_memory(8 * 10_000)
host = numpy.frombuffer(pinned, numpy.float64, 10_000)
host[...] = numpy.arange(10_000)
with streams[0] as stream:
    device = cupy.empty(10_000, dtype=cupy.float64)
    device.set(host, stream=stream)
    device *= 2
    back = device.get(stream=stream)
    stream.synchronize()
assert (back == 2 * numpy.arange(10_000)).all()
del pinned, host, results, result, device

status = memmgr_cupy.library().memmgr_check()
assert status == 0, memmgr_cupy.library().memmgr_last_error()
print("ok      CuPy on two streams, and pinned memory")
