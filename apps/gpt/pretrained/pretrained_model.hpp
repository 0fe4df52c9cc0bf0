#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/files/model_directory.hpp"
#include "apps/gpt/model/initial_values.hpp"
#include "apps/gpt/pretrained/huggingface_config.hpp"
#include "apps/gpt/text/text_codec.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// A Hugging Face directory: config.json and *.safetensors, one or several with their index. Only names and
/// places are kept in memory; values are read from the disk when requested.
class PretrainedModel final : public InitialValues {
 public:
  /// Checks that the files hold every parameter of the model, with its shape and a floating dtype, and no
  /// others. `context` is the longest sequence; 0 takes the model's, or its window, or kDefaultContext,
  /// whichever is shortest. Errc::invalid_argument names the key of a window that a sequence would exceed.
  /// Errc::mismatch names the tensor that is missing, superfluous or of another shape.
  static core::Result<std::unique_ptr<PretrainedModel>> open(const std::string& directory,
                                                             std::size_t context,
                                                             const ReadingOptions& options = {});

  const ModelConfig& config() const { return config_.model; }
  std::optional<std::int32_t> end_of_text() const { return config_.end_of_text; }
  const std::string& directory() const { return directory_; }
  /// config.json, with the keys that were replaced.
  const std::string& config_text() const { return config_text_; }
  /// Sentences about what else the directory holds, and what follows from its configuration.
  const std::vector<std::string>& notes() const { return notes_; }

  using InitialValues::read;
  core::Result<void> read(const ParameterSpec& spec, core::ElementRange range,
                          std::span<float> values) const override;

 private:
  PretrainedModel(std::string directory, ModelDirectory found, HuggingFaceConfig config)
      : directory_(std::move(directory)),
        config_text_(std::move(found.config)),
        notes_(std::move(found.notes)),
        config_(std::move(config)),
        source_(std::move(found.source)) {}

  std::string directory_;
  std::string config_text_;
  std::vector<std::string> notes_;
  HuggingFaceConfig config_;
  Source source_;
};

/// How the model encodes text: by its tokenizer. As bytes if it has none, or if the model is null. Not at all
/// if its tokenizer cannot be read; that is found when a text is encoded.
core::Result<TextCodec> codec_of(const PretrainedModel* model);

/// Prints the notes of a model to the standard error, and that its tokens are bytes if they are. Prints
/// nothing for null.
void print_notes(const PretrainedModel* model, const TextCodec& codec);

}  // namespace troupe::apps::gpt
