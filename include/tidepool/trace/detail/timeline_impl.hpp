// The bodies of timeline.hpp.
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

namespace tidepool::inline v0_3_0::trace::detail {

// Traces hold whole nanoseconds: were start and duration rounded apart, neighbours could overlap
// by one, and a viewer would nest them.
[[nodiscard]] inline std::int64_t nanoseconds(double microseconds) {
  return std::llround(microseconds * 1000);
}

// Microseconds, the unit of the format, with all their digits.
[[nodiscard]] inline std::string trace_time(std::int64_t nanoseconds) {
  const std::int64_t size = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  std::string fraction = std::to_string(size % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return (nanoseconds < 0 ? "-" : "") + std::to_string(size / 1000) + "." + fraction;
}

class chrome_trace {
 public:
  explicit chrome_trace(std::ostream& out) : out_(out) {
    // Unformatted output throughout: the stream's locale, width and base do not count.
    put("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    put(R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"Tidepool"}})");
    lane("steps", 0);
  }

  void step(const trace::record& record, std::size_t number) {
    std::vector<std::size_t> threads;
    for (std::size_t i = 0; i < record.lanes.size(); ++i) threads.push_back(thread(record, i));

    std::int64_t end = begin_;
    for (const auto& span : record.spans) {
      if (trace::placed(record, span)) end = std::max(end, begin_ + nanoseconds(span.end));
    }
    for (const auto& level : record.device_bytes) {
      if (trace::placed(level)) end = std::max(end, begin_ + nanoseconds(level.time));
    }

    event(end > begin_ ? "X" : "i", 0, begin_);
    put((end > begin_ ? ",\"dur\":" + trace_time(end - begin_) : std::string(R"(,"s":"t")")) +
        R"(,"cat":"step","name":")" +
        (record.title.empty() ? "step " + std::to_string(number) : json_text(record.title)) +
        "\",\"args\":{}}");
    for (const auto& span : record.spans) {
      if (trace::placed(record, span)) complete(span, threads[span.lane]);
    }
    counter(record.device_bytes, "saved tensors on the device");
    counter(record.device_bytes_without, "saved tensors without offload");
    if (record.budget > 0) counter({{0, record.budget}}, "device budget");
    begin_ = end;
  }

  void finish() { put("\n]}\n"); }

 private:
  void put(std::string_view text) {
    out_.write(text.data(), static_cast<std::streamsize>(text.size()));
  }

  void event(std::string_view phase, std::size_t thread, std::int64_t at) {
    put(std::string(",\n{\"ph\":\"").append(phase) + R"(","pid":1,"tid":)" +
        std::to_string(thread) + ",\"ts\":" + trace_time(at));
  }

  void counter(const std::vector<trace::level>& levels, const std::string& name) {
    for (const auto& level : levels) {
      if (!trace::placed(level)) continue;
      event("C", 0, begin_ + nanoseconds(level.time));
      put(",\"name\":\"" + name + R"(","args":{"bytes":)" + std::to_string(level.bytes) + "}}");
    }
  }

  void complete(const trace::span& span, std::size_t thread) {
    const auto start = nanoseconds(span.start);
    const auto duration = nanoseconds(span.end) - start;
    // A join at which nobody waited is no stall, and what took no time is an instant.
    if (duration == 0 && span.kind == trace::span_kind::stall) return;
    std::string_view category = "compute";
    std::string name = json_text(span.name);
    switch (span.kind) {
      case trace::span_kind::compute:
        break;
      case trace::span_kind::offload:
        category = "offload";
        break;
      case trace::span_kind::reload:
        category = "reload";
        break;
      case trace::span_kind::stall:
        category = "stall";
        break;
    }
    if (category != "compute") name = std::string(category).append(" ").append(name);

    event(duration > 0 ? "X" : "i", thread, begin_ + start);
    std::string text = duration > 0 ? ",\"dur\":" + trace_time(duration) : R"(,"s":"t")";
    text += ",\"cat\":\"" + std::string(category) + "\",\"name\":\"" + name + "\"";
    // A reserved colour of `chrome://tracing`; other viewers take no notice.
    if (category == "stall") text += R"(,"cname":"terrible")";
    std::string arguments;
    const auto argument = [&](std::string_view key, const std::string& value) {
      arguments.append(arguments.empty() ? "\"" : ",\"").append(key).append("\":").append(value);
    };
    if (category == "stall") {
      argument("reason", in_json_quotes(span.name));
      if (const auto meaning = meaning_of(span.name); !meaning.empty()) {
        argument("meaning", in_json_quotes(meaning));
      }
      if (!span.module.empty()) argument("module", in_json_quotes(span.module));
    } else if (category != "compute") {
      argument("module", in_json_quotes(span.name));
    }
    if (span.layer >= 0) argument("layer", std::to_string(span.layer));
    if (span.microbatch >= 0) argument("microbatch", std::to_string(span.microbatch));
    if (span.bytes > 0) {
      argument("bytes", std::to_string(span.bytes));
      // Bytes per nanosecond are GB/s.
      if (duration > 0 && category != "stall") {
        argument("GB/s", fixed(static_cast<double>(span.bytes) / static_cast<double>(duration), 3));
      }
    }
    put(text + ",\"args\":{" + arguments + "}}");
  }

  static std::string in_json_quotes(std::string_view text) { return "\"" + json_text(text) + "\""; }

  // The thread of a lane: lanes of one name are one thread over all steps, and two lanes of one
  // name within a step are two.
  std::size_t thread(const trace::record& record, std::size_t index) {
    const auto& name = record.lanes[index];
    const auto before = static_cast<std::size_t>(std::count(
        record.lanes.begin(), record.lanes.begin() + static_cast<std::ptrdiff_t>(index), name));
    const std::pair<std::string, std::size_t> key{name, before};
    const auto found = std::find(threads_.begin(), threads_.end(), key);
    if (found != threads_.end()) return static_cast<std::size_t>(found - threads_.begin()) + 1;
    threads_.push_back(key);
    lane(name, threads_.size());
    return threads_.size();
  }

  void lane(std::string_view name, std::size_t thread) {
    const auto number = std::to_string(thread);
    put(",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" + number +
        R"(,"name":"thread_name","args":{"name":")" + json_text(name) + "\"}}");
    put(",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" + number +
        R"(,"name":"thread_sort_index","args":{"sort_index":)" + number + "}}");
  }

  std::ostream& out_;
  std::int64_t begin_ = 0;  // of the present step, in nanoseconds
  std::vector<std::pair<std::string, std::size_t>> threads_;
};

}  // namespace tidepool::trace::detail

namespace tidepool::inline v0_3_0::trace {

TIDEPOOL_INLINE void write_chrome_trace(std::ostream& out, std::span<const record> steps) {
  detail::chrome_trace trace(out);
  for (std::size_t i = 0; i < steps.size(); ++i) trace.step(steps[i], i);
  trace.finish();
}

TIDEPOOL_INLINE void write_chrome_trace(std::ostream& out, const record& step) {
  write_chrome_trace(out, std::span(&step, 1));
}

}  // namespace tidepool::trace
