// Writes the trace event format: the implementation of timeline.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/escape.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/record.hpp"
#include "tidepool/trace/timeline.hpp"
#include "tidepool/version.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// Traces hold whole nanoseconds. If start and duration were rounded separately, neighbours could
// overlap by one nanosecond, and a viewer would nest them.
[[nodiscard]] inline std::int64_t nanoseconds(double microseconds) {
  return std::llround(microseconds * 1000);
}

// A time in microseconds, the unit of the format, with all its digits.
[[nodiscard]] inline std::string trace_time(std::int64_t nanoseconds) {
  const std::int64_t size = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  std::string fraction = std::to_string(size % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return (nanoseconds < 0 ? "-" : "") + std::to_string(size / 1000) + "." + fraction;
}

class chrome_trace {
 public:
  chrome_trace(std::ostream& out, std::string_view device) : out_(out) {
    // Unformatted output throughout: the stream's locale, width and base do not count.
    const version now;
    const auto number = std::to_string(now.major) + "." + std::to_string(now.minor) + "." +
                        std::to_string(now.patch);
    put("{\"displayTimeUnit\":\"ms\",\"metadata\":{\"tidepool\":" + quoted(number) +
        field("device", quoted(device)) + "},\"traceEvents\":[\n");
    put(R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"Tidepool"}})");
    lane("steps", 0);
  }

  void step(const trace::record& record, std::size_t number) {
    std::vector<std::size_t> threads;
    for (std::size_t i = 0; i < record.lanes.size(); ++i) {
      const auto at = record.lanes.begin() + static_cast<std::ptrdiff_t>(i);
      threads.push_back(thread(*at, std::count(record.lanes.begin(), at, *at)));
    }
    std::int64_t end = begin_;
    for (const auto& span : record.spans) {
      if (trace::placed(record, span)) end = std::max(end, begin_ + nanoseconds(span.end));
    }
    for (const auto& level : record.device_bytes) {
      if (trace::placed(level)) end = std::max(end, begin_ + nanoseconds(level.time));
    }
    slice(0, begin_, end, record.title.empty() ? "step " + std::to_string(number) : record.title,
          "step", {});
    draw_passes(record);
    for (const auto& span : record.spans) {
      if (trace::placed(record, span)) draw_span(span, threads[span.lane]);
    }
    flows(record, threads);
    counter(record.device_bytes, "saved tensors on the device");
    for (const auto& [module, levels] : record.device_bytes_of) {
      counter(levels, "on the device: " + (module.empty() ? "saved by none" : module));
    }
    counter(record.device_bytes_without, "saved tensors without offload");
    if (record.budget > 0) counter({{0, record.budget}}, "device budget");
    begin_ = end;
  }

  void finish() { put("\n]}\n"); }

 private:
  void put(std::string_view text) {
    out_.write(text.data(), static_cast<std::streamsize>(text.size()));
  }

  static std::string field(std::string_view key, const std::string& value) {
    return ",\"" + std::string(key) + "\":" + value;
  }
  static std::string quoted(std::string_view text) { return "\"" + json_text(text) + "\""; }

  void event(std::string_view phase, std::size_t thread, std::int64_t at, std::string_view name,
             const std::string& rest) {
    put(",\n{\"ph\":" + quoted(phase) + field("pid", "1") + field("tid", std::to_string(thread)) +
        field("ts", trace_time(at)) + field("name", quoted(name)) + rest + "}");
  }

  // `arguments` are fields.
  void slice(std::size_t thread, std::int64_t from, std::int64_t to, std::string_view name,
             std::string_view category, const std::string& arguments) {
    const auto last = to > from ? field("dur", trace_time(to - from)) : field("s", quoted("t"));
    event(to > from ? "X" : "i", thread, from, name,
          last + field("cat", quoted(category)) +
              // A reserved colour of `chrome://tracing`; other viewers take no notice.
              (category == "stall" ? field("cname", quoted("terrible")) : "") +
              field("args", "{" + arguments.substr(arguments.empty() ? 0 : 1) + "}"));
  }

  void counter(const std::vector<trace::level>& levels, const std::string& name) {
    for (const auto& level : levels) {
      if (!trace::placed(level)) continue;
      event("C", 0, begin_ + nanoseconds(level.time), name,
            field("args", "{\"bytes\":" + std::to_string(level.bytes) + "}"));
    }
  }

  // A pass that begins before another has ended is on a thread of its own.
  void draw_passes(const trace::record& record) {
    std::vector<double> ends;
    for (const auto& pass : record.passes) {
      if (!trace::placed(pass)) continue;
      const auto free = std::ranges::find_if(ends, [&](double end) { return end <= pass.start; });
      const auto row = free - ends.begin();
      if (free == ends.end()) ends.push_back(0);
      ends[static_cast<std::size_t>(row)] = pass.end;
      const auto number = std::to_string(pass.microbatch);
      slice(thread("passes", row), begin_ + nanoseconds(pass.start), begin_ + nanoseconds(pass.end),
            (pass.backward ? "backward " : "forward ") + number, "pass",
            field("microbatch", number) + field("chunk", std::to_string(pass.model_chunk)));
    }
  }

  void draw_span(const trace::span& span, std::size_t thread) {
    const auto from = begin_ + nanoseconds(span.start);
    const auto to = begin_ + nanoseconds(span.end);
    const bool stall = span.kind == trace::span_kind::stall;
    // A join at which nobody waited is no stall, and what took no time is an instant.
    if (to == from && stall) return;
    const std::string kind(words_of(span.kind));
    std::string arguments;
    if (stall) {
      arguments = field("reason", quoted(span.name));
      const auto meaning = meaning_of(span.name);
      if (!meaning.empty()) arguments += field("meaning", quoted(meaning));
    }
    const auto& module = stall ? span.module : span.name;
    if (!kind.empty() && !module.empty()) arguments += field("module", quoted(module));
    if (span.layer >= 0) arguments += field("layer", std::to_string(span.layer));
    if (span.microbatch >= 0) arguments += field("microbatch", std::to_string(span.microbatch));
    const auto on_link = traffic{span.bytes, span.spared}.on_link();
    if (span.bytes > 0) arguments += field("bytes", std::to_string(span.bytes));
    if (span.spared > 0) arguments += field("bytes on the link", std::to_string(on_link));
    if (span.bytes > 0 && to > from && !stall) {
      // Bytes per nanosecond are GB/s.
      const double rate = static_cast<double>(on_link) / static_cast<double>(to - from);
      arguments += field("GB/s", fixed(rate, 3));
    }
    slice(thread, from, to, kind + (kind.empty() ? "" : " ") + span.name,
          kind.empty() ? "compute" : kind, arguments);
  }

  // From each offload to its reload, and from each stall to the copy that it waits for.
  void flows(const trace::record& record, const std::vector<std::size_t>& threads) {
    const copy_index copies(record);
    for (const auto& span : record.spans) {
      const bool reload = span.kind == trace::span_kind::reload;
      if (!trace::placed(record, span) || !(span.end > span.start)) continue;
      if (reload) {
        const auto* out = copies.offload_of(span);
        if (out != nullptr) flow("comes back", *out, out->start, span, span.start, threads);
      } else if (const auto* copy = copies.behind(span)) {
        flow("waits for", span, span.start, *copy, std::max(copy->start, span.start), threads);
      }
    }
  }

  void flow(std::string_view name, const trace::span& from, double leaves, const trace::span& to,
            double arrives, const std::vector<std::size_t>& threads) {
    if (arrives < leaves || !(to.end > arrives)) return;
    const auto rest = field("cat", quoted("flow")) + field("id", std::to_string(++flows_));
    event("s", threads[from.lane], begin_ + nanoseconds(leaves), name, rest);
    event("f", threads[to.lane], begin_ + nanoseconds(arrives), name,
          rest + field("bp", quoted("e")));
  }

  // The thread of a lane: lanes of one name are one thread over all steps, and two lanes of one
  // name within a step are two.
  std::size_t thread(const std::string& name, std::ptrdiff_t before) {
    const std::pair<std::string, std::ptrdiff_t> key{name, before};
    const auto found = std::find(threads_.begin(), threads_.end(), key);
    if (found != threads_.end()) return static_cast<std::size_t>(found - threads_.begin()) + 1;
    threads_.push_back(key);
    lane(name, threads_.size());
    return threads_.size();
  }

  void lane(std::string_view name, std::size_t thread) {
    const auto number = std::to_string(thread);
    const auto begin = ",\n{\"ph\":\"M\",\"pid\":1" + field("tid", number);
    put(begin + R"(,"name":"thread_name","args":{"name":)" + quoted(name) + "}}");
    put(begin + R"(,"name":"thread_sort_index","args":{"sort_index":)" + number + "}}");
  }

  std::ostream& out_;
  std::int64_t begin_ = 0;  // of the present step, in nanoseconds
  std::vector<std::pair<std::string, std::ptrdiff_t>> threads_;
  std::size_t flows_ = 0;
};

}  // namespace tidepool::trace::detail

namespace tidepool::inline v0_3_0::trace {

TIDEPOOL_INLINE void write_chrome_trace(std::ostream& out, std::span<const record> steps) {
  detail::chrome_trace trace(out, steps.empty() ? "" : steps.front().device);
  for (std::size_t i = 0; i < steps.size(); ++i) trace.step(steps[i], i);
  trace.finish();
}

TIDEPOOL_INLINE void write_chrome_trace(std::ostream& out, const record& step) {
  write_chrome_trace(out, std::span(&step, 1));
}

}  // namespace tidepool::trace
