/// The `main` of a program of Google Benchmark, whose flags it keeps, in the voice of all programs.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../examples/tools/voice.hpp"

namespace bench {

/// Runs what is registered, and what `add` registers once the flags are read. `first` is a flag in
/// front of the user's, or empty.
template <class Add>
int run_google(const tools::about& program, int argc, char** argv, std::string first,
               const Add& add) {
  return tools::run(program.name, [&] {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--version") throw tools::answer{tools::version_text(program.name)};
      if (word != "--help" && word != "-h") continue;
      std::printf(
          "%s\nUsage: %s [FLAG]...\n\nOptions:\n  --help\n      print this, and end\n  --version\n"
          "      print the version, and end\n\n%s\nFlags of Google Benchmark:\n",
          program.does.c_str(), program.name.c_str(), tools::endings_help);
      benchmark::PrintDefaultHelp();
      return int{tools::done};
    }
    std::vector<char*> words(argv, argv + argc);
    if (!first.empty()) words.insert(words.begin() + (argc > 0 ? 1 : 0), first.data());
    int count = static_cast<int>(words.size());
    words.push_back(nullptr);
    benchmark::Initialize(&count, words.data());
    if (count > 1) tools::refuse_argument(words[1], "");
    add();
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return int{tools::done};
  });
}

}  // namespace bench
