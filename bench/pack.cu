/// The packed form of BF16 numbers on a GPU: its size and its kernels' rates, beside simpler forms;
/// and its cost to matrix products that run meanwhile.
///
///     bench_pack                           gaussian and gated numbers
///     bench_pack --tensor moe_act.bin      numbers of a file as well
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tidepool/codec/pack_kernels.cuh>
#include <vector>

#include "../examples/tools/command_line.hpp"
#include "../examples/tools/device_line.hpp"

namespace {

namespace form = tidepool::pack_form;
constexpr std::size_t gib = std::size_t{1} << 30;
constexpr int product = 8192;  // rows and columns of the matrix products

void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

// A form to compare with: 4 bits for each distance of an exponent from its block's largest. A block
// with a larger distance is written to host memory as it is. `Lanes` threads hold a block, 8
// numbers each.
template <unsigned Lanes>
__global__ void pack_in_4_bits(const uint4* tensor, uint2* rests, std::uint32_t* distances,
                               std::uint8_t* bases, uint4* spill, std::size_t items,
                               unsigned* kept) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < items;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const uint4 four = __ldcs(tensor + i);
    const std::uint32_t words[] = {four.x, four.y, four.z, four.w};
    unsigned base = 0;
    for (const auto w : words) base = max(base, max(w >> 7 & 0xffU, w >> 23 & 0xffU));
    for (unsigned step = 1; step < Lanes; step *= 2) {
      base = max(base, __shfl_xor_sync(~0U, base, step));
    }
    std::uint32_t packed = 0;
    std::uint32_t rest[2] = {};
    bool far = base == 255;
    for (unsigned k = 0; k < 8; ++k) {
      const auto number = words[k / 2] >> k % 2 * 16 & 0xffffU;
      const bool zero = (number & 0x7fffU) == 0;
      const auto distance = base - (number >> 7 & 0xffU);
      far |= !zero && distance > 14;
      packed |= (zero ? 15U : distance & 15U) << 4 * k;
      rest[k / 4] |= ((number >> 8 & 0x80U) | (number & 0x7fU)) << k % 4 * 8;
    }
    const auto lane = threadIdx.x % 32;
    const auto group = __ballot_sync(~0U, far) >> lane / Lanes * Lanes & ((1ULL << Lanes) - 1);
    rests[i] = {rest[0], rest[1]};
    distances[i] = packed;
    if (group != 0) spill[i] = four;
    if (lane % Lanes != 0) continue;
    bases[i / Lanes] = static_cast<std::uint8_t>(group != 0 ? 255 : base);
    if (group != 0) atomicAdd(kept, 1U);
  }
}

__global__ void make_numbers(std::uint16_t* to, std::size_t count, bool gated) {
  const auto uniform = [](std::size_t i, unsigned seed) {
    auto x = static_cast<std::uint32_t>(i) * 2654435761U ^ seed * 0x9e3779b9U;
    x = (x ^ x >> 16) * 2246822519U;
    x = (x ^ x >> 13) * 3266489917U;
    return (static_cast<float>(x ^ x >> 16) + 0.5F) / 4294967296.0F;
  };
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const auto normal = [&](unsigned seed) {
      return sqrtf(-2 * logf(uniform(i, seed))) * cospif(2 * uniform(i, seed + 1));
    };
    const float x = normal(1);
    const float value = gated ? x / (1 + expf(-x)) * normal(3) : x;
    const auto bits = __float_as_uint(value);
    to[i] = static_cast<std::uint16_t>(bits + 0x7fffU + (bits >> 16 & 1U) >> 16);
  }
}

__global__ void count_differences(const std::uint32_t* a, const std::uint32_t* b, std::size_t words,
                                  unsigned* found) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    if (a[i] != b[i]) atomicAdd(found, 1U);
  }
}

