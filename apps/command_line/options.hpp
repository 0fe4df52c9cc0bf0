#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps {

/// For numbers that may have any value of their type.
template <class Number>
inline constexpr core::Bounds<Number> kAnyNumber{0, std::numeric_limits<Number>::max()};

/// A limit for numbers of steps that leaves room to count further.
inline constexpr std::int64_t kMostSteps = 1'000'000'000;

namespace detail {

/// Requires every text of `option` to be within `bounds`, and shows them in --help.
template <class Number>
CLI::Option* bound(CLI::Option* option, core::Bounds<Number> bounds) {
  const auto check = [bounds](const std::string& text) {
    const auto number = core::parse_number<Number>(text, bounds);
    return number ? std::string() : number.error().message;
  };
  const bool is_bounded = bounds.most < std::numeric_limits<Number>::max();
  const auto most = is_bounded ? fmt::format("{}", bounds.most) : std::string();
  return option->check(check, "")->type_name(fmt::format("{}..{}", bounds.least, most));
}

/// For a text that was checked.
template <class Number>
Number number_of(const std::string& text, core::Bounds<Number> bounds) {
  return core::parse_number<Number>(text, bounds).value();
}

inline std::function<std::string(const std::string&)> one_of(const std::vector<std::string>& words) {
  return [words](const std::string& value) {
    if (std::find(words.begin(), words.end(), value) != words.end()) return std::string();
    return fmt::format("expected {}, found {}", fmt::join(words, " or "), core::quoted_excerpt(value));
  };
}

}  // namespace detail

/// An option of `app` whose value is a number within `bounds`, which --help shows. CLI11's own numbers accept
/// "-1" as the largest unsigned number, "010" as 8 and "nan" as a number. The target must outlive the app.
template <class Number>
CLI::Option* add_number(CLI::App& app, const std::string& name, Number& target,
                        std::type_identity_t<core::Bounds<Number>> bounds, const std::string& help) {
  const auto take = [&target, bounds](const CLI::results_t& texts) {
    target = detail::number_of<Number>(texts.front(), bounds);
    return true;
  };
  const auto shown = [&target] { return fmt::format("{}", target); };
  return detail::bound(app.add_option(name, take, help, false, shown), bounds);
}

/// The same for a number that stays empty unless it is given.
template <class Number>
CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<Number>& target,
                        std::type_identity_t<core::Bounds<Number>> bounds, const std::string& help) {
  const auto take = [&target, bounds](const CLI::results_t& texts) {
    target = detail::number_of<Number>(texts.front(), bounds);
    return true;
  };
  return detail::bound(app.add_option(name, take, help), bounds);
}

/// An option whose value is a comma-separated list of such numbers.
template <class Number>
CLI::Option* add_numbers(CLI::App& app, const std::string& name, std::vector<Number>& target,
                         std::type_identity_t<core::Bounds<Number>> bounds, const std::string& help) {
  const auto take = [&target, bounds](const CLI::results_t& texts) {
    target.clear();
    for (const std::string& text : texts) target.push_back(detail::number_of<Number>(text, bounds));
    return true;
  };
  const auto shown = [&target] { return fmt::format("{}", fmt::join(target, ",")); };
  auto* option = app.add_option(name, take, help, false, shown);
  option->delimiter(',')->expected(1, CLI::detail::expected_max_vector_size);
  return detail::bound(option, bounds);
}

/// An option whose value is one of these words.
inline CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& target,
                               const std::vector<std::string>& words, const std::string& help) {
  return app.add_option(name, target, help)
      ->check(detail::one_of(words), fmt::format("{}", fmt::join(words, "|")));
}

/// An option whose value is a comma-separated list of these words.
inline CLI::Option* add_choices(CLI::App& app, const std::string& name, std::vector<std::string>& target,
                                const std::vector<std::string>& words, const std::string& help) {
  return app.add_option(name, target, help)->delimiter(',')->check(detail::one_of(words), "");
}

/// The form that gpu::open_device() takes.
inline core::Result<void> check_device(std::string_view value) {
  const bool named = value == "host" || value == "cuda";
  const bool numbered = value.starts_with("cuda:") && core::parse_number<int>(value.substr(5), {0, 1023});
  if (named || numbered) return {};
  return core::fail(core::Errc::invalid_argument, "expected host, cuda or cuda:<index>, found {}",
                    core::quoted_excerpt(value));
}

/// An option that names a device.
inline CLI::Option* add_device(CLI::App& app, const std::string& name, std::string& target,
                               const std::string& help) {
  const auto check = [](const std::string& value) {
    const auto checked = check_device(value);
    return checked ? std::string() : checked.error().message;
  };
  return app.add_option(name, target, help)->check(check, "");
}

}  // namespace troupe::apps
