/// train_moe: trains a small language model and shows what Tidepool does to its memory.
///
///   train_moe                                        without offload
///   train_moe --offload-modules core_attn,moe_act    with
///   train_moe --compare                              both, side by side
///   mpirun -np 2 train_moe --pipeline                its layers over two ranks
///   mpirun -np 2 train_moe --expert-parallel         its experts and its microbatches
///   mpirun -np 4 train_moe --pipeline=2 --expert-parallel=2    both
///   torchrun --no-python --nproc-per-node 2 train_moe --pipeline --device cuda     without MPI
///
/// Exit status: 0; 1 when `--compare` finds a difference, `--check-order` a mistake, or the run
/// fails; 2 for wrong use.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tidepool/trace/picture.hpp>
#include <tidepool/trace/timeline.hpp>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/files.hpp"
#include "cli/report.hpp"
#include "parallel/launch.hpp"
#include "training/checkpoint.hpp"
#include "training/devices.hpp"
#if defined(TIDEPOOL_HAS_MPI)
#include "parallel/mpi_world.hpp"
#elif defined(TIDEPOOL_HAS_NCCL)
#include "parallel/ranks.hpp"
#endif
#if defined(TIDEPOOL_HAS_MPI) || defined(TIDEPOOL_HAS_NCCL)
#define TIDEPOOL_HAS_RANKS
#include "parallel/alike.hpp"
#endif

