#include "apps/troupe/launch/nodes/secret.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <vector>

#include "actors/world/variables.hpp"
#include "core/errors.hpp"
#include "posix/descriptor.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using actors::JobToken;
using core::Errc;
using core::Result;
using posix::Descriptor;

namespace {

constexpr const char* kShared = "/dev/shm";

constexpr const char* kPrefix = "troupe-rendezvous-";

std::string suffix_of(int port) {
  return fmt::format(".{}", port);
}

/// Nothing if there is no such file.
Result<std::optional<JobToken>> read_secret(const fs::path& path, const std::string& flag) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open() && errno == ENOENT) return std::nullopt;
  if (!file.is_open()) {
    return core::fail(Errc::io, "{}: cannot read {}: {}", flag, path.string(), std::strerror(errno));
  }
  struct stat found {};
  if (::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) {
    return core::fail(Errc::invalid_argument, "{}: {} is not a file", flag, path.string());
  }
  if (found.st_uid != ::geteuid() || (found.st_mode & 077) != 0) {
    return core::fail(Errc::invalid_argument,
                      "{}: {} holds a secret, but {}; make it your own and run: chmod 600 {}", flag,
                      path.string(), found.st_uid != ::geteuid() ? "is another user's" : "others may read it",
                      path.string());
  }
  std::array<char, 256> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  std::string_view digits(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!digits.empty() && std::isspace(static_cast<unsigned char>(digits.back()))) digits.remove_suffix(1);
  auto token = actors::token_from_hex(digits);
  if (token) return std::optional(*token);
  return core::fail(Errc::invalid_argument,
                    "{}: {} is to hold 64 hexadecimal digits, and holds {} characters; make it with: (umask "
                    "077; openssl rand -hex 32 > {})",
                    flag, path.string(), digits.size(), path.string());
}

/// Under another name first, so that nobody reads half of it. `replaces`: also if there is one already.
Result<void> write_secret(const fs::path& path, const JobToken& secret, bool replaces) {
  const std::string draft = path.string() + "." + posix::unique_name();
  const std::string text = actors::to_hex(secret) + "\n";
  const Descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  bool is_done =
      file.is_open() && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (is_done && replaces) is_done = ::rename(draft.c_str(), path.c_str()) == 0;
  if (is_done && !replaces) is_done = ::link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int reason = errno;
  ::unlink(draft.c_str());
  if (is_done) return {};
  return core::fail(Errc::io, "cannot write {}: {}; name another file by --token-file", path.string(),
                    std::strerror(reason));
}

fs::path file_at_home(const actors::Variables& variables) {
  const auto home = variables("HOME").value_or("");
  return home.empty() ? fs::path() : fs::path(home) / ".troupe" / "token";
}

Result<std::optional<JobToken>> find_at_home(const SecretSource& source, const actors::Variables& variables) {
  const fs::path path = file_at_home(variables);
  if (path.empty()) {
    return core::fail(Errc::invalid_argument,
                      "launchers of several hosts need a secret that they share: HOME is not set, so name a "
                      "file by --token-file, or set TROUPE_JOB_TOKEN");
  }
  auto found = TRY(read_secret(path, "the launchers' secret"));
  if (found || !source.makes_missing) return found;
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  ::chmod(path.parent_path().c_str(), 0700);
  TRY(write_secret(path, TRY(actors::random_token()), false));
  return read_secret(path, "the launchers' secret");
}

/// The one that the launcher of node 0 has made for its job.
Result<std::optional<JobToken>> find_on_this_host(int port) {
  std::error_code error;
  for (fs::directory_iterator entry(kShared, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(kPrefix) || !name.ends_with(suffix_of(port))) continue;
    // What is another user's is not for us.
    const auto found = read_secret(entry->path(), "the launchers' secret");
    if (found && *found) return *found;
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<JobToken>> find_secret(const SecretSource& source, const actors::Variables& variables) {
  if (!source.token_file.empty()) {
    auto found = TRY(read_secret(source.token_file, "--token-file"));
    if (found) return found;
    return core::fail(
        Errc::invalid_argument,
        "--token-file: there is no {}; make it, the same on all nodes, with: (umask 077; openssl "
        "rand -hex 32 > {})",
        source.token_file, source.token_file);
  }
  if (actors::has_value(variables, "TROUPE_JOB_TOKEN")) {
    auto token = actors::token_from_hex(*variables("TROUPE_JOB_TOKEN"));
    if (!token) return core::fail(token.error().code, "TROUPE_JOB_TOKEN: {}", token.error().message);
    return std::optional(*token);
  }
  if (!source.is_loopback) return find_at_home(source, variables);
  if (source.makes_missing) return std::optional(TRY(actors::random_token()));
  return find_on_this_host(source.port);
}

std::string name_of_secret(const SecretSource& source, const actors::Variables& variables) {
  if (!source.token_file.empty()) return source.token_file;
  if (actors::has_value(variables, "TROUPE_JOB_TOKEN")) return "TROUPE_JOB_TOKEN";
  if (!source.is_loopback) return file_at_home(variables).string();
  return fmt::format("{}/{}JOB{}", kShared, kPrefix, suffix_of(source.port));
}

Result<void> publish_secret(const JobToken& secret, const std::string& launcher, int port) {
  TRY(write_secret(published_secret(launcher, port), secret, true));
  // The launcher that listens there now is this one.
  std::error_code error;
  for (fs::directory_iterator entry(kShared, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    const bool is_of_port = name.starts_with(kPrefix) && name.ends_with(suffix_of(port));
    if (is_of_port && entry->path() != published_secret(launcher, port)) ::unlink(entry->path().c_str());
  }
  return {};
}

fs::path published_secret(const std::string& launcher, int port) {
  return fs::path(kShared) / (kPrefix + launcher + suffix_of(port));
}

JobToken token_of_job(const JobToken& secret, const std::string& job) {
  const std::string text = "the token of the job " + job;
  return actors::prove(secret, std::as_bytes(std::span(text)));
}

}  // namespace troupe::apps
