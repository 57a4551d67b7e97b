/// The file of a machine that `bench_link` adds its rates to.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <tidepool/error.hpp>

#include "../examples/plan/machine_json.hpp"

namespace bench {

/// What `path` has, or, where there is no such file, what the known machine `like` has apart from
/// its link. One GPU comes first, so that all rates of a file are of one host.
///
/// Throws `tidepool::option_error`, and `tidepool::plan::file_error` for a file that cannot be
/// read.
inline planning::machine_description machine_to_add_to(const std::string& path,
                                                       const std::string& like, std::size_t gpus) {
  if (std::filesystem::exists(path)) return planning::load_machine(path);
  const auto fail = [&](const std::string& remedy) {
    throw tidepool::option_error("--json=" + path + ": there is no such file yet; " + remedy);
  };
  if (gpus > 1) fail("measure one GPU first, with --gpus=1");
  if (like.empty()) {
    fail("name the machine whose rates of computing and memory it takes over, as --machine=h200");
  }
  auto made = planning::machine_named(like);
  made.shared.clear();
  made.source = "link: raw copies of bench_link; the rest as for " + made.name + ": " + made.source;
  return made;
}

}  // namespace bench
