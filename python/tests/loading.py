"""What the packages say of a library that is not there or another one, and that they load the right one. Needs neither torch
nor CuPy:

    MEMMGR_LIBRARY=…/libmemmgr.so PYTHONPATH=python python3 python/tests/loading.py
"""

import os
import tempfile

import memmgr_cupy
import memmgr_torch

right = os.environ["MEMMGR_LIBRARY"]

with tempfile.NamedTemporaryFile(suffix=".so") as empty:
    for module in (memmgr_torch, memmgr_cupy):
        assert "Error" in module.__all__
        # None, one that is no library, and one that is not this.
        for wrong in ("/no/such/libmemmgr.so", empty.name, "libc.so.6"):
            os.environ["MEMMGR_LIBRARY"] = wrong
            try:
                module.library()
            except module.Error as error:
                text = str(error)
                assert text.startswith(f"{wrong} cannot be used: "), text
                assert "set MEMMGR_LIBRARY to the path of libmemmgr.so" in text, text
            else:
                raise AssertionError(f"{wrong} was loaded")
        os.environ["MEMMGR_LIBRARY"] = right
        assert module.library() is module.library()

assert memmgr_torch.library().memmgr_version()
print("ok      loading")
