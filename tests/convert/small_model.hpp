#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/models/model_config.hpp"

namespace troupe::apps {

/// config.json of a published model with sizes of a few elements.
std::string small_config(const std::string& published_model, std::int64_t layers = 4);

struct StoredTensor {
  core::DType dtype = core::DType::bf16;
  core::Shape shape;
  std::vector<std::byte> bytes;

  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};
using StoredTensors = std::map<std::string, StoredTensor>;

/// All tensors of a small model, of bytes that differ everywhere; experts' biases are f32, all else bf16.
StoredTensors small_tensors(const std::string& config);

/// config.json, two files of tensors and their index.
void write_model(const std::string& directory, const std::string& config, const StoredTensors& tensors);

/// What the *.safetensors of a directory hold, by name; of files that share a name the last counts.
StoredTensors read_model(const std::string& directory);

}  // namespace troupe::apps
