// A step that uses an engine, and words that are no templates.
#pragma once

#include <sstream>
#include <string>
#include <tidepool/tidepool.hpp>

// The groups that left, by counters and by the summary.
inline std::string one_step() {
  using device = tidepool::virtual_device;
  device dev;
  tidepool::options options;
  options.offload_modules = {"act"};
  tidepool::offloader<device, tidepool::modules<"act">> off(dev, options);
  const auto stream = dev.make_stream();
  auto saved = off.template allocate<float>(1 << 20, stream.ref());
  auto chunk = off.begin();
  chunk.template commit<"act">(0, stream.ref(), saved);
  chunk.template restore<"act">(0, stream.ref(), saved);
  saved.reset(stream.ref());
  chunk.finish();
  off.end_step();
  dev.synchronize();
  std::ostringstream words;
  words << off.counters().modules[0].groups_offloaded << '\n';
  tidepool::trace::write_summary(words, off.counters());
  return words.str();
}
