/// Tidepool's checked device over torch's operators, for Python: the order of a trainer's accesses,
/// whoever wrote the trainer. `tidepool_judge.py` is what scripts import.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tidepool/torch/declared.hpp"
#if defined(TIDEPOOL_TORCH_CUDA)
#include <c10/cuda/CUDAFunctions.h>

#include "tidepool/torch/cuda.hpp"
#endif

namespace {

namespace py = pybind11;
namespace tp = tidepool;

// A device whose memory torch allocates. The checked device notes memory that `try_allocate`
// returns.
template <class Device>
class torch_memory : public Device {
 public:
  using Device::Device;
  [[nodiscard]] void* try_allocate(std::size_t bytes) {
    return next == nullptr ? Device::try_allocate(bytes) : std::exchange(next, nullptr);
  }

  void* next = nullptr;
};

}  // namespace

namespace tidepool::inline v0_3_0 {

template <class Device>
class torch_streams<torch_memory<Device>> : public torch_streams<Device> {
 public:
  explicit torch_streams(torch_memory<Device>& dev) : torch_streams<Device>(dev) {}
};

}  // namespace tidepool::inline v0_3_0

namespace {

// Tensors with memory, also those in lists.
template <class Use>
void each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (tensor.defined() && tensor.has_storage() && tensor.storage()) use(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) each_tensor(each, use);
  }
}

[[nodiscard]] const void* identity_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// The storages that operators were seen to touch. A storage that nobody has touched, and that is no
// argument of a call from outside, is new: earlier accesses to its bytes were to other memory.
// Torch's allocator reuses memory once work on other streams is done with it, and no event shows
// that.
class known_storages {
 public:
  // True for a new storage, or a storage with new memory.
  [[nodiscard]] bool note(const at::Tensor& tensor) {
    const auto& storage = tensor.storage();
    auto& known = all_[identity_of(tensor)];
    const bool same = known.alive && !known.alive->expired() && known.data == bytes_of(storage);
    if (!same) known = {std::make_unique<weak>(storage.getWeakStorageImpl()), bytes_of(storage)};
    return !same;
  }
  void put_on_host(const at::Tensor& tensor) {
    static_cast<void>(note(tensor));
    all_[identity_of(tensor)].on_host = true;
  }
  [[nodiscard]] bool is_on_host(const at::Tensor& tensor) const {
    const auto at = all_.find(identity_of(tensor));
    return at != all_.end() && at->second.on_host && !at->second.alive->expired();
  }
  [[nodiscard]] static void* bytes_of(const c10::Storage& storage) {
    return storage.unsafeGetStorageImpl()->data_ptr().get();
  }

 private:
  using weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct entry {
    std::unique_ptr<weak> alive;
    const void* data = nullptr;
    bool on_host = false;
  };
  std::unordered_map<const void*, entry> all_;
};

// Declares the accesses of torch's operators, as `torch_declared_operators` does. Beyond that it
// knows hooks of autograd that read a result before its operator ends, and memory on the host that
// streams copy from and to.
template <class Device>
class operators_on {
 public:
  using stream_ref = typename Device::stream_ref;

  operators_on(Device& dev, tp::torch_streams<Device>& streams) : dev_(&dev), streams_(&streams) {
    dev.check_unwritten(false);
  }
  [[nodiscard]] std::size_t count() const { return count_; }

  // An operator that runs; those that it calls lie on it.
  struct under_way final : at::ObserverContext {
    const tp::detail::torch_operator_rule* by = nullptr;
    stream_ref on;
    std::string name;
    std::vector<const void*> done;  // storages that need no declaration at its end
    bool moves = false;             // a stream copies from the host, or to it
    bool host_waits = false;
  };

