#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace troupe::core {

/// Whether a key of config.json affects nothing, whatever its value: token ids, generation, how the file was
/// written, notes of other programs.
bool is_harmless(std::string_view key);

/// Whether transformers' class for another model reads the key, about parts that not all models have. Where
/// they have tensors, those are missed.
bool is_of_other_models(std::string_view key);

/// Whether a key that no field expresses has a value that changes nothing: no dropout, factors of 1, limits
/// and features that are absent.
bool is_neutral(std::string_view key, const nlohmann::json& value);

}  // namespace troupe::core
