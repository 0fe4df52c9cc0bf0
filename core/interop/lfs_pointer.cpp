#include "core/interop/lfs_pointer.hpp"

#include <fmt/format.h>

#include "core/errors.hpp"

namespace troupe::core {

Result<void> check_is_no_pointer(std::span<const std::byte> beginning, std::string_view name) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/", kSize = "\nsize ";
  const std::string_view text(reinterpret_cast<const char*>(beginning.data()), beginning.size());
  if (!text.starts_with(kBegin)) return {};
  const auto at = text.find(kSize);
  const auto rest = at == std::string_view::npos ? std::string_view() : text.substr(at + kSize.size());
  const auto digits = rest.substr(0, rest.find_first_not_of("0123456789"));
  return fail(Errc::corrupt,
              "{} is a pointer of Git LFS, not the file itself{}; `git lfs pull` in its directory fetches it",
              name, digits.empty() ? "" : fmt::format(", which has {} bytes", digits));
}

}  // namespace troupe::core
