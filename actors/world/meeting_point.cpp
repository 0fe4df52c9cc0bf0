#include "actors/world/meeting_point.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "actors/world/host_identity.hpp"
#include "actors/world/own_address.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "posix/descriptor.hpp"
#include "posix/entropy.hpp"

namespace troupe::actors {

namespace {

using core::Errc;
using core::Result;
using Steady = std::chrono::steady_clock;

/// A store answers at once; ranks of one host need it less than their time.
constexpr auto kPatienceOnOneHost = std::chrono::seconds(2);
constexpr auto kStorePatience = std::chrono::seconds(10);
/// After this long without a word from the store, ranks of one host also look at the file.
constexpr auto kStoreFirst = std::chrono::seconds(5);
constexpr int kPauseMilliseconds = 20;

/// Written under another name first, so that nobody reads half of it.
Result<void> write_file(const std::string& path, const std::string& text) {
  const std::string draft = path + "." + posix::unique_name();
  const posix::Descriptor file(
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const bool written = file.is_open() &&
                       ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::rename(draft.c_str(), path.c_str()) == 0;
  if (written) return {};
  const int reason = errno;
  ::unlink(draft.c_str());
  return core::fail(Errc::io, "cannot write {}: {}", path, std::strerror(reason));
}

/// Empty if there is none, or if it is another user's.
std::string read_file(const std::string& path) {
  const posix::Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat found {};
  if (!file.is_open() || ::fstat(file.get(), &found) != 0 || found.st_uid != ::geteuid()) return {};
  std::array<char, 512> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

}  // namespace

MeetingPoint::MeetingPoint(const JobEnvironment& environment, std::string agent_key, Logger log)
    : environment_(environment),
      agent_key_(std::move(agent_key)),
      log_(log),
      file_(fmt::format("/dev/shm/troupe-{}-{}-{:016x}.address", environment.job, environment.epoch.value,
                        host_identity().id)) {}

MeetingPoint::~MeetingPoint() {
  close();
}

void MeetingPoint::close() {
  if (std::exchange(file_is_written_, false)) ::unlink(file_.c_str());
}

Result<AgentStore*> MeetingPoint::store(Time deadline) {
  if (store_) return &*store_;
  auto connected = AgentStore::connect(environment_.control_host, environment_.control_port, deadline);
  if (!connected) return tl::unexpected(std::move(connected).error());
  store_.emplace(std::move(*connected));
  return &*store_;
}

Result<std::string> MeetingPoint::host_to_listen_at() {
  if (is_one_host()) {
    announced_host_ = is_loopback(environment_.control_host) ? environment_.control_host : "127.0.0.1";
    return announced_host_;
  }
  const AgentStore* const agent = TRY(store(Steady::now() + kStorePatience));
  // The others came to the agent by its name, and come to this rank by the same if it is on the agent's host.
  const bool is_with_agent = agent->own_address() == agent->address();
  announced_host_ = is_with_agent ? environment_.control_host : agent->own_address();
  return announced_host_;
}

Result<void> MeetingPoint::announce(std::uint16_t port) {
  const std::string text = to_string(Endpoint{announced_host_, port});
  if (is_one_host()) {
    TRY(write_file(file_, text));
    file_is_written_ = true;
  }
  const auto deadline =
      Steady::now() + (is_one_host() ? std::chrono::seconds(kPatienceOnOneHost) : kStorePatience);
  auto agent = store(deadline);
  auto told = agent ? (*agent)->set(agent_key_, text, deadline)
                    : Result<void>(tl::unexpected(std::move(agent).error()));
  if (told || !is_one_host()) return told;
  log_.warning("{}; the ranks of this host find each other without it", told.error().message);
  return {};
}

Result<Endpoint> MeetingPoint::find(std::chrono::nanoseconds patience) {
  const auto began = Steady::now();
  const auto give_up = began + patience;
  for (;;) {
    const auto now = Steady::now();
    std::string found;
    if (!store_is_useless_) {
      auto agent = store(is_one_host() ? std::min(now + kPatienceOnOneHost, give_up) : give_up);
      auto value = agent ? (*agent)->find_key(agent_key_, now + kStorePatience)
                         : Result<std::optional<std::string>>(tl::unexpected(std::move(agent).error()));
      if (!value) store_.reset();
      if (!value && !is_one_host()) return tl::unexpected(std::move(value).error());
      store_is_useless_ = !value;
      if (value) found = value->value_or("");
    }
    const bool looks_at_file = is_one_host() && (store_is_useless_ || now - began > kStoreFirst);
    if (found.empty() && looks_at_file) found = read_file(file_);
    if (!found.empty()) {
      auto endpoint = parse_endpoint(found);
      if (endpoint && endpoint->port.value_or(0) > 0) return endpoint;
      return core::fail(Errc::mismatch,
                        "expected where rank 0 listens under {} in the store of torchrun's "
                        "agent, found {}; run one build on all ranks",
                        agent_key_, core::quoted_excerpt(found));
    }
    if (now >= give_up)
      return core::fail(Errc::timeout,
                        "rank 0 has not said within {:.3g} s where it listens (key {} in the store of "
                        "torchrun's agent); see whether rank 0 has started",
                        std::chrono::duration<double>(patience).count(), agent_key_);
    ::poll(nullptr, 0, kPauseMilliseconds);
  }
}

}  // namespace troupe::actors
