#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/convert.hpp"
#include "core/dtype.hpp"

namespace troupe::apps::gpt {

/// Elements of a floating dtype as floats.
inline std::vector<float> floats_of(core::DType dtype, std::span<const std::byte> elements) {
  std::vector<float> values(elements.size() / core::size_of(dtype));
  core::convert_elements(dtype, elements.data(), core::DType::f32,
                         std::as_writable_bytes(std::span(values)).data(), values.size());
  return values;
}

/// The reverse, exact for values that come from there.
inline std::vector<std::byte> elements_of(core::DType dtype, std::span<const float> values) {
  std::vector<std::byte> elements(values.size() * core::size_of(dtype));
  core::convert_elements(core::DType::f32, std::as_bytes(values).data(), dtype, elements.data(),
                         values.size());
  return elements;
}

}  // namespace troupe::apps::gpt
