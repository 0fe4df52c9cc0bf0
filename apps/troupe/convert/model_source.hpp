#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/files/source.hpp"
#include "core/models/block_scales.hpp"
#include "core/models/model_config.hpp"
#include "core/models/weight_map.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// The form that a model has on disk.
enum class ModelForm : std::uint8_t {
  huggingface,  ///< config.json, *.safetensors and their index
  megatron,     ///< tensors of every part of a mesh, in files of their own
  troupe,       ///< a checkpoint of whole tensors by Megatron's names
};

/// A model that can be converted.
struct ModelSource {
  ModelForm form = ModelForm::huggingface;
  Source source;
  core::ModelConfig model;
  core::WeightOptions options;
  std::optional<core::ScaledBlocks> blocks = {};  ///< of matrices in f8_e4m3, which become bf16
  std::vector<std::string> notes = {};            ///< what is said about the directory and its config.json

  bool is_scaled(const core::ManifestTensor& tensor) const {
    return blocks.has_value() && tensor.dtype == core::DType::f8_e4m3;
  }
  /// The dtype it is read as.
  core::DType dtype_of(const core::ManifestTensor& tensor) const {
    return is_scaled(tensor) ? core::DType::bf16 : tensor.dtype;
  }
};

/// The key of a tensor in a manifest.
std::string key_of(ModelForm form, const core::PlannedTensor& tensor);

/// A directory of Hugging Face. `ignored` are beginnings of names of tensors that may be left out.
/// Errc::corrupt names a shard that is missing, cut or altered; Errc::mismatch a tensor that the model does
/// not have, or has with another shape.
core::Result<ModelSource> open_huggingface_model(const std::string& path, const core::ConvertOptions& options,
                                                 core::WeightOptions weights,
                                                 const std::vector<std::string>& ignored);

/// What `troupe convert weights` wrote.
core::Result<ModelSource> open_converted_model(const std::string& path, ModelForm form);

/// Checks all bytes against their hashes, where there are some. Errc::corrupt names what is damaged.
core::Result<void> verify_model(const ModelSource& model);

/// The file with the hashes of a directory of Hugging Face.
inline constexpr const char* kHashesName = "troupe_manifest.json";

}  // namespace troupe::apps
