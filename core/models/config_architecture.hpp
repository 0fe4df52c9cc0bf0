#pragma once

#include <nlohmann/json.hpp>

#include "core/models/architecture.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Which model a config.json describes, by its `architectures` and its `model_type`, which must agree. Names
/// may have the prefix of a wrapper ("FSDPLlamaForCausalLM") or of another framework; without `architectures`
/// it is the causal model of the `model_type`, as for transformers' AutoModelForCausalLM. Errc::unavailable
/// for one that is not known or has no conversion, Errc::invalid_argument for keys that disagree.
Result<Architecture> architecture_of_config(const nlohmann::json& config);

}  // namespace troupe::core
