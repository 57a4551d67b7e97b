/// Planted mistakes, and programs that look like some: what the checked device says of each.
///
///   mistakes [--device virtual|cuda] [--case NAME]   runs them; exit status 1 where one fails
///   mistakes --list                                  their names
///
/// A mistake passes if exactly its findings are reported, with their remedy, and none once it is
/// left out. A program that is right passes without a report. Each runs without the checked device
/// as well. Nothing speaks up there; on the virtual device a mistake makes kernels read wrong bytes
/// in some of its orders, and a program that is right reads the same in all. Compiled by nvcc it
/// has kernels of its own.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "right.hpp"

namespace mistakes {

/// What happens to a mistake where nobody checks.
enum class otherwise : std::uint8_t {
  wrong_bits,  // some orders have wrong ones, and nothing is said
  bits_alike,  // nothing is said, and no kernel reads wrong bytes here
  refused      // by the device, in words that name no access
};

template <class Desk>
struct test_case {
  const char* name;
  void (*run)(Desk&);
  std::vector<std::string> findings{};  // of a mistake
  const char* remedy = "";              // part of the report
  otherwise without = otherwise::wrong_bits;
  std::size_t reload_ahead = 2;
};

// "kernel fwd writes on compute, act 1/0", where 1/0 are layer and microbatch.
std::string text_of(const tp::checked_access& of) {
  constexpr const char* kinds[]{"kernel",     "kernel",     "copy",     "offload",
                                "reload",     "fill",       "host",     "host",
                                "handed out", "given back", "returned", "allocated",
                                "freed",      "recorded",   "waited",   "capture ends"};
  std::string text = kinds[static_cast<std::size_t>(of.kind)];
  if (!of.name.empty()) text += " " + of.name;
  if (of.kind < tp::access_kind::handed_out) text += of.writes ? " writes" : " reads";
  if (!of.stream.empty()) text += " on " + of.stream;
  if (!of.module.empty()) {
    text += ", " + of.module;
  }
  if (of.layer >= 0) {
    text += " " + std::to_string(of.layer) + "/" + std::to_string(of.microbatch);
  }
  return text + (of.graph != 0 ? ", graph " + std::to_string(of.graph) : "");
}

std::string text_of(const tp::finding& of) {
  constexpr const char* kinds[]{"unordered",      "never written",   "given back",
                                "returned early", "foreign capture", "not joined"};
  return std::string(kinds[static_cast<std::size_t>(of.kind)]) + ": " + text_of(of.first) + " -> " +
         text_of(of.second) +
         (of.missing ? " [" + std::string(tp::name_of(*of.missing)) + "]" : "");
}

// The pairs were written down from docs/checking.md before the checked device was asked. Of ten its
// words were others: four led to a mend, in the others it is more exact, as where it names the next
// owner of a block when the block is handed out, ahead of its kernel.
template <class Desk>
std::vector<test_case<Desk>> wrong_cases() {
  const std::string offload = "offload reads on the offload stream";
  const std::string reload = "reload writes on the reload stream";
  return {
      {"side_not_joined",
       side_not_joined<Desk>,
       {"unordered: kernel gelu writes on side -> " + offload + ", act 1/0 [producer]"},
       "commit on the stream that writes the tensor"},
      {"event_too_early",
       event_too_early<Desk>,
       {"unordered: kernel gelu writes on side -> kernel mix reads on compute"},
       "compute has to wait for an event that side records behind"},
      {"event_reused",
       event_reused<Desk>,
       {"unordered: kernel gelu writes on side -> kernel mix reads on compute"},
       "compute has to wait for an event that side records behind"},
      {"zeroed_beside",
       zeroed_beside<Desk>,
       {"unordered: fill writes on side -> kernel bwd reads on compute, act 2/0",
        "unordered: fill writes on side -> kernel bwd writes on compute, act 2/0"},
       "compute has to wait for an event that side records behind",
       otherwise::bits_alike},
      {"microbatches_mixed",
       microbatches_mixed<Desk>,
       {"unordered: kernel use reads on side, act 1/0 -> kernel save writes on compute, act 1/1"},
       "compute has to wait for an event that side records behind",
       otherwise::bits_alike},
      {"commit_on_other_stream",
       commit_on_other_stream<Desk>,
       {"unordered: kernel fwd writes on compute, act 1/0 -> " + offload + ", act 1/0 [producer]"},
       "commit on the stream that writes the tensor"},
      {"restore_on_other_stream",
       restore_on_other_stream<Desk>,
       {"unordered: " + reload + ", act 1/0 -> kernel bwd reads on compute, act 1/0 [consumer]"},
       "restore on the stream that uses the tensor"},
      {"second_reader",
       second_reader<Desk>,
       {"unordered: " + reload + ", act 1/0 -> kernel wgrad reads on side [consumer]"},
       "call wait_for(tensor, stream)"},
      {"reset_while_side_reads",
       reset_while_side_reads<Desk>,
       {"unordered: kernel wgrad reads on side -> handed out on compute [device_reuse]"},
       "reset the tensor on the stream of its last use"},
      {"reset_on_other_stream",
       reset_on_other_stream<Desk>,
       {"unordered: kernel bwd reads on compute, act 1/0 -> handed out on side [device_reuse]"},
       "reset the tensor on the stream of its last use"},
      {"allocated_for_other_stream",
       allocated_for_other_stream<Desk>,
       {"unordered: handed out on side -> kernel fwd writes on compute, act 1/0"},
       "allocate the memory for the stream that uses it first"},
      {"write_after_commit",
       write_after_commit<Desk>,
       {"given back: given back on the offload stream, act 1/0 -> kernel dropout writes on "
        "compute"},
       "use the memory before it is given back"},
      {"read_before_restore",
       read_before_restore<Desk>,
       {"given back: given back on the offload stream, act 2/0 -> kernel peek reads on compute"},
       "or restore the tensor first",
       otherwise::bits_alike,
       0},
      {"use_after_reset",
       use_after_reset<Desk>,
       {"given back: given back on compute -> kernel wgrad reads on compute"},
       "use the memory before it is given back",
       otherwise::bits_alike},
      {"shared_written",
       shared_written<Desk>,
       {"unordered: " + offload + ", act 1/0 -> kernel relu writes on compute"},
       "write the tensor before its commit"},
      {"use_after_free",
       use_after_free<Desk>,
       {"given back: freed -> kernel bias reads on compute"},
       "use the memory before it is freed",
       otherwise::bits_alike},
      {"borrowed_reused_early",
       borrowed_reused_early<Desk>,
       {"unordered: " + offload + ", act 1/0 -> kernel next writes on compute"},
       "once the offloader has given the memory back"},
      {"borrowed_used_elsewhere",
       borrowed_used_elsewhere<Desk>,
       {"returned early: kernel router reads on side -> returned on compute [give_back]"},
       "give the memory up on the stream of its last use",
       otherwise::bits_alike},
      {"stale_pointer",
       stale_pointer<Desk>,
       {"unordered: kernel next writes on side -> kernel bwd reads on compute, act 1/0"},
       "compute has to wait for an event that side records behind"},
      {"state_written_elsewhere",
       state_written_elsewhere<Desk>,
       {"unordered: kernel adamw writes on side -> " + offload + ", moments [producer]",
        "unordered: kernel adamw writes on side -> handed out on the reload stream, act 2/0 "
        "[reload_reuse]"},
       "make the stream of the commit wait for it first",
       otherwise::bits_alike},
      {"scratch_unwritten",
       scratch_unwritten<Desk>,
       {"never written: handed out on compute -> kernel bias reads on compute"},
       "a write of these bytes ahead of the read"},
      {"half_written",
       half_written<Desk>,
       {"never written: handed out on compute -> kernel bwd reads on compute, act 1/0"},
       "a write of these bytes ahead of the read"},
      {"pinned_refilled",
       pinned_refilled<Desk>,
       {"unordered: copy reads on side -> host next batch writes"},
       "the host has to wait for an event that side records"},
      {"loss_read_early",
       loss_read_early<Desk>,
       {"unordered: copy writes on compute -> host loss reads"},
       "synchronize the stream, or the event, before the host goes on"},
      {"capture_waits_outside",
       capture_waits_outside<Desk>,
       {"foreign capture: recorded on side -> waited on compute, graph 1"},
       "record the event on the same side of the capture",
       otherwise::refused},
      {"capture_not_joined",
       capture_not_joined<Desk>,
       {"not joined: kernel router writes on side, graph 1 -> capture ends on compute, graph 1"},
       "the stream that captures has to wait for an event that side records",
       otherwise::refused},
      {"graph_beside_update",
       graph_beside_update<Desk>,
       {"unordered: kernel update writes on side -> kernel fwd reads on compute, act 0/0, graph 1 "
        "[launch]"},
       "launch on a stream that waits for the first access"},
  };
}

template <class Desk>
std::vector<test_case<Desk>> right_cases() {
  return {
      {"joined_through_third", joined_through_third<Desk>},
      {"joined_by_the_host", joined_by_the_host<Desk>},
      {"joined_by_own_synchronize", joined_by_own_synchronize<Desk>},
      {"event_recorded_twice", event_recorded_twice<Desk>},
      {"event_recorded_again_later", event_recorded_again_later<Desk>},
      {"joined_by_a_restore", joined_by_a_restore<Desk>},
      {"waits_that_do_nothing", waits_that_do_nothing<Desk>},
      {"stream_of_each_step", stream_of_each_step<Desk>},
      {"readers_at_once", readers_at_once<Desk>},
      {"two_halves", two_halves<Desk>},
      {"columns_in_turn", columns_in_turn<Desk>},
      {"padding_moved", padding_moved<Desk>},
      {"kept_tensor_is_written", kept_tensor_is_written<Desk>},
      {"block_in_turn", block_in_turn<Desk>},
      {"every_handle_by_its_stream", every_handle_by_its_stream<Desk>},
      {"borrowed_still_read", borrowed_still_read<Desk>},
      {"owner_uses_it_at_once", owner_uses_it_at_once<Desk>},
      {"freed_while_it_runs", freed_while_it_runs<Desk>},
      {"pinned_in_turn", pinned_in_turn<Desk>},
      {"two_in_flight", two_in_flight<Desk>},
      {"module_left_out", module_left_out<Desk>},
      {"commit_behind_a_join", commit_behind_a_join<Desk>},
      {"forgotten_group", forgotten_group<Desk>},
      {"graph_that_forks", graph_that_forks<Desk>},
      {"graph_between_updates", graph_between_updates<Desk>},
  };
}

template <class Desk>
std::vector<test_case<Desk>> all_cases() {
  auto all = wrong_cases<Desk>();
  for (auto& each : right_cases<Desk>()) all.push_back(std::move(each));
  return all;
}

/// What a run has left.
struct outcome {
  std::vector<std::string> findings;
  std::string report;
  std::string refusal;
  std::map<std::string, std::uint64_t> sums;
};

template <class Device, bool Checked>
outcome play(const test_case<desk<Device, Checked>>& which, bool wrong, std::uint64_t seed = 0) {
  desk<Device, Checked> at(wrong, which.reload_ahead, seed);
  which.run(at);
  at.close();
  outcome left;
  left.refusal = at.refusal;
  left.sums = at.seen.sums();
  if constexpr (Checked) {
    for (const auto& each : at.dev.findings()) left.findings.push_back(text_of(each));
    left.report = at.dev.report();
  }
  return left;
}

bool fail(const char* name, const std::string& what) {
  std::printf("FAILED %s: %s\n", name, what.c_str());
  return false;
}

/// Without the module in whose call an owner had its memory back: which one that was depends on how
/// far the device had come.
std::string without_module(std::string text) {
  const auto at = text.find(", ", std::min(text.find("-> returned on "), text.size()));
  if (at != std::string::npos) text.erase(at, text.find(" [", at) - at);
  return text;
}

bool as_expected(const char* name, const char* what, std::vector<std::string> expected,
                 std::vector<std::string> seen) {
  for (auto* list : {&expected, &seen})
    std::ranges::transform(*list, list->begin(), without_module);
  if (expected == seen) return true;
  fail(name, what);
  for (const auto& each : expected) std::printf("  expected %s\n", each.c_str());
  for (const auto& each : seen) std::printf("  found    %s\n", each.c_str());
  return false;
}

/// Whether a launch that both have read other bytes.
bool differ(const outcome& one, const outcome& other) {
  return std::ranges::any_of(one.sums, [&](const auto& each) {
    const auto at = other.sums.find(each.first);
    return at != other.sums.end() && at->second != each.second;
  });
}

/// In how many orders of the virtual device kernels read other bytes than `right` says.
constexpr std::uint64_t orders = 40;
template <class Case>
int wrong_orders(const Case& which, bool wrong, const outcome& right) {
  int count = 0;
  for (std::uint64_t seed = 0; seed < orders; ++seed) {
    count += differ(play(which, wrong, seed), right) ? 1 : 0;
  }
  return count;
}

/// Runs one without a checked device; what it comes to, in words.
template <class Device>
bool run_unchecked(const test_case<desk<Device, false>>& which, std::string& words) {
  const bool planted = !which.findings.empty();
  const auto left = play(which, planted);
  if (left.refusal.empty() == (which.without == otherwise::refused)) {
    return fail(which.name, "unchecked, refused: " + left.refusal);
  }
  words = left.refusal.empty() ? "silent" : "refused by the device, no access named";
  if constexpr (std::is_same_v<Device, tp::virtual_device>) {
    const auto right = play(which, false);
    if (const int odd = wrong_orders(which, false, right); odd > 0) {
      return fail(which.name, "without the mistake bits differ in " + std::to_string(odd));
    }
    if (!planted || !left.refusal.empty()) return true;
    const int odd = wrong_orders(which, true, right);
    words += ", wrong bits in " + std::to_string(odd) + " of " + std::to_string(orders) + " orders";
    if (odd == 0 && which.without == otherwise::wrong_bits) return fail(which.name, words);
  }
  return true;
}

template <class Device>
bool run_case(const test_case<desk<Device, true>>& which,
              const test_case<desk<Device, false>>& unchecked, bool talks) {
  const bool planted = !which.findings.empty();
  const auto left = play(which, planted);
  bool passed = as_expected(which.name, "findings", which.findings, left.findings);
  if (left.report.find(which.remedy) == std::string::npos) {
    passed = fail(which.name, "no such remedy: " + std::string(which.remedy));
  }
  if (planted) passed &= as_expected(which.name, "mended", {}, play(which, false).findings);
  std::string words;
  passed &= run_unchecked<Device>(unchecked, words);
  std::printf("%s %-27s unchecked: %s\n", passed ? (planted ? "found  " : "nothing") : "FAILED ",
              which.name, words.c_str());
  if (talks) std::fputs(left.report.c_str(), stdout);
  return passed;
}

// How many failed.
template <class Device>
int run_all(std::string_view only, bool list) {
  const auto cases = all_cases<desk<Device, true>>();
  const auto unchecked = all_cases<desk<Device, false>>();
  int ran = 0, failed = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!only.empty() && only != cases[i].name) continue;
    ++ran;
    if (list) {
      std::printf("%s\n", cases[i].name);
    } else {
      failed += run_case<Device>(cases[i], unchecked[i], !only.empty()) ? 0 : 1;
    }
  }
  if (!list) std::printf("%d of %d cases as expected\n", ran - failed, ran);
  return ran == 0 ? 1 : failed;
}

int run(std::string_view device, std::string_view only, bool list) {
  if (device == "virtual") return run_all<tp::virtual_device>(only, list);
#if defined(__CUDACC__)
  if (device == "cuda" && tp::cuda_device::count() > 0) {
    return run_all<tp::cuda_device>(only, list);
  }
#endif
  std::printf("skipped: no device '%s' here\n", std::string(device).c_str());
  return -1;
}

}  // namespace mistakes

int main(int argc, char** argv) {
  std::string_view device = "virtual", only;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--list") {
      list = true;
    } else if (word == "--device" && i + 1 < argc) {
      device = argv[++i];
    } else if (word == "--case" && i + 1 < argc) {
      only = argv[++i];
    } else {
      std::printf("usage: mistakes [--device virtual|cuda] [--case NAME] [--list]\n");
      return 2;
    }
  }
  try {
    const int failed = mistakes::run(device, only, list);
    return failed < 0 ? 77 : failed == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("FAILED %s\n", error.what());
    return 1;
  }
}
