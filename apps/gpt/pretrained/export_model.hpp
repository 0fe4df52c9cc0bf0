#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "apps/files/model_companions.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/pretrained/pretrained_model.hpp"
#include "core/dtype.hpp"
#include "core/element_range.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

struct ExportOptions {
  std::string directory;                 ///< must not exist yet
  core::DType dtype = core::DType::f32;  ///< of the tensors: f32, bf16 or f16
  std::uint64_t max_file_bytes = 5'000'000'000;
  /// The model that training began from, whose config.json and tokenizer are included; null: none.
  const PretrainedModel* origin = nullptr;
};

/// Reports the refusals of export_model() that are known before the model is trained. Does nothing without a
/// directory.
core::Result<void> check_export(const ModelConfig& config, const ExportOptions& options);

/// What export_model() writes besides the tensors, with the directory's absolute path; without a
/// config.json if the model has none.
ModelFiles model_files(const ModelConfig& config, const ExportOptions& options);

/// Reads the elements of a range of a parameter, by its place in the table.
using ReadParameter = std::function<core::Result<void>(std::size_t parameter, core::ElementRange range,
                                                       std::span<float> values)>;

/// Writes a directory that transformers loads: config.json, model.safetensors, or several files with their
/// index if it would be larger than `max_file_bytes`, and the tokenizer's files. Needs memory for only one
/// piece of a tensor. The directory gets its name once all of it is durable. Errc::already_exists,
/// Errc::invalid_argument for a model that has no config.json.
core::Result<void> export_model(const ModelConfig& config, const ReadParameter& read,
                                const ExportOptions& options);

}  // namespace troupe::apps::gpt
