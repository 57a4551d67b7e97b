// What a chunk saves at a time, and the calls for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stress_supplies.hpp"

namespace explore::stress {

/// Tensors that are saved together.
struct group {
  enum class manner : std::uint8_t { plain, offered, by_hand, discarded };

  std::vector<tensor> saved;
  manner how = manner::plain;
};

/// The calls for one group. Each throws what the offloader does.
class group_calls {
 public:
  group_calls(supplies& from, offloader::chunk& chunk) : from_(&from), chunk_(&chunk) {}

  /// The streams behind the tensors come first: all of them, unless they are only given up.
  void save(group& what, std::size_t module, int layer, std::size_t stream) {
    auto& desk = from_->desk();
    for (const auto& each : what.saved) {
      if (what.how == group::manner::discarded) {
        desk.await_kernels(stream, each);
      } else {
        desk.await(stream, each);
      }
    }
    const auto id = static_cast<tp::module_id>(module);
    const auto on = desk.on(stream);
    switch (what.how) {
      case group::manner::plain:
        return with(what, held, [&](auto&... x) { chunk_->commit(id, layer, on, x...); });
      case group::manner::offered:
        return with(what, whole,
                    [&](auto&... x) { chunk_->commit_or_discard(id, layer, on, x...); });
      case group::manner::by_hand:
        return with(what, held, [&](auto&... x) { chunk_->start_offload(id, layer, on, x...); });
      case group::manner::discarded:
        return with(what, whole,
                    [&](auto&... x) { chunk_->commit_or_discard("layernorm", layer, on, x...); });
    }
  }

  void bring_back(group& what, std::size_t module, int layer, std::size_t stream) {
    auto& desk = from_->desk();
    for (auto& each : what.saved) {
      // What another handle kept on the device is as forward left it; the rest comes by a copy.
      if (each.held() || each.past->shared) {
        desk.await(stream, each);
      } else {
        each.past = std::make_shared<history>();
      }
    }
    const auto id = static_cast<tp::module_id>(module);
    const auto on = desk.on(stream);
    const auto again = [&] {
      if (from_->once_in(4)) from_->give_back(from_->allocate(stream));
      for (auto& each : what.saved) desk.write(each, stream);
    };
    if (what.how == group::manner::offered) {
      with(what, whole,
           [&](auto&... x) { chunk_->restore_or_recompute(id, layer, on, again, x...); });
    } else if (what.how == group::manner::discarded) {
      with(what, whole,
           [&](auto&... x) { chunk_->restore_or_recompute("layernorm", layer, on, again, x...); });
    } else {
      with(what, held, [&](auto&... x) { chunk_->restore(id, layer, on, x...); });
    }
    for (auto& each : what.saved) {
      if (each.held()) desk.handed(each, stream);
    }
  }

 private:
  static tp::handle<device>& held(tensor& of) { return of.held(); }
  static offloader::buffer& whole(tensor& of) { return of.whole; }

  template <class Get, class Call>
  static void with(group& of, const Get& get, const Call& call) {
    auto& x = of.saved;
    if (x.size() == 1) return call(get(x[0]));
    if (x.size() == 2) return call(get(x[0]), get(x[1]));
    call(get(x[0]), get(x[1]), get(x[2]));
  }

  supplies* from_;
  offloader::chunk* chunk_;
};

}  // namespace explore::stress
