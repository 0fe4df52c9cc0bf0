#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::core {

/// The value of an option, wherever it is: tables of options have one per row, for command lines and for the
/// C interface. What it refers to must outlive it.
struct OptionValue {
  enum class Kind : std::uint8_t { value, flag, list };

  /// Errc::invalid_argument says what was expected.
  std::function<Result<void>(std::string_view text)> set;
  std::function<std::string()> shown{};  ///< as settings have it
  std::string type = "TEXT";             ///< as help has it: "0..1000" for bounds
  std::string choices{};                 ///< as help has them: "host|cuda"
  Kind kind = Kind::value;
  bool has_default = true;  ///< that help shows
};

template <class Number>
std::string form_of(Bounds<Number> bounds) {
  const bool is_bounded = bounds.most < std::numeric_limits<Number>::max();
  return fmt::format("{}..{}", bounds.least, is_bounded ? fmt::format("{}", bounds.most) : "");
}

template <class Number>
OptionValue number(Number& target, std::type_identity_t<Bounds<Number>> bounds) {
  return {.set = [&target, bounds](std::string_view text) -> Result<void> {
            target = TRY(parse_number<Number>(text, bounds));
            return {};
          },
          .shown = [&target] { return fmt::format("{}", target); },
          .type = form_of(bounds)};
}

/// One that stays as it is, often empty, unless it is given.
template <class Number>
OptionValue number(std::optional<Number>& target, std::type_identity_t<Bounds<Number>> bounds) {
  return {.set = [&target, bounds](std::string_view text) -> Result<void> {
            target = TRY(parse_number<Number>(text, bounds));
            return {};
          },
          .shown = [&target] { return target ? fmt::format("{}", *target) : std::string("default"); },
          .type = form_of(bounds),
          .has_default = target.has_value()};
}

/// Given alone, or with true, it makes the target `on`; with false, a bool is the opposite.
template <class T>
OptionValue flag(T& target, std::type_identity_t<T> on) {
  return {.set = [&target, on](std::string_view text) -> Result<void> {
            if (text != "true" && text != "false")
              return fail(Errc::invalid_argument, "expected true or false, found {}", quoted_excerpt(text));
            if (text == "true") target = on;
            if constexpr (std::is_same_v<T, bool>) target = (text == "true") == on;
            return {};
          },
          .shown = [&target, on] { return std::string(target == on ? "on" : "off"); },
          .kind = OptionValue::Kind::flag};
}
inline OptionValue flag(bool& target) {
  return flag(target, true);
}

inline Result<void> any_text(std::string_view) {
  return {};
}

/// A text that `check` accepts.
template <class Check = Result<void> (*)(std::string_view)>
OptionValue text(std::string& target, Check check = any_text) {
  return {.set = [&target, check](std::string_view given) -> Result<void> {
            TRY(check(given));
            target = given;
            return {};
          },
          .shown = [&target] { return target; }};
}

inline Result<void> check_word(std::string_view given, const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), given) != words.end()) return {};
  return fail(Errc::invalid_argument, "expected {}, found {}", fmt::join(words, " or "),
              quoted_excerpt(given));
}

/// One of these words.
inline OptionValue word(std::string& target, const std::vector<std::string>& words) {
  auto value = text(target, [words](std::string_view given) { return check_word(given, words); });
  value.choices = fmt::format("{}", fmt::join(words, "|"));
  return value;
}

/// What one of these words stands for; any word that `from_name` knows, if there are none.
template <class Choice>
OptionValue named(Choice& target, Result<Choice> (*from_name)(std::string_view),
                  const std::vector<std::string>& words = {}) {
  OptionValue value{.set = [&target, from_name, words](std::string_view given) -> Result<void> {
    if (!words.empty()) TRY(check_word(given, words));
    target = TRY(from_name(given));
    return {};
  }};
  if constexpr (requires { name_of(target); }) {
    value.shown = [&target] { return std::string(name_of(target)); };
  }
  value.choices = fmt::format("{}", fmt::join(words, "|"));
  return value;
}

template <class Choice>
OptionValue choice(Choice& target,
                   std::type_identity_t<std::vector<std::pair<std::string_view, Choice>>> choices) {
  return {.set = [&target, choices = std::move(choices)](std::string_view given) -> Result<void> {
    std::vector<std::string> words;
    for (const auto& [name, chosen] : choices) words.emplace_back(name);
    TRY(check_word(given, words));
    for (const auto& [name, chosen] : choices) {
      if (name == given) target = chosen;
    }
    return {};
  }};
}

/// Given several times.
inline OptionValue list(std::vector<std::string>& target) {
  return {.set = [&target](std::string_view text) -> Result<void> {
            target.emplace_back(text);
            return {};
          },
          .kind = OptionValue::Kind::list,
          .has_default = false};
}

/// Without a default in help.
inline OptionValue unset(OptionValue value) {
  value.has_default = false;
  return value;
}

}  // namespace troupe::core
