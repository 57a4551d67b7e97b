/// Saved BF16 tensors as FP8, at half of their bytes, on their way to the host. Off unless called.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tidepool/codec/fp8_numbers.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/error.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::inline v0_3_0 {

/// A BF16 tensor as e4m3 codes and their scales, in one block of memory. Commit and restore `data`;
/// `elements` stays while the handle is empty.
///
/// Codes and scales share one block, because scales are only a 64th of the tensor's bytes. As a
/// tensor of their own they would be too small to leave (`min_tensor_elements`), cost a copy each,
/// and need slots of their own.
template <device Device>
struct fp8_tensor {
  buffer<Device> data;       ///< codes, then scales; committed and restored as any buffer
  std::size_t elements = 0;  ///< numbers that it stands for

  /// The codes, a byte for each number. Null while the handle is empty.
  [[nodiscard]] std::uint8_t* codes() const { return data.template as<std::uint8_t>(); }
  /// The scales, an fp32 for each `codec::block` numbers, 16-byte aligned. Null while the handle is
  /// empty.
  [[nodiscard]] float* scales() const {
    auto* const first = data.template as<std::byte>();
    if (first == nullptr) return nullptr;
    return reinterpret_cast<float*>(first + codec::scales_offset(elements));
  }
  /// True while the handle is full.
  explicit operator bool() const { return static_cast<bool>(data); }
  /// Gives the memory back like `handle::reset` on `stream`.
  void reset(typename Device::stream_ref stream) { data.reset(stream); }
};

namespace detail {

// The kernels of a device. CUDA's are in fp8_kernels.cuh, because only nvcc compiles them.
template <class Device>
struct fp8_kernels {
  template <class... Anything>
  static void encode(const Anything&... /*unused*/) {
    static_assert(sizeof(Device) == 0,
                  "fp8_codec has no kernels for this device here; for cuda_device include "
                  "tidepool/codec/fp8_kernels.cuh, in a file that nvcc compiles");
  }
  template <class... Anything>
  static void decode(const Anything&... anything) {
    encode(anything...);
  }
};

template <std::derived_from<null_device> Device>
struct fp8_kernels<Device> {
  template <class... Anything>
  static void encode(const Anything&... /*unused*/) {}
  template <class... Anything>
  static void decode(const Anything&... /*unused*/) {}
};

// A device that runs host functions as kernels, as the virtual one does.
template <class Device>
concept launches_functions = requires(Device& dev, typename Device::stream_ref on) {
  dev.launch(on, 1.0, [] {}, "", {});
};

template <launches_functions Device>
struct fp8_kernels<Device> {
  using stream_ref = typename Device::stream_ref;

  static void encode(Device& dev, std::uint8_t* codes, float* scales, const std::uint16_t* numbers,
                     std::size_t elements, stream_ref on, double bytes_per_ns) {
    dev.launch(on, nanoseconds(elements, bytes_per_ns),
               [=] {
                 codec::encode(codes, scales, numbers, elements);
                 // The bytes up to the scales are zeroed, because they are copied, too.
                 std::fill(codes + elements, codes + codec::scales_offset(elements),
                           std::uint8_t{0});
               },
               "fp8 encode",
               {{numbers, 2 * elements, false},
                {codes, codec::scales_offset(elements), true},
                {scales, codec::blocks_in(elements) * sizeof(float), true}});
  }
  static void decode(Device& dev, std::uint16_t* numbers, const std::uint8_t* codes,
                     const float* scales, std::size_t elements, stream_ref on,
                     double bytes_per_ns) {
    dev.launch(on, nanoseconds(elements, bytes_per_ns),
               [=] { codec::decode(numbers, codes, scales, elements); }, "fp8 decode",
               {{codes, elements, false},
                {scales, codec::blocks_in(elements) * sizeof(float), false},
                {numbers, 2 * elements, true}});
  }

 private:
  static double nanoseconds(std::size_t elements, double bytes_per_ns) {
    return static_cast<double>(codec::packed_bytes(elements) + 2 * elements) / bytes_per_ns;
  }
};

}  // namespace detail

/// Turns BF16 tensors into FP8 (e4m3) and back, on the stream that computes.
///
/// Each `codec::block` consecutive numbers share a scale s, their largest magnitude over 448 (but
/// never below 2⁻¹²⁴). A number x comes back with an error of at most max(6.3 % of |x|, s/990) +
/// 2⁻¹³⁴. The largest number of a block comes back without an error (from 448 · 2⁻¹²⁴ on). Decoded
/// numbers are encoded to the same codes again. Infinities and NaN come back as NaN, so that an
/// overflow stays visible, and do not change other numbers of the block. n numbers take
/// `codec::packed_bytes(n)` bytes, about n + n/32 instead of 2n.
///
/// Every function queues one kernel on its stream, in the order of that stream; no joins are needed
/// beyond those of `commit`, `restore` and `reset`. No function blocks the host, except as
/// `allocate` does. All work inside captures. All devices give the same bits.
///
/// Addresses of numbers must be multiples of 16 bytes, as those of buffers are. On CUDA the device
/// of the stream must be current, as for any kernel, and nvcc must compile the file, with
/// `tidepool/codec/fp8_kernels.cuh`. Thread safety: that of the offloader. The device must outlive
/// the codec.
///
/// Throws `misuse_error` for a tensor that is too small, or a handle that holds none;
/// `out_of_budget` as `allocate` does; `device_error` where a launch fails. The arguments are then
/// as before.
template <device Device>
class fp8_codec {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.
  using buffer = tidepool::buffer<Device>;         ///< Memory of BF16 numbers.
  using packed = fp8_tensor<Device>;               ///< Codes and scales of a tensor.

