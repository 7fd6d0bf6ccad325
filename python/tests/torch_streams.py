"""PyTorch on several streams and in graphs with the manager as its allocator: every byte is verified."""

import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import memmgr_torch

memmgr_torch.install()

import torch


def handed_over():
    """Tensors made on one stream, used on another (record_stream), freed while that is at work."""
    produce, consume = torch.cuda.Stream(), torch.cuda.Stream()
    results = []
    for turn in range(200):
        with torch.cuda.stream(produce):
            made = torch.full((1 << 20,), turn, dtype=torch.int32, device="cuda")
        consume.wait_stream(produce)
        with torch.cuda.stream(consume):
            # Long enough that the memory is still read when it has been freed.
            torch.cuda._sleep(200_000)
            results.append((turn, made.sum(dtype=torch.int64)))
            made.record_stream(consume)
        del made
        with torch.cuda.stream(produce):
            # Whoever gets the memory too early spoils the sum.
            torch.full((1 << 20,), -1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    for turn, result in results:
        assert result.item() == turn << 20, (turn, result.item())


def registered():
    """The same on a stream that was registered."""
    stream = torch.cuda.Stream()
    memmgr_torch.register(stream)
    with torch.cuda.stream(stream):
        for turn in range(100):
            tensor = torch.full((100_000,), turn, dtype=torch.int32, device="cuda")
            assert (tensor == turn).all().item()


def threads():
    """Frees on other threads than the allocations."""
    failures = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for turn in range(100):
                    tensor = torch.full((1000 * (turn + 1),), number * 1000 + turn, dtype=torch.int32, device="cuda")
                    assert (tensor == number * 1000 + turn).all().item()
        except Exception as error:  # noqa: BLE001: told below
            failures.append(error)

    all_threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    assert not failures, failures


def graphs():
    """What a captured graph uses is nobody else's while the graph is there."""
    static = torch.zeros(1 << 18, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            (static * 2 + 1).sum()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Temporaries that are freed inside the capture.
        doubled = static * 2
        result = (doubled + 1).sum()
        del doubled
    for turn in range(50):
        # Others want memory of the same size.
        noise = [torch.full((1 << 18,), 7.0, device="cuda") for _ in range(4)]
        static.fill_(turn)
        graph.replay()
        assert result.item() == (2 * turn + 1) * (1 << 18), (turn, result.item())
        assert all((part == 7.0).all().item() for part in noise)
    del graph, result


def out_of_memory():
    """An error that says what holds the memory; afterwards everything works."""
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        raise AssertionError("a request of 1 PiB was served")
    except RuntimeError as error:
        assert "memmgr" in str(error) and "requested" in str(error), error
    assert torch.ones(10, device="cuda").sum().item() == 10




tests = [handed_over, registered, threads, graphs, out_of_memory]
failed = 0
for test in tests:
    try:
        test()
        torch.cuda.synchronize()
        print(f"ok      {test.__name__}")
    except Exception as error:  # noqa: BLE001: told here
        failed += 1
        print(f"FAILED  {test.__name__}: {type(error).__name__}: {error}")
torch.cuda.empty_cache()
print(f"backend: {memmgr_torch.library().memmgr_backend().decode()}; {memmgr_torch.stats()}")
print(memmgr_torch.snapshot())
assert memmgr_torch.library().memmgr_check() == 0
sys.exit(1 if failed else 0)
