"""Megatron-LM's fine-grained activation offloading, by Tidepool.

Megatron's call sites import one name, and take it from here instead:

    from tidepool_offload import FineGrainedActivationOffloadingInterface as off_interface

Options are those of Megatron's config, then TIDEPOOL_* of the environment, then `configure`. The
config is that of `configure(config=...)`, or of the module that calls `init_chunk_handler`, or
Megatron's parsed arguments.
"""

import importlib.metadata
import os
import re
import sys
import weakref
from contextlib import nullcontext

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.autograd.profiler import record_function

try:
    import tidepool_megatron as _core
except ImportError as error:
    raise ImportError(
        f"tidepool_megatron does not load beside PyTorch {torch.__version__}: {error}; build it with"
        " this PyTorch, as its libraries differ from version to version") from error


def _check_torch(built):
    if built.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(
            f"tidepool_megatron was built with PyTorch {built}, and this is {torch.__version__}; build"
            " it with this one, as its libraries differ from version to version")


_check_torch(_core.torch_version)

TidepoolError = _core.TidepoolError
OptionError = _core.OptionError
UnknownModule = _core.UnknownModule

# fused_group_mlp holds what expert_fc1 and moe_act do, and cannot stand beside them.
_DEFAULT_MODULES = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    "gdp_qkv",
)
_profiling = getattr(torch._C._autograd, "_profiler_enabled", lambda: True)


def _load(saved):
    if _profiling():
        with record_function("megatron.activation.reload"):
            return saved.load()
    return saved.load()


def _commit(group):
    if _profiling():
        with record_function("megatron.activation.offload"):
            return group.commit()
    return group.commit()


class _State:
    """What one process has; `reset_instance` makes it anew."""

    def __init__(self):
        self.engine = None
        self.chosen = False  # the modules were named by the user
        self.seen = set()  # modules that call sites asked for
        self.current = None  # the pass whose forward runs
        self.passes = []  # open ones, oldest first
        self.begun = {}  # passes of this step, by model chunk
        self.delayed = []
        self.captured = []  # passes of captures that no microbatch began, oldest first
        self.in_replay = False
        self.offloads = True
        self.tables = 32  # tries to print one over ranks


_state = _State()
_config = None
_flags = []
_device = None
_order = 0
_marked = {}  # tensors that stay, by id
_questions = []  # asked of each tensor, whether it stays


def configure(*flags, config=None, device=None, order=0):
    """Tidepool's own options, before the first forward pass: configure("--policy=automatic", …).

    `config` has Megatron's options as attributes (`offload_modules`, …), as a TransformerConfig does;
    by default it is found at the first pass. `device` is "cuda", the current device when the first step begins, or "virtual" over CPU tensors;
    `order` is the virtual device's order seed.
    """
    global _config, _flags, _device, _order
    if _state.engine is not None:
        raise OptionError("configure: offloading has begun; call it before the first forward pass,"
                          " or reset_instance first")
    _config, _flags = config, [str(flag) for flag in flags]
    _device, _order = device, order


def exclude_if(question):
    """Asks `question(tensor)` of each tensor that autograd saves in a module; where it says true, the
    tensor stays. For storages that come and go, such as the weights that FSDP gathers: those no mark
    can name. Returns a function that withdraws the question."""
    _questions.append(question)
    return lambda: _questions.remove(question)


def _hooks_of(group):
    if not _questions:
        return saved_tensors_hooks(group.save, _load)

    def save(tensor):
        return tensor if any(question(tensor) for question in _questions) else group.save(tensor)

    def load(saved):
        return _load(saved) if isinstance(saved, _core.SavedTensor) else saved

    return saved_tensors_hooks(save, load)


def _config_of_caller():
    """The config of the module that began the pass, or Megatron's arguments, or None."""
    frame = sys._getframe(2)
    for _ in range(16):
        if frame is None:
            break
        for name in ("self", "model", "config"):
            found = frame.f_locals.get(name)
            for config in (getattr(found, "config", None), found):
                if hasattr(config, "offload_modules"):
                    return config
        frame = frame.f_back
    training = sys.modules.get("megatron.training")
    try:
        return training.get_args()
    except (AttributeError, AssertionError):
        return None


