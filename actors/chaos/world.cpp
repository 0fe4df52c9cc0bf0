#include "actors/chaos/world.hpp"

#include "actors/chaos/rank.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

void HostFiles::changed() {
  for (const auto& each : readers) {
    if (const auto reader = each.lock()) reader->look_soon();
  }
}

void ChaosDisk::set_full(bool full) {
  options_.write_failure = full ? 1 : 0;
  disk_.set_options(options_);
}

core::Result<void> ChaosDisk::call() {
  if (!dies_after) return {};
  if (*dies_after == 0) return core::fail(core::Errc::io, "the process that calls has died");
  --*dies_after;
  return {};
}

core::Result<std::unique_ptr<WritableFile>> ChaosDisk::create(std::string_view path) {
  TRY(call());
  return disk_.create(path);
}

core::Result<std::vector<std::byte>> ChaosDisk::read(std::string_view path, std::uint64_t offset,
                                                     std::size_t limit) {
  return disk_.read(path, offset, limit);
}

core::Result<void> ChaosDisk::make_directory(std::string_view path) {
  TRY(call());
  return disk_.make_directory(path);
}

core::Result<void> ChaosDisk::rename(std::string_view from, std::string_view to) {
  TRY(call());
  return disk_.rename(from, to);
}

core::Result<void> ChaosDisk::remove(std::string_view path) {
  TRY(call());
  return disk_.remove(path);
}

core::Result<void> ChaosDisk::sync_directory(std::string_view path) {
  TRY(call());
  return disk_.sync_directory(path);
}

ChaosWorld::ChaosWorld(const ChaosSchedule& of, PlantedBug bug, bool tells_all)
    : schedule(of),
      setup(of.setup),
      planted(bug),
      tells(tells_all),
      loop(of.seed),
      delays(of.seed, "chaos", "delays"),
      links(loop, of.seed, of.setup.nodes),
      monitor(of.setup, [this] { return loop.now(); }),
      disk(of.seed),
      is_down(static_cast<std::size_t>(of.setup.nodes)),
      is_still(static_cast<std::size_t>(of.setup.nodes)),
      was_hit(static_cast<std::size_t>(of.setup.nodes)) {}

std::string ChaosWorld::line(const std::string& what) const {
  return fmt::format("{:10.6f} s  {}", std::chrono::duration<double>(loop.now()).count(), what);
}

std::shared_ptr<EpochRoom> ChaosWorld::room_of(const NextEpoch& next) const {
  const auto found = rooms.find(next.control_port);
  return found == rooms.end() ? nullptr : found->second;
}

}  // namespace troupe::actors
