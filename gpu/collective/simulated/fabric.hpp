#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/simulated/timeline.hpp"

namespace troupe::gpu {

class FabricGroup;
struct FabricModel;

struct FabricOptions {
  std::chrono::nanoseconds latency = std::chrono::microseconds(10);  ///< minimum duration of every operation
  double bytes_per_second = 10e9;                                    ///< of each member's link
  /// From the death of a rank to the error on its peers.
  std::chrono::nanoseconds detection_delay = std::chrono::milliseconds(2);
  /// Devices are full: a rank's operation begins when all operations that the rank posted before it have
  /// ended, on all groups and streams. Ranks that post in different orders wait for each other.
  bool in_launch_order = false;
};

/// The network of one simulated job: an operation runs when all members have arrived, takes latency + bytes /
/// bandwidth of virtual time, and moves real bytes. Usage is checked more strictly than by hardware: members
/// that disagree all end in Errc::mismatch, and the output of a failed operation is overwritten with garbage.
/// Everything happens in the timeline's thread.
///
/// create_group() returns immediately, since nothing may wait here; operations wait for members that join
/// later. The timeline must outlive the fabric, its groups and the streams that they use.
class SimulatedFabric {
 public:
  explicit SimulatedFabric(Timeline& timeline, FabricOptions options = {});
  ~SimulatedFabric();

  /// One for all ranks of the job, or one per rank: it makes no difference. The fabric must outlive it.
  std::unique_ptr<CollectiveBackend> backend();

  /// The process of `rank` is gone: its posted operations never complete, its peers see Errc::peer_lost after
  /// the detection delay. Affects the groups that exist now; a new process of the rank joins new ones.
  void kill(core::Rank rank);

  /// From now on, operations that `rank` posts in existing groups never arrive; all wait for their deadlines.
  void hang(core::Rank rank);

  /// Operations with this rank take `factor` times as long, until the factor is set to 1 again.
  void slow_down(core::Rank rank, double factor);

  /// The next operation with one of `ranks` ends in `error` on these ranks only, and succeeds on the others.
  void report_error(std::vector<core::Rank> ranks, core::Error error);

 private:
  friend class SimulatedBackend;
  core::Result<std::unique_ptr<Group>> join(GroupOptions options);
  void for_each_group_of(core::Rank rank, void (FabricGroup::*fault)(int));

  // Shared by the fabric and its groups, which tasks of a stream may keep alive longer.
  std::shared_ptr<FabricModel> model_;
  // A group lives as long as a member holds it.
  std::map<std::string, std::weak_ptr<FabricGroup>> groups_;
};

}  // namespace troupe::gpu
