// Chunks, of which several are open at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "stress_groups.hpp"

namespace explore::stress {

/// The chunks that are open.
class passes {
 public:
  explicit passes(supplies& from) : from_(&from) {}

  [[nodiscard]] bool empty() const { return open_.empty(); }

  void begin() {
    if (open_.size() == 3) return;
    auto fresh = std::make_unique<pass>();
    if (from_->attempt([&] { fresh->chunk = from_->off().begin({.microbatch = ++begun_}); })) {
      open_.push_back(std::move(fresh));
    }
  }

  void commit(std::vector<tensor>& loose) {
    auto* const at = any_pass();
    const auto module = from_->any(modules);
    const auto layer = any_layer();
    if (at == nullptr || !at->forward || at->groups.contains({module, layer})) return;
    group made;
    for (auto count = 1 + from_->any(3); count > 0; --count) {
      from_->attempt([&] { made.saved.push_back(something(loose)); });
    }
    if (made.saved.empty()) return;
    if (from_->once_in(3) && !made.saved[0].is_view()) loose.push_back(from_->share(made.saved[0]));
    made.how = manner_for(made);
    save(*at, made, module, layer);
  }

  void discard() {
    auto* const at = any_pass();
    const auto layer = any_layer();
    if (at == nullptr || !at->forward || at->groups.contains({modules, layer})) return;
    group made;
    made.how = group::manner::discarded;
    if (!from_->attempt([&] { made.saved.push_back(from_->allocate(from_->any_stream())); }))
      return;
    if (from_->once_in(2)) {
      from_->fill(made.saved[0], from_->any_stream());
    } else {
      from_->tag(made.saved[0]);
    }
    save(*at, made, modules, layer);
  }

  void end_forward() {
    auto* const at = any_pass();
    if (at == nullptr) return;
    at->forward = false;
    from_->attempt([&] { at->chunk.end_forward(); });
  }

  void start_reload() {
    auto* const at = any_pass();
    if (at == nullptr || at->forward || at->groups.empty()) return;
    const auto& each = *any_group(*at);
    if (each.second.how == group::manner::discarded) return;
    const auto module = static_cast<tp::module_id>(each.first.first);
    from_->attempt([&] { at->chunk.start_reload(module, each.first.second); });
  }

  void restore(std::vector<tensor>& loose) {
    auto* const at = any_pass();
    if (at == nullptr || at->groups.empty()) return;
    at->forward = false;
    const auto found = any_group(*at);
    const auto module = found->first.first;
    const auto layer = found->first.second;
    auto& of = found->second;
    const auto stream = from_->any_stream();
    const auto back = [&] {
      return from_->attempt(
          [&] { group_calls(*from_, at->chunk).bring_back(of, module, layer, stream); });
    };
    const bool done = back() || back();  // what fails once goes well the second time
    auto saved = std::move(of.saved);
    at->groups.erase(found);
    if (!done) {
      from_->give_back(std::move(saved));
      return drop(*at);
    }
    for (auto& each : saved) {
      if (!from_->once_in(4)) from_->desk().check(each, from_->any_stream());
      if (from_->once_in(3)) {
        loose.push_back(std::move(each));
      } else {
        from_->give_back(std::move(each));
      }
    }
  }

  void finish() {
    auto* const at = any_pass();
    if (at == nullptr || !at->groups.empty()) return;
    if (from_->attempt([&] { at->chunk.finish(); })) forget(*at);
  }
  void abandon() {
    if (auto* const at = any_pass()) drop(*at);
  }
  void clear() {
    while (!open_.empty()) drop(*open_.front());
  }

 private:
  static constexpr std::size_t modules = 3;  // what is discarded comes behind them

  using group_map = std::map<std::pair<std::size_t, int>, group>;  // by module and layer

  struct pass {
    offloader::chunk chunk;
    group_map groups;
    bool forward = true;
  };

  [[nodiscard]] int any_layer() { return static_cast<int>(from_->any(4)); }
  [[nodiscard]] pass* any_pass() {
    return open_.empty() ? nullptr : open_[from_->any(open_.size())].get();
  }
  [[nodiscard]] group_map::iterator any_group(pass& of) {
    return std::next(of.groups.begin(), static_cast<std::ptrdiff_t>(from_->any(of.groups.size())));
  }

  [[nodiscard]] tensor something(std::vector<tensor>& loose) {
    if (loose.empty() || !from_->once_in(3)) return from_->make();
    const auto& one = loose[from_->any(loose.size())];
    if (!one.is_view() && from_->once_in(2)) return from_->share(one);
    return from_->take_any(loose);
  }

  [[nodiscard]] group::manner manner_for(const group& of) {
    const bool buffers =
        std::ranges::none_of(of.saved, [](const tensor& each) { return each.is_view(); });
    const auto drawn = from_->any(8);
    if (drawn < 3 && buffers) return group::manner::offered;
    return drawn == 3 ? group::manner::by_hand : group::manner::plain;
  }

  void save(pass& at, group& what, std::size_t module, int layer) {
    const auto stream = from_->any_stream();
    const auto saved = [&] {
      return from_->attempt(
          [&] { group_calls(*from_, at.chunk).save(what, module, layer, stream); });
    };
    if (!saved() && !(from_->once_in(2) && saved())) {
      return from_->give_back(std::move(what.saved));
    }
    if (what.how == group::manner::by_hand) {
      for (auto& each : what.saved) {
        if (from_->once_in(2)) from_->give_back(each);
      }
    }
    at.groups.emplace(std::pair(module, layer), std::move(what));
  }

  // With the chunk before its tensors or behind them.
  void drop(pass& at) {
    if (from_->once_in(2)) at.chunk = {};
    for (auto& [key, of] : at.groups) from_->give_back(std::move(of.saved));
    forget(at);
  }
  void forget(const pass& at) {
    std::erase_if(open_, [&](const auto& each) { return each.get() == &at; });
  }

  supplies* from_;
  std::vector<std::unique_ptr<pass>> open_;
  int begun_ = 0;
};

}  // namespace explore::stress
