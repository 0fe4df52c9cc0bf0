#pragma once

#include <vector>

#include "core/models/config_reader.hpp"
#include "core/models/model_config.hpp"
#include "core/result.hpp"

namespace troupe::core {

inline constexpr std::int64_t kMaxLayers = 4096;

/// Keys that affect the maths but have no field: only the value that changes nothing is accepted.
void check_common_keys(ConfigReader& keys, Architecture architecture);

/// The rotary embedding, from rope_theta, rope_scaling and rope_parameters, at the root and in text_config.
/// Where several of them are given they must agree, because versions of transformers differ in which they
/// read.
Result<void> convert_rotary(ConfigReader& keys, const ConvertOptions& options, ConvertedModel& converted);

/// Which layers attend to a window only, as the architecture's class in transformers decides it. What has no
/// field but changes nothing up to a number of positions goes to `limits`; if that is null, it is refused
/// where the model has more positions.
void convert_windows(ConfigReader& keys, std::vector<PositionLimit>* limits, ModelConfig& model);

Result<void> convert_vision(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model);

}  // namespace troupe::core
