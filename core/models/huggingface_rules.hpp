#pragma once

#include <set>
#include <string_view>

#include "core/models/config_reader.hpp"
#include "core/models/model_config.hpp"
#include "core/result.hpp"

namespace troupe::core {

inline constexpr std::int64_t kMaxLayers = 4096;

/// Keys that do not affect the maths: token ids, generation, how the file was written.
const std::set<std::string_view>& harmless_keys();

/// Keys that affect the maths but have no field: only the value that changes nothing is accepted.
void check_common_keys(ConfigReader& keys, Architecture architecture);

/// rope_theta and rope_scaling: from the root, then text_config, then rope_parameters.
Result<void> convert_rotary(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model);

Result<void> convert_vision(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model);

}  // namespace troupe::core
