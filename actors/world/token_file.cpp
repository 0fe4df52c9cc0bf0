#include "actors/world/token_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <system_error>
#include <thread>

#include "core/errors.hpp"
#include "posix/descriptor.hpp"
#include "posix/entropy.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;
using posix::Descriptor;

namespace {

constexpr const char* kName = "TROUPE_JOB_TOKEN_FILE";
/// A host may believe for a while that there is no such file, though another has just made it.
constexpr int kTries = 50;
constexpr std::chrono::milliseconds kBetweenTries{100};

core::Error trouble(const char* what, const std::string& path, int error) {
  return {Errc::io,
          fmt::format("{}: cannot {} {}: {}", kName, what, path, std::generic_category().message(error))};
}

/// Complete or not at all, and never instead of another one.
Result<void> make(const std::string& path) {
  const auto draft = path + "." + posix::unique_name();
  const auto text = to_hex(TRY(random_token())) + "\n";
  const Descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.is_open()) return tl::unexpected(trouble("make", path, errno));
  const bool is_written =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file.get()) == 0;
  const int failed = is_written && (::link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST) ? 0 : errno;
  ::unlink(draft.c_str());
  if (failed != 0) return tl::unexpected(trouble("make", path, failed));
  return {};
}

}  // namespace

Result<JobToken> token_from_file(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (int i = 0; i < kTries && !file.is_open() && errno == ENOENT; ++i) {
    if (i > 0) std::this_thread::sleep_for(kBetweenTries);
    TRY(make(path));
    file = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0)
    return tl::unexpected(trouble("open", path, errno));
  if (!S_ISREG(status.st_mode) || (status.st_mode & 077) != 0 || status.st_uid != ::geteuid())
    return core::fail(
        Errc::invalid_argument,
        "{}: {} holds a secret: it must be a file of user {}, whom alone it lets in (chmod 600)", kName, path,
        ::geteuid());
  std::array<char, 80> text{};
  const auto count = ::read(file.get(), text.data(), text.size());
  std::string_view digits(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  if (digits.ends_with('\n')) digits.remove_suffix(1);
  auto token = token_from_hex(digits);
  if (!token) return core::fail(token.error().code, "{}: {}: {}", kName, path, token.error().message);
  return token;
}

}  // namespace troupe::actors