# By argument of `init_chunk_handler`: the config's name for it, and the default.
_OPTIONS = {
    "min_offloaded_tensor_size": ("min_offloaded_tensor_size", 1 << 20),
    "delta_offload_bytes_across_pp_ranks": ("delta_offload_bytes_across_pp_ranks", 0),
    "activation_offload_fraction": ("activation_offload_fraction", 1.0),
    "max_inflight_offloads": ("fine_grained_offloading_max_inflight_offloads", None),
}


def _make_engine(config, pp_rank, given):
    """`given` are the arguments of `init_chunk_handler`; where one is None, the config decides."""
    _TransformerEngine.check()
    modules = list(getattr(config, "offload_modules", None) or [])
    # The modules that Megatron computes again are no option here: Megatron does it, and Tidepool
    # offloads what is still saved.
    _state.chosen = bool(modules) or any("offload-modules" in flag for flag in _flags)
    values = {}
    for name, (of_config, default) in _OPTIONS.items():
        value = given[name]
        if value is None:
            value = getattr(config, of_config, None)
        values[name] = default if value is None else value
    code = [
        "--offload-modules=" + ",".join(modules or _DEFAULT_MODULES),
        f"--min-tensor-elements={int(values['min_offloaded_tensor_size'])}",
        f"--delta-bytes-per-rank={int(values['delta_offload_bytes_across_pp_ranks'])}",
        f"--offload-fraction={float(values['activation_offload_fraction'])}",
        f"--pipeline-rank={int(pp_rank)}",
    ]
    if values["max_inflight_offloads"] is not None:
        code.append(f"--max-inflight={int(values['max_inflight_offloads'])}")
    device = _device or ("cuda" if _core.has_cuda and torch.cuda.is_available() else "virtual")
    engine = _core.Engine(device=device, order=_order, code=code, line=_flags)
    for mark in list(_marked.values()):
        tensor = mark()
        if tensor is not None:
            engine.exclude(tensor)
    return engine


def _bytes_until_backward():
    """Bytes by module that leave in a step, up to the end of the first forward pass of the last model
    chunk: from then on backward frees what forward adds. Megatron's summary has the same."""
    chunks = _state.engine.planned() if _state.engine is not None else []
    last = max((chunk for chunk, _ in chunks), default=0)
    total = {}
    for chunk, row in chunks:
        for name, count in row.items():
            total[name] = total.get(name, 0) + count
        if chunk == last:
            break
    return total


def _print_table(process_group):
    """Collective over the group, whose rank 0 prints what leaves on each rank. As long as a rank has
    no plan, all put it off to the next step, but not for ever."""
    distributed = torch.distributed
    rows = [None] * distributed.get_world_size(group=process_group)
    mine = _bytes_until_backward() if _state.engine.planned() else None
    distributed.all_gather_object(rows, mine, group=process_group)
    _state.tables -= 1
    if None in rows and _state.tables > 0:
        return
    _state.tables = 0
    rows = [row or {} for row in rows]
    if distributed.get_rank(group=process_group) != 0:
        return
    names = sorted({name for row in rows for name in row})
    lines = [["MiB offloaded", *names, "total"]]
    for label, row in [*((f"rank {i}", row) for i, row in enumerate(rows)),
                       ("total", {name: sum(row.get(name, 0) for row in rows) for name in names})]:
        counts = [row.get(name, 0) for name in names]
        lines.append([label, *(f"{count / 2**20:.2f}" for count in [*counts, sum(counts)])])
    widths = [max(map(len, column)) for column in zip(*lines)]
    for first, *rest in lines:
        print("tidepool: " + "  ".join([first.ljust(widths[0]),
                                        *(each.rjust(w) for each, w in zip(rest, widths[1:]))]))


def _print_reports():
    for report in _state.engine.take_reports():
        # Of modules that nobody has asked for there is nothing to say.
        absent = [name for name in _DEFAULT_MODULES if f"module '{name}'" in report]
        if _state.chosen or _state.seen.issuperset(absent):
            print(report, file=sys.stderr)


def _finish(passes):
    for each in passes:
        each.finish()


def _is_captured():
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _captured_pass():
    """The pass of captures of single layers, which no microbatch begins: the forwards up to the first
    backward. None outside of a capture."""
    state = _state
    if state.engine is None or not _is_captured():
        return None
    if not state.captured or state.captured[-1].is_read():
        state.captured.append(state.engine.begin(0, 0))
    return state.captured[-1]


