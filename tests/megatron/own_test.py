"""Megatron-LM's own three GPT runs of its activation offloading, with Megatron's file and with ours.

    own_test.py CHECKOUT [--file megatron|tidepool] [--ranks N] [--only WORD] [--small]

CHECKOUT is Megatron-LM's repository: its folder `megatron` and the files of `tests/unit_tests` that
this script reads. The runs are those of test_fine_grained_activation_offloading.py, with its cases
and its assertions. Stand-ins replace Transformer Engine's layers, and pytest. Without --file both
files run in turns, each in N processes, of which each takes a GPU. The expert all-to-all overlap
needs four. Megatron-core compiles a small extension, which takes ninja.

Where there is no GPU, or with --small, shapes are small. Without a GPU nothing can be said of memory,
a run ends at that check, and Megatron's file offloads nothing.
"""

import argparse
import contextlib
import gc
import importlib.machinery
import importlib.util
import itertools
import os
import pathlib
import re
import socket
import subprocess
import sys
import traceback
import types
import unittest.mock
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # of the stand-in for attention

import torch

HERE = pathlib.Path(__file__).resolve().parent
FILE = "tests/unit_tests/pipeline_parallel/test_fine_grained_activation_offloading.py"
RUNS = {
    "test_gpt_fine_grained_activation_offloading_correctness_and_memory": "correctness and memory",
    "test_fine_grained_activation_offload_with_ep_a2a_overlap_compatibility": "all-to-all overlap",
    "test_fine_grained_activation_offloading_with_cuda_graph": "CUDA graphs",
}
# What the file asserts of memory, which a machine without a GPU cannot measure.
OF_MEMORY = re.compile("Expected GPU peak memory reduction|Memory saving mismatch")
NO_MEMORY = "memory is not measured without a GPU"
on_gpu = torch.cuda.is_available()


class Skipped(Exception):
    pass


class Pytest(types.ModuleType):
    """As much of pytest as the file asks for."""

    def __init__(self):
        super().__init__("pytest")
        self.mark = self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda function: function

    @staticmethod
    def skip(reason):
        raise Skipped(reason)

    @staticmethod
    def skipif(condition, reason=""):
        def mark(function):
            if condition and (on_gpu or "CUDA is required" not in reason):
                function.skipped = reason
            return function

        return mark

    @staticmethod
    def parametrize(names, cases):
        def mark(function):
            keys = [name.strip() for name in names.split(",")]
            function.cases = [
                dict(zip(keys, case if len(keys) > 1 else [case])) for case in cases]
            return function

        return mark


class Utils:
    """In place of Megatron's, which would import its whole training loop."""

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))

    @staticmethod
    def initialize_model_parallel(tensor_model_parallel_size=1, pipeline_model_parallel_size=1,
                                  **options):
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        if not torch.distributed.is_initialized():
            if on_gpu:
                torch.cuda.set_device(Utils.rank % torch.cuda.device_count())
            torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size, pipeline_model_parallel_size, **options)

    @staticmethod
    def destroy_model_parallel():
        from megatron.core import parallel_state

        torch.cuda.synchronize()
        parallel_state.destroy_model_parallel()


@contextlib.contextmanager
def deterministic_mode():
    with unittest.mock.patch.dict(os.environ, {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}):
        yield


class InOrder:
    """A stream or an event where all calls run in order."""

    def __init__(self, *args, **options):
        self.cuda_stream = 0

    def __getattr__(self, name):
        return lambda *args, **options: self


def without_gpu():
    """Calls to the GPU that have no meaning on a CPU."""
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_device"):
        setattr(torch.cuda, name, lambda *args, **options: None)
    torch.cuda.max_memory_allocated = lambda *args: 0
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.Stream = torch.cuda.Event = InOrder
    torch.cuda.current_stream = InOrder
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.nn.Module.cuda = torch.Tensor.cuda = lambda self, *args, **options: self
    torch.Tensor.record_stream = lambda self, stream: None
    exchange = torch.distributed.all_to_all_single

    def exchange_by_lists(output, given, output_split_sizes=None, input_split_sizes=None,
                          **options):
        sizes = [each.tolist() if isinstance(each, torch.Tensor) else each
                 for each in (output_split_sizes, input_split_sizes)]
        return exchange(output, given, *sizes, **options)

    torch.distributed.all_to_all_single = exchange_by_lists
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import transformer_layer

    def fork(self, name=None):
        return contextlib.nullcontext()

    random.CudaRNGStatesTracker.fork = fork
    random.CudaRNGStatesTracker.add = lambda self, name, seed: None
    random.model_parallel_cuda_manual_seed = lambda seed, *args, **options: torch.manual_seed(seed)
    transformer_layer.is_torch_min_version = lambda *args, **options: True  # nothing is captured
    random._get_cuda_rng_state = lambda *args, **options: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **options: torch.set_rng_state(state)


