// The engine's errors in words: what, where, and what to do.
#pragma once

#include <map>
#include <string>

#include "tidepool/engine.hpp"

namespace tidepool::detail {

template <device Device>
[[gnu::cold]] void engine<Device>::refuse(const char* call, const chunk_state& chunk,
                                          module_id module, int layer,
                                          const std::string& why) const {
  throw misuse_error(std::string(call) + " of " + name_of_group(chunk, module, layer) + ": " + why);
}

template <device Device>
[[gnu::cold]] void engine<Device>::refuse_argument(const char* call, const chunk_state& chunk,
                                                   const group& which, std::uint32_t index,
                                                   const char* why) const {
  refuse(call, chunk, which.module, which.layer,
         "argument " + std::to_string(index + 1) + " " + why);
}

template <device Device>
[[gnu::cold]] void engine<Device>::refuse_count(const chunk_state& chunk, const group& which,
                                                std::size_t given) const {
  refuse("restore", chunk, which.module, which.layer,
         std::to_string(given) + " arguments, but " + std::to_string(which.count) +
             " were committed; pass the same, in order");
}

template <device Device>
[[gnu::cold]] void engine<Device>::throw_out_of_host(const chunk_state& chunk, const group& which,
                                                     std::size_t bytes) const {
  const auto& host = store_.host_source();
  throw out_of_budget("commit of " + name_of_group(chunk, which.module, which.layer) +
                          ": host_budget: " + std::to_string(bytes) + " bytes more do not fit; " +
                          std::to_string(host.used()) + " of " + std::to_string(host.budget()) +
                          " bytes are in use. Raise --host-budget, offload fewer modules, or lower"
                          " --offload-fraction",
                      bytes, host.budget());
}

template <device Device>
[[gnu::cold]] void engine<Device>::throw_out_of_device(std::size_t bytes,
                                                       const std::string& what) const {
  std::map<std::string, std::size_t> live;
  store_.for_each([&](const storage& store) {
    if (!store.on_device) return;
    live[store.module < 0 ? "not committed" : names_[static_cast<std::size_t>(store.module)]] +=
        store.bytes;
  });
  const auto& source = store_.device_source();
  const bool in_pieces = source.reserved() >= store_.live() + bytes;
  const auto budget = source.budget();
  auto text = what + ": " + std::to_string(bytes) + " bytes of device memory do not fit (" +
              (budget == 0 ? "" : "--device-budget is " + std::to_string(budget) + ", ") +
              std::to_string(source.reserved()) + " reserved, largest free block " +
              std::to_string(source.largest_free()) +
              (in_pieces ? "; there is room, but in pieces" : "") +
              ") and nothing is in flight to wait for. Live:";
  for (const auto& [name, size] : live) text += " " + name + " " + std::to_string(size);
  throw out_of_budget(text +
                          ". Raise --device-budget, offload more modules, or run fewer"
                          " microbatches in flight",
                      bytes, budget);
}

}  // namespace tidepool::detail
