#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpt/options/options.hpp"
#include "apps/gpt/options/settings.hpp"
#include "core/options/option_value.hpp"

namespace troupe::apps::gpt {

/// What LocalTrainer does of an option.
struct LocalUse {
  bool is_known = false;                   ///< if not, --local refuses it
  std::vector<std::string_view> values{};  ///< that it can do; empty: any
};

/// An option of the trainer, and everything that is to be known of it.
struct OptionRow {
  std::string name;  ///< and others of the same, separated by commas
  core::OptionValue value;
  std::string help;
  LocalUse local{};
  /// Ranks have it alike, and a checkpoint's run may go on with another value as this says. None:
  /// settings_of() has it in another form, or each rank has its own.
  std::optional<ChangeWeight> change{};
};

/// All options, in the order of --help. Its values are those of `options`, which must outlive it.
std::vector<OptionRow> option_table(Options& options);

/// Errc::invalid_argument if it is not "none", "dynamic" or a number.
core::Result<core::LossScaling> loss_scaling_of(std::string_view text);

}  // namespace troupe::apps::gpt
