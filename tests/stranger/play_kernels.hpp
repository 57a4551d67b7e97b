// The trainer's streams and kernels, and how it orders them: only where the documentation leaves
// that to the trainer.
#pragma once

#include "player.hpp"

namespace stranger {

inline int player::stream_of(int wanted) const {
  const int s = wanted % program_.streams;
  if (capturing_ && (capture_streams_ >> static_cast<unsigned>(s) & 1U) == 0)
    return capture_stream_;
  return s;
}

// `after` waits for all that `before` has been given.
inline void player::order(int before, int after) {
  if (before == after) return;
  const device::mine quiet(device_);
  auto event = device_.make_event(false);
  device_.record(event, ref(before));
  device_.wait(ref(after), event);
  code_.line("join(dev, s" + std::to_string(before) + ", s" + std::to_string(after) + ");");
  auto& known = knows_[static_cast<std::size_t>(after)];
  const auto& other = knows_[static_cast<std::size_t>(before)];
  stranger::join(known, other);
  known[static_cast<std::size_t>(before)] = position_[static_cast<std::size_t>(before)];
}

inline void player::order_for(const positions& what, int stream) {
  for (int s = 0; s < program_.streams; ++s) {
    const auto i = static_cast<std::size_t>(s);
    if (s != stream && what[i] > knows_[static_cast<std::size_t>(stream)][i]) order(s, stream);
  }
}

inline void player::give(int side, int stream) {
  tick(stream);
  auto& to = side_at(side);
  to.known |= 1U << static_cast<unsigned>(stream);
  if (!capturing_) ++to.eager_calls;
}

inline void player::touch(const content_ref& of) {
  if (capturing_) body_contents_.insert(of->id);
}

// False for handles of work that was captured and has not run.
inline bool player::usable(int index) const {
  const auto& which = at(index);
  if (!which.full() || !which.of) return false;
  const auto& of = side_at(which.of->side);
  if (capturing_) return which.of->side == capture_side_;
  return !of.dirty || of.on_device.contains({which.of->id, place_of(which)});
}

// A kernel, or a function where the trainer computes on the host.
inline void player::compute(int stream, double ns, std::function<void()> body,
                            std::vector<clocks::touch> accesses, std::string label) {
  if (program_.eager) {
    device_.run_now(ref(stream), body, std::move(accesses), std::move(label));
  } else {
    device_.run(ref(stream), ns, std::move(body), std::move(accesses), std::move(label));
  }
}

inline void player::kernel(slot& on, int index, int stream, bool writes, std::uint64_t version) {
  order_for(on.ready, stream);
  if (writes) {
    order_for(on.used, stream);
    order_for(on.of->past, stream);
  }
  auto* const first = static_cast<std::byte*>(on.h().data());
  const auto where = on.where;
  const auto step = on.pitch();
  const auto id = words_of(*on.of);
  std::vector<clocks::touch> accesses;
  for (std::size_t r = 0; r < where.rows; ++r) {
    accesses.push_back(device::touch_of(first + r * step, where.width, writes));
  }
  const auto label = std::string(writes ? "write" : "read") + " of tensor " + std::to_string(id);
  const auto place = name(index) + ", tensor " + std::to_string(id) + ", operation " +
                     std::to_string(at_operation_);
  std::function<void()> body;
  const auto fill = [=](std::uint64_t v) {
    for (std::size_t r = 0; r < where.rows; ++r) {
      put_words(first + r * step, where.width, id, v, where.offset + r * where.pitch);
    }
  };
  const auto check = [=, this](std::uint64_t v) {
    ++checks_;
    if (raced_) return;
    for (std::size_t r = 0; r < where.rows; ++r) {
      const auto* const row = first + r * step;
      const auto offset = where.offset + r * where.pitch;
      const auto c = wrong_word(row, where.width, id, v, offset);
      if (c == where.width) continue;
      const std::string found = found_there(row + c, where.width - c, id, offset + c, 40);
      note("wrong word: " + found, place + ", byte " + std::to_string(c) + " of row " +
                                       std::to_string(r) + ", version " + std::to_string(v) + ": " +
                                       found);
      return;
    }
  };
  if (writes) {
    body = [=] { fill(version); };
  } else if (capturing_) {
    // What is right is known at each launch.
    auto expected = std::make_shared<std::deque<std::uint64_t>>();
    into_->effects.emplace_back([expected, of = on.of] { expected->push_back(of->truth); });
    body = [=] {
      if (expected->empty()) return;
      const auto v = expected->front();
      expected->pop_front();
      if (v != 0) check(v);
    };
  } else {
    body = [=] { check(version); };
  }
  compute(stream, 500 + static_cast<double>(id % 7) * 900, std::move(body), std::move(accesses),
          label);
  on.used[static_cast<std::size_t>(stream)] = tick(stream);
  if (code_.on()) {
    code_.line(std::string(writes ? "write" : "read") + "(dev, s" + std::to_string(stream) + ", " +
               name(index) + ", " + std::to_string(id) + ", " + std::to_string(version) + ", {" +
               std::to_string(where.offset) + ", " + std::to_string(where.width) + ", " +
               std::to_string(where.rows) + ", " + std::to_string(where.pitch) + "}" +
               (writes ? std::string() : ", \"" + place + "\"") + ");");
  }
  touch(on.of);
  look();
}

inline void player::write(int index, int wanted) {
  auto& on = at(index);
  if (usable(index) && lies_in_loan(on)) return;  // somebody else's
  if (!usable(index) || on.is_view || on.of->handles != 1 || on.of->saves != 0 || on.of->copied) {
    return;
  }
  const int stream = stream_of(wanted);
  const auto version = ++versions_;
  kernel(on, index, stream, true, version);
  version_of(*on.of) = version;
  if (capturing_) into_->effects.emplace_back([of = on.of, version] { of->truth = version; });
  on.ready = {};
  on.ready[static_cast<std::size_t>(stream)] = position_[static_cast<std::size_t>(stream)];
}

inline void player::read(int index, int wanted) {
  auto& on = at(index);
  if (!usable(index) || version_of(*on.of) == 0) return;
  kernel(on, index, stream_of(wanted), false, version_of(*on.of));
}

inline void player::join(int first, int second) { order(stream_of(first), stream_of(second)); }

}  // namespace stranger
