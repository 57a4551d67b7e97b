/// A trainer in the style of llm.c: one allocation, pointers into it, arrays of layers by offset.
///
/// `train_eager` is that trainer; `train_layers` is the same with its arrays of layers as
/// `saved_layers`, so that the device holds few layers of them. Three lines change for each array,
/// numbered (1) to (3); what is marked (+) is there once. The program runs both and compares bits.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "tools/device_line.hpp"
#include "tools/voice.hpp"

namespace tp = tidepool;

namespace {

constexpr int L = 8;
constexpr std::size_t C = 64;  // channels
constexpr std::size_t T = 64;  // tokens
constexpr int steps = 4;
constexpr int validate_every = 2;

using device = tp::virtual_device;  // or tp::cuda_device, with kernels instead of `launch`
using stream_ref = device::stream_ref;

// ---- kernels. Like many, the one of attention writes a triangle and the next reads the square
// ----

void layer_forward(device& dev, stream_ref stream, float* qkv, float* att, float* fch, float* x,
                   int l) {
  dev.launch(stream, 30'000, [=] {
    for (std::size_t i = 0; i < T * C; ++i) qkv[i] = 0.5F * x[i] + 0.01F * static_cast<float>(l);
    for (std::size_t t = 0; t < T; ++t) {
      for (std::size_t u = 0; u <= t; ++u) att[t * T + u] = qkv[t * C] * qkv[u * C + 1];
    }
    for (std::size_t t = 0; t < T; ++t) {
      float row = 0;
      for (std::size_t u = 0; u < T; ++u) row += att[t * T + u];
      for (std::size_t c = 0; c < 4 * C; ++c) fch[t * 4 * C + c] = row / T + qkv[t * C + c % C];
      for (std::size_t c = 0; c < C; ++c) x[t * C + c] += 0.25F * fch[t * 4 * C + c];
    }
  });
}
void layer_backward(device& dev, stream_ref stream, float* grad, const float* qkv, const float* att,
                    const float* fch) {
  dev.launch(stream, 60'000, [=] {
    for (std::size_t t = 0; t < T; ++t) {
      float row = 0;
      for (std::size_t u = 0; u < T; ++u) row += att[t * T + u];
      for (std::size_t c = 0; c < C; ++c) {
        const auto i = t * C + c;
        grad[i] = 0.5F * grad[i] + 0.1F * qkv[i] + 0.01F * fch[t * 4 * C + c] + row / T;
      }
    }
  });
}
// The head: the activations of the last layer become a loss, and the gradient that backward begins
// with.
void head(device& dev, stream_ref stream, const float* x, float* grad, std::vector<float>& losses) {
  dev.launch(stream, 5'000, [=, &losses] {
    float sum = 0;
    for (std::size_t i = 0; i < T * C; ++i) sum += (grad[i] = 0.1F * grad[i] + 0.9F * x[i]);
    losses.push_back(sum / (T * C));
  });
}
void encode(device& dev, stream_ref stream, float* x, int step) {
  const auto shift = static_cast<std::size_t>(13 * step);
  dev.launch(stream, 5'000, [=] {
    for (std::size_t i = 0; i < T * C; ++i) x[i] = static_cast<float>((i + shift) % 7) * 0.1F;
  });
}

// ---- one allocation, pointers into it ----

struct activations {
  float* x;    // (T, C)
  float* qkv;  // (L, T, C)
  float* att;  // (L, T, T)
  float* fch;  // (L, T, 4 C)
  float* grad;
};

float* allocate_and_point(device& dev, activations& acts, const std::size_t (&sizes)[5]) {
  std::size_t total = 0;
  for (const auto size : sizes) total += size;
  auto* const memory = static_cast<float*>(dev.allocate(total * sizeof(float)));
  float** const pointers[] = {&acts.x, &acts.qkv, &acts.att, &acts.fch, &acts.grad};
  auto* next = memory;
  for (std::size_t i = 0; i < 5; ++i) {
    *pointers[i] = next;
    next += sizes[i];
  }
  // As memory of a GPU is when it is given out first.
  const auto stream = dev.make_stream();
  dev.fill_bytes(memory, 0, total * sizeof(float), stream.ref());
  dev.synchronize();
  return memory;
}

