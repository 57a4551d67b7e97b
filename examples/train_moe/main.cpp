/// train_moe: trains a small language model and shows what Tidepool does to its memory.
///
///   train_moe                                        without offload
///   train_moe --offload-modules core_attn,moe_act    with
///   train_moe --compare                              both, side by side
///
/// Exit status: 0; 1 when `--compare` finds a difference or the run fails; 2 for bad options.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <tidepool/trace/picture.hpp>
#include <tidepool/trace/summary.hpp>
#include <tidepool/trace/timeline.hpp>
#include <vector>

#include "checkpoint.hpp"
#include "command_line.hpp"
#include "devices.hpp"
#include "files.hpp"
#include "report.hpp"

namespace {

bool use_cuda(const std::string& device) {
#if defined(TIDEPOOL_HAS_CUDA)
  const bool present = moe::cuda_present();
  const char* const why = "there is no GPU here";
#else
  const bool present = false;
  const char* const why = "this build has no CUDA";
#endif
  if (device == "cuda" && !present) {
    throw tidepool::option_error(std::string("--device=cuda: ") + why +
                                 "; take --device=virtual, or auto");
  }
  return present && device != "virtual";
}

std::vector<moe::run_result> train(const moe::command_line& line, const moe::corpus& text) {
#if defined(TIDEPOOL_HAS_CUDA)
  if (use_cuda(line.device)) return moe::train_on_cuda(line.run, line.variants, text);
#else
  use_cuda(line.device);
#endif
  return moe::train_on_virtual(line.run, line.variants, text);
}

}  // namespace

int main(int argc, char** argv) try {
  moe::command_line line = moe::read_command_line(argc, argv);
  const moe::corpus text = moe::load_corpus(line.data, line.run.model.seq);
  if (line.run.eval_every > 0 && !text.has_held_out()) {
    throw tidepool::option_error("--eval-every=" + std::to_string(line.run.eval_every) + ": " +
                                 text.name() +
                                 " is too short to hold a tenth of it out; "
                                 "give a longer text with --data, or leave the option out");
  }
  if (!line.run.resume.empty()) {
    const moe::checkpoint_start start = moe::read_checkpoint_start(line.run.resume);
    moe::check_fits(start, line.run, text);
    line.run.first_step = static_cast<int>(start.step);
  }
  // A folder that does not exist should not cost a training.
  if (!line.run.save.empty()) moe::state_file("--save", line.run.save, moe::state_file::use::write);
  moe::output_file json("--json", line.json);
  moe::output_file timeline("--timeline", line.timeline);
  moe::output_file picture("--picture", line.picture);

  const std::vector<moe::run_result> runs = train(line, text);
  const moe::run_result& last = runs.back();
  moe::print_result(last, text);
  if (line.summary) tidepool::trace::write_summary(std::cout, last.counters);
  const bool equal = !line.compare || moe::print_comparison(runs.front(), last);

  json.fill([&](auto& out) { out << moe::to_json(line.run, runs, text).dump(2) << '\n'; });
  timeline.fill([&](auto& out) { tidepool::trace::write_chrome_trace(out, last.trace); });
  picture.fill([&](auto& out) { tidepool::trace::write_svg(out, last.trace); });
  return equal ? 0 : 1;
} catch (const moe::help_wanted& help) {
  std::fputs(help.text.c_str(), stdout);
  return 0;
} catch (const tidepool::option_error& e) {
  std::fprintf(stderr, "train_moe: %s\n", e.what());
  return 2;
} catch (const tidepool::out_of_budget& e) {
  std::fprintf(stderr, "train_moe: %s\n", e.what());
  return 2;
} catch (const std::exception& e) {
  std::fprintf(stderr, "train_moe: %s\n", e.what());
  return 1;
}
