#pragma once

#include <memory>
#include <string>
#include <utility>

#include "apps/files/source.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/initial_values.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

core::Shape shape_of(const ParameterSpec& spec);

/// InitialValues::read() from files, whatever their shards and dtypes are. Hashes are not checked.
core::Result<void> read_values(const Source& source, const ParameterSpec& spec, core::ElementRange range,
                               std::span<float> values);

/// The weights of a checkpoint, for a run of its own that begins from them.
class CheckpointWeights final : public InitialValues {
 public:
  /// A checkpoint of Troupe, or the newest of a directory of them, or what `troupe checkpoint` reads of
  /// others. State of an optimizer is ignored. Errc::mismatch names a parameter of the model that it lacks or
  /// has in another shape, or a tensor that is not one; Errc::corrupt what does not match its hash.
  static core::Result<std::shared_ptr<const CheckpointWeights>> open(const std::string& path,
                                                                     const ModelConfig& model);

  /// The path of the checkpoint that was opened.
  const std::string& path() const { return source_.path; }

  using InitialValues::read;
  core::Result<void> read(const ParameterSpec& spec, core::ElementRange range,
                          std::span<float> values) const override {
    return read_values(source_, spec, range, values);
  }

 private:
  explicit CheckpointWeights(Source source) : source_(std::move(source)) {}

  Source source_;
};

}  // namespace troupe::apps::gpt
