#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/list.hpp"
#include "gpu/collective/simulated/fabric.hpp"

namespace troupe::gpu {

/// Operations of one rank on a full device: they take turns in posting order.
class LaunchQueue {
 public:
  std::uint64_t take() { return taken_++; }
  /// Runs `start` when all earlier turns have ended.
  void begin(std::uint64_t turn, std::function<void()> start);
  void end();

 private:
  std::uint64_t taken_ = 0;
  std::uint64_t over_ = 0;
  std::map<std::uint64_t, std::function<void()>> waiting_;
};

/// State shared by all groups of a fabric.
struct FabricModel {
  struct PlannedError {
    std::vector<core::Rank> ranks;
    core::Error error;
  };

  FabricModel(Timeline& time, FabricOptions costs) : timeline(time), options(costs) {}

  Timeline& timeline;
  FabricOptions options;
  std::map<core::Rank, double> slowdowns;
  std::vector<PlannedError> planned_errors;
  std::map<core::Rank, std::shared_ptr<LaunchQueue>> queues;  ///< if devices are full
};

/// Identifies operations that belong together: each member numbers a group's collectives as it posts them,
/// and also the messages from one member to another.
struct MeetingKey {
  int source = -1;  ///< -1 for collectives
  int destination = -1;
  std::uint64_t sequence = 0;

  friend auto operator<=>(const MeetingKey&, const MeetingKey&) = default;
};

/// One member's operation, which its stream has reached.
struct Arrival {
  std::shared_ptr<const Operation> operation;  ///< shared with the task on the member's stream; null: none
  std::shared_ptr<OperationStatus> status;
  Completion completion;
  std::chrono::nanoseconds give_up{};
};

/// Where a group's members meet.
class FabricGroup : public std::enable_shared_from_this<FabricGroup> {
 public:
  FabricGroup(std::shared_ptr<FabricModel> model, std::string name, std::vector<core::Rank> members);

  const std::string& name() const { return name_; }
  const std::vector<core::Rank>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  /// Null where a rank's operations do not wait for each other.
  std::shared_ptr<LaunchQueue> queue_of(int index) const;
  /// False if the member has already joined.
  bool join(int index);
  void arrive(const MeetingKey& key, int index, Arrival arrival);
  /// Ends everything that `index` waits for, and all it posts later, in `error`; the first call counts.
  void fail(int index, core::Error error);
  void kill(int index);
  void hang(int index);

 private:
  struct Member {
    bool joined = false;
    bool dead = false;
    bool hung = false;
    std::optional<core::Error> failure;
  };
  /// Those who take part come in ascending order of their indices.
  struct Meeting {
    std::vector<Arrival> arrivals;
    std::vector<bool> seen;  ///< has ever arrived, and may have given up since
    std::size_t present = 0;
    bool running = false;
  };
  using Meetings = std::map<MeetingKey, Meeting>;

  std::size_t participants(const MeetingKey& key) const { return key.source >= 0 ? 2 : members_.size(); }
  /// By their place among those who take part, and the other way round.
  static int index_at(const MeetingKey& key, std::size_t place);
  static std::optional<std::size_t> place_of(const MeetingKey& key, int index);
  core::Rank rank_of(int index) const { return ranks_[static_cast<std::size_t>(index)]; }
  static Arrival take(Meeting& meeting, std::size_t place);
  bool is_complete(const MeetingKey& key, const Meeting& meeting) const;
  /// The participants that prevent the meeting from running: absent, or hung.
  std::vector<int> missing(const MeetingKey& key, const Meeting& meeting) const;
  std::optional<std::string> disagreement(const MeetingKey& key, const Meeting& meeting) const;
  void run(const MeetingKey& key, Meeting& meeting);
  void complete(const MeetingKey& key);
  std::optional<FabricModel::PlannedError> take_planned_error(const MeetingKey& key);
  void finish(int index, Arrival arrival, core::Result<void> result);
  std::chrono::nanoseconds duration(const MeetingKey& key, const Operation& operation) const;
  void arm(std::chrono::nanoseconds give_up);
  void expire();
  core::Error timeout_of(const MeetingKey& key, const Meeting& meeting, const Operation& operation) const;

  std::shared_ptr<FabricModel> model_;
  std::string name_;
  std::vector<core::Rank> ranks_;
  core::List<int, Member> members_;
  bool has_hung_ = false;  ///< any member
  Meetings meetings_;
  std::optional<std::chrono::nanoseconds> armed_;  // when the earliest timer for deadlines fires
};

}  // namespace troupe::gpu
