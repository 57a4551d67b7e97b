/// The text: bytes of a file, or of the repository's own documents.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/error.hpp"

namespace gpt {

inline std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw tidepool::option_error("--data=" + file.string() +
                                 ": cannot be read; give a text file that exists");
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

/// `file`, or README.md, LICENSE and docs, in the order of their names.
inline std::string load_text(const std::string& file) {
  if (!file.empty()) return read_text(file);
  const std::filesystem::path root = TIDEPOOL_SOURCE_DIR;
  std::vector<std::filesystem::path> files{root / "LICENSE", root / "README.md"};
  for (const auto& each : std::filesystem::directory_iterator(root / "docs")) {
    if (each.path().extension() == ".md") files.push_back(each.path());
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const auto& each : files) text += read_text(each);
  return text;
}

/// Sequences of bytes and the bytes that follow them, cut at places that follow from `number`.
class text_sampler {
 public:
  text_sampler(std::string text, int sequence) : text_(std::move(text)), sequence_(sequence) {
    if (text_.size() <= static_cast<std::size_t>(sequence) + 1) {
      throw tidepool::option_error("--seq=" + std::to_string(sequence) + ": the text has only " +
                                   std::to_string(text_.size()) + " bytes; give a longer one");
    }
  }

  [[nodiscard]] std::pair<at::Tensor, at::Tensor> sample(std::uint64_t number, int batch) const {
    auto tokens = torch::empty({batch, sequence_}, torch::kLong);
    auto next = torch::empty({batch, sequence_}, torch::kLong);
    auto* const token = tokens.data_ptr<std::int64_t>();
    auto* const following = next.data_ptr<std::int64_t>();
    const auto room = text_.size() - static_cast<std::size_t>(sequence_) - 1;
    for (int b = 0; b < batch; ++b) {
      const auto start = mix(number * 1024 + static_cast<std::uint64_t>(b)) % room;
      for (int i = 0; i < sequence_; ++i) {
        const auto at = start + static_cast<std::size_t>(i);
        token[b * sequence_ + i] = static_cast<unsigned char>(text_[at]);
        following[b * sequence_ + i] = static_cast<unsigned char>(text_[at + 1]);
      }
    }
    return {tokens, next};
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x = (x + 0x9E3779B97F4A7C15U) * 0xBF58476D1CE4E5B9U;
    x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
    return x ^ x >> 31U;
  }

  std::string text_;
  int sequence_;
};

}  // namespace gpt
