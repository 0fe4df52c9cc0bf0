#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/chaos/world.hpp"
#include "actors/planes/checkpoint/claim.hpp"
#include "actors/world/exit_status.hpp"
#include "core/checkpoint/survivors.hpp"
#include "core/list.hpp"

namespace troupe::actors {

/// What a rank says to all others of its epoch at one place of its program.
struct ChaosWords {
  core::Epoch epoch{};
  std::vector<int> lanes;
  std::vector<ChaosState> gradients;  ///< of the lanes
  bool wishes_for_others = false;
  core::SurvivorReport report;
  std::vector<std::optional<std::uint64_t>> parts;  ///< of the state, by element
  std::string checkpoint;                           ///< that rank 0 has chosen, or empty
  bool is_well = true;                              ///< it was read
};

/// The ranks of one epoch, which meet at its rank 0.
class EpochRoom : public std::enable_shared_from_this<EpochRoom> {
 public:
  EpochRoom(ChaosWorld& world, NextEpoch next, std::vector<int> hosts)
      : world_(world), next_(std::move(next)), hosts_(std::move(hosts)), members_(next_.seats.size()) {}

  const NextEpoch& next() const { return next_; }
  int size() const { return static_cast<int>(next_.seats.size()); }
  int host_of(int rank) const { return hosts_[rank]; }
  std::shared_ptr<ChaosRank> member(int rank) const { return members_[rank].lock(); }
  void arrive(int rank, const std::shared_ptr<ChaosRank>& process);
  /// From one member to another, which hears it if it is still in this epoch.
  void tell(int from, int to, std::function<void(ChaosRank&)> what);
  void tell_others(int from, const std::function<void(ChaosRank&)>& what);

 private:
  void welcome_if_complete();

  ChaosWorld& world_;
  NextEpoch next_;
  core::List<int, int> hosts_;  ///< by rank
  core::List<int, std::weak_ptr<ChaosRank>> members_;
  std::set<int> joined_;  ///< as far as rank 0 knows
  bool is_welcome_ = false;
};

/// A process of a simulated job: it stands by, meets its peers, takes over what survivors have or loads a
/// checkpoint, trains, saves, and stays when a peer is lost.
///
/// The order of what it does, and with whom, is the engine's (actors/session, actors/shell/process_rank);
/// what it computes is a model with a few numbers, since the whole engine takes a hundred times as long and
/// is simulated by `troupe simulate` without --chaos. It uses the parts of the engine that decide about a
/// failure: which state to go on with (core/checkpoint/survivors), how a checkpoint is committed, found,
/// checked and removed (actors/planes/checkpoint).
class ChaosRank : public std::enable_shared_from_this<ChaosRank> {
 public:
  struct Start {
    int host = 0;
    int slot = 0;
    std::shared_ptr<HostFiles> files;
    std::optional<NextEpoch> first;  ///< none: a spare
    core::Epoch over{};              ///< a spare waits for a later one
    std::function<void(ExitStatus)> exited;
  };
  ChaosRank(ChaosWorld& world, int id, Start start);

  void begin();
  void signal(int signal);
  /// With its host, from one moment to the next.
  void vanish();
  /// At the end of the simulation.
  void take_apart();
  void hold(bool still);
  void look_soon();
  void set_slow(bool slow) { is_slow_ = slow; }

  bool is_alive() const { return state_ != State::ended; }
  bool is_stopped() const { return is_stopped_; }
  int rank() const { return rank_; }
  int id() const { return id_; }
  std::chrono::nanoseconds ended_at() const { return ended_at_; }
  int host() const { return start_.host; }
  int slot() const { return start_.slot; }
  /// Something was done to it, or to its host or its links, so it may be believed to be lost.
  bool was_hit = false;

  // What its peers say, and the end of what they can say.
  void welcome();
  void hear(int from, int place, const ChaosWords& words);
  void peer_closed(int from, bool has_finished);
  void peer_is_silent(int from);
  void reset_connections(int host);
  void asked_to_write(std::int64_t over, const std::string& directory);
  void peer_has_written(int from, std::int64_t over, bool well, const ChaosState& own);
  void save_is_over(std::int64_t over);

