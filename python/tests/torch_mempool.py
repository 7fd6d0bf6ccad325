"""torch's own allocator, with a torch.cuda.MemPool that gets its segments from the manager."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import memmgr_torch
import torch

pool = torch.cuda.MemPool(memmgr_torch.allocator().allocator())
with torch.cuda.use_mem_pool(pool):
    tensors = [torch.full((1 << 20,), turn, dtype=torch.int32, device="cuda") for turn in range(8)]
outside = torch.full((1 << 20,), -1, dtype=torch.int32, device="cuda")
for turn, tensor in enumerate(tensors):
    assert (tensor == turn).all().item()
in_use = memmgr_torch.stats().in_use
assert in_use >= 8 * 4 << 20, in_use
del tensors, tensor
del pool
torch.cuda.empty_cache()
torch.cuda.synchronize()
print(f"ok      a MemPool held {in_use} bytes of the manager's, {memmgr_torch.stats().in_use} are left")