namespace {

bool use_cuda(const std::string& device) {
#if defined(TIDEPOOL_HAS_CUDA)
  const bool present = moe::cuda_devices() > 0;
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

/// All that a run needs, checked, with its files open.
struct job {
  moe::command_line line;
  moe::corpus text;
  moe::json_file json;
  moe::output_file timeline, picture, report;
};

job prepare(int argc, char** argv, const moe::process& me) {
  moe::command_line line = moe::read_command_line(argc, argv, me);
  moe::corpus text = moe::load_corpus(line.data, line.run.model);
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
    line.run.loss_scale = moe::loss_scale_of(start);
  }
  const bool writes = me.rank == 0;
  // A folder that does not exist should not cost a training.
  if (writes && !line.run.save.empty()) {
    moe::state_file("--save", line.run.save, moe::state_file::use::write);
  }
  const auto file = [&](const char* option, const std::string& name) {
    return moe::output_file(option, writes ? name : std::string());
  };
  return {line,
          std::move(text),
          moe::json_file(writes ? line.json : std::string()),
          file("--timeline", line.timeline),
          file("--picture", line.picture),
          file("--report", line.report)};
}

std::vector<moe::run_result> train(const job& what) {
#if defined(TIDEPOOL_HAS_CUDA)
  if (use_cuda(what.line.device)) {
    const auto go = what.line.check_order ? moe::check_on_cuda : moe::train_on_cuda;
    return go(what.line.run, what.line.variants, what.text);
  }
#else
  use_cuda(what.line.device);
#endif
  const auto go = what.line.check_order ? moe::check_on_virtual : moe::train_on_virtual;
  return go(what.line.run, what.line.variants, what.text);
}

/// Prints and writes what came of it; returns the exit status.
int report(job& what, const std::vector<moe::run_result>& runs) {
  const moe::run_result& last = runs.back();
  if (!what.line.compare) moe::print_result(last, what.text);
  moe::print_forecast(last);
  if (what.line.run.precision == moe::precision_kind::fp16) moe::print_loss_scale(last.loss_scale);
  if (what.line.run.pipeline || what.line.run.expert_parallel)
    moe::print_ranks(what.line.run, last);
  const bool equal = !what.line.compare || moe::print_comparison(runs.front(), last);
  std::fputs(last.order_report.c_str(), stdout);

  what.json.fill(moe::to_json(what.line.run, runs, what.text));
  what.timeline.fill([&](auto& out) { tidepool::trace::write_chrome_trace(out, last.trace); });
  what.picture.fill([&](auto& out) { tidepool::trace::write_svg(out, last.trace); });
  what.report.fill([&](auto& out) { tidepool::trace::write_report(out, moe::to_report(last)); });
  return equal && last.order_mistakes == 0 ? 0 : 1;
}

/// Prints what is wrong, or the help; returns the exit status.
int tell(const tools::outcome& problem) { return tools::tell("train_moe", problem); }

#if defined(TIDEPOOL_HAS_RANKS)
std::unique_ptr<moe::world> ranks_of(const moe::launch& by, int& argc, char**& argv) {
#if defined(TIDEPOOL_HAS_MPI) && defined(TIDEPOOL_HAS_NCCL)
  // One process is alone, whoever started it.
  if (by.count > 1 && !by.of_mpi) return moe::ranks_over_nccl(by);
#endif
#if defined(TIDEPOOL_HAS_MPI)
  return std::make_unique<moe::mpi_world>(argc, argv, by);
#else
  static_cast<void>(argc), static_cast<void>(argv);
  return moe::ranks_over_nccl(by);
#endif
}

/// Whether the ranks take GPUs, one each; throws `tidepool::option_error` when they must and
/// cannot.
bool ranks_use_cuda(const std::string& device, moe::world& all) {
#if defined(TIDEPOOL_HAS_NCCL)
  const int there = device == "virtual" ? 0 : moe::cuda_devices();
  const bool enough = all.every(all.local_rank() < there);
  if (device == "cuda" && !enough) {
    throw tidepool::option_error("--device=cuda: rank " + std::to_string(all.rank()) + " finds " +
                                 std::to_string(there) +
                                 " GPUs, and not every rank has one of its own; start fewer ranks "
                                 "on a machine, or take --device=virtual");
  }
  return enough;
#else
  static_cast<void>(device), static_cast<void>(all);
  return false;
#endif
}

std::vector<moe::run_result> train_on(bool cuda, const job& what, moe::world& all) {
#if defined(TIDEPOOL_HAS_NCCL)
  if (cuda) {
    return moe::train_on_cuda_ranks(what.line.run, what.line.variants, what.text, all);
  }
#else
  static_cast<void>(cuda);
#endif
#if defined(TIDEPOOL_HAS_MPI)
  return moe::train_on_ranks(what.line.run, what.line.variants, what.text, all);
#else
  throw std::logic_error("ranks without MPI have GPUs, or do not come together");
#endif
}

int train_on_all(int argc, char** argv, const moe::launch& by, moe::world& all) {
  std::optional<job> what;
  tools::outcome problem;
  problem.status = tools::failed;
  try {
    const std::string launcher = by.launcher.empty() ? "mpirun" : by.launcher;
    what.emplace(prepare(argc, argv, {all.rank(), all.size(), launcher}));
    all.check(what->line.run, what->line.device);
  } catch (...) {
    problem = tools::outcome::of_exception();
  }
  if (problem.status == tools::done) return all.rank() == 0 ? tell(problem) : 0;
  try {
    if (!all.agree(problem.text)) return 2;
  } catch (...) {  // the others cannot be asked, and each rank speaks for itself
    return tell(problem.text.empty() ? tools::outcome::of_exception() : problem);
  }
  const auto together = [&](auto step) {
    try {
      step();
    } catch (...) {
      problem = tools::outcome::of_exception();
    }
    return all.agree(problem.text);
  };
  if (!together([&] { moe::check_alike(all, moe::shared_by_ranks(what->line, what->text)); })) {
    return 2;
  }
  bool cuda = false;
  if (!together([&] { cuda = ranks_use_cuda(what->line.device, all); })) return 2;
  try {
    const auto runs = train_on(cuda, *what, all);
    const bool first = all.rank() == 0;
    const bool equal = first || !what->line.compare ||
                       moe::equal_steps(runs.front(), runs.back()) == runs.front().losses.size();
    const int status = first ? report(*what, runs) : equal ? 0 : 1;
    all.barrier();
    return status;
  } catch (const std::exception& e) {
    all.abort(e);
  }
}

int on_ranks(int argc, char** argv, const moe::launch& by) {
#if defined(TIDEPOOL_HAS_NCCL)
  // A kernel that is loaded at its first launch may wait for one of NCCL's, and that for a rank
  // that waits likewise.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  // Streams that share a hardware queue wait for each other as well.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
#endif
  const std::unique_ptr<moe::world> all = ranks_of(by, argc, argv);
  return train_on_all(argc, argv, by, *all);
}
#endif

int in_one_process(int argc, char** argv) try {
  job what = prepare(argc, argv, {});
  return report(what, train(what));
} catch (...) {
  return tell(tools::outcome::of_exception());
}

}  // namespace

int main(int argc, char** argv) {
#if defined(TIDEPOOL_HAS_RANKS)
  moe::launch by;
  try {
    by = moe::launch_of(moe::own_environment);
  } catch (...) {
    return tell(tools::outcome::of_exception());
  }
  if (moe::wants_ranks(by, argc, argv)) return on_ranks(argc, argv, by);
#endif
  return in_one_process(argc, argv);
}
