"""Trains a model for some steps under torch's own allocator and under the manager, each in a process of its own, and compares.

    python3 train.py [--steps 20] [resnet50|gpt2 ...]

What the environment says of the manager counts: MEMMGR_REUSE=memory holds less. The losses must be the same; step times and reserved over live bytes are printed beside each other. Exits with 1 where they are
not: losses, more than 2 % of time after warm-up, or more than 1.05 times what is live at the peak.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))


def model_and_batch(name):
    import torch

    if name == "resnet50":
        import torchvision

        model = torchvision.models.resnet50()
        images = torch.randn(64, 3, 224, 224)
        labels = torch.randint(0, 1000, (64,))
        criterion = torch.nn.CrossEntropyLoss()
        return model, (images, labels), lambda model, batch: criterion(model(batch[0]), batch[1])
    if name == "gpt2":
        import transformers

        # The fused attentions add up in another order in every run.
        config = transformers.GPT2Config(
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager"
        )
        model = transformers.GPT2LMHeadModel(config)
        tokens = torch.randint(0, config.vocab_size, (8, 512))
        return model, (tokens,), lambda model, batch: model(batch[0], labels=batch[0]).loss
    raise SystemExit(f"unknown model {name}: resnet50 or gpt2")


def train(name, allocator, steps):
    """One process: prints one line of JSON."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    ours = allocator == "memmgr"
    if ours:
        import memmgr_torch

        memmgr_torch.install(prefer_memory=True)
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    model, batch, loss_of = model_and_batch(name)
    model = model.cuda().train()
    batch = [part.cuda() for part in batch]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, times = [], []
    for step in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    if ours:
        figures = memmgr_torch.stats()
        live, reserved = figures.peak_in_use, figures.peak_reserved
    else:
        live, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({
        "losses": losses, "step": statistics.median(times[steps // 2:]), "live": live, "reserved": reserved,
        "device": total - free, "backend": memmgr_torch.library().memmgr_backend().decode() if ours else "torch",
    }))


def compare(name, steps):
    """Whether the manager holds what is promised."""
    results = {}
    # In turns, so that what else the machine does falls on both.
    for turn in range(2):
        for allocator in ("torch", "memmgr"):
            command = [sys.executable, os.path.abspath(__file__), "--one", allocator, "--steps", str(steps), name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stdout + done.stderr)
                return False
            result = json.loads(done.stdout.splitlines()[-1])
            if turn and result["step"] > results[allocator]["step"]:
                result["step"] = results[allocator]["step"]
            results[allocator] = result
    torch, memmgr = results["torch"], results["memmgr"]
    for label, result in results.items():
        print(
            f"{name:9} {label:7} backend {result['backend']:10} step {result['step'] * 1e3:8.2f} ms  "
            f"live {result['live'] >> 20:6} MiB  reserved {result['reserved'] >> 20:6} MiB  "
            f"x{result['reserved'] / result['live']:.3f}  losses {result['losses'][0]:.6f} .. {result['losses'][-1]:.6f}"
        )
    same = torch["losses"] == memmgr["losses"]
    ratio = memmgr["step"] / torch["step"]
    held = memmgr["reserved"] / memmgr["live"]
    print(f"{name:9} same losses: {same}; step time x{ratio:.3f}; reserved over live x{held:.3f}")
    return same and ratio <= 1.02 and held <= 1.05


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet50", "gpt2"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        train(options.models[0], options.one, options.steps)
        return
    held = [compare(name, options.steps) for name in options.models or ["resnet50", "gpt2"]]
    sys.exit(0 if all(held) else 1)


main()
