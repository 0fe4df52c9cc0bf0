#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/boxes/box.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Matrices in f8_e4m3, as in the published DeepSeek-V3: an element is its value times its block's factor.
struct ScaledBlocks {
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  friend bool operator==(const ScaledBlocks&, const ScaledBlocks&) = default;
};

/// Appended to a matrix's name in the name of its factors.
inline constexpr std::string_view kFactorsSuffix = "_scale_inv";

/// From `quantization_config` of a config.json; empty where it is missing, null or empty. Errc::corrupt for
/// text that is not a JSON object, Errc::unavailable names a quantisation other than fp8 in blocks.
Result<std::optional<ScaledBlocks>> scaled_blocks(std::string_view config);

/// The shape of the factors, one per block; blocks at the ends of rows and columns may be cut.
Shape factors_shape(const ScaledBlocks& blocks, const Shape& matrix);

/// Multiplies `values`, the box `part` (rows, columns) of a matrix, by the factors of the whole matrix.
void multiply_by_factors(const ScaledBlocks& blocks, const Shape& matrix, const Box& part,
                         std::span<const float> factors, std::span<float> values);

}  // namespace troupe::core
