#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/options/option_value.hpp"
#include "core/options/training_table.hpp"

namespace troupe::apps {

/// For numbers that may have any value of their type.
template <class Number>
inline constexpr core::Bounds<Number> kAnyNumber{0, std::numeric_limits<Number>::max()};

/// A limit for numbers of steps that leaves room to count further.
inline constexpr std::int64_t kMostSteps = 1'000'000'000;

/// An option of `app` with a value of core/options/option_value.hpp, whose form --help shows. What the value
/// refers to must outlive the app.
CLI::Option* add_value(CLI::App& app, const std::string& name, const core::OptionValue& value,
                       const std::string& help);

/// The option of that name among those that several programs have, with its default in --help.
CLI::Option* add_common(CLI::App& app, const std::vector<core::CommonOption>& all, std::string_view name);

/// A number within bounds. CLI11's own numbers accept "-1" as the largest unsigned number, "010" as 8 and
/// "nan" as a number.
template <class Number>
CLI::Option* add_number(CLI::App& app, const std::string& name, Number& target,
                        std::type_identity_t<core::Bounds<Number>> bounds, const std::string& help) {
  return add_value(app, name, core::number(target, bounds), help);
}
/// One that stays empty unless it is given.
template <class Number>
CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<Number>& target,
                        std::type_identity_t<core::Bounds<Number>> bounds, const std::string& help) {
  return add_value(app, name, core::number(target, bounds), help);
}

/// An option whose value is a comma-separated list of such numbers.
template <class Number>
CLI::Option* add_numbers(CLI::App& app, const std::string& name, std::vector<Number>& target,
                         std::type_identity_t<core::Bounds<Number>> bounds, const std::string& help) {
  const auto take = [&target, bounds](const CLI::results_t& texts) {
    target.clear();
    for (const auto& text : texts) target.push_back(core::parse_number<Number>(text, bounds).value());
    return true;
  };
  const auto check = [bounds](const std::string& text) {
    const auto number = core::parse_number<Number>(text, bounds);
    return number ? std::string() : number.error().message;
  };
  const auto shown = [&target] { return fmt::format("{}", fmt::join(target, ",")); };
  auto* option = app.add_option(name, take, help, false, shown);
  option->delimiter(',')->expected(1, CLI::detail::expected_max_vector_size);
  return option->check(check, "")->type_name(core::form_of(bounds));
}

/// An option whose value is one of these words.
inline CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& target,
                               const std::vector<std::string>& words, const std::string& help) {
  return add_value(app, name, core::word(target, words), help);
}

/// An option whose value is a comma-separated list of these words.
inline CLI::Option* add_choices(CLI::App& app, const std::string& name, std::vector<std::string>& target,
                                const std::vector<std::string>& words, const std::string& help) {
  const auto check = [words](const std::string& text) {
    const auto checked = core::check_word(text, words);
    return checked ? std::string() : checked.error().message;
  };
  return app.add_option(name, target, help)->delimiter(',')->check(check, "");
}

}  // namespace troupe::apps