class _CaptureStream:
    """The stream and the event that layer graphs run with, made when they are asked for."""

    stream = None
    event = None

    @classmethod
    def record(cls):
        """The event is recorded where computing ends, and the capture then waits for its copies: who
        waits for the event runs beside them."""
        if _state.engine is not None and _is_captured():
            torch.cuda.current_stream().record_event(
                FineGrainedActivationOffloadingInterface.cuda_graph_event())
            _state.engine.join_capture()


class _BackwardRecord(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        _CaptureStream.record()
        return gradient


class _TransformerEngine:
    """Tells Transformer Engine, where it is, that what it saves may leave."""

    offload = None
    looked = False

    @staticmethod
    def check():
        """From 2.10 on, Transformer Engine marks weights that must stay only where this variable is
        set before it is imported."""
        engine = sys.modules.get("transformer_engine")
        if engine is None or os.environ.get("NVTE_CPU_OFFLOAD_V1", "0") == "1":
            return
        version = getattr(engine, "__version__", None)
        if version is None:
            try:
                version = importlib.metadata.version("transformer-engine")
            except importlib.metadata.PackageNotFoundError:
                return
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers and (int(numbers[1]), int(numbers[2])) >= (2, 10):
            raise OptionError(
                f"Transformer Engine {version} is loaded without NVTE_CPU_OFFLOAD_V1=1: it then marks"
                " no weights, and weights would be offloaded; set NVTE_CPU_OFFLOAD_V1=1 in the"
                " environment of the training process")

    @classmethod
    def enable(cls, on):
        if not cls.looked:
            cls.looked = True
            try:
                from megatron.core.extensions.transformer_engine import cpu_offload

                cls.offload = cpu_offload
            except ImportError:
                pass
        if cls.offload is not None:
            cls.offload.CPUOffloadEnabled = on


class PipelineOffloadManager:
    """Of Megatron's manager, the figures that its users read."""

    @classmethod
    def get_instance(cls):
        return cls()

    @property
    def offload_summary_bytes(self):
        """By module: bytes that leave in the next step before backward begins. Empty until the first
        step has ended, and under an automatic policy until there is a plan."""
        return _bytes_until_backward()

    @property
    def offload_summary_total_bytes(self):
        """The sum of `offload_summary_bytes`."""
        return sum(_bytes_until_backward().values())


class FineGrainedActivationOffloadingInterface:
    """`with FineGrainedActivationOffloadingInterface(offload, tensor, name) as tensor: …`, then
    `group_offload(output)`: what autograd saved in between leaves, and is back before its node runs.
    """

    __slots__ = ("offload", "tensor", "name", "_group", "_hooks")

    def __init__(self, offload, tensor, name):
        self.offload = offload
        self.tensor = tensor
        self.name = name
        self._group = None
        self._hooks = None

    def __enter__(self):
        current = None
        if self.offload and _state.offloads:
            current = _state.current or _captured_pass()
        if current is not None:
            group = current.enter(self.name)
            if group is not None:
                self._group = group
                _state.seen.add(self.name)
                self._hooks = _hooks_of(group)
                self._hooks.__enter__()
                _TransformerEngine.enable(True)
            elif self.name == "fused_group_mlp" and not _state.chosen:
                raise OptionError(
                    "module fused_group_mlp is not among those that leave, as it holds what"
                    " expert_fc1 and moe_act do; name the modules in the config that you give:"
                    " configure(config=…), or configure('--offload-modules=fused_group_mlp')")
        return self.tensor

    def __exit__(self, kind, *args):
        if self._hooks is not None:
            _TransformerEngine.enable(False)
            self._hooks.__exit__()
            self._hooks = None
            if kind is not None:  # what it saved stays
                self._group = None

    def group_offload(self, tensor, forced_released_tensors=None, delay_offload=False):
        """The module is over: what it saved leaves. Its memory goes back to torch once the copy is
        made and nobody else holds it, so that `forced_released_tensors` need no force."""
        group = self._group
        if group is not None:
            self._group = None
            self.tensor = None  # the last reference of a call site, as often as not
            if delay_offload and _state.in_replay:
                _state.delayed.append(group)
            else:
                _commit(group)
        return tensor

    # ---- microbatches and steps ----

    @staticmethod
    def init_chunk_handler(pp_rank=0, vp_size=None, vp_stage=None, min_offloaded_tensor_size=None,
                           delta_offload_bytes_across_pp_ranks=None,
                           activation_offload_fraction=None, max_inflight_offloads=None):
        """A microbatch's forward pass begins, in a model chunk. The first call makes the engine;
        where it gives None, the config decides."""
        state = _state
        FineGrainedActivationOffloadingInterface.flush_delayed_groups()
        if state.current is not None:
            state.current.end_forward()
            state.current = None
        over = [each for each in state.passes if each.is_over()]
        if over:
            state.passes = [each for each in state.passes if each not in over]
            _finish(over)
        if not torch.is_grad_enabled():
            return  # evaluation: nothing is saved
        if state.engine is None:
            given = {name: value for name, value in locals().items() if name in _OPTIONS}
            config = _config if _config is not None else _config_of_caller()
            state.engine = _make_engine(config, pp_rank, given)
        chunk = vp_stage or 0
        microbatch = state.begun.get(chunk, 0)
        state.begun[chunk] = microbatch + 1
        state.current = state.engine.begin(microbatch, chunk)
        state.passes.append(state.current)

    @staticmethod
    def reset(process_group=None):
        """A step is over. What no backward has read by now is given up.

        With `process_group` the first calls that end a step are collective, until all ranks have a
        plan: the group's rank 0 then prints `offload_summary_bytes` over ranks and modules."""
        FineGrainedActivationOffloadingInterface.flush_delayed_groups()
        state = _state
        _finish(state.passes)
        state.passes, state.current = [], None
        state.captured = [each for each in state.captured if not each.is_over()]
        if state.begun:
            state.begun = {}
            state.engine.end_step()
            _print_reports()
            if process_group is not None and state.tables > 0:
                _print_table(process_group)

    @staticmethod
    def reset_instance():
        """Everything is forgotten but what was marked to stay."""
        global _state
        _finish(_state.passes)
        _state = _State()

    @staticmethod
    def summary():
        """By module: groups and bytes that left, bytes that came back, since the first step."""
        return _state.engine.summary() if _state.engine is not None else {}

    @staticmethod
    def totals():
        """Of all modules since the first step: peaks in bytes, and how often a stream had to wait."""
        return _state.engine.totals() if _state.engine is not None else {}

    # ---- what stays ----

    @staticmethod
    def mark_not_offload(tensor):
        """This tensor stays, and so do its views."""
        if tensor is None:
            return
        tensor._do_not_offload = True
        key = id(tensor)
        _marked[key] = weakref.ref(tensor, lambda _: _marked.pop(key, None))
        if _state.engine is not None:
            _state.engine.exclude(tensor)

    @staticmethod
    def get_context(flag):
        """Nothing leaves outside of modules."""
        return nullcontext()

    @staticmethod
    def disable_offload():
        _state.offloads = False

    @staticmethod
    def enable_offload():
        _state.offloads = True

    # ---- CUDA graphs ----

    @staticmethod
    def enter_replay():
        """Until `exit_replay`, groups with `delay_offload` wait for `flush_delayed_groups`."""
        _state.in_replay = True

    @staticmethod
    def exit_replay():
        _state.in_replay = False

    @staticmethod
    def flush_delayed_groups():
        delayed, _state.delayed = _state.delayed, []
        for group in delayed:
            _commit(group)

    @staticmethod
    def cuda_graph_stream():
        """The stream that graphs of single layers run on, beside the trainer's."""
        if _CaptureStream.stream is None:
            _CaptureStream.stream = torch.cuda.Stream()
        return _CaptureStream.stream

    @staticmethod
    def cuda_graph_event():
        """The event behind a graph's computing: its copies may still run."""
        if _CaptureStream.event is None:
            _CaptureStream.event = torch.cuda.Event(external=True)
        return _CaptureStream.event

    @staticmethod
    def forward_record():
        """The last call in a captured forward: the capture waits for its copies."""
        _CaptureStream.record()

    @staticmethod
    def backward_record(tensor):
        """The first call in a captured forward, on its input: its backward is the last of the graph,
        which then waits for its copies."""
        return _BackwardRecord.apply(tensor)
