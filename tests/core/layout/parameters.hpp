#pragma once

#include <cstdint>
#include <vector>

#include "core/layout/buffer_layout.hpp"

namespace troupe::core {

inline std::vector<LayoutParameter> sizes(const std::vector<std::int64_t>& elements) {
  std::vector<LayoutParameter> parameters;
  for (const std::int64_t count : elements) parameters.push_back({.elements = count});
  return parameters;
}

inline std::vector<LayoutParameter> with_shared(std::vector<LayoutParameter> parameters, std::size_t index) {
  parameters.at(index).shared_embedding = true;
  return parameters;
}

inline LayoutParameter matrix(std::int64_t rows, std::int64_t columns, std::int64_t row_shards = 1) {
  return {.elements = rows * columns, .rows = rows, .columns = columns, .row_shards = row_shards};
}

}  // namespace troupe::core