std::vector<float> train_eager(device& dev, stream_ref stream) {
  std::vector<float> losses;
  activations acts;
  auto* const memory =
      allocate_and_point(dev, acts, {T * C, L * T * C, L * T * T, L * T * 4 * C, T * C});
  const auto forward = [&](int step) {
    encode(dev, stream, acts.x, step);
    for (int l = 0; l < L; ++l) {
      float* l_qkv = acts.qkv + l * T * C;
      float* l_att = acts.att + l * T * T;
      float* l_fch = acts.fch + l * T * 4 * C;
      layer_forward(dev, stream, l_qkv, l_att, l_fch, acts.x, l);
    }
    head(dev, stream, acts.x, acts.grad, losses);
  };
  for (int step = 0; step < steps; ++step) {
    if (step % validate_every == 0) forward(1000 + step);
    forward(step);
    for (int l = L - 1; l >= 0; --l) {
      float* l_qkv = acts.qkv + l * T * C;
      float* l_att = acts.att + l * T * T;
      float* l_fch = acts.fch + l * T * 4 * C;
      layer_backward(dev, stream, acts.grad, l_qkv, l_att, l_fch);
    }
  }
  dev.synchronize();
  dev.deallocate(memory);
  return losses;
}

using offloader = tp::offloader<device, tp::modules<"block">>;  // (+)

struct saved_arrays {  // (+) all of this
  offloader& off;
  offloader::chunk pass;
  tp::layer_group<offloader> block{off, pass, "block"};
  tp::saved_layers<float, offloader> qkv{block}, att{block}, fch{block};
};

std::vector<float> train_layers(device& dev, stream_ref stream, const tp::options& options) {
  std::vector<float> losses;
  activations acts;
  auto* const memory = allocate_and_point(dev, acts, {T * C, 0, 0, 0, T * C});  // (1)
  offloader off(dev, options, {.output = tp::trace_output()});                  // (+)
  saved_arrays saved{off, {}};                                                  // (+)
  const auto forward = [&](int step, bool trains) {
    saved.pass = off.begin({.forward_only = !trains, .release = !trains});  // (+)
    encode(dev, stream, acts.x, step);
    for (int l = 0; l < L; ++l) {
      float* l_qkv = saved.qkv.fresh(l, T * C, stream);                  // (2)
      float* l_att = saved.att.fresh(l, T * T, stream, tp::fill::zero);  // (2)
      float* l_fch = saved.fch.fresh(l, T * 4 * C, stream);              // (2)
      layer_forward(dev, stream, l_qkv, l_att, l_fch, acts.x, l);
      saved.block.done(l, stream);  // (+)
    }
    saved.pass.end_forward();  // (+)
    head(dev, stream, acts.x, acts.grad, losses);
  };
  for (int step = 0; step < steps; ++step) {
    if (step % validate_every == 0) forward(1000 + step, false);
    forward(step, true);
    for (int l = L - 1; l >= 0; --l) {
      float* l_qkv = saved.qkv.back(l, stream);  // (3)
      float* l_att = saved.att.back(l, stream);  // (3)
      float* l_fch = saved.fch.back(l, stream);  // (3)
      layer_backward(dev, stream, acts.grad, l_qkv, l_att, l_fch);
      saved.block.release(l, stream);  // (+)
    }
    saved.pass.finish();  // (+)
    off.end_step();       // (+)
  }
  dev.synchronize();
  const auto seen = off.counters();
  std::printf("%8.0f KiB of layers on the device at most, %6.0f KiB moved out\n",
              static_cast<double>(seen.live_peak) / 1024,
              static_cast<double>(seen.modules[0].bytes_offloaded) / 1024);
  dev.deallocate(memory);
  return losses;
}

bool equal(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"layers_trainer", "Trains with arrays of layers, eager and saved_layers."};
  return tools::run(me.name, [&] {
    // Tidepool's flags are gone after this; a trainer's own parser would come next.
    tp::options options;
    options.offload_modules = {"block"};
    options.min_tensor_elements = 1;
    options = tp::take_options(argc, argv, options);
    tools::no_options(me, argc, argv, tp::options_help());

    tools::print_device<device>();
    device dev;
    const auto owned = dev.make_stream();
    const auto eager = train_eager(dev, owned.ref());
    bool same = equal(eager, train_layers(dev, owned.ref(), {}));  // nothing leaves
    same &= equal(eager, train_layers(dev, owned.ref(), options));
    std::printf("%zu losses %s\n", eager.size(), same ? "equal to the bit" : "DIFFER");
    return same ? 0 : 1;
  });
}