  [[nodiscard]] std::unique_ptr<under_way> begin(const at::RecordFunction& op) {
    auto result = std::make_unique<under_way>();
    result->by = &rule_of(op);
    result->on = streams_->current();
    result->name = op.name();
    const auto inputs = tp::detail::inputs_of(op);
    result->moves = result->by->copies() && moves_between_sides(inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      each_tensor(inputs[i], [&](const at::Tensor& tensor) {
        saves(tensor);
        if (!result->by->declares()) return;
        const bool writes = result->by->writes(i, inputs);
        if (!writes) result->done.push_back(identity_of(tensor));
        declare(tensor, writes, *result);
      });
    }
    result->host_waits =
        result->by->copies() ? result->moves && blocks(inputs) : result->by->reads_back();
    if (result->by->declares()) ++count_;
    open().push_back(result.get());
    return result;
  }
  [[nodiscard]] bool is_on_host(const at::Tensor& tensor) const {
    return tensor.device() != streams_->device() || known_.is_on_host(tensor);
  }
  // Tensors that operators make are on the host from now on, or not.
  void make_on_host(bool on) { makes_on_host_ = on; }
  // Autograd gives `tensor` to a hook: an operator that is under way has made it before.
  void saves(const at::Tensor& tensor) {
    if (!known_.note(tensor)) return;
    allocated(tensor);
    if (!open().empty()) made(*open().back(), tensor);
  }
  void end(const at::RecordFunction& op, const under_way& began) {
    std::erase(open(), &began);
    if (began.host_waits) dev_->host_waited(began.on);
    for (std::size_t i = 0; i < op.outputs().size(); ++i) {
      each_tensor(op.outputs()[i], [&](const at::Tensor& tensor) {
        if (known_.note(tensor)) allocated(tensor);
        if (makes_on_host_) known_.put_on_host(tensor);
        const bool done = std::ranges::find(began.done, identity_of(tensor)) != began.done.end();
        if (began.by->makes(i) && !done) declare(tensor, true, began);
      });
    }
  }

 private:
  static std::vector<under_way*>& open() {
    static thread_local std::vector<under_way*> all;
    return all;
  }

  const tp::detail::torch_operator_rule& rule_of(const at::RecordFunction& op) {
    const auto name = op.operator_name();
    if (!name) return none_;
    const auto [at, fresh] = rules_.try_emplace(*name);
    if (fresh) {
      if (const auto known = c10::Dispatcher::singleton().findSchema(*name)) {
        at->second = tp::detail::torch_operator_rule(*known);
      }
    }
    return at->second;
  }

  void made(under_way& by, const at::Tensor& tensor) {
    if (!by.by->declares()) return;
    by.done.push_back(identity_of(tensor));
    declare(tensor, true, by);
  }
  void allocated(const at::Tensor& tensor) {
    dev_->next = known_storages::bytes_of(tensor.storage());
    if (dev_->next != nullptr) static_cast<void>(dev_->try_allocate(tensor.storage().nbytes()));
  }
  void declare(const at::Tensor& tensor, bool writes, const under_way& by) {
    if (tensor.layout() != at::kStrided || tensor.numel() == 0) return;
    const tp::detail::torch_layout part(tensor);
    const auto* const begin = tp::detail::bytes_of(tensor.storage()) + part.first;
    const auto bytes = part.last - part.first;
    if (!by.moves && (makes_on_host_ || is_on_host(tensor))) {
      writes ? dev_->host_writes(begin, bytes, by.name) : dev_->host_reads(begin, bytes, by.name);
    } else {
      writes ? dev_->writes(begin, bytes, by.on, by.name)
             : dev_->reads(begin, bytes, by.on, by.name);
    }
  }

  [[nodiscard]] bool moves_between_sides(c10::ArrayRef<const c10::IValue> inputs) const {
    return inputs.size() >= 2 && inputs[0].isTensor() && inputs[1].isTensor() &&
           is_on_host(inputs[0].toTensor()) != is_on_host(inputs[1].toTensor());
  }
  // The third argument of a copy, `non_blocking`, is false.
  [[nodiscard]] static bool blocks(c10::ArrayRef<const c10::IValue> inputs) {
    return inputs.size() >= 3 && inputs[2].isBool() && !inputs[2].toBool();
  }

  Device* dev_;
  tp::torch_streams<Device>* streams_;
  known_storages known_;
  std::unordered_map<c10::OperatorName, tp::detail::torch_operator_rule> rules_;
  tp::detail::torch_operator_rule none_;
  std::size_t count_ = 0;
  bool makes_on_host_ = false;
};

