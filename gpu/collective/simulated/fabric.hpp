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
  std::chrono::nanoseconds latency = std::chrono::microseconds(10);  ///< every operation takes at least this
  double bytes_per_second = 10e9;                                    ///< of each member's link
  /// From the death of a rank to the error at its peers.
  std::chrono::nanoseconds detection_delay = std::chrono::milliseconds(2);
  /// Devices are full: a rank's operation begins when all that the rank posted before it are over, whatever
  /// their groups and streams. Ranks that post in different orders wait for each other.
  bool in_launch_order = false;
};

/// The network of one simulated job: an operation runs when all members have arrived, takes latency +
/// bytes / bandwidth of virtual time, and its bytes are real. Usage is checked harder than hardware checks
/// it: members that disagree all end in Errc::mismatch, and the output of a failed operation is overwritten
/// with rubbish. Everything happens in the timeline's thread.
///
/// create_group() returns at once, since nobody may wait here; operations wait for members that come later.
/// The timeline must outlive the fabric, its groups and the streams that they use.
class SimulatedFabric {
 public:
  explicit SimulatedFabric(Timeline& timeline, FabricOptions options = {});
  ~SimulatedFabric();

  /// One for all ranks of the job, or one for each: no difference. The fabric must outlive it.
  std::unique_ptr<CollectiveBackend> backend();

  /// The process of `rank` is gone: what it posted never completes, its peers see Errc::peer_lost after the
  /// detection delay. Concerns the groups that exist now; a new process of the rank joins new ones.
  void kill(core::Rank rank);

  /// From now on what `rank` posts in the groups that exist now never arrives; all wait for their deadlines.
  void hang(core::Rank rank);

  /// Operations with this rank take `factor` times as long, until it is set to 1 again.
  void slow_down(core::Rank rank, double factor);

  /// The next operation with one of `ranks` ends in `error` on these ranks only, and well on the others.
  void report_error(std::vector<core::Rank> ranks, core::Error error);

 private:
  friend class SimulatedBackend;
  core::Result<std::unique_ptr<Group>> join(GroupOptions options);
  void for_each_group_of(core::Rank rank, void (FabricGroup::*fault)(int));

  // Shared by the fabric and its groups, which a stream's tasks may keep longer.
  std::shared_ptr<FabricModel> model_;
  // A group lives as long as a member holds it.
  std::map<std::string, std::weak_ptr<FabricGroup>> groups_;
};

}  // namespace troupe::gpu
