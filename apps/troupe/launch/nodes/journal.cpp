#include "apps/troupe/launch/nodes/journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobRecord, job, secret, program, generation, restarts, ranks, spares,
                                   slots)

}  // namespace troupe::actors

namespace troupe::apps {

namespace fs = std::filesystem;
using core::Errc;
using core::Result;

namespace {

core::Error failure_of(const std::string& what, const fs::path& file) {
  return {Errc::io, fmt::format("--journal: cannot {} {}: {}", what, file.string(), std::strerror(errno))};
}

Result<std::optional<JobRecord>> read_record(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    if (errno == ENOENT) return std::nullopt;
    return tl::unexpected(failure_of("read", file));
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  try {
    return nlohmann::json::parse(text).get<JobRecord>();
  } catch (const nlohmann::json::exception&) {
    return core::fail(
        Errc::corrupt,
        "--journal: {} holds no job, but {}; name another file, or remove this one to begin anew",
        file.string(), core::quoted_excerpt(text));
  }
}

}  // namespace

Result<Journal> Journal::open(const fs::path& file) {
  fs::path lock_file = file;
  lock_file += ".lock";
  posix::Descriptor lock(::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.is_open()) return tl::unexpected(failure_of("open", lock_file));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return tl::unexpected(failure_of("lock", lock_file));
    return core::fail(Errc::already_exists,
                      "--journal: another launcher has {}; the launcher of node 0 runs once at a time",
                      file.string());
  }
  Journal journal(file, std::move(lock));
  journal.before_ = TRY(read_record(file));
  return journal;
}

Result<void> Journal::write(const JobRecord& record) const {
  const std::string text = nlohmann::json(record).dump() + "\n";
  fs::path draft = file_;
  draft += ".new";
  const posix::Descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const auto written = file.is_open() ? ::write(file.get(), text.data(), text.size()) : -1;
  if (written != static_cast<ssize_t>(text.size()) || ::fsync(file.get()) != 0)
    return tl::unexpected(failure_of("write", draft));
  if (::rename(draft.c_str(), file_.c_str()) != 0) return tl::unexpected(failure_of("replace", file_));
  return {};
}

void Journal::remove() const {
  std::error_code ignored;
  fs::remove(file_, ignored);
}

}  // namespace troupe::apps
