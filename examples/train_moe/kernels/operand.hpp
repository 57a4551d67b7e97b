/// A matrix as kernels are given it: where it lies, and what its elements are.
#pragma once

#include <stdexcept>

#include "numbers.hpp"

namespace moe {

/// Read only. A `const float*` is one of fp32.
struct const_operand {
  const void* data = nullptr;
  number_type type = number_type::fp32;

  const_operand() = default;
  const_operand(const float* elements) : data(elements) {}
  const_operand(const void* elements, number_type type_of_them)
      : data(elements), type(type_of_them) {}

  /// What lies `count` elements further.
  [[nodiscard]] const_operand operator+(index count) const {
    return {static_cast<const char*>(data) + count * bytes_of(type), type};
  }
  template <class T>
  [[nodiscard]] const T* as() const {
    return static_cast<const T*>(data);
  }
};

/// The same, to be written.
struct operand {
  void* data = nullptr;
  number_type type = number_type::fp32;

  operand() = default;
  operand(float* elements) : data(elements) {}
  operand(void* elements, number_type type_of_them) : data(elements), type(type_of_them) {}

  operator const_operand() const { return {data, type}; }
  [[nodiscard]] operand operator+(index count) const {
    return {static_cast<char*>(data) + count * bytes_of(type), type};
  }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data);
  }
};

/// A matrix as codes of FP8 and their scales.
struct coded_operand {
  const_operand codes;
  const float* scale = nullptr;
};

/// Calls `body` with a pointer to the elements of `x`: to `Bf16` or `Fp16`, if they are no floats.
/// Codes of FP8 have scales beside them, so that few kernels know what to do with them; these do
/// not.
template <class Bf16 = bf16, class Fp16 = fp16, class Operand, class Body>
void with_elements(const Operand& x, Body body) {
  switch (x.type) {
    case number_type::fp32:
      return body(x.template as<float>());
    case number_type::bf16:
      return body(x.template as<Bf16>());
    case number_type::fp16:
      return body(x.template as<Fp16>());
    case number_type::e4m3:
    case number_type::e5m2:
      break;
  }
  throw std::logic_error("no kernel of this kind reads or writes codes of FP8");
}

}  // namespace moe