class judge {
 public:
  judge() = default;
  judge(const judge&) = delete;
  judge& operator=(const judge&) = delete;
  virtual ~judge() = default;
  [[nodiscard]] virtual std::uint64_t make_stream(const std::string& name) = 0;
  virtual void name_stream(std::uint64_t stream, const std::string& name) = 0;
  [[nodiscard]] virtual std::uint64_t current() = 0;
  virtual void use(std::uint64_t stream) = 0;
  virtual void recorded(std::uint64_t event, std::uint64_t stream) = 0;
  virtual void waited(std::uint64_t stream, std::uint64_t event) = 0;
  virtual void saves(const at::Tensor& tensor) = 0;
  virtual void make_on_host(bool on) = 0;
  [[nodiscard]] virtual bool is_on_host(const at::Tensor& tensor) = 0;
  virtual void host_waited(std::uint64_t stream) = 0;
  virtual void host_waited_for_event(std::uint64_t event) = 0;
  virtual void host_waited_for_all() = 0;
  [[nodiscard]] virtual std::string report() const = 0;
  [[nodiscard]] virtual std::vector<std::string> findings() const = 0;
  [[nodiscard]] virtual std::size_t operators() const = 0;
};

template <class Inner>
class judge_on final : public judge {
 public:
  using device = tp::checked_device<torch_memory<Inner>>;
  using stream_ref = typename device::stream_ref;
  using under_way = typename operators_on<device>::under_way;

  template <class... Arguments>
  explicit judge_on(py::function on_finding, Arguments&&... of_device)
      : on_finding_(std::move(on_finding)),
        dev_(std::forward<Arguments>(of_device)...),
        streams_of_torch_(dev_),
        operators_(dev_, streams_of_torch_) {
    if (active() != nullptr)
      throw tp::misuse_error("watch: a run is watched already; end that one");
    active() = this;
    callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&starts, &ends)
                                          .needsInputs(true)
                                          .needsOutputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
  }
  ~judge_on() override {
    at::removeCallback(callback_);
    active() = nullptr;
  }

  std::uint64_t make_stream(const std::string& name) override {
    if constexpr (std::is_same_v<Inner, tp::virtual_device>) {
      streams_.push_back(dev_.make_stream());
      dev_.name_stream(streams_.back().ref(), name);
      return streams_.size();
    } else {
      throw tp::misuse_error("make_stream: torch makes the streams of a GPU; " + name);
    }
  }
  void name_stream(std::uint64_t stream, const std::string& name) override {
    dev_.name_stream(ref(stream), name);
  }
  std::uint64_t current() override {
    if constexpr (std::is_same_v<Inner, tp::virtual_device>) {
      return current_;
    } else {
      return reinterpret_cast<std::uint64_t>(streams_of_torch_.current().get());
    }
  }
  void use(std::uint64_t stream) override {
    if constexpr (std::is_same_v<Inner, tp::virtual_device>) {
      streams_of_torch_.set_current(ref(stream));
      current_ = stream;
    }
  }
  void recorded(std::uint64_t event, std::uint64_t stream) override {
    const std::lock_guard guard(lock_);
    dev_.recorded(reinterpret_cast<const void*>(event), ref(stream));
  }
  void waited(std::uint64_t stream, std::uint64_t event) override {
    const std::lock_guard guard(lock_);
    dev_.waited(ref(stream), reinterpret_cast<const void*>(event));
  }
  void saves(const at::Tensor& tensor) override {
    const std::lock_guard guard(lock_);
    if (tensor.defined() && tensor.has_storage()) operators_.saves(tensor);
  }
  void make_on_host(bool on) override {
    const std::lock_guard guard(lock_);
    operators_.make_on_host(on);
  }
  bool is_on_host(const at::Tensor& tensor) override {
    const std::lock_guard guard(lock_);
    return tensor.has_storage() && operators_.is_on_host(tensor);
  }
  void host_waited(std::uint64_t stream) override {
    const std::lock_guard guard(lock_);
    dev_.host_waited(ref(stream));
  }
  void host_waited_for_event(std::uint64_t event) override {
    const std::lock_guard guard(lock_);
    if (!host_) host_.emplace(dev_.make_stream());
    dev_.waited(host_->ref(), reinterpret_cast<const void*>(event));
    dev_.host_waited(host_->ref());
  }
  void host_waited_for_all() override {
    const std::lock_guard guard(lock_);
    dev_.host_waited();
  }
  std::string report() const override { return dev_.report(); }
  std::vector<std::string> findings() const override {
    std::vector<std::string> result;
    for (const auto& each : dev_.findings()) result.push_back(to_text(each));
    return result;
  }
  std::size_t operators() const override { return operators_.count(); }

 private:
  static judge_on*& active() {
    static judge_on* one = nullptr;
    return one;
  }
  static std::unique_ptr<at::ObserverContext> starts(const at::RecordFunction& op) {
    if (active() == nullptr) return nullptr;
    auto result = active()->begin(op);
    active()->look();
    return result;
  }
  static void ends(const at::RecordFunction& op, at::ObserverContext* began) {
    if (active() == nullptr || began == nullptr) return;
    active()->end(op, static_cast<under_way&>(*began));
    active()->look();
  }
  std::unique_ptr<under_way> begin(const at::RecordFunction& op) {
    const std::lock_guard guard(lock_);
    return operators_.begin(op);
  }
  void end(const at::RecordFunction& op, const under_way& began) {
    const std::lock_guard guard(lock_);
    operators_.end(op, began);
  }
  // Python is told without the lock, because a thread that has Python's may wait for it.
  void look() {
    std::size_t now = 0;
    {
      const std::lock_guard guard(lock_);
      now = dev_.findings().size();
      if (now == seen_) return;
      seen_ = now;
    }
    const py::gil_scoped_acquire held;
    try {
      on_finding_(now);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("tidepool_judge");
    }
  }

  [[nodiscard]] stream_ref ref(std::uint64_t stream) {
    if constexpr (std::is_same_v<Inner, tp::virtual_device>) {
      return stream == 0 ? streams_of_torch_.home() : streams_.at(stream - 1).ref();
    } else {
      using handle = decltype(stream_ref().get());
      return stream_ref(reinterpret_cast<handle>(stream));
    }
  }

  std::mutex lock_;
  py::function on_finding_;
  device dev_;
  tp::torch_streams<device> streams_of_torch_;
  operators_on<device> operators_;
  std::vector<typename device::stream> streams_;
  std::optional<typename device::stream>
      host_;  // of no work: it waits for events on the host's behalf
  std::uint64_t current_ = 0;
  std::size_t seen_ = 0;
  at::CallbackHandle callback_{};
};

