#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/files/staged_directory.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

/// This config.json for the same tensors in another dtype, none of them in fp8 with factors.
core::Result<std::string> with_dtype(std::string_view config, core::DType dtype);

/// What a Hugging Face model has besides its tensors.
struct ModelFiles {
  std::string config;     ///< the text of config.json; empty: not known
  std::string directory;  ///< where its companions are; empty: there are none

  /// From the values that a trainer saved; both empty if these do not have them.
  static ModelFiles of(const core::Value& saved);
  core::Value value() const;
};

/// The files of a Hugging Face directory: Errc::not_found if it has no config.json.
core::Result<ModelFiles> model_files_in(const std::string& directory);

/// Copies the files of a Hugging Face directory that are neither its tensors nor its config.json: tokenizer,
/// chat template, settings of generation. Returns their names.
core::Result<std::vector<std::string>> copy_companions(const std::string& directory, StagedDirectory& out);

}  // namespace troupe::apps
