#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "apps/gpt/parameters.hpp"
#include "apps/gpt/pretrained/pretrained_model.hpp"
#include "core/dtype.hpp"
#include "core/element_range.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

struct ExportOptions {
  std::string directory;                 ///< must not be there yet
  core::DType dtype = core::DType::f32;  ///< of the tensors: f32, bf16 or f16
  std::uint64_t max_file_bytes = 5'000'000'000;
  /// The model that training began from, whose config.json and tokenizer go with it; null: none.
  const PretrainedModel* origin = nullptr;
};

/// What export_model() would refuse at once, before the model is trained. Nothing without a directory.
core::Result<void> check_export(const ModelConfig& config, const ExportOptions& options);

/// The elements of a range of a parameter, by its place in the table.
using ReadParameter = std::function<core::Result<void>(std::size_t parameter, core::ElementRange range,
                                                       std::span<float> values)>;

/// Writes a directory that transformers loads: config.json, model.safetensors, or several files with their
/// index where it would be larger than `max_file_bytes`, and the tokenizer's files. Memory for one piece of a
/// tensor is enough. The directory has its name when all of it is durable. Errc::already_exists,
/// Errc::invalid_argument for a model that has no config.json.
core::Result<void> export_model(const ModelConfig& config, const ReadParameter& read,
                                const ExportOptions& options);

}  // namespace troupe::apps::gpt
