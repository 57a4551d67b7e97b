// State that lives on the host and visits the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stress_supplies.hpp"

namespace explore::stress {

class states {
 public:
  explicit states(supplies& from) : from_(&from) {}

  /// One of them goes on to its next place.
  void visit(std::vector<tensor>& loose) {
    if (all_.size() < 2) return add();
    const auto which = from_->any(all_.size());
    auto& each = all_[which];
    if (each.stuck || from_->once_in(20)) {
      // A buffer of it is one like any other from then on.
      if (each.here) loose.push_back(std::move(*each.here));
      all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(which));
      return;
    }
    if (each.here) return leave(each);
    if (each.tag == 0) return create(each);
    if (from_->once_in(3)) {
      from_->attempt([&] { static_cast<void>(each.home.prefetch()); });
    } else {
      fetch(each);
    }
  }

  /// Some are fetched ahead of a capture, which is to use them.
  void look_ahead() {
    for (auto& each : all_) {
      if (from_->once_in(2)) from_->attempt([&] { static_cast<void>(each.home.prefetch()); });
    }
  }

  /// Work of a graph, whose launches find what the host has by then, and leave it so.
  void visit_in_graph() {
    for (auto& each : all_) {
      if (each.tag == 0 || each.doubtful || each.stuck || from_->once_in(2)) continue;
      if (from_->once_in(2)) static_cast<void>(each.home.prefetch());
      auto here = fetched(each, from_->any_stream());
      try {
        work_on(each, here);
      } catch (...) {
        each.doubtful = true;
        send_home(each, here);
        throw;
      }
    }
  }

  /// None visits any more, as a launch would have to find it again.
  void recall() {
    for (auto& each : all_) {
      if (!each.here) continue;
      send_home(each, *each.here);
      each.here.reset();
    }
  }
  /// All of them visit once more, so that the last contents are seen.
  void clear() {
    for (auto& each : all_) {
      if (each.tag != 0 && !each.here && !each.stuck) fetch(each);
    }
    recall();
    all_.clear();
  }

 private:
  struct state {
    tp::host_state<device> home;
    std::size_t words = 0;
    std::uint32_t tag = 0;  // of the contents on the host; 0: none that are known
    std::optional<tensor> here;
    bool stuck = false;     // for ever on its visit, perhaps
    bool doubtful = false;  // a copy out failed: it may have been half done, and is refused then
  };

  void send_home(state& of, tensor& here) {
    if (!from_->give_back(here)) of.stuck = true;
  }

  void add() {
    state made;
    made.words = from_->any_words();
    if (from_->attempt([&] { made.home = from_->off().state_on_host(made.words * 4, "state"); })) {
      all_.push_back(std::move(made));
    }
  }

  void create(state& of) {
    const auto stream = from_->any_stream();
    tensor made;
    made.words = of.words;
    if (!from_->attempt([&] { made.whole = of.home.create(from_->desk().on(stream)); })) return;
    from_->desk().handed(made, stream);
    from_->fill(made, from_->any_stream());
    of.here = std::move(made);
  }

  [[nodiscard]] tensor fetched(state& of, std::size_t stream) {
    tensor made;
    made.words = of.words;
    made.tag = of.tag;
    made.whole = of.home.fetch(from_->desk().on(stream));
    from_->desk().handed(made, stream);
    return made;
  }
  void fetch(state& of) {
    const auto visit = [&] {
      try {
        of.here = fetched(of, from_->any_stream());
      } catch (const tp::misuse_error&) {
        of.tag = 0;  // refused; what fails otherwise leaves on the host what was there
        throw;
      }
    };
    const bool here =
        from_->attempt(visit, of.doubtful ? "nothing was ever written" : supplies::never_refused);
    if (here && !from_->once_in(4)) from_->desk().check(*of.here, from_->any_stream());
  }

  void work_on(state& of, tensor& here) {
    auto& desk = from_->desk();
    const bool changes = from_->once_in(2);
    desk.touch(here, from_->any_stream(), changes);
    if (!changes) return send_home(of, here);
    const auto stream = from_->any_stream();
    desk.await_kernels(stream, here);
    of.home.write_back(here.whole, desk.on(stream));
  }

  void leave(state& of) {
    const auto how = from_->any(3);
    if (how == 0) from_->fill(*of.here, from_->any_stream());
    if (how == 2 && of.here->tag == of.tag) {
      send_home(of, *of.here);
      of.here.reset();
      return;
    }
    const auto stream = from_->any_stream();
    from_->desk().await_kernels(stream, *of.here);
    const auto written = [&] {
      return from_->attempt([&] { of.home.write_back(of.here->whole, from_->desk().on(stream)); });
    };
    // What fails once goes well the second time.
    of.doubtful = !written() && !(from_->once_in(2) && written());
    if (of.doubtful) {
      send_home(of, *of.here);
    } else {
      of.tag = of.here->tag;
    }
    of.here.reset();
  }

  supplies* from_;
  std::vector<state> all_;
};

}  // namespace explore::stress
