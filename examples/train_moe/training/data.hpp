/// The text: where it comes from, its unigram entropy, and the sequences that are cut from it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tidepool/error.hpp>
#include <utility>
#include <vector>

#include "../kernels/kernels.hpp"
#include "../model/config.hpp"

namespace moe {

/// A text as bytes; its last tenth is held out for evaluation.
class corpus {
 public:
  /// Throws `tidepool::option_error` when the text has no room for one sequence and the bytes to
  /// predict after it.
  corpus(std::string text, std::string name, const model_sizes& sizes)
      : text_(std::move(text)), name_(std::move(name)) {
    const index least = sizes.seq + sizes.ahead();
    if (size() < least) {
      throw tidepool::option_error(
          "--data=" + name_ + ": its " + std::to_string(size()) +
          " bytes are fewer than --seq + 1 " + (sizes.mtp > 0 ? "+ --mtp " : "") + "= " +
          std::to_string(least) + "; give a longer text or a smaller --seq");
    }
    const index tenth = size() / 10;
    train_end_ = tenth >= least && size() - tenth >= least ? size() - tenth : size();
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] index size() const { return static_cast<index>(text_.size()); }
  /// Tells texts apart.
  [[nodiscard]] std::uint64_t fingerprint() const {
    std::uint64_t hash = 0;
    for (const char c : text_) hash = mix(hash ^ static_cast<unsigned char>(c));
    return hash;
  }
  [[nodiscard]] bool has_held_out() const { return train_end_ < size(); }

  /// Nats per byte that a model without any context would need at least.
  [[nodiscard]] double unigram_entropy() const {
    std::array<double, vocabulary> count{};
    for (const char c : text_) ++count[static_cast<unsigned char>(c)];
    double sum = 0;
    for (const double n : count) {
      if (n > 0) sum -= n * std::log(n / static_cast<double>(size()));
    }
    return sum / static_cast<double>(size());
  }

  /// Cuts the sequences of one microbatch at places that depend on `seed` alone: the tokens of all
  /// of them, then for each as often as `sizes.ahead()` the one that many bytes ahead.
  void sample(std::uint64_t seed, bool held_out, const model_sizes& sizes,
              std::int32_t* token) const {
    const index first = held_out ? train_end_ : 0;
    const index room = (held_out ? size() : train_end_) - first - sizes.seq - sizes.mtp;
    for (index b = 0; b < sizes.batch; ++b) {
      const auto draw = mix(mix(seed) + static_cast<std::uint64_t>(b));
      const index start = first + static_cast<index>(draw % static_cast<std::uint64_t>(room));
      for (index i = 0; i < sizes.seq; ++i) {
        for (index ahead = 0; ahead <= sizes.ahead(); ++ahead) {
          token[ahead * sizes.tokens() + b * sizes.seq + i] = byte(start + i + ahead);
        }
      }
    }
  }

 private:
  [[nodiscard]] std::int32_t byte(index at) const {
    return static_cast<unsigned char>(text_[static_cast<std::size_t>(at)]);
  }

  std::string text_;
  std::string name_;
  index train_end_ = 0;
};

/// Reads a whole file; throws `tidepool::option_error` naming `--data` when it cannot.
inline std::string read_text(const std::filesystem::path& file) {
  std::error_code ignored;
  std::ifstream in;
  if (std::filesystem::is_regular_file(file, ignored)) in.open(file, std::ios::binary);
  if (!in.is_open()) {
    throw tidepool::option_error("--data=" + file.string() +
                                 ": cannot be read; give a text file that exists");
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The repository's own text: README.md, LICENSE, docs and headers, whichever there are, by name.
inline std::string repository_text(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const char* name : {"README.md", "LICENSE"}) {
    if (fs::is_regular_file(root / name, ignored)) files.push_back(root / name);
  }
  for (const auto& [folder, extension] : {std::pair{"docs", ".md"}, {"include", ".hpp"}}) {
    for (fs::recursive_directory_iterator it(root / folder, ignored), end; it != end; ++it) {
      if (it->is_regular_file() && it->path().extension() == extension) files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) text += read_text(file);
  return text;
}

/// The text of `--data`, or the repository's own when that is empty.
inline corpus load_corpus(const std::string& file, const model_sizes& sizes) {
  if (!file.empty()) return {read_text(file), file, sizes};
#ifdef TIDEPOOL_SOURCE_DIR
  const std::filesystem::path root = TIDEPOOL_SOURCE_DIR;
#else
  const std::filesystem::path root = std::filesystem::current_path();
#endif
  std::string text = repository_text(root);
  if (text.empty()) {
    throw tidepool::option_error("--data is not given and " + root.string() +
                                 " holds no text of Tidepool; give a text file with --data=FILE");
  }
  return {std::move(text), "the repository's text", sizes};
}

}  // namespace moe
