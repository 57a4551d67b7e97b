// Options of any text run a program: refused, out of budget, or it works. The first character
// chooses the list of modules.
#include "tidepool/offloader.hpp"

#include <cstdlib>

#include "fuzz.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/places/file.hpp"
#include "tidepool/plan.hpp"

namespace {

using namespace tidepool;

// A small machine, whatever this one has.
class small_device : public null_device {
 public:
  [[nodiscard]] void* try_allocate(std::size_t bytes) {
    return bytes > most ? nullptr : null_device::try_allocate(bytes);
  }
  [[nodiscard]] void* try_allocate_host(std::size_t bytes) { return try_allocate(bytes); }

 private:
  static constexpr std::size_t most = std::size_t{1} << 20;
};

constexpr std::size_t tensor_bytes = 1000;

template <class List>
void train(const options& value) {
  small_device dev;
  const auto stream = dev.make_stream();
  offloader<small_device, List> off(dev, value, {.planner = planner(), .file = file_place()});
  off.on_report([](std::string_view) {});
  std::vector<module_id> used;
  for (const std::string_view name : {"core_attn", "expert_fc1", "rope"}) {
    try {
      used.push_back(off.module(name));
    } catch (const unknown_module&) {  // not in this list
    }
  }
  for (int step = 0; step < 2; ++step) {
    constexpr int layers = 3;
    std::vector<buffer<small_device>> saved(layers * used.size());
    auto chunk = off.begin();
    const auto each = [&](int layer, const auto& visit) {
      for (std::size_t i = 0; i < used.size(); ++i) {
        visit(used[i], saved[static_cast<std::size_t>(layer) * used.size() + i]);
      }
    };
    for (int layer = 0; layer < layers; ++layer) {
      each(layer, [&](module_id id, auto& tensor) {
        tensor = off.allocate(tensor_bytes + static_cast<std::size_t>(layer), stream.ref());
        chunk.commit(id, layer, stream.ref(), tensor);
      });
    }
    chunk.end_forward();
    for (int layer = layers - 1; layer >= 0; --layer) {
      each(layer, [&](module_id id, auto& tensor) {
        chunk.restore(id, layer, stream.ref(), tensor);
        fuzz::expect(static_cast<bool>(tensor), "a handle is empty after its restore");
        // The null device hands out real memory, so that the sanitizer sees a wrong address.
        *static_cast<volatile char*>(tensor.data()) = 1;
        tensor.template as<volatile char>()[tensor_bytes - 1] = 1;
        tensor.reset(stream.ref());
      });
    }
    chunk.finish();
    off.end_step();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  options value;
  const auto text = fuzz::text_of(data + 1, size - 1);
  const auto parse = [&] {
    // Steps for a small machine; the text may say otherwise.
    value = parse_options(text, parse_options("--offload-modules=all --min-tensor-elements=1 "
                                              "--device-step=16KiB --host-step=16KiB "
                                              "--host-budget=1MiB --copy-piece=256B"));
  };
  if (!fuzz::accepted(parse)) return 0;
  static_cast<void>(fuzz::accepted([&] {
    try {
      switch (data[0] % 3) {
        case 0:
          train<all_modules>(value);
          break;
        case 1:
          train<fuzz::whole_list>(value);
          break;
        default:
          train<fuzz::short_list>(value);
      }
    } catch (const misuse_error& blame) {
      fuzz::finding("options make a right program wrong", blame.what());
    }
  }));
  return 0;
}
