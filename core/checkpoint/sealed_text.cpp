#include "core/checkpoint/sealed_text.hpp"

#include <utility>

#include "core/checkpoint/manifest.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::core {

namespace {

constexpr std::string_view kBegin = "\"hash\":\"";
constexpr std::string_view kEnd = "\"}\n";
constexpr std::size_t kHexDigits = 16;

}  // namespace

std::string seal(std::string text) {
  const auto hash = hex64(hash64(text));
  return std::move(text.append(kBegin).append(hash).append(kEnd));
}

std::string hash_of_sealed(std::string_view text) {
  CHECK(text.size() >= kHexDigits + kEnd.size() && text.ends_with(kEnd), "the text is sealed");
  return std::string(text.substr(text.size() - kEnd.size() - kHexDigits, kHexDigits));
}

Result<std::string_view> unseal(std::string_view text, std::string_view what) {
  const auto line = text.rfind(kBegin);
  const auto rest = line == std::string_view::npos ? std::string_view{} : text.substr(line + kBegin.size());
  if (rest.size() != kHexDigits + kEnd.size() || !rest.ends_with(kEnd))
    return fail(Errc::corrupt, "{} is cut short: it does not end with its hash", what);
  const auto found = hex64(hash64(text.substr(0, line)));
  if (rest.substr(0, kHexDigits) == found) return text.substr(0, line);
  return fail(Errc::corrupt, "{} was altered: its bytes have the hash {}, it says {}", what, found,
              rest.substr(0, kHexDigits));
}

}  // namespace troupe::core
