#pragma once

#include <map>
#include <string>

#include "core/models/model_config.hpp"

namespace troupe::core {

/// config.json as the makers of the models publish it, by the short name of the model.
std::string published(const std::string& model);
/// Another value, as JSON, for a key of a config.json; "a.b" is in the object a.
std::string with(const std::string& config, const std::string& key, const std::string& json);
std::string without(const std::string& config, const std::string& key);

/// The configurations of further models, by their names.
std::map<std::string, std::string> more_published();

/// The test fails when there is no conversion.
ModelConfig convert(const std::string& text, const ConvertOptions& options = {});

inline std::string refusal(const std::string& config, const ConvertOptions& options = {}) {
  const auto converted = from_huggingface(config, options);
  return converted ? "no error" : converted.error().message;
}

}  // namespace troupe::core
