#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/files/staged_directory.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

/// A config.json for tensors of another dtype, which are not in fp8 with factors.
core::Result<std::string> with_dtype(std::string_view config, core::DType dtype);

/// What makes tensors a model of Hugging Face.
struct ModelFiles {
  std::string config;     ///< the text of config.json; empty: not known
  std::string directory;  ///< where its companions are; empty: there are none

  /// In the values that a trainer saves, which keep config.json; nothing if they do not.
  static ModelFiles of(const core::Value& saved);
  core::Value value() const;
};

/// The files of a Hugging Face directory: Errc::not_found if it has no config.json.
core::Result<ModelFiles> model_files_in(const std::string& directory);

/// Copies the files of a Hugging Face directory that are neither its tensors nor its config.json: tokenizer,
/// chat template, settings of generation. Returns their names.
core::Result<std::vector<std::string>> copy_companions(const std::string& directory, StagedDirectory& out);

}  // namespace troupe::apps
