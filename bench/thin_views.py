"""Column views of 16 MiB on a GPU: ways to bring them to the host, and the bits behind Tidepool.

    PYTHONPATH=FOLDER:examples/megatron bench/thin_views.py

FOLDER has the extension of examples/megatron/build.sh. The ways are a copy with a pitch, contiguous()
and then a copy, and the copy of all bytes between the first and the last.
"""

import ctypes
import statistics

import torch

import tidepool_offload
from tidepool_offload import FineGrainedActivationOffloadingInterface as off_interface

ROWS, COLUMNS = 2048, 4096  # bf16: 16 MiB
TO_HOST = 2


def cuda_runtime():
    """The library that torch has loaded."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart" in line)
    return ctypes.CDLL(path)


def microseconds(work, repeats=50):
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return statistics.median(times[repeats // 5:])


def copies():
    runtime = cuda_runtime()
    whole = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(ROWS * COLUMNS, dtype=torch.bfloat16, pin_memory=True)
    print("columns  KiB of the view  pitched, us  contiguous, us  all, us")
    for columns in (16, 128, 512, 1024, 2000):
        view = whole[:, 64:64 + columns]
        target = host[:view.numel()].view(ROWS, columns)
        width = 2 * columns

        def pitched():
            failed = runtime.cudaMemcpy2DAsync(
                ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(width),
                ctypes.c_void_p(view.data_ptr()), ctypes.c_size_t(2 * COLUMNS),
                ctypes.c_size_t(width), ctypes.c_size_t(ROWS), TO_HOST,
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            assert failed == 0, failed

        def dense():
            target.copy_(view.contiguous(), non_blocking=True)

        ways = []
        for way in (pitched, dense):
            host.zero_()
            ways.append(microseconds(way))
            assert torch.equal(target, view.cpu()), way
        ways.append(microseconds(lambda: host.copy_(whole.view(-1), non_blocking=True)))
        print(f"{columns:7}  {view.numel() / 512:15.0f}  {ways[0]:11.1f}  {ways[1]:14.1f}"
              f"  {ways[2]:7.1f}")


def gradients(offload):
    """A thin view as an operand of a product and of a norm, saved by autograd."""
    torch.manual_seed(1)
    x = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(128, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    if offload:
        off_interface.reset_instance()
        tidepool_offload.configure("--no-margin", device="cuda")
        off_interface.init_chunk_handler(0, None, None, 1, 0, 1.0)
    scope = off_interface(offload, x, "core_attn")
    with scope:
        view = (x + x)[:, 64:192]
        y = torch.nn.functional.silu(view) + torch.nn.functional.layer_norm(view, (128,))
        y = y @ weight + view @ weight
        del view
    y = scope.group_offload(y)
    y.float().square().mean().backward()
    out = 0
    if offload:
        off_interface.reset()
        out = off_interface.summary()["core_attn"]["bytes_offloaded"]
    return out, x.grad, weight.grad


if __name__ == "__main__":
    copies()
    _, *plain = gradients(False)
    out, *ours = gradients(True)
    equal = [torch.equal(a, b) for a, b in zip(plain, ours)]
    print(f"{out / 2**20:.2f} MiB left; bits of gradients equal: {equal}")
