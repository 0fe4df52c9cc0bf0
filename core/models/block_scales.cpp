#include "core/models/block_scales.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/check.hpp"
#include "core/errors.hpp"
#include "core/values/json_object.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

constexpr std::array kOfActivations{"activation_scheme", "modules_to_not_convert", "scale_fmt"};
constexpr std::int64_t kMostRows = std::int64_t{1} << 20;

template <class Found>
tl::unexpected<Error> refuse_quantized(std::string_view key, std::string_view expected, const Found& found) {
  return fail(
      Errc::unavailable,
      "config.json: quantization_config: {}: expected {}, found {}; only fp8 weights with a factor for "
      "each block are read",
      key, expected, found);
}

std::int64_t blocks_of(std::int64_t elements, std::int64_t block) {
  return (elements + block - 1) / block;
}

}  // namespace

Result<std::optional<ScaledBlocks>> scaled_blocks(std::string_view config) {
  const Json json = TRY(parse_json_object(config, "config.json"));
  const auto found = json.find("quantization_config");
  if (found == json.end() || found->is_null() || found->empty() || *found == false)
    return std::optional<ScaledBlocks>{};
  if (!found->is_object()) return refuse_quantized("all of it", "an object", found->dump());
  ScaledBlocks blocks;
  for (const auto& [key, value] : found->items()) {
    if (key == "quant_method") {
      if (value != "fp8") return refuse_quantized(key, "\"fp8\"", value.dump());
    } else if (key == "fmt") {
      if (value != "e4m3") return refuse_quantized(key, "\"e4m3\"", value.dump());
    } else if (key == "weight_block_size") {
      const bool is_pair = value.is_array() && value.size() == 2 && value[0].is_number_integer() &&
                           value[1].is_number_integer();
      if (is_pair) blocks = {value[0].get<std::int64_t>(), value[1].get<std::int64_t>()};
      const auto is_size = [](std::int64_t size) { return size >= 1 && size <= kMostRows; };
      if (!is_size(blocks.rows) || !is_size(blocks.columns))
        return refuse_quantized(key, "rows and columns of a block", value.dump());
    } else if (std::find(kOfActivations.begin(), kOfActivations.end(), key) == kOfActivations.end()) {
      return refuse_quantized(key, "nothing", value.dump());
    }
  }
  if (!found->contains("quant_method")) return refuse_quantized("quant_method", "\"fp8\"", "nothing");
  if (blocks.rows == 0)
    return refuse_quantized("weight_block_size", "rows and columns of a block", "nothing");
  return {blocks};
}

Shape factors_shape(const ScaledBlocks& blocks, const Shape& matrix) {
  CHECK(matrix.size() == 2, "blocks are cut from matrices");
  return {blocks_of(matrix[0], blocks.rows), blocks_of(matrix[1], blocks.columns)};
}

void multiply_by_factors(const ScaledBlocks& blocks, const Shape& matrix, const Box& part,
                         std::span<const float> factors, std::span<float> values) {
  const auto shape = factors_shape(blocks, matrix);
  CHECK(static_cast<std::int64_t>(factors.size()) == elements_of(shape), "each block has a factor");
  CHECK(static_cast<std::int64_t>(values.size()) == part.elements(), "the values are those of the part");
  std::size_t next = 0;
  for (std::int64_t row = part.offset[0]; row < part.offset[0] + part.extent[0]; ++row) {
    const auto* of_row = factors.data() + row / blocks.rows * shape[1];
    for (std::int64_t column = part.offset[1]; column < part.offset[1] + part.extent[1]; ++column)
      values[next++] *= of_row[column / blocks.columns];
  }
}

}  // namespace troupe::core
