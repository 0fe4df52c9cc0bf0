#include "apps/command_line/pairs.hpp"

#include "core/errors.hpp"

namespace troupe::apps {

core::Result<std::map<std::string, std::string>> pairs_of(std::string_view option,
                                                          const std::vector<std::string>& words) {
  std::map<std::string, std::string> pairs;
  for (const auto& word : words) {
    const auto equals = word.find('=');
    if (equals == 0 || equals == std::string::npos)
      return core::fail(core::Errc::invalid_argument, "{}: expected NAME=VALUE, found \"{:.80}\"", option,
                        word);
    pairs[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return pairs;
}

}  // namespace troupe::apps