  /// Makes a codec whose kernels run on `dev`. `bytes_per_ns` is the rate at which they read and
  /// write memory on the virtual device's clock (assumed: 2000 GB/s). Other devices ignore it.
  /// Throws `option_error` for a rate that is not above 0.
  explicit fp8_codec(Device& dev, double bytes_per_ns = 2000)
      : device_(&dev), bytes_per_ns_(bytes_per_ns) {
    if (!(bytes_per_ns > 0)) {
      throw option_error("tidepool: fp8_codec: bytes_per_ns is " + std::to_string(bytes_per_ns) +
                         "; give a rate above 0");
    }
  }

  /// Encodes the first `elements` numbers of x into new memory from `off`. x may be reset on the
  /// same stream at once.
  template <class Modules>
  [[nodiscard]] packed encode(offloader<Device, Modules>& off, const buffer& x,
                              std::size_t elements, stream_ref stream) const {
    require_numbers("encode", x, elements);
    return encode(off, x.data(), elements, stream);
  }
  /// Like `encode` of a buffer, for numbers in memory of the trainer's own.
  template <class Modules>
  [[nodiscard]] packed encode(offloader<Device, Modules>& off, const void* x, std::size_t elements,
                              stream_ref stream) const {
    require_address("encode", x, elements);
    packed result{off.allocate(codec::packed_bytes(elements), stream), elements};
    encode_into(result, x, stream);
    return result;
  }

  /// Like `encode`, with the same bits, into the memory of `to`: for a function that recomputes a
  /// group with codes in it.
  void encode_into(const packed& to, const buffer& x, stream_ref stream) const {
    require_numbers("encode_into", x, to.elements);
    encode_into(to, x.data(), stream);
  }
  /// Like `encode_into` from a buffer, for numbers in memory of the trainer's own.
  void encode_into(const packed& to, const void* x, stream_ref stream) const {
    require_packed("encode_into", to);
    require_address("encode_into", x, to.elements);
    if (to.elements == 0) return;
    detail::fp8_kernels<Device>::encode(*device_, to.codes(), to.scales(),
                                        static_cast<const std::uint16_t*>(x), to.elements, stream,
                                        bytes_per_ns_);
  }

  /// Decodes codes and scales into new memory from `off`. `from` may be reset on the same stream at
  /// once.
  template <class Modules>
  [[nodiscard]] buffer decode(offloader<Device, Modules>& off, const packed& from,
                              stream_ref stream) const {
    require_packed("decode", from);
    auto y = off.template allocate<std::uint16_t>(from.elements, stream);
    decode_into(y.data(), from, stream);
    return y;
  }
  /// Like `decode`, into the memory of the buffer y.
  void decode_into(const buffer& y, const packed& from, stream_ref stream) const {
    require_numbers("decode_into", y, from.elements);
    decode_into(y.data(), from, stream);
  }
  /// Like `decode`, into memory of the trainer's own at y.
  void decode_into(void* y, const packed& from, stream_ref stream) const {
    require_packed("decode_into", from);
    require_address("decode_into", y, from.elements);
    if (from.elements == 0) return;
    detail::fp8_kernels<Device>::decode(*device_, static_cast<std::uint16_t*>(y), from.codes(),
                                        from.scales(), from.elements, stream, bytes_per_ns_);
  }

 private:
  // The bytes of more elements, as BF16 or as codes and scales, may not fit 64 bits.
  static constexpr std::size_t most_elements = static_cast<std::size_t>(-1) / 4;

  [[noreturn]] static void refuse(const char* call, const std::string& what) {
    throw misuse_error(std::string("fp8_codec::") + call + ": " + what);
  }
  // The size is divided, not the count multiplied, so that no value of a caller overflows.
  static void require_numbers(const char* call, const buffer& numbers, std::size_t elements) {
    if (!numbers) {
      refuse(call,
             "the BF16 tensor holds no memory; was it committed, moved away or reset before?");
    }
    if (elements > numbers.size() / 2) {
      refuse(call, std::to_string(elements) + " BF16 numbers do not fit in a buffer of " +
                       std::to_string(numbers.size()) + " bytes; give at most " +
                       std::to_string(numbers.size() / 2));
    }
  }
  static void require_address(const char* call, const void* numbers, std::size_t elements) {
    if (elements == 0) return;
    if (elements > most_elements) {
      refuse(call, std::to_string(elements) +
                       " elements are more than any memory has; did the count overflow, as rows *"
                       " columns does in an int?");
    }
    if (numbers == nullptr) refuse(call, "the address of the BF16 numbers is null");
    if (reinterpret_cast<std::uintptr_t>(numbers) % 16 != 0) {
      refuse(
          call,
          "the address of the BF16 numbers is no multiple of 16 bytes; copy them to one that is");
    }
  }
  static void require_packed(const char* call, const packed& tensor) {
    if (!tensor) {
      refuse(call, "the packed tensor holds no memory; restore it first, or was it reset before?");
    }
    if (tensor.elements > most_elements || (tensor.elements == 0 && tensor.data.size() > 0) ||
        codec::packed_bytes(tensor.elements) > tensor.data.size()) {
      refuse(call,
             std::to_string(tensor.elements) + " codes and their scales do not make a tensor of " +
                 std::to_string(tensor.data.size()) + " bytes; leave `elements` as encode set it");
    }
  }

  Device* device_;
  double bytes_per_ns_;
};

}  // namespace tidepool
