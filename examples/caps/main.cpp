/// caps: which cap on offloads in flight costs no time, and what memory it saves.
///
///   caps                                     the defaults, on a GPU if there is one
///   caps --device virtual --group 16MiB --compute-over-copy 0.5,1,2 --depth 1,2,4
///   caps --profile step.json --caps none,0,1,2,4,8
///
/// Exit status: 0; 1 when something failed; 2 for wrong use.
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <tidepool/error.hpp>
#include <tidepool/plan/json.hpp>
#include <utility>
#include <vector>

#include "../tools/device_line.hpp"
#include "../tools/json_file.hpp"
#include "../tools/output_file.hpp"
#include "../tools/progress.hpp"
#include "command_line.hpp"
#include "devices.hpp"
#include "machines.hpp"
#include "picture.hpp"
#include "study.hpp"
#include "table.hpp"

namespace {

bool use_cuda(const std::string& device) {
#if defined(TIDEPOOL_HAS_CUDA)
  const bool there = device != "virtual" && caps::cuda_devices() > 0;
  if (device == "cuda" && !there) {
    throw tidepool::option_error(
        "tidepool: option --device is 'cuda': no GPU was found; take --device virtual");
  }
  return there;
#else
  if (device == "cuda") {
    throw tidepool::option_error(
        "tidepool: option --device is 'cuda': this program was built without CUDA; build it with "
        "TIDEPOOL_CUDA=ON, or take --device virtual");
  }
  return false;
#endif
}

caps::measured on_virtual(caps::axes what, const caps::part_begins& begins) {
  caps::virtual_machine machine;
  what.steps = 1;  // they are all alike
  const auto& link = machine.dev.model();
  char text[160];
  std::snprintf(text, sizeof text, "%s; link %.1f GB/s out, %.1f in, %.1f both ways",
                tools::device_line<tidepool::virtual_device>().c_str(), link.offload_rate,
                link.reload_rate, link.both_rate);
  return {text, caps::measure(machine, what, begins)};
}

caps::measured measured(const caps::request& asked) {
  tools::progress shown("caps");
  const caps::part_begins begins = [&](const std::string& part, std::size_t done, std::size_t all) {
    shown.at(part, done, all);
  };
  if (!asked.profile.empty()) {
    const auto step = tidepool::plan::load_profile(asked.profile);
    if (!step.timed()) {
      throw tidepool::option_error("tidepool: option --profile is '" + asked.profile +
                                   "': the step in it was not timed; record one with plans on");
    }
    return {"no device: times predicted from profile " + asked.profile,
            {caps::predict(step, asked.what.limits, begins)}};
  }
#if defined(TIDEPOOL_HAS_CUDA)
  if (use_cuda(asked.device)) return caps::measure_on_cuda(asked.what, begins);
#else
  use_cuda(asked.device);
#endif
  return on_virtual(asked.what, begins);
}

nlohmann::ordered_json to_json(const caps::measured& seen) {
  nlohmann::ordered_json json;
  json["device"] = seen.device;
  for (const auto& each : seen.all) {
    nlohmann::ordered_json one;
    one["order"] = each.order;
    one["ratio"] = each.ratio;
    one["compute_us"] = each.compute_us;
    one["kept_bytes"] = each.kept;
    for (const auto& row : each.rows) {
      one["caps"].push_back({{"cap", caps::name_of(row.cap)},
                             {"step_us", row.step_us},
                             {"over_compute", each.over(row)},
                             {"stall_us", row.stall_us},
                             {"cap_stall_us", row.cap_stall_us},
                             {"taken_bytes", row.taken},
                             {"held_bytes", row.held}});
    }
    json["series"].push_back(std::move(one));
  }
  return json;
}

int run(const caps::request& asked) {
  tools::output_file picture("--picture", asked.picture);
  tools::json_file json(asked.json);
  const auto seen = measured(asked);
  std::string about = seen.device;
  if (asked.profile.empty()) {
    about += "; " + std::to_string(asked.what.work.groups) + " groups of " +
             tidepool::trace::detail::bytes_text(asked.what.work.group_bytes) + " a microbatch";
  }
  std::printf("%s\n%s\n%s", about.c_str(), caps::table_of(seen.all, asked.tolerance).c_str(),
              caps::sentences(seen.all, asked.tolerance).c_str());
  picture.fill([&](auto& out) { caps::write_picture(out, about, seen.all); });
  json.fill(to_json(seen));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run("caps", [&] { return run(caps::read_command_line(argc, argv)); });
}
