#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/command_line/app.hpp"
#include "apps/troupe/convert/config_command.hpp"
#include "apps/troupe/convert/weight_writer.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct WeightsArguments {
  std::string from_path, to_path;
  std::string from = "huggingface", to;
  ConfigArguments config;
  std::int64_t vocab_multiple = 1;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::vector<std::string> ignored_tensors;
  bool has_dtype = false;
  bool skip_verify = false;
  bool json = false;
};

/// Opens, plans and writes; `storage` is the directory above the one called `name`.
core::Result<WeightsWritten> convert_weights(const WeightsArguments& arguments, actors::Storage& storage,
                                             const std::string& name);

/// `troupe convert weights`.
void add_convert_weights(CLI::App& convert, int& exit_code);

}  // namespace troupe::apps