[[nodiscard]] std::unique_ptr<judge> make_judge(const std::string& device,
                                                py::function on_finding) {
  if (device == "cpu") return std::make_unique<judge_on<tp::virtual_device>>(std::move(on_finding));
#if defined(TIDEPOOL_TORCH_CUDA)
  if (device == "cuda") {
    return std::make_unique<judge_on<tp::cuda_device>>(std::move(on_finding),
                                                       int{c10::cuda::current_device()});
  }
#endif
  throw tp::option_error("watch: this extension has no device " + device);
}

}  // namespace

PYBIND11_MODULE(tidepool_judge_core, m) {
  m.doc() = "Tidepool's checked device over torch's operators; see tidepool_judge.py";
  static py::exception<tp::error> error(m, "TidepoolError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const tp::error& e) {
      PyErr_SetString(error.ptr(), e.what());
    }
  });
  py::class_<judge>(m, "Judge")
      .def(py::init(&make_judge), py::arg("device"), py::arg("on_finding"))
      .def("make_stream", &judge::make_stream)
      .def("name_stream", &judge::name_stream)
      .def("current", &judge::current)
      .def("use", &judge::use)
      .def("recorded", &judge::recorded)
      .def("waited", &judge::waited)
      .def("saves", &judge::saves)
      .def("make_on_host", &judge::make_on_host)
      .def("is_on_host", &judge::is_on_host)
      .def("host_waited", &judge::host_waited)
      .def("host_waited_for_event", &judge::host_waited_for_event)
      .def("host_waited_for_all", &judge::host_waited_for_all)
      .def("report", &judge::report)
      .def("findings", &judge::findings)
      .def("operators", &judge::operators);
#if defined(TIDEPOOL_TORCH_CUDA)
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
}
