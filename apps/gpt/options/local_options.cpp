#include "apps/gpt/options/local_options.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "apps/gpt/options/option_table.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Errc;
using core::fail;
using core::Result;

/// Options that ask for something after training.
constexpr std::array<std::string_view, 3> kAfterTraining{"--export", "--prompt", "--sample-bytes"};

/// The option as the message names it; empty if --local does what it asks for.
std::string refusal_of(const GivenOption& given, const std::vector<OptionRow>& table) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const OptionRow& row) {
    return row.name.substr(0, row.name.find(',')) == given.name;
  });
  if (found == table.end() || !found->local.is_known) return given.name;
  const auto& values = found->local.values;
  if (values.empty() || std::find(values.begin(), values.end(), given.value) != values.end()) return {};
  return fmt::format("{} {}", given.name, core::quoted_excerpt(given.value));
}

}  // namespace

Result<void> check_local_options(const std::vector<GivenOption>& given, bool only_evaluates) {
  Options defaults;
  const auto table = option_table(defaults);
  std::vector<std::string> ignored;
  for (const GivenOption& option : given) {
    auto refusal = refusal_of(option, table);
    if (!refusal.empty()) ignored.push_back(std::move(refusal));
  }
  if (!ignored.empty()) {
    return fail(Errc::invalid_argument,
                "--local is a plain loop in one process, on the host, in f32 and with adamw, and cannot do "
                "what {} asks for; leave out --local, or {}",
                fmt::join(ignored, ", "), ignored.size() == 1 ? "this option" : "these options");
  }
  if (!only_evaluates) return {};
  for (const GivenOption& option : given) {
    const bool asks_for_nothing = option.name == "--sample-bytes" && option.value == "0";
    const bool is_later =
        std::find(kAfterTraining.begin(), kAfterTraining.end(), option.name) != kAfterTraining.end();
    if (!is_later || asks_for_nothing) continue;
    return fail(Errc::invalid_argument,
                "--evaluate-only prints the perplexity and ends, found {}; leave one of the two out",
                option.name);
  }
  return {};
}

}  // namespace troupe::apps::gpt
