"""Activation offloading for a PyTorch loop whose model is not edited: a plain one, FSDP2's, a Trainer's.

    with tidepool_loop.offload(model, modules=["mlp", "self_attn"], budget="8GiB"):
        trainer.train()

Tensors that autograd saves in the named submodules leave when the submodule's forward ends, and are
back before backward reads them. It needs the extension that examples/megatron/build.sh builds.
"""

import difflib
import fnmatch
import functools
import re
import sys
import threading
import warnings

import torch
from torch.autograd.graph import saved_tensors_hooks

import tidepool_megatron as _core

TidepoolError = _core.TidepoolError
OptionError = _core.OptionError

_around = {}  # by id of a module under offload: a function that gets its forward call
_patched = {}  # by class: [wrapper, its __call__ before, how many modules use the wrapper]
_lingering = []  # engines whose context has ended before the backward of a graph
_foreign = threading.local()  # `depth`: hooks of others that lie on this thread's stack
_enter_hooks, _exit_hooks = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__
_watchers = 0


class _ScopeHooks(saved_tensors_hooks):
    """The hooks of a scope, which `_watch_hooks` does not count."""

    def __enter__(self):
        return _enter_hooks(self)

    def __exit__(self, *args):
        return _exit_hooks(self, *args)


def _watch_hooks(on):
    """Counts the hooks of others. A checkpoint has hooks that drop a tensor; a scope whose hooks lay on top of
    them would keep what the checkpoint drops."""
    global _watchers
    _watchers += 1 if on else -1
    if not on and _watchers == 0:
        saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = _enter_hooks, _exit_hooks
    if not on or _watchers > 1:
        return

    def enter(self):
        _enter_hooks(self)
        _foreign.depth = _foreign_hooks() + 1

    def leave(self, *args):
        _foreign.depth = max(0, _foreign_hooks() - 1)
        return _exit_hooks(self, *args)

    saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = enter, leave


def _foreign_hooks():
    return getattr(_foreign, "depth", 0)


def _put_around(module, function):
    """Calls `function(call)` wherever somebody calls `module`. The class is patched, since hooks of a
    module lie inside a checkpoint that its `__call__` makes, do not run after an exception, and are copied with
    the module."""
    cls = type(module)
    if cls not in _patched:
        before, own = cls.__call__, cls.__dict__.get("__call__")

        @functools.wraps(before)
        def call(self, *args, **kwargs):
            function = _around.get(id(self))
            if function is None:
                return before(self, *args, **kwargs)
            return function(functools.partial(before, self, *args, **kwargs))

        cls.__call__ = call
        _patched[cls] = [call, own, 0]
    _patched[cls][2] += 1
    _around[id(module)] = function
    return cls


def _take_away(module, cls):
    del _around[id(module)]
    entry = _patched[cls]
    entry[2] -= 1
    if entry[2] > 0:
        return
    del _patched[cls]
    if cls.__dict__.get("__call__") is not entry[0]:
        return  # somebody has patched it since: ours does nothing any more
    if entry[1] is None:
        del cls.__call__
    else:
        cls.__call__ = entry[1]


def _matches(name, pattern):
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(
        map(fnmatch.fnmatchcase, parts[len(parts) - len(wanted):], wanted))


def _find(model, patterns):
    """[(module, pattern)] of the submodules that the patterns name; a module that lies in two places counts once."""
    if isinstance(patterns, str):
        patterns = [patterns]
    named = [(name, each) for name, each in model.named_modules(remove_duplicate=False) if name]
    found, used = {}, set()
    for name, module in named:
        for pattern in patterns:
            if _matches(name, pattern):
                found.setdefault(id(module), (module, pattern))
                used.add(pattern)
                break
    for pattern in patterns:
        if pattern not in used:
            last = sorted({name.rsplit(".", 1)[-1] for name, _ in named})
            near = difflib.get_close_matches(pattern.rsplit(".", 1)[-1], last, 1)
            raise OptionError(
                f"offload: no submodule is called '{pattern}'"
                + (f"; did you mean '{near[0]}'?" if near else "")
                + f" Names of submodules: {', '.join(each for each in last if not each.isdigit())}."
                " 'layers.*' names each item of a list")
    return list(found.values())


def _legible(pattern):
    """The pattern as a name of a module, in which no wildcard may stand."""
    return re.sub(r"[^\w.-]+", "", re.sub(r"\.?[*?]+", "", pattern)).strip("-.") or "all_modules"


def _names(patterns):
    names = {}
    for pattern in patterns:
        name, number = _legible(pattern), 2
        while name in names.values():
            name, number = f"{_legible(pattern)}.{number}", number + 1
        names[pattern] = name
    return names


def _is_sharded(tensor):
    """A part of a parameter (FSDP), of which autograd saves nothing: it saves the gathered parameter."""
    return hasattr(tensor, "to_local") or type(tensor).__name__ == "FlatParameter"


class _Kept:
    """Parameters and buffers, which stay. A gathered parameter is known when its module first computes with it."""

    def __init__(self, model, engine):
        self.engine = engine
        self.tensors = [*model.parameters(), *model.buffers()]
        self.sharded = any(map(_is_sharded, self.tensors))
        self.addresses = None
        self.handles = [each.register_forward_pre_hook(self.note) for each in model.modules()
                        if any(True for _ in each.parameters(recurse=False))]

    def note(self, module, inputs):
        for each in module.parameters(recurse=False):
            self.engine.exclude(each)

    def look(self):
        """Before each pass: `model.to(device)` gives parameters other memory."""
        tensors = [each for each in self.tensors if not _is_sharded(each)]
        addresses = [each.data_ptr() for each in tensors]
        if addresses != self.addresses:
            for each in tensors:
                self.engine.exclude(each)
            self.addresses = addresses

    def end_first_pass(self):
        if not self.sharded:
            self.remove()

    def remove(self):
        for each in self.handles:
            each.remove()
        self.handles = []


