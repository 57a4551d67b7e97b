/// Tidepool for Python: what hooks of Python's autograd save and load. `tidepool_offload.py` is
/// what trainers import.
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tidepool/pack.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/places/file.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/torch.hpp"
#include "tidepool/trace/output.hpp"
#if defined(TIDEPOOL_TORCH_CUDA)
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace {

namespace py = pybind11;
namespace tp = tidepool;

using saved_hooks = torch::autograd::SavedVariableHooks;
// Who holds Tidepool's lock may free a tensor, which takes Python's: so nobody waits for the first
// with the second in hand.
using without_python = py::gil_scoped_release;

// How many tensors of a pass autograd still holds, and whether backward has begun.
struct pass_use {
  std::atomic<std::int64_t> held{0};
  std::atomic<bool> read{false};
};

// One tensor that autograd saved; autograd holds this instead.
class saved_tensor {
 public:
  saved_tensor(std::unique_ptr<saved_hooks> hooks, std::shared_ptr<pass_use> use)
      : hooks_(std::move(hooks)), use_(std::move(use)) {
    ++use_->held;
  }
  // One that is marked to stay.
  explicit saved_tensor(at::Tensor stays) : stays_(std::move(stays)) {}
  saved_tensor(const saved_tensor&) = delete;
  saved_tensor& operator=(const saved_tensor&) = delete;
  ~saved_tensor() {
    if (use_ == nullptr) return;
    const without_python released;
    hooks_.reset();
    --use_->held;
  }
  [[nodiscard]] at::Tensor load() {
    if (use_ == nullptr) return stays_;
    const without_python released;
    use_->read = true;
    return hooks_->call_unpack_hook();
  }

 private:
  std::unique_ptr<saved_hooks> hooks_;
  std::shared_ptr<pass_use> use_;
  at::Tensor stays_;
};

// Marks of Megatron's and Transformer Engine's on a tensor's Python object.
[[nodiscard]] bool is_marked(py::handle tensor) {
  auto** const attributes = _PyObject_GetDictPtr(tensor.ptr());
  if (attributes == nullptr || *attributes == nullptr) return false;
  for (const char* const name : {"_do_not_offload", "_TE_do_not_offload"}) {
    auto* const mark = PyDict_GetItemString(*attributes, name);
    if (mark != nullptr && PyObject_IsTrue(mark) == 1) return true;
  }
  return false;
}

// True for a tensor with tensors inside, of which Transformer Engine marked one: a quantized tensor
// has its mark there.
[[nodiscard]] bool has_marked_inside(py::handle tensor) {
  if (THPVariable_CheckExact(tensor.ptr())) return false;
  if (!py::hasattr(tensor, "get_data_tensors")) return false;
  const py::object inside = tensor.attr("get_data_tensors")();
  if (THPVariable_Check(inside.ptr())) return is_marked(inside);
  for (const auto each : inside) {
    if (is_marked(each)) return true;
  }
  return false;
}

// One module of one layer in one pass; alive for as long as the call site is in it.
class group {
 public:
  group() = default;
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  virtual ~group() = default;
  [[nodiscard]] std::unique_ptr<saved_tensor> save(py::handle object) {
    const auto tensor = py::cast<at::Tensor>(object);
    if (is_marked(object) || has_marked_inside(object))
      return std::make_unique<saved_tensor>(tensor.detach());
    const without_python released;
    return take(tensor);
  }
  virtual void commit() = 0;

 protected:
  [[nodiscard]] virtual std::unique_ptr<saved_tensor> take(const at::Tensor& tensor) = 0;
};

// True on a thread that runs a node of backward.
[[nodiscard]] bool inside_backward() {
  return torch::autograd::get_current_graph_task_nodes_in_graph() != nullptr;
}

class pass {
 public:
  pass() = default;
  pass(const pass&) = delete;
  pass& operator=(const pass&) = delete;
  virtual ~pass() = default;
  // Null where nothing of the module leaves.
  [[nodiscard]] virtual std::unique_ptr<group> enter(std::string_view module) = 0;
  virtual void end_forward() = 0;
  virtual void finish() = 0;
  // Backward has read what it will: nobody holds anything of it any more.
  [[nodiscard]] bool is_over() const { return use->read && !is_held(); }
  // A graph still holds tensors of it, read or not.
  [[nodiscard]] bool is_held() const { return use->held > 0; }
  [[nodiscard]] bool is_read() const { return use->read; }

 protected:
  std::shared_ptr<pass_use> use = std::make_shared<pass_use>();
};

class engine {
 public:
  engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  virtual ~engine() = default;
  // By chunk of the step: its model chunk, and bytes by module that leave from the next step on.
  using chunks = std::vector<std::pair<int, std::map<std::string, std::size_t>>>;
  [[nodiscard]] virtual chunks planned() = 0;
  [[nodiscard]] virtual std::unique_ptr<pass> begin(int microbatch, int model_chunk) = 0;
  virtual void end_step() = 0;
  virtual void join_capture() = 0;
  virtual void exclude(const at::Tensor& tensor) = 0;
  virtual void leave_out(const std::string& join) = 0;
  [[nodiscard]] virtual tp::trace::counters counters() const = 0;
  [[nodiscard]] virtual std::vector<std::string> take_reports() = 0;
};

template <class Device>
class group_on final : public group {
 public:
  group_on(tp::torch_group<Device> from, std::shared_ptr<pass_use> use)
      : group_(std::move(from)), use_(std::move(use)) {}
  void commit() override {
    const without_python released;
    // Delayed, and backward came first: it stays.
    if (!use_->read) group_.commit();
  }

 private:
  std::unique_ptr<saved_tensor> take(const at::Tensor& tensor) override {
    return std::make_unique<saved_tensor>(group_.save(tensor), use_);
  }

  tp::torch_group<Device> group_;
  std::shared_ptr<pass_use> use_;
};

template <class Device>
class pass_on final : public pass {
 public:
  pass_on(tp::torch_offloader<Device>& off, const tp::chunk_info& info)
      : off_(&off), pass_(off.begin(info)) {}
  ~pass_on() override {
    const without_python released;
    pass_ = {};
  }
  // The n-th time that a pass meets a module is the module's layer n.
  std::unique_ptr<group> enter(std::string_view module) override {
    const without_python released;
    const auto id = off_->module(module);
    if (inside_backward()) return nullptr;  // a checkpoint, whose saved tensors are read at once
    auto opened = pass_.group(id, layers_[id]);
    if (!opened) return nullptr;
    ++layers_[id];
    return std::make_unique<group_on<Device>>(std::move(opened), use);
  }
  void end_forward() override {
    const without_python released;
    pass_.end_forward();
  }
  void finish() override {
    const without_python released;
    pass_.finish();
  }

 private:
  tp::torch_offloader<Device>* off_;
  tp::torch_pass<Device> pass_;
  std::map<tp::module_id, int> layers_;
};

template <class Device>
class engine_on final : public engine {
 public:
  template <class... Arguments>
  explicit engine_on(const tp::options& opts, Arguments&&... of_device)
      : dev_(std::forward<Arguments>(of_device)...),
        off_(with_kernels(dev_), opts,
             {.planner = tp::planner(),
              .file = tp::file_place(),
              .output = tp::trace_output(),
              .install_hooks = false}) {
    off_.engine().on_report([this](std::string_view report) {
      const std::lock_guard guard(reporting_);
      reports_.emplace_back(report);
    });
  }
  ~engine_on() override = default;

  chunks planned() override {
    const auto& off = off_.engine();
    const auto& step = off.profile();
    const auto& plan = off.current_plan();
    if (!plan && off.settings().policy == tp::policy_kind::automatic) return {};
    const auto what =
        plan ? plan->what : tp::plan::actions_of(tp::plan::megatron_policy(step, off.settings()));
    chunks result;
    for (std::size_t c = 0; c < std::min(what.size(), step.chunks.size()); ++c) {
      auto& [model_chunk, bytes] = result.emplace_back();
      model_chunk = step.chunks[c].model_chunk;
      for (std::size_t i = 0; i < std::min(what[c].size(), step.chunks[c].groups.size()); ++i) {
        const auto& group = step.chunks[c].groups[i];
        if (group.bytes == 0 || !tp::plan::is_offload(what[c][i])) continue;
        bytes[step.modules[static_cast<std::size_t>(group.module)]] += group.bytes;
      }
    }
    return result;
  }
  std::unique_ptr<pass> begin(int microbatch, int model_chunk) override {
    const without_python released;
    return std::make_unique<pass_on<Device>>(
        off_, tp::chunk_info{.microbatch = microbatch, .model_chunk = model_chunk});
  }
  void end_step() override {
    const without_python released;
    off_.end_step();
  }
  void join_capture() override {
    const without_python released;
    off_.join_capture();
  }
  void exclude(const at::Tensor& tensor) override {
    const without_python released;
    off_.exclude(tensor);
  }
  void leave_out(const std::string& join) override {
    if constexpr (std::is_same_v<Device, tp::virtual_device>) {
      for (unsigned i = 0; i < static_cast<unsigned>(tp::join_site::count); ++i) {
        const auto site = static_cast<tp::join_site>(i);
        if (name_of(site) == join) return dev_.leave_out(site);
      }
      throw tp::misuse_error("leave_out: there is no join " + join);
    } else {
      throw tp::misuse_error("leave_out: the virtual device alone can do without " + join);
    }
  }
  [[nodiscard]] tp::trace::counters counters() const override { return off_.counters(); }
  [[nodiscard]] std::vector<std::string> take_reports() override {
    const std::lock_guard guard(reporting_);
    return std::exchange(reports_, {});
  }

 private:
  // The kernels of `--pack`, where build.sh found a compiler for them.
  static Device& with_kernels(Device& dev) {
#if defined(TIDEPOOL_COMPILED_PACK)
    if constexpr (std::is_same_v<Device, tp::cuda_device>) dev.use(tp::cuda_packer());
#endif
    return dev;
  }

  std::mutex reporting_;
  std::vector<std::string> reports_;
  Device dev_;
  tp::torch_offloader<Device> off_;
};

[[nodiscard]] std::unique_ptr<engine> make_engine(const std::string& device, std::uint64_t order,
                                                  const std::vector<std::string>& code,
                                                  const std::vector<std::string>& line) {
  const auto opts = tp::parse_options(
      std::span<const std::string>(line),
      tp::from_environment(tp::parse_options(std::span<const std::string>(code))));
  if (device == "virtual") {
    return std::make_unique<engine_on<tp::virtual_device>>(
        opts, tp::machine{.poison = true, .order_seed = order});
  }
#if defined(TIDEPOOL_TORCH_CUDA)
  if (device == "cuda") {  // the one that this rank has chosen
    return std::make_unique<engine_on<tp::cuda_device>>(opts, int{c10::cuda::current_device()});
  }
#endif
  throw tp::option_error("device " + device +
                         ": this extension has virtual"
#if defined(TIDEPOOL_TORCH_CUDA)
                         " and cuda"
#else
                         " alone; for cuda build it with a PyTorch that has CUDA"
#endif
  );
}

[[nodiscard]] py::dict summary(const engine& from) {
  py::dict result;
  for (const auto& each : from.counters().modules) {
    if (!each.enabled) continue;
    py::dict row;
    row["groups_offloaded"] = each.groups_offloaded;
    row["bytes_offloaded"] = each.bytes_offloaded;
    row["bytes_reloaded"] = each.bytes_reloaded;
    result[py::str(each.name)] = row;
  }
  return result;
}

[[nodiscard]] py::dict totals(const engine& from) {
  const auto all = from.counters();
  py::dict result;
  result["steps"] = all.steps;
  result["borrowed_peak"] = all.borrowed_peak;
  result["borrowed_joins"] = all.borrowed_joins;
  result["budget_exceeded"] = all.budget_exceeded;
  result["evictions"] = all.evictions;
  result["arena_waits"] = all.arena_waits;
  result["host_peak"] = all.host_peak;
  result["live_peak"] = all.live_peak;
  result["live_peak_without"] = all.live_peak_without;
  result["away_at_peak"] = all.away_at_peak;
  return result;
}

}  // namespace

