#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/chaos/links.hpp"
#include "actors/chaos/monitor.hpp"
#include "actors/chaos/planted.hpp"
#include "actors/chaos/schedule.hpp"
#include "actors/world/epochs.hpp"
#include "actors/world/random.hpp"
#include "actors/world/simulation/event_loop.hpp"
#include "actors/world/simulation/storage.hpp"

namespace troupe::actors {

class ChaosRank;
class EpochRoom;

/// What a launcher and the processes of its host tell each other: the files of actors/world/epochs.hpp.
struct HostFiles {
  std::optional<NextEpoch> next;
  std::optional<core::Epoch> wait_for_more;
  bool all_end = false;
  std::map<int, Membership> members;  ///< by slot
  std::int64_t committed = -1;
  std::vector<std::weak_ptr<ChaosRank>> readers;
  std::function<void()> written;  ///< a process has written

  /// The launcher has written: processes look, each as often as its state makes it.
  void changed();
};

/// The disk of checkpoints, as ranks see it.
class ChaosDisk final : public Storage {
 public:
  explicit ChaosDisk(std::uint64_t seed) : options_{.seed = seed, .name = "checkpoints"}, disk_(options_) {}

  SimulatedStorage& disk() { return disk_; }
  void set_full(bool full);
  bool is_slow = false;
  bool is_betraying = false;  ///< syncs do nothing
  /// After this many calls everybody who writes has died, as far as the disk can tell.
  std::optional<int> dies_after;

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override;
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override;
  core::Result<std::uint64_t> size(std::string_view path) override { return disk_.size(path); }
  core::Result<void> make_directory(std::string_view path) override;
  core::Result<std::vector<std::string>> list(std::string_view path) override { return disk_.list(path); }
  core::Result<void> rename(std::string_view from, std::string_view to) override;
  core::Result<void> remove(std::string_view path) override;
  core::Result<void> sync_directory(std::string_view path) override;

 private:
  core::Result<void> call();

  SimulatedStorageOptions options_;
  SimulatedStorage disk_;
};

/// What all parts of a simulated job share.
struct ChaosWorld {
  ChaosWorld(const ChaosSchedule& of, PlantedBug bug, bool tells_all);

  /// For people, with the time.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (tells) log.push_back(line(fmt::format(format, std::forward<Args>(args)...)));
  }
  std::string line(const std::string& what) const;

  bool has(PlantedBug bug) const { return planted == bug; }
  std::chrono::nanoseconds up_to(std::chrono::nanoseconds most) { return delays.up_to(most); }
  /// The room of an epoch, which launchers name by the port at which rank 0 listens.
  std::shared_ptr<EpochRoom> room_of(const NextEpoch& next) const;

  const ChaosSchedule& schedule;
  const ChaosSetup& setup;
  PlantedBug planted;
  bool tells;
  std::vector<std::string> log;
  EventLoop loop;
  RandomStream delays;
  HostLinks links;
  ChaosMonitor monitor;
  ChaosDisk disk;
  std::map<std::uint16_t, std::shared_ptr<EpochRoom>> rooms;
  std::vector<std::shared_ptr<ChaosRank>> processes;  ///< all that were ever started
  std::uint64_t next_save = 1;
  std::optional<int> dies_in_commit;  ///< rank 0, in the next one, after this many calls
  bool keeps_processes = false;       ///< the launcher of node 0 has said so
  std::vector<bool> is_down;          ///< by host
  std::vector<bool> is_still;         ///< by host: stopped
  std::vector<bool> was_hit;          ///< by host: it, or one of its links
};

}  // namespace troupe::actors
