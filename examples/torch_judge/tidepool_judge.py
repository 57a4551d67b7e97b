"""Watches a PyTorch run for races between streams, whoever wrote the trainer or its offloader.

    with tidepool_judge.watch() as judge:
        train()
    print(judge.report())

    python3 -m tidepool_judge train.py [argument]...    # the same for a script; ends with 1 after a finding

Torch's operators declare what they read and write, and streams and events say what waits for what. Two accesses to
the same bytes that no wait orders are reported, even if the run had the right order by luck. On a GPU, torch itself
says when events are recorded and waited for. Without a GPU, `torch.cuda` and the device of tensors are played by
stand-ins over the CPU while the context lives, so that code for GPUs runs as it is: everything is computed at once,
and the order is judged as on a GPU.
"""

import contextlib
import functools
import itertools
import runpy
import sys
import traceback
from unittest import mock

import torch
from torch.autograd.graph import saved_tensors_hooks

import tidepool_judge_core as _core

TidepoolError = _core.TidepoolError

_FACTORIES = ("arange", "empty", "empty_like", "empty_strided", "full", "ones", "ones_like", "rand", "randint",
              "randn", "randperm", "tensor", "zeros", "zeros_like")


class Judge:
    """The findings of a run that is watched; `watch` returns it."""

    def __init__(self, device):
        self._places = {}  # by finding, where Python was at its second access
        self._core = _core.Judge(device=device, on_finding=self._note)
        self._told = None

    def _note(self, number):
        frames = [each for each in traceback.extract_stack()[:-1]
                  if not each.filename.startswith((torch.__path__[0], __file__))]
        for each in range(len(self._places), number):
            self._places[each] = frames[-3:]

    def _end(self):
        self._told = self._core.findings(), self._core.operators()
        self._core = None

    @property
    def findings(self):
        """Each mistake in words: both accesses, the missing wait, and where Python made the second access."""
        found = self._told[0] if self._told else self._core.findings()
        return [each + "".join(f"  called:  {frame.filename}:{frame.lineno}, {frame.name}\n"
                               for frame in reversed(self._places.get(i, ())))
                for i, each in enumerate(found)]

    @property
    def operators(self):
        """How many operators have declared accesses: none, and nothing was judged."""
        return self._told[1] if self._told else self._core.operators()

    def report(self):
        """All findings in words, and a line with their number."""
        found = self.findings
        return "".join("order: " + each for each in found) + (
            f"order: {len(found)} mistake{'' if len(found) == 1 else 's'} found in {self.operators} operators\n")

    def name_stream(self, stream, name):
        """The name of a stream in findings."""
        self._core.name_stream(stream.cuda_stream, name)


@contextlib.contextmanager
def _hooks_told(judge):
    """Hooks of autograd run inside the operator that made the tensor, and may put work behind it on streams."""
    before = saved_tensors_hooks.__init__

    def make(self, pack_hook, unpack_hook):
        @functools.wraps(pack_hook, assigned=())
        def pack(tensor):
            if judge._core is not None:
                judge._core.saves(tensor)
            return pack_hook(tensor)

        before(self, pack, unpack_hook)

    with mock.patch.object(saved_tensors_hooks, "__init__", make):
        yield


# ---- on a GPU ----

@contextlib.contextmanager
def _traced(judge):
    """Torch says when an event is recorded, and what waits for it."""
    import torch.cuda._gpu_trace as trace

    core = judge._core
    callbacks = (
        (trace.EventRecordCallbacks, lambda event, stream: core.recorded(event, stream)),
        (trace.EventWaitCallbacks, lambda event, stream: core.waited(stream, event)),
        (trace.DeviceSynchronizationCallbacks, core.host_waited_for_all),
        (trace.StreamSynchronizationCallbacks, core.host_waited),
        (trace.EventSynchronizationCallbacks, lambda event: core.host_waited_for_event(event)))
    core.name_stream(torch.cuda.default_stream().cuda_stream, "the default stream")
    torch._C._activate_gpu_trace()
    for registry, callback in callbacks:
        registry.add_callback(callback)
    try:
        yield
    finally:
        for registry, callback in callbacks:
            registry.callback_list.remove(callback)


# ---- without a GPU ----

_now = None  # the judge whose stand-ins are in place


class _Event:
    """Stands for torch.cuda.Event."""

    _numbers = itertools.count(1)

    def __init__(self, *args, **options):
        self._number = next(self._numbers)

    def record(self, stream=None):
        _now._core.recorded(self._number, (stream or torch.cuda.current_stream()).cuda_stream)

    def wait(self, stream=None):
        _now._core.waited((stream or torch.cuda.current_stream()).cuda_stream, self._number)

    def synchronize(self):
        _now._core.host_waited_for_event(self._number)

    def query(self):
        return False  # the work that it stands for may always be under way