PYBIND11_MODULE(tidepool_megatron, m) {
  m.doc() = "Tidepool for hooks of Python's autograd; see tidepool_offload.py";
  m.attr("torch_version") = TORCH_VERSION;
  static py::exception<tp::error> error(m, "TidepoolError", PyExc_RuntimeError);
  static py::exception<tp::unknown_module> unknown(m, "UnknownModule", error.ptr());
  static py::exception<tp::option_error> option(m, "OptionError", error.ptr());
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const tp::unknown_module& e) {
      PyErr_SetString(unknown.ptr(), e.what());
    } catch (const tp::option_error& e) {
      PyErr_SetString(option.ptr(), e.what());
    } catch (const tp::error& e) {
      PyErr_SetString(error.ptr(), e.what());
    }
  });

  py::class_<saved_tensor>(m, "SavedTensor").def("load", &saved_tensor::load);
  py::class_<group>(m, "Group").def("save", &group::save).def("commit", &group::commit);
  py::class_<pass>(m, "Pass")
      .def("enter", &pass::enter)
      .def("end_forward", &pass::end_forward)
      .def("finish", &pass::finish)
      .def("is_over", &pass::is_over)
      .def("is_held", &pass::is_held)
      .def("is_read", &pass::is_read, "A backward pass has begun to read it.");
  py::class_<engine>(m, "Engine")
      .def(py::init(&make_engine), py::arg("device"), py::arg("order"), py::arg("code"),
           py::arg("line"))
      .def("begin", &engine::begin, py::keep_alive<0, 1>())
      .def("end_step", &engine::end_step)
      .def("join_capture", &engine::join_capture,
           "The stream that is being captured waits for all copies of the capture.")
      .def("exclude", &engine::exclude)
      .def("planned", &engine::planned)
      .def("leave_out", &engine::leave_out, "Of the virtual device, for tests: a join is not made.")
      .def("take_reports", &engine::take_reports)
      .def("summary", &summary)
      .def("totals", &totals, "Of all modules: peaks, and how often a stream was made to wait.");
  m.def("inside_backward", &inside_backward);
  m.attr("standard_modules") = py::tuple(py::cast(tp::standard_modules));
#if defined(TIDEPOOL_TORCH_CUDA)
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
}