class offload:
    """While the context lives, tensors that autograd saves in the named submodules of `model` are offloaded.

    `modules` has names of submodules: "mlp" is every submodule with this last name, "self_attn.o_proj" has two
    parts, and "layers.*" is each item of a list. Without `budget` everything leaves that they save; with "8GiB"
    a plan is made of the first steps, so that saved tensors take at most 8 GiB of device memory. `microbatches`
    is the number of forward passes in a step (gradient accumulation). `flags` are Tidepool's options
    ("--host-budget=64GiB"), and override `budget` and the environment's TIDEPOOL_*.

    A module's call under `torch.no_grad()`, or inside a checkpoint, offloads nothing. So to offload the inputs of
    checkpoints, name the modules that hold them ("layers.*"). Throws OptionError for an unknown name.
    """

    def __init__(self, model, modules, budget=None, *, microbatches=1, flags=(), order=0):
        self._model, self._microbatches, self._order = model, microbatches, order
        found = _find(model, modules)
        names = _names(dict.fromkeys(pattern for _, pattern in found))
        self._scopes = [(module, names[pattern]) for module, pattern in found]
        own = [each for each in names.values() if each not in _core.standard_modules]
        self._code = ["--offload-modules=" + ",".join(names.values())]
        if own:
            self._code.append("--own-modules=" + ",".join(own))
        if budget is not None:
            self._code += ["--policy=automatic", f"--device-budget={budget}"]
        self._flags = [flags] if isinstance(flags, str) else [str(each) for each in flags]
        self._engine = self._kept = self._current = self._thread = None
        self._undo = []
        self._passes = []  # open ones, oldest first
        self._begun = 0  # passes of this step
        self._opened, self._shut = set(), set()

    # ---- the context ----

    def __enter__(self):
        for each in (self._model, *(module for module, _ in self._scopes)):
            if id(each) in _around:
                raise TidepoolError(f"offload: a {type(each).__name__} of this model is under another offload"
                                    " already; end that one first, or name all modules in one")
        _sweep_lingering()
        _watch_hooks(True)
        self._undo.append((self._model, _put_around(self._model, self._pass)))
        for module, name in self._scopes:
            self._undo.append((module, _put_around(module, functools.partial(self._scope, name))))
        return self

    def __exit__(self, *args):
        while self._undo:
            _take_away(*self._undo.pop())
        _watch_hooks(False)
        if self._kept is not None:
            self._kept.remove()
        self._sweep()
        if self._passes:  # the backward of a graph is still to come
            _lingering.append(self)

    def summary(self):
        """By name: groups and bytes that left, bytes that came back, since the first step."""
        return self._engine.summary() if self._engine is not None else {}

    def totals(self):
        """Of all modules since the first step: peaks in bytes, and how often a stream had to wait."""
        return self._engine.totals() if self._engine is not None else {}

    # ---- forward ----

    def _pass(self, call):
        if self._current is not None or not torch.is_grad_enabled() or _core.inside_backward():
            return call()
        self._sweep()
        if self._engine is None:
            self._make_engine()
        self._kept.look()
        self._thread = threading.get_ident()
        self._current = self._engine.begin(self._begun, 0)
        self._passes.append(self._current)
        self._begun += 1
        try:
            return call()
        finally:
            current, self._current = self._current, None
            self._kept.end_first_pass()
            current.end_forward()

    def _scope(self, name, call):
        current = self._current
        if current is None or threading.get_ident() != self._thread:
            return call()
        if _foreign_hooks() or not torch.is_grad_enabled():
            self._shut.add(name)
            return call()
        group = current.enter(name)
        if group is None:
            return call()
        self._opened.add(name)
        with _hooks_of(group):
            result = call()
        group.commit()
        return result

    def _make_engine(self):
        device = next((each.device for each in self._model.parameters() if each.is_cuda), None)
        if device is None:
            self._engine = _core.Engine(device="virtual", order=self._order, code=self._code, line=self._flags)
        else:
            with torch.cuda.device(device):
                self._engine = _core.Engine(device="cuda", order=0, code=self._code, line=self._flags)
        self._kept = _Kept(self._model, self._engine)

    # ---- steps ----

    def _sweep(self):
        """Closes passes of which no graph holds anything; the step ends with its last pass."""
        for each in self._passes:
            if not each.is_held():
                each.finish()
        self._passes = [each for each in self._passes if each.is_held()]
        if self._passes or self._begun < self._microbatches:
            return
        self._begun = 0
        self._engine.end_step()
        shut = self._shut - self._opened
        for report in self._engine.take_reports():
            if not any(f"module '{name}'" in report for name in shut):
                print(report, file=sys.stderr)
        for name in sorted(shut):
            self._opened.add(name)
            warnings.warn(f"offload: '{name}' runs under torch.no_grad() or inside a checkpoint, so that nothing of"
                          " it leaves; name the modules that hold the checkpoints ('layers.*'), and their inputs"
                          " leave", stacklevel=2)


def _sweep_lingering():
    for each in _lingering:
        each._sweep()
    _lingering[:] = [each for each in _lingering if each._passes]


def _hooks_of(group):
    def save(tensor):
        if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
            return group.save(tensor)
        return tensor if tensor.is_leaf else tensor.detach()  # a class of its own, such as DTensor

    return _ScopeHooks(save, _load)


def _load(saved):
    return saved if isinstance(saved, torch.Tensor) else saved.load()
