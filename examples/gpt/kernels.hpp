/// The kernels of the GPT. None adds by atomics, so that equal runs have equal bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "ops.hpp"

namespace gpt {

/// Numbers that look random, evenly between -scale and scale.
struct scatter {
  float* to;
  float scale;
  std::uint32_t seed;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    auto x = static_cast<std::uint32_t>(i) * 2654435761U + seed;
    x = (x ^ x >> 16) * 0x7feb352dU;
    x = (x ^ x >> 15) * 0x846ca68bU;
    to[i] = scale * (static_cast<float>((x ^ x >> 16) >> 8) * 0x1p-23F - 1);
  }
};
struct set_all {
  float* to;
  float value;
  ON_ANY_DEVICE void operator()(std::size_t i) const { to[i] = value; }
};
struct add {
  float* to;
  const float* a;
  const float* b;
  ON_ANY_DEVICE void operator()(std::size_t i) const { to[i] = a[i] + b[i]; }
};
/// Adds a row to each row.
struct add_row {
  float* to;
  const float* row;
  std::size_t columns;
  ON_ANY_DEVICE void operator()(std::size_t i) const { to[i] += row[i % columns]; }
};

// ---- embedding; a token is a byte ----

struct embed {
  float* to;
  const unsigned char* tokens;
  const float* words;
  const float* places;
  std::size_t width, length;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    const auto row = i / width, column = i % width;
    to[i] = words[tokens[row] * width + column] + places[row % length * width + column];
  }
};
/// A matrix with a one in each row, at its token: the gradient of words is a product with it.
struct one_hot {
  float* to;
  const unsigned char* tokens;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    to[i] = tokens[i / 256] == i % 256 ? 1.F : 0.F;
  }
};
struct places_back {
  float* places;
  const float* grad;
  std::size_t width, length, batch;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    float sum = 0;
    for (std::size_t each = 0; each < batch; ++each) sum += grad[each * length * width + i];
    places[i] += sum;
  }
};

// ---- norm ----

struct norm {
  float* to;
  float* mean;
  float* scale;  // one over the deviation
  const float* from;
  const float* weight;
  const float* bias;
  std::size_t width;
  ON_ANY_DEVICE void operator()(std::size_t row, team with) const {
    const float* x = from + row * width;
    const auto first = static_cast<std::size_t>(with.lane),
               step = static_cast<std::size_t>(with.size);
    float sum = 0;
    for (auto i = first; i < width; i += step) sum += x[i];
    const float middle = with.sum(sum) / static_cast<float>(width);
    float squares = 0;
    for (auto i = first; i < width; i += step) squares += (x[i] - middle) * (x[i] - middle);
    const float s = 1 / sqrtf(with.sum(squares) / static_cast<float>(width) + 1e-5F);
    for (auto i = first; i < width; i += step) {
      to[row * width + i] = (x[i] - middle) * s * weight[i] + bias[i];
    }
    if (with.lane == 0) {
      mean[row] = middle;
      scale[row] = s;
    }
  }
};
/// Adds to the gradient of the norm's input; `products` gets the gradient times the normed input,
/// whose sum over the rows is the gradient of the weight.
struct norm_back {
  float* to;
  float* products;
  const float* grad;
  const float* from;
  const float* mean;
  const float* scale;
  const float* weight;
  std::size_t width;
  ON_ANY_DEVICE void operator()(std::size_t row, team with) const {
    const auto begin = row * width;
    const float m = mean[row], s = scale[row];
    const auto first = static_cast<std::size_t>(with.lane),
               step = static_cast<std::size_t>(with.size);
    float sum = 0, dots = 0;
    for (auto i = first; i < width; i += step) {
      const float g = grad[begin + i] * weight[i];
      sum += g;
      dots += g * (from[begin + i] - m) * s;
    }
    sum = with.sum(sum) / static_cast<float>(width);
    dots = with.sum(dots) / static_cast<float>(width);
    for (auto i = first; i < width; i += step) {
      const float normed = (from[begin + i] - m) * s;
      to[begin + i] += (grad[begin + i] * weight[i] - sum - normed * dots) * s;
      products[begin + i] = grad[begin + i] * normed;
    }
  }
};

// ---- attention ----

