// stranger --programs N --seed S --orders K [--threads T] [--seconds T] [--limit T] [--shrink]
// stranger --program S [--shrink] plays one. Ends with 1 where anything was found. --limit: seconds
// that a program may compute before it is said to hang; ten times as many under a sanitizer.
// --captures passes over the seeds whose programs have no capture. --long: a thousand steps of
// mixed sizes in each program.
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "program.hpp"

namespace stranger {

namespace {

struct settings {
  std::uint64_t seed = 1;
  long programs = 1000;
  int orders = 2;
  int threads = 1;
  long seconds = 0;
  bool reached = false, shrink = false, one = false, text = false;
  bool captures = false;  // only programs that have one
  std::string into;
};

// In a process of its own, since it may crash or hang; empty where nothing was found.
struct verdict {
  std::string key, text;
  std::uint64_t order = 0;
};

// An automatic plan measures, so that its clock has to mean something.
bool ordered_by_clock(const program& what) {
  for (const auto& each : what.sides) {
    if (each.automatic) return true;
  }
  return false;
}

using verdicts = std::vector<verdict>;

verdicts play_all(const program& what, int orders) {
  verdicts all;
  for (int k = 0; k < orders && all.empty(); ++k) {
    const auto order = k == 0 ? 0 : what.seed * 1000 + static_cast<std::uint64_t>(k);
    if (order != 0 && ordered_by_clock(what)) break;
    for (auto& each : play(what, order, false).found) all.push_back({each.key, each.text, order});
  }
  return all;
}

void put(int to, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const auto n = write(to, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

std::string one_line(std::string text) {
  for (auto& c : text) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return text;
}

// Runs `body` in a child that writes lines, and hands each of them to `line`. Returns its status.
int in_child(const std::function<void(int)>& body,
             const std::function<void(const std::string&)>& line) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(stdout);
  const auto child = fork();
  if (child == 0) {
    close(ends[0]);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) std::abort();
    body(ends[1]);
    close(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  std::string rest;
  char some[4096];
  for (;;) {
    const auto n = read(ends[0], some, sizeof some);
    if (n <= 0) break;
    rest.append(some, static_cast<std::size_t>(n));
    for (auto at = rest.find('\n'); at != std::string::npos; at = rest.find('\n')) {
      line(rest.substr(0, at));
      rest.erase(0, at + 1);
    }
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||
                           __has_feature(undefined_behavior_sanitizer);
#else
constexpr bool sanitized = false;
#endif

// Seconds that a program may compute (--limit). A sanitizer makes a sound one ten times as slow.
unsigned& limit() {
  static unsigned seconds = sanitized ? 400 : 60;
  return seconds;
}

// Ends this process where a program takes too long: by the time that it computes, since on a busy
// machine a sound one may wait long for its turn; by the clock, much later, where it computes none.
void limit_time(bool on) {
  const itimerval computing{{0, 0}, {on ? static_cast<time_t>(limit()) : 0, 0}};
  setitimer(ITIMER_PROF, &computing, nullptr);
  alarm(on ? 30 * limit() : 0);
}

std::string death(int status) {
  if (WIFSIGNALED(status)) {
    const int by = WTERMSIG(status);
    return by == SIGALRM || by == SIGPROF ? "it hangs" : std::string("crash: ") + strsignal(by);
  }
  return "exit " + std::to_string(WEXITSTATUS(status));
}

void put_all(int to, const verdicts& all) {
  for (const auto& each : all) {
    put(to, "found\t" + std::to_string(each.order) + '\t' + one_line(each.key) + '\t' +
                one_line(each.text) + '\n');
  }
}
verdict read_found(const std::string& line) {
  const auto first = line.find('\t', 6);
  const auto second = line.find('\t', first + 1);
  return {line.substr(first + 1, second - first - 1), line.substr(second + 1),
          std::strtoull(line.c_str() + 6, nullptr, 10)};
}

verdicts judge(const program& what, int orders) {
  verdicts all;
  const int status = in_child(
      [&](int to) {
        limit_time(true);
        put_all(to, play_all(what, orders));
      },
      [&](const std::string& line) { all.push_back(read_found(line)); });
  if (status != 0) all = {{death(status), death(status), 0}};
  return all;
}

const verdict* with_key(const verdicts& all, const std::string& key) {
  for (const auto& each : all) {
    if (each.key == key) return &each;
  }
  return nullptr;
}

// Takes away what can go without the finding going too.
class shrinking {
 public:
  shrinking(program what, std::string key, int orders)
      : what_(std::move(what)), key_(std::move(key)), orders_(orders) {}

  program result() {
    fewer_operations();
    simpler([](program& p) { p.sides.resize(1); });
    simpler([](program& p) { p.fault_at = 0; });
    simpler([](program& p) { p.offloader_first = false; });
    simpler([](program& p) { p.packs_from = 1; });
    for (int s = 1; s < what_.streams; ++s) simpler([&](program& p) { p.streams = s; });
    for (std::size_t s = 0; s < what_.sides.size(); ++s) simpler_side(s);
    for (std::size_t i = 0; i < what_.operations.size(); ++i) simpler_operation(i);
    fewer_operations();
    return std::move(what_);
  }

 private:
  bool fails(const program& candidate) {
    return with_key(judge(candidate, orders_), key_) != nullptr;
  }
  template <class Change>
  void simpler(Change&& change) {
    auto candidate = what_;
    change(candidate);
    if (fails(candidate)) what_ = std::move(candidate);
  }

  void fewer_operations() {
    for (bool shorter = true; shorter;) {
      shorter = false;
      for (auto piece = std::max<std::size_t>(what_.operations.size() / 2, 1);; piece /= 2) {
        for (std::size_t at = 0; at < what_.operations.size();) {
          auto candidate = what_;
          const auto end = std::min(at + piece, candidate.operations.size());
          candidate.operations.erase(
              candidate.operations.begin() + static_cast<std::ptrdiff_t>(at),
              candidate.operations.begin() + static_cast<std::ptrdiff_t>(end));
          if (fails(candidate)) {
            what_ = std::move(candidate);
            shorter = true;
          } else {
            at += piece;
          }
        }
        if (piece <= 1) break;
      }
    }
  }

  void simpler_side(std::size_t s) {
    const side usual;
    simpler([&](program& p) { p.sides[s].cap = -1; });
    simpler([&](program& p) { p.sides[s].cap_bytes = -1; });
    simpler([&](program& p) { p.sides[s].fraction = 1; });
    simpler([&](program& p) { p.sides[s].delta = 0; });
    simpler([&](program& p) { p.sides[s].margin = false; });
    simpler([&](program& p) { p.sides[s].automatic = false; });
    simpler([&](program& p) { p.sides[s].recompute = 0; });
    simpler([&](program& p) { p.sides[s].recompute_by_plan = true; });
    simpler([&](program& p) { p.sides[s].piece = usual.piece; });
    simpler([&](program& p) { p.sides[s].ahead = 0; });
    simpler([&](program& p) { p.sides[s].ahead_bytes = -1; });
    simpler([&](program& p) { p.sides[s].min_elements = 1; });
    simpler([&](program& p) { p.sides[s].host_budget = 0; });
    simpler([&](program& p) { p.sides[s].peer_budget = 0; });
    simpler([&](program& p) { p.sides[s].budget = 0; });
    simpler([&](program& p) { p.sides[s].timed_step = 2; });
    simpler([&](program& p) { p.sides[s].pack = 0; });
    simpler([&](program& p) {
      p.sides[s].memory = 0;
      p.sides[s].rings.clear();
    });
  }

  void simpler_operation(std::size_t i) {
    for (int operation::*each :
         {&operation::c, &operation::d, &operation::e, &operation::f, &operation::b}) {
      if (what_.operations[i].*each != 0) {
        simpler([&](program& p) { p.operations[i].*each = 0; });
      }
    }
    if (what_.operations[i].what == kind::allocate) {
      simpler([&](program& p) { p.operations[i].b = 256; });
    }
    while (what_.operations[i].slots.size() > 1) {
      const auto before = what_.operations[i].slots.size();
      for (std::size_t n = 0; n < what_.operations[i].slots.size(); ++n) {
        simpler([&](program& p) {
          auto& slots = p.operations[i].slots;
          slots.erase(slots.begin() + static_cast<std::ptrdiff_t>(n));
        });
      }
      if (what_.operations[i].slots.size() == before) break;
    }
  }

  program what_;
  std::string key_;
  int orders_;
};

std::string file_name(const std::string& key) {
  std::string name;
  for (const char c : key.substr(0, 40)) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  return name;
}

void show(const program& what, const verdict& found, const settings& with) {
  std::printf("seed %llu, order %llu: %s\n  %s\n", static_cast<unsigned long long>(what.seed),
              static_cast<unsigned long long>(found.order), found.key.c_str(), found.text.c_str());
  if (!with.shrink && !with.text) return;
  const auto small = with.shrink ? shrinking(what, found.key, with.orders).result() : what;
  const auto again = judge(small, with.orders);
  const auto* const same = with_key(again, found.key);
  const auto order = same == nullptr ? 0 : same->order;
  if (with.text) std::printf("%s", to_text(small).c_str());
  std::string code;
  static_cast<void>(in_child([&](int to) { put(to, play(small, order, true).code); },
                             [&](const std::string& line) { code += line + '\n'; }));
  if (code.empty()) {
    std::printf("it crashes, so that the program is shown as operations:\n%s",
                to_text(small).c_str());
    return;
  }
  if (with.into.empty()) {
    std::printf("%s\n", code.c_str());
  } else {
    const auto path =
        with.into + "/seed_" + std::to_string(what.seed) + "_" + file_name(found.key) + ".cpp";
    std::ofstream(path) << code;
    std::printf("  %s, %zu operations\n", path.c_str(), small.operations.size());
  }
  std::fflush(stdout);
}

struct tally {
  long programs = 0;
  std::map<std::string, long> reached;
  std::map<std::string, std::pair<std::uint64_t, long>> found;  // key: first seed, times
};

bool has_capture(const program& which) {
  return std::ranges::any_of(
      which.operations, [](const operation& each) { return each.what == kind::capture_begin; });
}

// As `reached` names them.
constexpr const char* ended_step = "end_step";
constexpr const char* ended_capture = "capture_end, captured";
constexpr const char* with_capture = "programs with a capture";

// The seeds first, first + step, …
tally run_share(const settings& with, int share) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::seconds(with.seconds);
  tally all;
  auto next = with.seed + static_cast<std::uint64_t>(share);
  const auto last = with.seed + static_cast<std::uint64_t>(with.programs);
  const auto stride = static_cast<std::uint64_t>(with.threads);
  const auto late = [&] { return with.seconds > 0 && clock::now() >= end; };
  while (next < last && !late()) {
    auto at = next;
    std::vector<std::pair<std::uint64_t, verdict>> found;
    const int status = in_child(
        [&](int to) {
          for (int i = 0; i < 100 && next < last && !late(); ++i, next += stride) {
            const auto what = draw(next);
            if (with.captures && !has_capture(what)) {
              put(to, "passed\t" + std::to_string(next) + '\n');
              continue;
            }
            put(to, "begin\t" + std::to_string(next) + '\n');
            const auto captures = reached()[ended_capture];
            limit_time(true);
            const auto seen = play_all(what, with.orders);
            limit_time(false);
            if (reached()[ended_capture] > captures) ++reached()[with_capture];
            put_all(to, seen);
            put(to, "end\n");
          }
          for (const auto& [what, times] : reached()) {
            put(to, "reached\t" + std::to_string(times) + '\t' + what + '\n');
          }
        },
        [&](const std::string& line) {
          if (line.starts_with("begin")) {
            at = std::strtoull(line.c_str() + 6, nullptr, 10);
            next = at + stride;
            ++all.programs;
          } else if (line.starts_with("passed")) {
            next = std::strtoull(line.c_str() + 7, nullptr, 10) + stride;
          } else if (line.starts_with("reached")) {
            const auto second = line.find('\t', 8);
            all.reached[line.substr(second + 1)] += std::atol(line.c_str() + 8);
          } else if (line.starts_with("found")) {
            found.emplace_back(at, read_found(line));
          }
        });
    if (status != 0) found.emplace_back(at, verdict{death(status), death(status), 0});
    for (const auto& [seed, what] : found) {
      auto& entry = all.found[what.key];
      if (entry.second++ == 0) {
        entry.first = seed;
        show(draw(seed), what, with);
        std::fflush(stdout);
      }
    }
  }
  return all;
}

int run(const settings& with) {
  if (with.one) {
    const auto what = draw(with.seed);
    const auto all = judge(what, with.orders);
    for (const auto& each : all) show(what, each, with);
    if (all.empty()) {
      std::printf("seed %llu: nothing was found\n", static_cast<unsigned long long>(what.seed));
      return 0;
    }
    return 1;
  }
  const auto began = std::chrono::steady_clock::now();
  tally all;
  std::vector<std::thread> threads;
  std::vector<tally> shares(static_cast<std::size_t>(with.threads));
  for (int t = 1; t < with.threads; ++t) {
    threads.emplace_back([&, t] { shares[static_cast<std::size_t>(t)] = run_share(with, t); });
  }
  shares[0] = run_share(with, 0);
  for (auto& each : threads) each.join();
  for (const auto& share : shares) {
    all.programs += share.programs;
    for (const auto& [what, times] : share.reached) all.reached[what] += times;
    for (const auto& [key, entry] : share.found) {
      auto& into = all.found[key];
      if (into.second == 0 || entry.first < into.first) into.first = entry.first;
      into.second += entry.second;
    }
  }
  const auto seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (with.reached) {
    for (const auto& [what, times] : all.reached) std::printf("%9ld %s\n", times, what.c_str());
  }
  long times = 0;
  for (const auto& [key, entry] : all.found) {
    std::printf("%6ld times, first seed %llu: %s\n", entry.second,
                static_cast<unsigned long long>(entry.first), key.c_str());
    times += entry.second;
  }
  std::printf("%ld programs in %.1f s: %ld findings of %zu kinds\n", all.programs, seconds, times,
              all.found.size());
  std::printf("%ld steps over all orders, %ld programs with a capture\n", all.reached[ended_step],
              all.reached[with_capture]);
  return all.found.empty() ? 0 : 1;
}

}  // namespace

}  // namespace stranger

int main(int argc, char** argv) {
  stranger::settings with;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto number = [&] {
      if (i + 1 >= argc) std::exit(2);
      return std::strtoull(argv[++i], nullptr, 10);
    };
    if (arg == "--programs") {
      with.programs = static_cast<long>(number());
    } else if (arg == "--seed") {
      with.seed = number();
    } else if (arg == "--program") {
      with.seed = number();
      with.one = true;
    } else if (arg == "--orders") {
      with.orders = static_cast<int>(number());
    } else if (arg == "--threads") {
      with.threads = std::max(1, static_cast<int>(number()));
    } else if (arg == "--seconds") {
      with.seconds = static_cast<long>(number());
    } else if (arg == "--limit") {
      stranger::limit() = static_cast<unsigned>(std::max(number(), 1ULL));
    } else if (arg == "--shrink") {
      with.shrink = true;
    } else if (arg == "--ignore" && i + 1 < argc) {
      stranger::passed_over().emplace_back(argv[++i]);
    } else if (arg == "--strict") {
      stranger::strict() = true;
    } else if (arg == "--captures") {
      with.captures = true;
    } else if (arg == "--long") {
      stranger::long_only() = true;
    } else if (arg == "--reached") {
      with.reached = true;
    } else if (arg == "--operations") {
      with.text = true;
    } else if (arg == "--into" && i + 1 < argc) {
      with.into = argv[++i];
    } else {
      std::fprintf(stderr,
                   "stranger [--programs N] [--seed S] [--program S] [--orders K] [--threads T] "
                   "[--seconds T] [--limit SECONDS]\n"
                   "         [--shrink] [--operations] [--into FOLDER] [--strict] [--ignore WORDS] "
                   "[--reached] [--captures] [--long]\n");
      return 2;
    }
  }
  return stranger::run(with);
}