class _Stream:
    """Stands for torch.cuda.Stream."""

    _numbers = itertools.count(1)

    def __init__(self, *args, **options):
        self.cuda_stream = _now._core.make_stream(f"stream {next(self._numbers)}")

    @classmethod
    def _of(cls, number):
        made = object.__new__(cls)
        made.cuda_stream = number
        return made

    def record_event(self, event=None):
        event = event or _Event()
        event.record(self)
        return event

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def synchronize(self):
        _now._core.host_waited(self.cuda_stream)

    def query(self):
        return False

    def __eq__(self, other):
        return isinstance(other, _Stream) and self.cuda_stream == other.cuda_stream

    def __hash__(self):
        return hash(self.cuda_stream)


class _StreamContext:
    """Stands for torch.cuda.stream."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.before = torch.cuda.current_stream()
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)

    def __exit__(self, *args):
        torch.cuda.set_stream(self.before)


def _on_host(tensor):
    return _now._core.is_on_host(tensor)


def _is(kind, device):
    return device is not None and not isinstance(device, int) and torch.device(device).type == kind


def _on_host_made(make, *args, **options):
    _now._core.make_on_host(True)
    try:
        return make(*args, **options)
    finally:
        _now._core.make_on_host(False)


def _factory(make):
    @functools.wraps(make)
    def on_cpu(*args, device=None, pin_memory=False, **options):
        if pin_memory or _is("cpu", device):
            return _on_host_made(make, *args, device="cpu", **options)
        return make(*args, device=None if device is None else "cpu", **options)

    return on_cpu


def _moved(tensor, to_gpu, non_blocking):
    """A copy on the other side."""
    if to_gpu != _on_host(tensor):
        return tensor
    made = _real_empty_like(tensor) if to_gpu else _on_host_made(_real_empty_like, tensor)
    return made.copy_(tensor, non_blocking=non_blocking)


_real_empty_like, _real_to = torch.empty_like, torch.Tensor.to


def _to(tensor, *args, **options):
    device = options.get("device", args[0] if args else None)
    if not isinstance(device, (str, torch.device)):
        return _real_to(tensor, *args, **options)
    given = {**dict(zip(("device", "dtype", "non_blocking", "copy"), args)), **options}
    moved = _moved(tensor, _is("cuda", device), given.get("non_blocking", False))
    if moved is tensor and given.get("copy", False):
        moved = tensor.clone()
    return moved if given.get("dtype") is None else _real_to(moved, given["dtype"])


@contextlib.contextmanager
def _played(judge):
    """`torch.cuda` and the devices of tensors over the CPU. A tensor is on the GPU, unless it was made for the CPU
    or pinned."""
    global _now
    if _now is not None:
        raise TidepoolError("watch: a run is watched already; end that one")
    current = [_Stream._of(0)]

    def set_stream(stream):
        current[0] = stream
        judge._core.use(stream.cuda_stream)

    gpu = torch.device("cuda", 0)
    patches = [mock.patch.object(torch.cuda, name, value) for name, value in {
        "Stream": _Stream, "Event": _Event, "stream": _StreamContext, "set_stream": set_stream,
        "current_stream": lambda device=None: current[0], "default_stream": lambda device=None: _Stream._of(0),
        "synchronize": lambda device=None: judge._core.host_waited_for_all()}.items()]
    patches += [mock.patch.object(torch, name, _factory(getattr(torch, name))) for name in _FACTORIES]
    patches += [mock.patch.object(torch.Tensor, name, value, create=True) for name, value in {
        "device": property(lambda tensor: torch.device("cpu") if _on_host(tensor) else gpu),
        "is_cuda": property(lambda tensor: not _on_host(tensor)),
        "is_pinned": lambda tensor, device=None: _on_host(tensor),
        "pin_memory": lambda tensor, device=None: tensor,
        "record_stream": lambda tensor, stream: None,
        "cpu": lambda tensor: _moved(tensor, False, False),
        "cuda": lambda tensor, device=None, non_blocking=False: _moved(tensor, True, non_blocking),
        "to": _to}.items()]
    with contextlib.ExitStack() as stack:
        _now = judge
        judge._core.name_stream(0, "the default stream")
        try:
            for each in patches:
                stack.enter_context(each)
            yield
        finally:
            _now = None


@contextlib.contextmanager
def watch(device=None):
    """Watches what happens while the context lives, and returns a Judge. `device` is "cuda", where torch has a GPU,
    or "cpu", with stand-ins. Make streams and tensors of the trainer inside. One run at a time is watched."""
    device = device or ("cuda" if _core.has_cuda and torch.cuda.is_available() else "cpu")
    judge = Judge(device)
    try:
        with _hooks_told(judge), _traced(judge) if device == "cuda" else _played(judge):
            yield judge
    finally:
        judge._end()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    del sys.argv[0]
    with watch() as judge:
        runpy.run_path(sys.argv[0], run_name="__main__")
    print(judge.report(), file=sys.stderr, end="")
    return 1 if judge.findings else 0


if __name__ == "__main__":
    sys.exit(main())