class WithOurLine(importlib.machinery.SourceFileLoader):
    """Megatron's file with the line at its end that docs/megatron.md gives."""

    name = "megatron.core.pipeline_parallel.fine_grained_activation_offload"
    line = (b"\nfrom tidepool_offload import FineGrainedActivationOffloadingInterface,"
            b" PipelineOffloadManager\n")

    def get_code(self, fullname):
        return compile(self.get_data(self.path) + self.line, self.path, "exec")

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname != cls.name:
            return None
        file = pathlib.Path(path[0]) / "fine_grained_activation_offload.py"
        return importlib.util.spec_from_file_location(
            fullname, file, loader=cls(fullname, str(file)))


def load_runs(checkout, small):
    import stand_ins
    from megatron.core import utils
    from megatron.core.extensions import transformer_engine
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import multi_latent_attention, transformer_layer

    transformer_engine.cpu_offload = types.SimpleNamespace(CPUOffloadEnabled=False)
    gpt_layer_specs.TESpecProvider = stand_ins.provider()
    multi_latent_attention.TELinear = stand_ins.Linear
    # The stand-ins are of no version. The runs and their layers ask for one that has what they use.
    transformer_layer.is_te_min_version = lambda *args, **options: True
    random.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
    random.fp8_autocast = random.activation_recompute_forward = (
        lambda **options: contextlib.nullcontext())
    if not on_gpu:
        without_gpu()
    for name, content in (("tests.unit_tests.test_utilities", {"Utils": Utils}),
                          ("tests.unit_tests.a2a_overlap.utils",
                           {"deterministic_mode": deterministic_mode})):
        for parent in itertools.accumulate(name.split(".")[:-1], "{}.{}".format):
            sys.modules.setdefault(parent, types.ModuleType(parent))
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
    sys.modules["pytest"] = Pytest()

    text = (checkout / FILE).read_text()
    if not on_gpu:
        text = text.replace('torch.device("cuda")', 'torch.device("cpu")')
    if small or not on_gpu:
        for name, value in (("num_layers", 3), ("seq_length", 64), ("vocab_size", 128),
                            ("hidden_size", 128), ("num_attention_heads", 4)):
            text = re.sub(rf"^    {name} = .*$", f"    {name} = {value}", text, flags=re.M)
    module = types.ModuleType("megatrons_test")
    with unittest.mock.patch.object(utils, "is_te_min_version", lambda *args, **options: True):
        exec(compile(text, FILE, "exec"), vars(module))
    return {name: getattr(module, name) for name in RUNS}


def run_one(function, case):
    if getattr(function, "skipped", None):
        return "skipped", function.skipped
    try:
        function(**case)
    except Skipped as why:
        return "skipped", str(why)
    except AssertionError as why:
        if not on_gpu and OF_MEMORY.search(str(why)):
            return "equal", NO_MEMORY
        return "failed", "".join(traceback.format_exc())
    except Exception:
        return "failed", "".join(traceback.format_exc())
    return ("passed", "") if on_gpu else ("equal", NO_MEMORY)


def bytes_out():
    """What Tidepool has moved since a run's last model began its first step."""
    import tidepool_offload

    summary = tidepool_offload.FineGrainedActivationOffloadingInterface.summary()
    return sum(row["bytes_offloaded"] for row in summary.values())


def run_all(options):
    sys.path[:0] = [str(options.checkout), str(HERE)]
    if options.file == "tidepool":
        sys.meta_path.insert(0, WithOurLine)
    failed = 0
    for name, function in load_runs(options.checkout, options.small).items():
        counts = {}
        for case in function.cases:
            label = ", ".join(f"{key}={value}" for key, value in case.items())
            if options.only and options.only not in f"{RUNS[name]}: {label}":
                continue
            with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result, why = run_one(function, case)
            if options.file == "tidepool" and result in ("equal", "passed"):
                moved = bytes_out()
                why = "; ".join([f"{moved / 2**20:.2f} MiB offloaded", *([why] if why else [])])
                if moved == 0:
                    result, why = "failed", "nothing was offloaded"
            gc.collect()
            counts[result] = counts.get(result, 0) + 1
            if Utils.rank == 0 or result == "failed":
                print(f"{options.file}: {RUNS[name]}: {label}: {result}"
                      + (f": {why.strip()}" if why else ""), flush=True)
        failed += counts.get("failed", 0)
        if Utils.rank == 0 and counts:
            print(f"== {options.file}: {RUNS[name]}: "
                  + ", ".join(f"{count} {result}" for result, count in sorted(counts.items())),
                  flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return failed


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_in_turns(options):
    failed = 0
    for file in ("megatron", "tidepool") if options.file is None else (options.file,):
        port = free_port()
        ranks = [subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--file", file],
            env={**os.environ, "WORLD_SIZE": str(options.ranks), "RANK": str(rank),
                 "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
            for rank in range(options.ranks)]
        failed += sum(rank.wait() != 0 for rank in ranks)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--file", choices=["megatron", "tidepool"])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", help="a word of a run's line")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if not (options.checkout / FILE).exists():
        print(f"skipped: {options.checkout} has no {FILE}")
        return 77
    return min(1, (run_all if "RANK" in os.environ else run_in_turns)(options))


if __name__ == "__main__":
    sys.exit(main())
