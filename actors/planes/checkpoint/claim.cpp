#include "actors/planes/checkpoint/claim.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

constexpr const char* kClaim = "epoch_of_job.txt";

/// "EPOCH JOB", where the rest of the line is the job. A file that is not a claim claims nothing.
Result<core::Epoch> claimed_epoch(Storage& storage, std::string_view job) {
  constexpr std::size_t kMostBytes = 4096;
  const auto bytes = storage.read(kClaim, 0, kMostBytes);
  if (!bytes && bytes.error().code == Errc::not_found) return core::Epoch{};
  if (!bytes) return tl::unexpected(bytes.error());
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  const auto blank = text.find(' ');
  if (blank == std::string_view::npos || text.substr(blank + 1) != fmt::format("{}\n", job))
    return core::Epoch{};
  const auto epoch = core::parse_number<std::uint64_t>(text.substr(0, blank),
                                                       {0, std::numeric_limits<std::uint64_t>::max()});
  return core::Epoch{epoch.value_or(0)};
}

}  // namespace

Result<void> check_claim(Storage& storage, const CheckpointWriterEpoch& writer) {
  const auto claimed = TRY(claimed_epoch(storage, writer.job));
  if (claimed <= writer.epoch) return {};
  return core::fail(
      Errc::stale_epoch,
      "epoch {} of this job saves here now, and what ranks of epoch {} have saved is dropped: the job "
      "went on without them",
      claimed.value, writer.epoch.value);
}

Result<void> claim_directory(Storage& storage, const CheckpointWriterEpoch& writer) {
  TRY(check_claim(storage, writer));
  const auto temporary = fmt::format("{}.tmp-{}", kClaim, writer.epoch.value);
  const auto text = fmt::format("{} {}\n", writer.epoch.value, writer.job);
  auto file = TRY(storage.create(temporary));
  TRY(file->append(std::as_bytes(std::span(text))));
  TRY(file->close());
  return storage.rename(temporary, kClaim);
}

}  // namespace troupe::actors