 private:
  friend class EpochRoom;
  enum class State : std::uint8_t { loading, standing_by, forming, training, leaving, waiting, ended };
  using Heard = std::function<void(std::vector<ChaosWords>)>;

  void act(std::function<void()> what);
  /// Not if it has left the epoch meanwhile.
  void later(std::chrono::nanoseconds delay, std::function<void()> what);
  void run_waiting();
  void set_saving(bool saving);
  void set_training(bool training);
  void set_deciding(bool deciding);
  void declare(Membership::State state);
  void look();
  void end(ExitStatus status);
  void leave_room(bool has_finished);

  // Epochs.
  void enter(const NextEpoch& next);
  void lose(const std::string& why);
  void session_is_over();

  // State.
  void say(ChaosWords words, Heard heard);
  void hear_all();
  void recover();
  void choose(const std::vector<ChaosWords>& reports);
  bool is_whole(const core::CommonStep& step, const std::vector<ChaosWords>& reports) const;
  void take_over(const core::CommonStep& step, const std::vector<ChaosWords>& parts);
  void restore();
  void load(const std::string& name);
  bool read(const std::string& name);
  void go_on(bool in_memory);

  // Steps.
  void step();
  void reduce(const std::vector<ChaosWords>& words);
  void decide(const std::vector<ChaosWords>& words);
  void at_boundary();
  std::vector<int> own_lanes() const;
  bool owns(std::size_t element, int rank, int world) const;

  // Saves.
  void save();
  void write(std::int64_t over, const std::string& directory);
  CheckpointWriterEpoch writer() const;
  std::string manifest_of_save() const;
  void commit(std::int64_t over);
  void finish_save(std::int64_t over);
  std::string newest_good() const;
  std::chrono::nanoseconds disk_time();

  ChaosWorld& world_;
  int id_;
  Start start_;
  State state_ = State::loading;
  std::chrono::nanoseconds ended_at_{};
  bool is_stopped_ = false;  ///< by a signal
  bool is_held_ = false;     ///< with its host
  bool must_end_ = false;    ///< SIGTERM came while it was stopped
  bool is_slow_ = false;
  bool is_saving_ = false;
  bool has_finished_ = false;
  bool is_deciding_ = false;
  bool is_training_ = false;
  std::deque<std::function<void()>> waiting_;  ///< for it to run
  std::uint64_t stops_ = 0;

  std::shared_ptr<EpochRoom> room_;
  std::uint64_t visits_ = 0;  ///< to rooms
  NextEpoch next_;
  int rank_ = -1;
  int world_before_ = 0;  ///< of the epoch before
  bool is_member_ = false;
  bool has_come_over_ = false;
  std::vector<int> watches_;
  std::set<int> finished_;  ///< peers that have said so

  int place_ = -1;  ///< in the program, where it waits for the others
  Heard heard_;
  std::map<int, std::map<int, ChaosWords>> words_;  ///< by place and rank

  // The state in memory, if its origin is not 0: see core::Survivor.
  std::uint64_t origin_ = 0;
  std::uint64_t layout_ = 0;
  std::int64_t over_ = 0;
  bool may_finish_next_ = false;
  bool knows_last_decision_ = false;
  ChaosState numbers_;
  std::uint64_t parts_ = 0;  ///< a bit for each element that it keeps
  ChaosState pending_;       ///< once the next step is reduced
  std::int64_t newest_ = -1;
  bool wishes_ = false;

  std::map<std::int64_t, ChaosState> snapshots_;  ///< by steps over
  std::set<std::int64_t> saves_over_;             ///< of this epoch
  std::map<std::int64_t, std::string> asked_;     ///< to write, before it has come as far
  struct Save {
    std::int64_t over = 0;
    std::string directory;
    std::map<int, ChaosState> written;  ///< by rank
  };
  std::optional<Save> save_;  ///< rank 0's
  std::function<void()> after_save_;
};

}  // namespace troupe::actors