// Records whose nibbles spill, and records that keep their numbers.
__global__ void count_records(const std::uint8_t* packed, std::size_t records, unsigned* spilling,
                              unsigned* kept) {
  const auto i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i >= records) return;
  const auto* const record = packed + i * form::packed_record;
  if (record[form::bases_at] == form::mark) {
    atomicAdd(kept, 1U);
    return;
  }
  const auto* const words = reinterpret_cast<const std::uint32_t*>(record + form::codes_at);
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(record + form::upper_at);
  unsigned escaped = 0;
  for (unsigned k = 0; k < form::lanes; ++k) {
    const auto codes = form::detail::codes_of(words[k], halves[k]);
    const auto all = form::detail::escapes_of(codes);
    escaped += __popc(all.words[0]) + __popc(all.words[1]);
  }
  if (escaped > form::pool_bytes * 2) atomicAdd(spilling, 1U);
}

class lab {
 public:
  lab() {
    check(cudaMalloc(&tensor_, gib));
    check(cudaMalloc(&back_, gib));
    check(cudaMalloc(&packed_, gib));
    check(cudaHostAlloc(&host_, form::host_bytes(gib), cudaHostAllocDefault));
    check(cudaMallocManaged(&counts_, 4 * sizeof(unsigned)));
    for (auto* each : {&compute_, &side_}) {
      check(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking));
    }
    for (auto* each : {&from_, &to_}) check(cudaEventCreate(each));
    if (cublasCreate(&blas_) != CUBLAS_STATUS_SUCCESS) throw std::runtime_error("cublasCreate");
    cublasSetStream(blas_, compute_);
    for (auto& each : matrices_) {
      check(cudaMalloc(&each, std::size_t{product} * product * 2));
      make_numbers<<<1024, 256>>>(static_cast<std::uint16_t*>(each), std::size_t{product} * product,
                                  false);
    }
  }

  void make(bool gated) {
    make_numbers<<<1024, 256>>>(as<std::uint16_t>(tensor_), gib / 2, gated);
    check(cudaDeviceSynchronize());  // no other stream waits for the default one
  }
  // The numbers of a file, again and again until the tensor is full.
  void read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    std::vector<char> bytes(std::istreambuf_iterator<char>(in), {});
    if (bytes.size() < 2) throw std::runtime_error(file + ": holds no numbers");
    bytes.resize(bytes.size() / 2 * 2);
    for (std::size_t done = 0; done < gib; done += bytes.size()) {
      check(cudaMemcpy(tensor_ + done, bytes.data(), std::min(bytes.size(), gib - done),
                       cudaMemcpyDefault));
    }
  }

  // Median milliseconds of `work` on a stream, over 5 rounds of `times` runs.
  double ms(cudaStream_t on, int times, const std::function<void()>& work) {
    std::vector<double> all;
    for (int round = 0; round < 5; ++round) {
      check(cudaDeviceSynchronize());
      check(cudaEventRecord(from_, on));
      for (int i = 0; i < times; ++i) work();
      check(cudaEventRecord(to_, on));
      check(cudaDeviceSynchronize());
      float passed = 0;
      check(cudaEventElapsedTime(&passed, from_, to_));
      all.push_back(static_cast<double>(passed) / times);
    }
    std::nth_element(all.begin(), all.begin() + 2, all.end());
    return all[2];
  }
  double link_ms(std::size_t bytes, bool out) {
    return ms(side_, 2, [&] {
      check(cudaMemcpyAsync(out ? host_ : back_, out ? packed_ : host_, bytes, cudaMemcpyDefault,
                            side_));
    });
  }
  void pack() { form::pack_on(packed_, host_ + form::spill_at(gib), tensor_, gib, side_); }
  void unpack() { form::unpack_on(back_, packed_, host_ + form::spill_at(gib), gib, side_); }

  void print_form(const char* data) {
    std::fill_n(counts_, 4, 0U);
    pack();
    unpack();
    count_differences<<<1024, 256, 0, side_>>>(as<std::uint32_t>(tensor_), as<std::uint32_t>(back_),
                                               gib / 4, counts_);
    constexpr auto records = form::records_of(gib);
    count_records<<<records / 256, 256, 0, side_>>>(as<std::uint8_t>(packed_), records, counts_ + 1,
                                                    counts_ + 2);
    check(cudaDeviceSynchronize());
    constexpr auto bytes = form::packed_bytes(gib);
    std::printf(
        "%-10s records of 512, 3 bits  %6.3f  %6.2f  %6.2f  %6.3f  %6.3f  %6.2f  %6.2f  %u\n", data,
        8.0 * bytes / (gib / 2), 100.0 * counts_[1] / records, 100.0 * counts_[2] / records,
        ms(side_, 4, [&] { pack(); }), ms(side_, 4, [&] { unpack(); }), link_ms(bytes, true),
        link_ms(bytes, false), counts_[0]);
  }
  template <unsigned Lanes>
  void print_4_bits(const char* data) {
    constexpr std::size_t numbers = gib / 2;
    constexpr std::size_t bytes = numbers + numbers / 2 + numbers / (8 * Lanes);
    const auto run = [&] {
      pack_in_4_bits<Lanes><<<numbers / 8 / 256, 256, 0, side_>>>(
          as<uint4>(tensor_), as<uint2>(packed_), as<std::uint32_t>(packed_ + numbers),
          as<std::uint8_t>(packed_ + numbers + numbers / 2), as<uint4>(host_), numbers / 8,
          counts_);
    };
    counts_[0] = 0;
    run();
    check(cudaDeviceSynchronize());
    const auto kept = counts_[0];
    std::printf(
        "%-10s blocks of %3u, 4 bits   %6.3f       -  %6.2f  %6.3f       -  %6.2f  %6.2f  -\n",
        data, 8 * Lanes, 8.0 * bytes / numbers, 100.0 * kept / (numbers / (8.0 * Lanes)),
        ms(side_, 4, run), link_ms(bytes, true), link_ms(bytes, false));
  }
  void print_forms(const char* data) {
    print_form(data);
    print_4_bits<4>(data);
    print_4_bits<8>(data);
    print_4_bits<16>(data);
  }

  // Milliseconds that a GiB costs matrix products, which run meanwhile.
  void print_beside() {
    constexpr int products = 20;
    const auto multiply = [&] {
      const float one = 1;
      const float zero = 0;
      cublasGemmEx(blas_, CUBLAS_OP_N, CUBLAS_OP_N, product, product, product, &one, matrices_[0],
                   CUDA_R_16BF, product, matrices_[1], CUDA_R_16BF, product, &zero, matrices_[2],
                   CUDA_R_16BF, product, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    };
    const auto all = [&] {
      for (int i = 0; i < products; ++i) multiply();
    };
    const auto alone = ms(compute_, 1, all);
    constexpr int times = 8;
    const auto beside = [&](const std::function<void()>& work) {
      return (ms(compute_, 1,
                 [&] {
                   for (int i = 0; i < times; ++i) work();
                   all();
                 }) -
              alone) /
             times;
    };
    std::printf("cost to products beside, ms/GiB: pack %.3f, unpack %.3f\n",
                beside([&] { pack(); }), beside([&] { unpack(); }));
  }

 private:
  template <class To>
  static To* as(std::byte* from) {
    return reinterpret_cast<To*>(from);
  }

  std::byte* tensor_ = nullptr;
  std::byte* back_ = nullptr;
  std::byte* packed_ = nullptr;
  std::byte* host_ = nullptr;
  unsigned* counts_ = nullptr;
  void* matrices_[3] = {};
  cudaStream_t compute_{}, side_{};
  cudaEvent_t from_{}, to_{};
  cublasHandle_t blas_{};
};

void print_all(const std::vector<std::string>& files) {
  lab here;
  std::printf(
      "%-10s form                   bits/no. spill %%  kept %%  pack    unpack  out     in"
      "      wrong\n%58s ms/GiB of the tensor\n",
      "numbers", "");
  for (const bool gated : {false, true}) {
    here.make(gated);
    here.print_forms(gated ? "gated" : "gaussian");
  }
  for (const auto& file : files) {
    here.read(file);
    here.print_forms(file.substr(file.find_last_of('/') + 1).c_str());
  }
  here.make(false);
  std::printf("link, unpacked: out %.2f, in %.2f ms/GiB\n", here.link_ms(gib, true),
              here.link_ms(gib, false));
  here.print_beside();
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"bench_pack", "What the packed form of BF16 numbers costs on a GPU."};
  return tools::run(me.name, [&] {
    std::vector<std::string> files;
    tools::command_line line(me);
    line.add_option("--tensor", files, "BF16 numbers to pack as well")->type_name("FILE");
    line.read(argc, argv);
    tools::print_device<tidepool::cuda_device>();
    print_all(files);
    return 0;
  });
}
