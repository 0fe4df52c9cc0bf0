#pragma once

#include <string>
#include <vector>

#include "apps/command_line/app.hpp"
#include "core/models/model_config.hpp"
#include "core/plan/mesh.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// How a config.json becomes Megatron's, as on the command line.
struct ConfigArguments {
  core::MeshSizes mesh;
  int virtual_pipeline = 0;
  std::string dtype = "bf16";
  std::vector<std::string> sizes;  ///< of --mesh: "tp=2", "pp=4"
  std::vector<std::string> keys, overrides, ignored;
  bool class_defaults = false;
};

void add_config_options(CLI::App& command, ConfigArguments& arguments);
/// Takes over what --mesh says.
core::Result<void> apply_mesh(ConfigArguments& arguments);
core::Result<core::ConvertOptions> options_of(const ConfigArguments& arguments);

/// The text of a file, or of config.json in a directory.
core::Result<std::string> read_config(const std::string& name);

/// `troupe convert config`.
void add_convert_config(CLI::App& convert, int& exit_code);

}  // namespace troupe::apps
