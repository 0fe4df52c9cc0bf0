#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/gpt/initial_values.hpp"
#include "apps/gpt/pretrained/huggingface_config.hpp"
#include "apps/gpt/text/text_codec.hpp"
#include "apps/troupe/checkpoint/source.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// A Hugging Face directory: config.json and *.safetensors, one or several with their index. Only names and
/// places are kept in memory; values are read from the disk when requested.
class PretrainedModel final : public InitialValues {
 public:
  /// Checks that the files hold every parameter of the model, with its shape and a floating dtype, and no
  /// others. `context` is the longest sequence; 0 takes the model's, or kDefaultContext if that is shorter.
  /// Errc::mismatch names the tensor that is missing, superfluous or of another shape.
  static core::Result<std::unique_ptr<PretrainedModel>> open(const std::string& directory,
                                                             std::size_t context);

  const ModelConfig& config() const { return config_.model; }
  std::optional<std::int32_t> end_of_text() const { return config_.end_of_text; }
  const std::string& directory() const { return directory_; }
  /// config.json as it was found.
  const std::string& config_text() const { return config_text_; }

  using InitialValues::read;
  core::Result<void> read(const ParameterSpec& spec, core::ElementRange range,
                          std::span<float> values) const override;

 private:
  PretrainedModel(std::string directory, std::string config_text, HuggingFaceConfig config, Source source)
      : directory_(std::move(directory)),
        config_text_(std::move(config_text)),
        config_(std::move(config)),
        source_(std::move(source)) {}

  std::string directory_;
  std::string config_text_;
  HuggingFaceConfig config_;
  Source source_;
};

/// How the model encodes text: by its tokenizer. As bytes if it has none, or if the model is null. Not at all
/// if its tokenizer cannot be read; that is found when a text is encoded.
core::Result<TextCodec> codec_of(const PretrainedModel* model);

}  // namespace troupe::apps::gpt