struct heads_shape {
  std::size_t batch, length, heads, head;
};
/// Splits rows of `parts` times the width into `parts` arrays of heads: (part, batch, head, place).
struct split_heads {
  float* to;
  const float* from;
  heads_shape shape;
  std::size_t parts;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    const auto& s = shape;
    const auto column = i % s.head, place = i / s.head % s.length,
               head = i / (s.head * s.length) % s.heads,
               one = i / (s.head * s.length * s.heads) % s.batch,
               part = i / (s.head * s.length * s.heads * s.batch);
    const auto width = s.heads * s.head;
    to[i] = from[((one * s.length + place) * parts + part) * width + head * s.head + column];
  }
};
/// The reverse.
struct join_heads {
  float* to;
  const float* from;
  heads_shape shape;
  std::size_t parts;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    const auto& s = shape;
    const auto column = i % s.head, place = i / s.head % s.length,
               head = i / (s.head * s.length) % s.heads,
               one = i / (s.head * s.length * s.heads) % s.batch,
               part = i / (s.head * s.length * s.heads * s.batch);
    const auto width = s.heads * s.head;
    to[((one * s.length + place) * parts + part) * width + head * s.head + column] = from[i];
  }
};
/// Each row of scores becomes a distribution over the places up to its own.
struct softmax {
  float* scores;
  std::size_t length;
  ON_ANY_DEVICE void operator()(std::size_t row, team with) const {
    float* x = scores + row * length;
    const auto seen = row % length + 1;
    const auto first = static_cast<std::size_t>(with.lane),
               step = static_cast<std::size_t>(with.size);
    float most = -INFINITY;
    for (auto i = first; i < seen; i += step) most = fmaxf(most, x[i]);
    most = with.most(most);
    float sum = 0;
    for (auto i = first; i < seen; i += step) sum += x[i] = expf(x[i] - most);
    const float scale = 1 / with.sum(sum);
    for (auto i = first; i < length; i += step) x[i] = i < seen ? x[i] * scale : 0;
  }
};
/// The gradient of the distribution becomes that of the scores, in place.
struct softmax_back {
  float* grad;
  const float* share;
  std::size_t length;
  ON_ANY_DEVICE void operator()(std::size_t row, team with) const {
    float* g = grad + row * length;
    const float* p = share + row * length;
    const auto first = static_cast<std::size_t>(with.lane),
               step = static_cast<std::size_t>(with.size);
    float dot = 0;
    for (auto i = first; i < length; i += step) dot += g[i] * p[i];
    dot = with.sum(dot);
    for (auto i = first; i < length; i += step) g[i] = p[i] * (g[i] - dot);
  }
};

// ---- activation ----

constexpr float gelu_scale = 0.7978845608F;  // the root of 2 / pi

struct gelu {
  float* to;
  const float* from;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    const float x = from[i];
    to[i] = 0.5F * x * (1 + tanhf(gelu_scale * (x + 0.044715F * x * x * x)));
  }
};
struct gelu_back {
  float* grad;  // in place
  const float* from;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    const float x = from[i], t = tanhf(gelu_scale * (x + 0.044715F * x * x * x));
    const float inner = gelu_scale * (1 + 3 * 0.044715F * x * x);
    grad[i] *= 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * inner;
  }
};

// ---- loss and weights ----

/// The loss of each row; logits become their gradient.
struct cross_entropy {
  float* loss;
  float* logits;
  const unsigned char* targets;
  float scale;  // of the gradient
  ON_ANY_DEVICE void operator()(std::size_t row, team with) const {
    float* x = logits + row * 256;
    float most = -INFINITY;
    for (int i = with.lane; i < 256; i += with.size) most = fmaxf(most, x[i]);
    most = with.most(most);
    float sum = 0;
    for (int i = with.lane; i < 256; i += with.size) sum += expf(x[i] - most);
    sum = with.sum(sum);
    if (with.lane == targets[row] % with.size) loss[row] = logf(sum) + most - x[targets[row]];
    for (int i = with.lane; i < 256; i += with.size) {
      x[i] = scale * (expf(x[i] - most) / sum - (i == targets[row] ? 1.F : 0.F));
    }
  }
};
struct adam {
  float* weight;
  const float* grad;
  float* first;
  float* second;
  float rate, first_left, second_left;  // 1 - beta^step
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    const float g = grad[i];
    first[i] = 0.9F * first[i] + 0.1F * g;
    second[i] = 0.95F * second[i] + 0.05F * g * g;
    weight[i] -= rate * (first[i] / first_left) / (sqrtf(second[i] / second_left) + 1e-8F);
  }
};

}  // namespace gpt
