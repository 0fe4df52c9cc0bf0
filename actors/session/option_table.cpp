#include "actors/session/option_table.hpp"

#include <chrono>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "gpu/collective/open.hpp"
#include "gpu/devices.hpp"

namespace troupe::actors {

namespace {

using core::choice;
using core::flag;
using core::number;
using core::OptionValue;
using core::Result;
using core::text;

constexpr int kMostRanks = 1 << 20;

OptionValue mebibytes(std::uint64_t& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    target = TRY(core::parse_number<std::uint64_t>(value, {1, std::uint64_t{1} << 30})) << 20;
    return {};
  }};
}

OptionValue seconds(std::chrono::nanoseconds& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    const std::chrono::duration<double> time(TRY(core::parse_number<double>(value, {0.001, 1e6})));
    target = std::chrono::duration_cast<std::chrono::nanoseconds>(time);
    return {};
  }};
}

/// With commas between them.
OptionValue units(std::vector<core::UnitIndex>& target) {
  return {.set = [&target](std::string_view value) -> Result<void> {
    std::vector<core::UnitIndex> read;
    for (bool more = true; more;) {
      const auto comma = value.find(',');
      more = comma != std::string_view::npos;
      read.push_back({TRY(core::parse_number<std::uint32_t>(value.substr(0, comma), {0, 1 << 20}))});
      if (more) value.remove_prefix(comma + 1);
    }
    target = std::move(read);
    return {};
  }};
}

Result<void> is_given(std::string_view value) {
  if (!value.empty()) return {};
  return core::fail(core::Errc::invalid_argument, "expected a directory, found an empty text");
}

std::vector<core::CommonOption> of_ranks(ProcessWorldOptions& world, SessionOptions& session) {
  return {
      {"forward-order", "Order in which forward uses units, as in 2,0,1; by default ascending",
       units(session.order.forward)},
      {"backward-order", "Order in which backward uses units; by default the reverse of forward",
       units(session.order.backward)},
      {"device", "host, cuda (the GPU with the rank's local number) or cuda:<index>",
       text(world.device, gpu::check_device_name)},
      {"collectives", "Back-end: automatic, shared_memory, tcp or nccl",
       text(world.collectives, gpu::check_collectives)},
      {"register-memory",
       "With nccl, register gradients and parameters, so that NCCL moves them without copies where it can",
       flag(world.register_memory)},
      {"first-values",
       "Values of parameters before the first step, where several ranks keep the same: compare (they must be "
       "equal) or broadcast (those of the first)",
       choice(session.first_values,
              {{"compare", FirstValues::compare}, {"broadcast", FirstValues::broadcast}})},
      {"compare-replicas-every",
       "Steps between comparisons of the parameters that several ranks keep, which are made before saves "
       "too: a rank that computes wrongly is found, and its results are not saved; 0: none",
       number(session.compare_replicas_every, {0, 1 << 30})},
      {"join-seconds", "Seconds after which a job that has not formed ends", seconds(session.join_deadline)},
      {"step-seconds", "Seconds after which a collective counts as hung", seconds(session.step_deadline)},
  };
}

std::vector<core::CommonOption> of_recovery(ProcessWorldOptions& world, SessionOptions& session) {
  auto& checkpoint = session.checkpoint;
  auto& local = session.local;
  using core::LoadMode;
  using core::WhenBusy;
  return {
      {"checkpoints", "Directory of checkpoints; without it nothing can be saved",
       text(world.checkpoint_directory, is_given)},
      {"keep-last", "Number of newest checkpoints to keep; 0: all",
       number(checkpoint.retention.keep_last, {0, 1 << 30})},
      {"keep-every", "Also keep checkpoints whose step is a multiple of this; 0: none",
       number(checkpoint.retention.keep_every, {0, std::int64_t{1} << 50})},
      {"staging-mebibytes", "MiB of staging memory for saves", mebibytes(checkpoint.staging_bytes)},
      {"when-busy", "A save that begins before another has ended: queue or refuse",
       choice(checkpoint.when_busy, {{"queue", WhenBusy::queue}, {"refuse", WhenBusy::refuse}})},
      {"load", "How ranks that need the same bytes get them: automatic, read or exchange",
       choice(
           checkpoint.load.mode,
           {{"automatic", LoadMode::automatic}, {"read", LoadMode::read}, {"exchange", LoadMode::exchange}})},
      {"local-checkpoints", "Directory on this rank's node for local saves; {rank} stands for the rank",
       text(world.local_checkpoint_directory, is_given)},
      {"replication-factor", "Ranks that keep copies of each other's local saves",
       number(local.factor, {1, kMostRanks})},
      {"replication-jump", "Distance in ranks between those, for instance the number of ranks per node",
       number(local.jump, {1, kMostRanks})},
      {"local-keep", "Number of newest local saves to keep", number(local.keep, {1, kMostRanks})},
      {"stays", "This process stays when another rank is lost, and calls troupe_session_join_again()",
       flag(world.stays)},
  };
}

}  // namespace

std::vector<core::CommonOption> common_options(ProcessWorldOptions& world, SessionOptions& session) {
  auto all = common_options(session.training);
  for (auto& more : {of_ranks(world, session), of_recovery(world, session)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace troupe::actors
